"""The health of a cluster: which brokers answer, and which partitions lack a leader or replicas.

Zone: real. Works as long as one address answers: what needs the controller or another broker is left out if it fails.
The JSON document here is an interface: docs/cli.md describes it, fields are only ever added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ottla.cli.views.cluster_views import all_partitions, is_unavailable, is_under_min_isr, min_isr_of
from ottla.cli.views.output import Json
from ottla.client import Admin, ClientError, Cluster, PartitionView, TopicView
from ottla.client.connections.broker_probes import BrokerProbe, ClusterProbe, probe_brokers, reachable_config
from ottla.client.settings import ClientConfig
from ottla.types import TopicPartition

ERROR: Final = "error"
WARNING: Final = "warning"
"""Does not make a cluster unhealthy."""
_CONTROLLER_MS: Final = 5_000

NO_ANSWER_STEP: Final = "Check the port, and the log of the broker: it has the reason for which connections are closed"
"""For an address whose error has no next step of its own."""
_NEXT_STEPS: Final = {
    "no_controller": "Look at the brokers' logs for the election; without a controller no leader is elected",
    "dead_broker": "Start the broker, or look at its log",
    "offline": "Start the brokers of its replicas; ottla leader elect --type unclean may lose records",
    "under_min_isr": "Producers with acks=all are refused: start the brokers that are missing",
    "under_replicated": "Start the brokers that are missing, or wait until they have caught up",
    "not_preferred": "ottla leader elect --all, or wait for leader.imbalance.check.interval.seconds",
}


class Problem(NamedTuple):
    """One thing that is not as it should be."""

    kind: str
    """A key of `_NEXT_STEPS`, or no_answer, dead_bootstrap."""
    subject: str
    """A broker, an address, or a partition."""
    message: str
    next_step: str
    severity: str = ERROR


class Health(NamedTuple):
    """Everything that `ottla cluster health` shows."""

    probe: ClusterProbe
    topics: int | None
    """None: no broker answered."""
    partitions: int | None
    problems: tuple[Problem, ...]

    @property
    def healthy(self) -> bool:
        """Whether there are no errors; warnings do not count."""
        return not any(problem.severity == ERROR for problem in self.problems)


def health_document(health: Health) -> dict[str, Json]:
    """The JSON form."""
    view = health.probe.view
    return {
        "healthy": health.healthy,
        "cluster_id": view.cluster_id,
        "controller": view.controller_id if view.controller_id >= 0 else None,
        "bootstrap": [_address_document(each) for each in health.probe.bootstrap],
        "brokers": [{"id": each.node_id, **_address_document(each)} for each in health.probe.brokers],
        "topics": health.topics,
        "partitions": health.partitions,
        "problems": [each._asdict() for each in health.problems],
    }


def _address_document(probe: BrokerProbe) -> dict[str, Json]:
    return {
        "address": str(probe.address),
        "reachable": probe.error is None,
        "error": None if probe.error is None else str(probe.error),
        "took_ms": round(probe.took_ms, 1),
    }


def read_health(config: ClientConfig) -> Health:
    """Probe the brokers, and look at all partitions. Raises ConfigError for addresses that are none."""
    probe = probe_brokers(config)
    # Without an address there is nothing to ask; the probes say why.
    if not probe.answering:
        return Health(probe, None, None, tuple(_unanswered(probe)))
    with Cluster(reachable_config(config, probe)) as cluster:
        try:
            topics = Admin(cluster).list_topics(internal=True)
            found = list(_partition_problems(cluster, probe, topics))
        except ClientError as error:
            # Brokers that answered the probe may still refuse this client, or have no leader for the request.
            unread = Problem("no_answer", "topics", str(error), error.next_step or NO_ANSWER_STEP)
            return Health(probe, None, None, (*_broker_problems(probe, ()), unread))
    partitions = [part for _, part in all_partitions(topics)]
    return Health(probe, len(topics), len(partitions), (*_broker_problems(probe, partitions), *found))


def _unanswered(probe: ClusterProbe) -> Iterator[Problem]:
    for each in probe.bootstrap:
        if each.error is not None:
            yield Problem("no_answer", str(each.address), each.error.cause, each.error.next_step or NO_ANSWER_STEP)


def _broker_problems(probe: ClusterProbe, partitions: Sequence[PartitionView]) -> Iterator[Problem]:
    """Brokers that do not answer or have left, bootstrap addresses that lead to none, and the controller."""
    nodes = probe.view.nodes
    if probe.view.controller_id not in nodes:
        yield _problem("no_controller", "cluster", "no broker is controller")
    for each in probe.brokers:
        if each.error is not None:
            role = "the controller, " if each.node_id == probe.view.controller_id else ""
            text = f"{role}does not answer: {each.error.cause}"
            yield Problem("dead_broker", f"broker {each.node_id}", text, each.error.next_step or NO_ANSWER_STEP)
    # A broker that has left the cluster is not in its metadata, but in the assignments of its replicas.
    for node in sorted({node for part in partitions for node in part.replicas} - set(nodes)):
        held = sum(node in part.replicas for part in partitions)
        yield _problem("dead_broker", f"broker {node}", f"not in the cluster, and has {held} replicas")
    for each in probe.bootstrap:
        if each.error is not None and each.node_id is None:
            yield Problem("dead_bootstrap", str(each.address), each.error.cause, each.error.next_step or NO_ANSWER_STEP)


def _partition_problems(cluster: Cluster, probe: ClusterProbe, topics: Sequence[TopicView]) -> Iterator[Problem]:
    """One problem for each partition, the worst that it has; a warning if only its leader is not the preferred one."""
    # Settings are read only of topics that lack a replica: of a healthy cluster of any size none.
    behind = [name for name, part in all_partitions(topics) if len(part.isr) < len(part.replicas)]
    min_isr = min_isr_of(Admin(cluster), list(dict.fromkeys(behind)))
    adding = _added_replicas(cluster, probe) if behind else {}
    for name, part in all_partitions(topics):
        tp = TopicPartition(name, part.partition)
        kind = _worst_state(part, min_isr.get(name, 1), adding.get(tp, frozenset()))
        if kind is not None:
            text = f"{_LABELS[kind]}: leader {part.leader}, replicas {_listed(part.replicas)}, ISR {_listed(part.isr)}"
            yield _problem(kind, str(tp), text, WARNING if kind == "not_preferred" else ERROR)


_LABELS: Final = {
    "offline": "no leader",
    "under_min_isr": "under min ISR",
    "under_replicated": "under-replicated",
    "not_preferred": "led by another than its preferred replica",
}


def _worst_state(part: PartitionView, min_isr: int, adding: frozenset[int]) -> str | None:
    if is_unavailable(part):
        return "offline"
    if is_under_min_isr(part, min_isr):
        return "under_min_isr"
    # Replicas that a reassignment adds are not in sync yet, which is no fault.
    if any(node not in part.isr and node not in adding for node in part.replicas):
        return "under_replicated"
    return "not_preferred" if part.replicas and part.leader != part.replicas[0] else None


def _added_replicas(cluster: Cluster, probe: ClusterProbe) -> Mapping[TopicPartition, frozenset[int]]:
    """The replicas that reassignments add; without the controller, which knows them, none."""
    alive = {each.node_id for each in probe.brokers if each.error is None}
    if probe.view.controller_id not in alive:
        return {}
    try:
        moves = Admin(cluster).list_partition_reassignments(deadline=cluster.deadline().within_ms(_CONTROLLER_MS))
    except ClientError:
        return {}
    return {tp: frozenset(move.adding) for tp, move in moves.items()}


def _problem(kind: str, subject: str, message: str, severity: str = ERROR) -> Problem:
    return Problem(kind, subject, message, _NEXT_STEPS[kind], severity)


def _listed(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes)) or "none"
