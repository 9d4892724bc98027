"""One run of a cluster: a world from a seed, faults and load in it (safety), then healing (liveness), then the verdict.

Zone: deterministic. The same seed and options give the same run, event by event.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from ottla.sim.cluster.checkers import find_violations
from ottla.sim.cluster.faults import WHOLE_LOSS
from ottla.sim.cluster.history import ClusterHistory
from ottla.sim.cluster.inspection import Inspector
from ottla.sim.cluster.ledger import Ledger
from ottla.sim.cluster.nemesis import Nemesis, Strike
from ottla.sim.cluster.node import ClusterNode
from ottla.sim.cluster.workload import RACKS, ClusterWorkload
from ottla.sim.entropy import Streams
from ottla.sim.machines.ensemble import Ensemble
from ottla.sim.mutants.ablation import without_safeguard
from ottla.sim.networks.network import Network
from ottla.sim.runner import CONVERGE_NS, SETTLE_NS, Result, compaction_counts
from ottla.sim.workload.catalog import Catalog, Topic
from ottla.sim.workload.workload import STEP_NS
from ottla.sim.world import MS, SECOND, Timeline

START_NS: Final = 10 * SECOND
"""Without faults a cluster of this size is ready in this time."""
SECONDS_MIN: Final = 60 * SECOND
ACKNOWLEDGED_MIN: Final = 1000
FAULTS_MIN: Final = 20
ELECTIONS_MIN: Final = 3
"""Minimums that a seed must reach to count."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Settings of a run, in addition to its seed."""

    seconds: int = 60
    """Length of the phase with faults, in simulated seconds."""
    without: str | None = None
    """Name of the safeguard that is switched off."""
    brokers: int = 0
    """Number of brokers; 0: the seed chooses 3 to 5."""
    strikes: tuple[int, ...] | None = None
    """Only these of the planned faults; None: all."""
    trace: Callable[[str], None] | None = None
    """Receives one line per noted event."""
    kinds: tuple[str, ...] = ()
    """Only these kinds of faults, with equal weights; empty: the seed chooses."""
    flush: bool = False
    """Acknowledged always means durable, and all brokers lose power at once several times."""

    def run_seed(self, seed: int) -> ClusterResult:
        """Run a seed to its verdict."""
        return ClusterRun(seed, self).run_phases()


@dataclass(slots=True)
class ClusterResult(Result):
    """Size and findings of a run."""

    elections: int = 0
    controllers: int = 0
    excused: int = 0
    """Logs that lost data with an excuse."""
    whole_losses: int = 0
    """How often all brokers lost power at once."""
    durable: int = 0
    """Records that were acknowledged in logs where that means durable."""
    strikes: list[Strike] = field(default_factory=list)
    """The strikes of the run."""

    @property
    def unmet_minimums(self) -> list[str]:
        """The minimums that the seed did not reach; empty when it counts."""
        reached = (
            (self.simulated_ns // SECOND, SECONDS_MIN // SECOND, "simulated seconds"),
            (self.acknowledged, ACKNOWLEDGED_MIN, "acknowledged records"),
            (sum(self.faults.values()), FAULTS_MIN, "faults"),
            (self.elections, ELECTIONS_MIN, "elections"),
        )
        return [f"{value} {what}" for value, least, what in reached if value < least]


class ClusterRun:
    """The world of one seed."""

    scope: ClassVar[str] = "cluster/"
    """Prefix of the names of the random streams."""
    sizes: ClassVar[Sequence[int]] = (3, 3, 3, 4, 5)
    """Numbers of brokers to choose from."""
    nemesis_kind: ClassVar[type[Nemesis]] = Nemesis
    node_kind: ClassVar[type[ClusterNode]] = ClusterNode

    def __init__(self, seed: int, options: ClusterOptions) -> None:
        self.seed = seed
        self.options = options
        self.streams = Streams(seed, self.scope)
        random = self.streams.named_stream("config")
        self.numbers = range(1, 1 + (options.brokers or random.choice(self.sizes)))
        self.replication = 3 if random.chance(0.85) else 2
        self.flush = random.chance(0.2) or options.flush
        """Whether acknowledged means durable in this run, so that all brokers may lose power at once."""
        self._session_ns = random.choice((1500, 2000, 3000)) * MS
        self.timeline = Timeline(options.trace)
        self.history = self._make_history()
        self.catalog = Catalog()
        self.network = Network(self.timeline, self.streams.named_stream("net"))
        self.ledger = self._make_ledger()
        random = self.streams.named_stream("store")
        self.ensemble = Ensemble(self.timeline, self.network, random, self.ledger.follow_changes)
        self.nodes = self._make_nodes()
        # The inspector looks at replicas in the same event in which a producer gets its acknowledgement.
        self.workload = self._make_workload()
        self.inspector = Inspector(self.nodes, self.ledger, self.catalog, self.history)
        for producer in self.workload.producers:
            producer.on_acknowledged = self.inspector.on_acknowledged
        self.nemesis = self._make_nemesis()
        self._end_ns = START_NS + options.seconds * SECOND
        planned = self.nemesis.plan_strikes(START_NS // 4, self._end_ns)
        if options.flush:
            planned += self.nemesis.plan_whole_losses(START_NS, self._end_ns, len(planned))
        self.strikes = [s for s in planned if options.strikes is None or s.number in options.strikes]

    def _make_history(self) -> ClusterHistory:
        return ClusterHistory()

    def _make_ledger(self) -> Ledger:
        return Ledger(self.history, self.timeline.trace_fact)

    def _broker_properties(self) -> dict[str, str]:
        return cluster_properties(self.streams, self.replication)

    def _make_nodes(self) -> list[ClusterNode]:
        properties = self._broker_properties()
        return [
            self.node_kind(
                number,
                self.timeline,
                self.streams,
                self.network,
                self.history,
                {**properties, "broker.rack": f"rack{number % RACKS}"},
                self.ensemble,
                self.ledger,
                self._session_ns,
            )
            for number in self.numbers
        ]

    def _make_workload(self) -> ClusterWorkload:
        streams = self.streams.scoped_streams("workload")
        return ClusterWorkload(
            self.network, streams, self.catalog, self.history, self.numbers, self.replication, self.flush
        )

    def _make_nemesis(self) -> Nemesis:
        admin, names = self.workload.admin, self.workload.names
        return self.nemesis_kind(
            self.nodes,
            self.network,
            self.ensemble,
            self.ledger,
            admin,
            names,
            self.streams,
            self.flush,
            self.options.kinds,
        )

    def run_phases(self) -> ClusterResult:
        """Safety phase, liveness phase, verdict."""
        with without_safeguard(self.options.without):
            return self._run_phases()

    def _run_phases(self) -> ClusterResult:
        for node in self.nodes:
            node.start_broker()
        self.workload.start_clients()
        self.nemesis.start_strikes(self.strikes)
        self.timeline.run_until(self._end_ns)
        self.inspector.compare_live()
        self._await_convergence()
        return self._make_result()

    def _run_until_holds(self, holds: Callable[[], bool], limit_ns: int) -> bool:
        return self.timeline.run_until_holds(holds, limit_ns, STEP_NS)

    # ---- liveness ----

    def _await_convergence(self) -> None:
        """Heal, then wait until the cluster has recovered and all work is done.

        1. All brokers, topics and replicas come back.
        2. Load continues for a while, and every producer gets acknowledgements again.
        3. Producers finish; new readers read every log to its end; all replicas become equal.
        """
        self.nemesis.heal_faults()
        self.workload.admin.allow_unclean_elections()
        self._await_none_missing(self._all_ready, "not ready")
        self._await_none_missing(self._topics_exist, "topics")
        self._await_none_missing(self._in_sync, "not in sync")
        before = {producer.name: producer.acknowledged for producer in self.workload.producers}
        self.timeline.run_until(self.timeline.now_ns + SETTLE_NS)
        self._await_none_missing(
            lambda: [p.name for p in self.workload.producers if p.acknowledged == before[p.name]],
            "nothing acknowledged",
        )
        self.workload.wind_down()
        self._await_none_missing(self.workload.unacknowledged_logs, "unacknowledged")
        self.timeline.run_until(self.timeline.now_ns + SECOND)
        self.workload.read_all()
        self._await_none_missing(self.workload.unread_logs, "unread")
        self.workload.note_final()
        self._run_until_holds(lambda: not self.inspector.unequal_logs(), CONVERGE_NS // 4)
        self.history.unequal.extend(self.inspector.unequal_logs())

    def _await_none_missing(self, missing: Callable[[], list[str]], what: str) -> None:
        """Wait until `missing` returns nothing; when the time is over, note what it returns."""
        if not self._run_until_holds(lambda: not missing(), CONVERGE_NS):
            self.history.stuck.extend(f"{what}: {one}" for one in missing())

    def _all_ready(self) -> list[str]:
        """Brokers that are down, not ready yet, or stopping."""
        late = [node for node in self.nodes if node.broker is None or not node.broker.ready or node.stopping]
        return [f"broker {node.number}" for node in late]

    def _topics_exist(self) -> list[str]:
        self.workload.admin.working = False
        return (
            [] if self.workload.admin.has_all_topics() else [f"{[topic.name for topic in self.catalog.topics]} exist"]
        )

    def _in_sync(self) -> list[str]:
        """Partitions that have no leader, or replicas out of sync, according to Metadata."""
        self.workload.watcher.mark_metadata_stale()
        view = self.workload.watcher.view
        found = []
        for topic in self._all_topics():
            for partition in range(topic.partitions):
                seen = view.get((topic.name, partition))
                if seen is None or seen.leader < 0 or sorted(seen.isr) != sorted(seen.replicas):
                    found.append(f"{topic.name}-{partition}: {seen and seen[1:]}")
        return found

    def _find_violations(self) -> list[tuple[str, str]]:
        return find_violations(self.history)

    def _all_topics(self) -> list[Topic]:
        return self.catalog.topics

    def _count_durable(self) -> int:
        history = self.history
        kept = (write for write in history.writes if write.log in history.flushed and history.is_promised(write))
        return sum(len(write.values) for write in kept)

    def _make_result(self) -> ClusterResult:
        for node in self.nodes:
            self.history.crashes.extend(f"broker {node.number}: {crash}" for crash in node.machine.crashes)
        return ClusterResult(
            self.seed,
            self.timeline.now_ns,
            self.timeline.events,
            self.workload.acknowledged,
            sum(len(read.records) for read in self.history.reads),
            sum(node.recoveries for node in self.nodes),
            dict(sorted(self.nemesis.fired.counts.items())),
            self._find_violations(),
            self.timeline.trace_hash,
            **compaction_counts(self.history),
            elections=self.ledger.elections,
            controllers=self.ledger.controllers,
            excused=len(self.history.excused),
            whole_losses=self.nemesis.fired.counts.get(WHOLE_LOSS, 0),
            durable=self._count_durable(),
            strikes=self.strikes,
        )


def cluster_properties(streams: Streams, replication: int) -> dict[str, str]:
    """The brokers' configuration, with timeouts of seconds in place of minutes.

    The cleaner is off, because the bytes of replicas are compared. Runs of `ottla.sim.compaction` switch it on.
    """
    random = streams.named_stream("config")
    return {
        "log.dirs": "disk-a,disk-b",
        "log.flush.scheduler.interval.ms": str(random.choice((100, 500, 1500))),
        "log.flush.offset.checkpoint.interval.ms": str(random.choice((300, 1000, 4000))),
        "log.flush.start.offset.checkpoint.interval.ms": str(random.choice((300, 1000, 4000))),
        "replica.high.watermark.checkpoint.interval.ms": str(random.choice((300, 1000, 5000))),
        "log.retention.check.interval.ms": "1000",
        "log.initial.task.delay.ms": "1000",
        "log.cleaner.enable": "false",
        "auto.create.topics.enable": "false",
        "replica.lag.time.max.ms": str(random.choice((1000, 2000, 4000))),
        "replica.fetch.wait.max.ms": str(random.choice((100, 500))),
        "replica.fetch.backoff.ms": "200",
        "replica.fetch.max.bytes": str(random.choice((2000, 50_000, 1_048_576))),
        "replica.socket.timeout.ms": "2000",
        "controller.socket.timeout.ms": str(random.choice((1000, 3000))),
        "controlled.shutdown.retry.backoff.ms": "300",
        "auto.leader.rebalance.enable": random.choice(("true", "false")),
        "leader.imbalance.check.interval.seconds": "5",
        "default.replication.factor": str(replication),
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }


def run_cluster(seed: int, options: ClusterOptions | None = None) -> ClusterResult:
    """Run one seed to its verdict."""
    return (options or ClusterOptions()).run_seed(seed)


def fault_kinds() -> tuple[str, ...]:
    """The kinds of faults that may be chosen. One of them exists only where acknowledged means durable."""
    worlds = (ClusterRun(seed, ClusterOptions(brokers=1, seconds=1)) for seed in itertools.count())
    return tuple(next(world for world in worlds if world.flush).nemesis.deeds)
