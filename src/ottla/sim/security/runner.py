"""One run of a cluster with an authorizer and logins.

Zone: deterministic. The phases are those of a cluster's run. All clients log in, on a listener of their own; sessions
have a lifetime. Restricted clients need ACLs, which an administrator changes all the while.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from ottla.seams import World
from ottla.sim.cluster.history import ClusterHistory
from ottla.sim.cluster.node import ClusterNode
from ottla.sim.cluster.runner import (
    FAULTS_MIN,
    SECONDS_MIN,
    ClusterOptions,
    ClusterResult,
    ClusterRun,
    cluster_properties,
)
from ottla.sim.cluster.workload import ClusterWorkload
from ottla.sim.machines.machine import Process
from ottla.sim.networks.node_network import BROKERS, NodeNetwork
from ottla.sim.security.checkers import count_verdicts, find_violations
from ottla.sim.security.history import SecurityHistory
from ottla.sim.security.logins import ROOT, password_of
from ottla.sim.security.notified import Watch
from ottla.sim.security.rules import Verdict
from ottla.sim.security.workload import USERS, SecurityNemesis, SecurityWorkload
from ottla.sim.world import SECOND
from ottla.types import Endpoint

CLIENTS: Final = "CLIENTS"
"""The listener of clients."""
JUDGED_MIN: Final = 100
"""Answers that had to be refused, and as many that had to be given."""
CHANGES_MIN: Final = 40
EXPIRED_MIN: Final = 5
"""Requests after the end of their session; minimums of a seed that counts."""


@dataclass(frozen=True, slots=True)
class SecurityOptions(ClusterOptions):
    """Settings of a run, in addition to its seed."""

    def run_seed(self, seed: int) -> ClusterResult:
        """Run a seed to its verdict."""
        return SecurityRun(seed, self).run_phases()


@dataclass(slots=True)
class SecurityResult(ClusterResult):
    """Size and findings of a run."""

    allowed: int = 0
    """Answers to requests that all rules in force allowed."""
    denied: int = 0
    """Answers to requests that all rules in force denied."""
    doubtful: int = 0
    """Answers to requests during a change of what they need."""
    acl_changes: int = 0
    """Rules that were added and removed, acknowledged."""
    logins: int = 0
    renewed: int = 0
    """Re-authentications."""
    expired: int = 0
    """Requests after the end of their session that were not answered."""

    @property
    def unmet_minimums(self) -> list[str]:
        """The minimums that the seed did not reach; empty when it counts."""
        reached = (
            (self.simulated_ns // SECOND, SECONDS_MIN // SECOND, "simulated seconds"),
            (self.allowed, JUDGED_MIN, "allowed requests"),
            (self.denied, JUDGED_MIN, "denied requests"),
            (self.acl_changes, CHANGES_MIN, "changes of ACLs"),
            (self.expired, EXPIRED_MIN, "requests after the end of a session"),
            (sum(self.faults.values()), FAULTS_MIN, "faults"),
        )
        return [f"{value} {what}" for value, least, what in reached if value < least]


class SecurityNode(ClusterNode):
    """A broker with two listeners."""

    def _make_world(self, process: Process, shell: NodeNetwork) -> World:
        shell.client_listener = CLIENTS
        return super()._make_world(process, shell)

    def _endpoints(self) -> list[Endpoint]:
        return [*super()._endpoints(), Endpoint(CLIENTS, f"node{self.number}", 9093)]


def _security_properties(users: Iterable[str], reauth_ms: int) -> dict[str, str]:
    """The settings of such a broker. Brokers are known by their listener, whose connections are those of a super user.

    reauth_ms: the lifetime of a session.
    """
    logins = " ".join(f'user_{user}="{password_of(user)}"' for user in users)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "listeners": f"{BROKERS}://localhost:9092,{CLIENTS}://localhost:9093",
        "listener.security.protocol.map": f"{BROKERS}:PLAINTEXT,{CLIENTS}:SASL_PLAINTEXT",
        "inter.broker.listener.name": BROKERS,
        "sasl.enabled.mechanisms": "PLAIN",
        f"listener.name.{CLIENTS.lower()}.plain.sasl.jaas.config": f"{module} required {logins};",
        "connections.max.reauth.ms": str(reauth_ms),
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{ROOT}",
    }


class SecurityRun(ClusterRun):
    """The world of one seed."""

    scope: ClassVar[str] = "security/"
    sizes: ClassVar[Sequence[int]] = (3, 3, 3, 4)
    nemesis_kind = SecurityNemesis
    node_kind = SecurityNode
    workload: SecurityWorkload
    history: SecurityHistory

    def _make_history(self) -> ClusterHistory:
        return SecurityHistory()

    def _broker_properties(self) -> dict[str, str]:
        random = self.streams.named_stream("logins")
        properties = cluster_properties(self.streams, self.replication)
        for topic in ("offsets.topic", "transaction.state.log"):
            properties[f"{topic}.num.partitions"] = "2"
            properties[f"{topic}.replication.factor"] = str(self.replication)
        return {
            **properties,
            **_security_properties((ROOT, *USERS), random.choice((2500, 4000, 6000))),
            "request.timeout.ms": "2500",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        }

    def _make_workload(self) -> ClusterWorkload:
        streams = self.streams.scoped_streams("workload")
        workload = SecurityWorkload(
            self.network, streams, self.catalog, self.history, self.numbers, self.replication, self.flush
        )
        workload.make_restricted_clients()
        return workload

    def _run_phases(self) -> ClusterResult:
        Watch(self.timeline, self.ensemble, self.nodes, self.history.notified).start_looking()
        return super()._run_phases()

    def _await_convergence(self) -> None:
        """As for a cluster; then read what the requests of restricted clients have written."""
        super()._await_convergence()
        self._await_none_missing(self.workload.unanswered_clients, "not answered")
        self.workload.effects.start_reading()
        self._await_none_missing(lambda: list(self.workload.effects.unread), "effects of restricted clients not read")

    def _find_violations(self) -> list[tuple[str, str]]:
        return find_violations(self.history)

    def _make_result(self) -> ClusterResult:
        result, verdicts = super()._make_result(), count_verdicts(self.history)
        names = ClusterResult.__dataclass_fields__
        return SecurityResult(
            **{name: getattr(result, name) for name in names},
            allowed=verdicts[Verdict.ALLOWED],
            denied=verdicts[Verdict.DENIED],
            doubtful=verdicts[Verdict.DOUBTFUL],
            acl_changes=self.workload.administrator.acknowledged,
            logins=self.history.logins,
            renewed=self.history.renewed,
            expired=self.history.expired,
        )
