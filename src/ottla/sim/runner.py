"""One run of a single broker: a world from a seed, faults under load, healing, then the verdict.

Zone: deterministic. The same seed and options give the same run, event by event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ottla.sim.checkers import find_violations
from ottla.sim.entropy import Streams
from ottla.sim.faults import ACKNOWLEDGED_MIN, FAULTS_MIN, SECONDS_MIN, Nemesis
from ottla.sim.history import History
from ottla.sim.machines.node import SimNode
from ottla.sim.mutants.ablation import without_safeguard
from ottla.sim.networks.network import Network
from ottla.sim.workload.catalog import Catalog
from ottla.sim.workload.workload import STEP_NS, Workload
from ottla.sim.world import SECOND, Timeline

SETTLE_NS: Final = 4 * SECOND
"""How long load continues after everything was healed."""
CONVERGE_NS: Final = 40 * SECOND
"""How long producers and readers then have to finish."""


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a run, in addition to its seed."""

    seconds: int = 60
    """Length of the phase with faults, in simulated seconds."""
    without: str | None = None
    """Name of the safeguard that is switched off."""
    defects: bool = False
    """Whether exceptions are raised at random calls of the broker while it serves requests."""
    trace: Callable[[str], None] | None = None
    """Receives one line per noted event."""


@dataclass(slots=True)
class Result:
    """Size and findings of a run."""

    seed: int
    simulated_ns: int = 0
    events: int = 0
    acknowledged: int = 0
    """Records that were acknowledged."""
    read: int = 0
    """Records that all readers got."""
    recoveries: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    violations: list[tuple[str, str]] = field(default_factory=list)
    """(property, sentence)."""
    trace_hash: str = ""
    written: int = 0
    """Records of compacted topics that were acknowledged."""
    kept: int = 0
    """Records of compacted topics that are left; of several replicas, on the one with most."""
    keys: int = 0
    """Keys that were deleted."""
    processor_s: float = 0.0
    """Processor time of the run; it differs between equal runs."""

    @property
    def ok(self) -> bool:
        """Whether every property held."""
        return not self.violations

    @property
    def unmet_minimums(self) -> list[str]:
        """The minimums that the seed did not reach (time, load, faults); empty when it counts."""
        reasons = []
        if self.simulated_ns < SECONDS_MIN:
            reasons.append(f"{self.simulated_ns / SECOND:.0f} simulated seconds")
        if self.acknowledged < ACKNOWLEDGED_MIN:
            reasons.append(f"{self.acknowledged} acknowledged records")
        if sum(self.faults.values()) < FAULTS_MIN:
            reasons.append(f"{sum(self.faults.values())} faults")
        return reasons


class Run:
    """The world of one seed."""

    def __init__(self, seed: int, options: Options) -> None:
        self.seed = seed
        self.options = options
        streams = Streams(seed)
        self.timeline = Timeline(options.trace)
        self.history = History()
        self.catalog = Catalog()
        self.network = Network(self.timeline, streams.named_stream("net"))
        self.node = SimNode(0, self.timeline, streams, self.network, self.history, _broker_properties(streams))
        self.workload = Workload(self.network, streams.scoped_streams("workload"), self.catalog, self.history)
        self.nemesis = Nemesis(self.node, self.network, self.catalog, streams.named_stream("faults"), self.history)
        if options.defects:
            self.nemesis.raise_defects(streams.named_stream("defects"), streams.named_stream("callback defects"))

    def run_phases(self) -> Result:
        """Safety phase, liveness phase, verdict."""
        with without_safeguard(self.options.without):
            return self._run_phases()

    def _run_phases(self) -> Result:
        self.node.start_broker()
        self.workload.start_clients()
        self._run_until_holds(lambda: len(self.catalog.topics) > 1, 5 * SECOND)
        self.nemesis.start_strikes()
        self.timeline.run_until(self.options.seconds * SECOND)
        self._await_convergence()
        return self._make_result()

    def _run_until_holds(self, holds: Callable[[], bool], limit_ns: int) -> bool:
        return self.timeline.run_until_holds(holds, limit_ns, STEP_NS)

    def _await_convergence(self) -> None:
        """Heal, then wait until all work is done.

        1. The administrator finishes the topics that it was creating.
        2. Load continues for a while, and every producer gets acknowledgements again.
        3. Producers finish; new readers read every log to its end.
        """
        self.nemesis.heal_faults()
        before = {producer.name: producer.acknowledged for producer in self.workload.producers}
        self.workload.admin.working = False
        stuck = self.history.stuck
        if not self._run_until_holds(self.workload.admin.has_all_topics, CONVERGE_NS):
            stuck.append(f"topics: {[topic.name for topic in self.catalog.topics]} exist")
        self.timeline.run_until(self.timeline.now_ns + SETTLE_NS)
        self._run_until_holds(
            lambda: all(p.acknowledged > before[p.name] for p in self.workload.producers), CONVERGE_NS
        )
        stuck.extend(
            f"{producer.name} gets nothing acknowledged"
            for producer in self.workload.producers
            if producer.acknowledged == before[producer.name]
        )
        self.workload.wind_down()
        self._run_until_holds(lambda: not self.workload.unacknowledged_logs(), CONVERGE_NS)
        stuck.extend(f"unacknowledged: {what}" for what in self.workload.unacknowledged_logs())
        self.timeline.run_until(self.timeline.now_ns + SECOND)
        self.workload.read_all()
        self._run_until_holds(lambda: not self.workload.unread_logs(), CONVERGE_NS)
        stuck.extend(f"unread: {what}" for what in self.workload.unread_logs())
        self.workload.note_final()

    def _make_result(self) -> Result:
        self.history.crashes.extend(self.node.machine.crashes)
        return Result(
            self.seed,
            self.timeline.now_ns,
            self.timeline.events,
            self.workload.acknowledged,
            sum(len(read.records) for read in self.history.reads),
            self.node.recoveries,
            dict(sorted(self.nemesis.fired.counts.items())),
            find_violations(self.history),
            self.timeline.trace_hash,
            **compaction_counts(self.history),
        )


def compaction_counts(history: History) -> dict[str, int]:
    """The numbers of a result about compacted topics."""
    writes = [write for write in history.writes if write.log in history.compacted and history.is_promised(write)]
    most: dict[str, int] = {}
    for (log, _), count in history.kept.items():
        most[log] = max(most.get(log, 0), count)
    return {
        "written": sum(len(write.values) for write in writes),
        "kept": sum(most.values()),
        "keys": sum(text.endswith(b"=") for write in writes for text in write.values),
    }


def _broker_properties(streams: Streams) -> dict[str, str]:
    """The broker's configuration, with timeouts of seconds in place of minutes."""
    random, cleaners = streams.named_stream("config"), streams.named_stream("cleaners")
    return {
        "log.dirs": "disk-a,disk-b",
        "log.cleaner.backoff.ms": str(cleaners.choice((50, 200, 500))),
        "log.cleaner.threads": str(cleaners.between(1, 2)),
        "log.flush.scheduler.interval.ms": str(random.choice((100, 500, 1500))),
        "log.flush.offset.checkpoint.interval.ms": str(random.choice((300, 1000, 4000))),
        "log.flush.start.offset.checkpoint.interval.ms": str(random.choice((300, 1000, 4000))),
        "log.retention.check.interval.ms": "1000",
        "log.initial.task.delay.ms": "1000",
        "auto.create.topics.enable": "false",
    }


def run_broker(seed: int, options: Options | None = None) -> Result:
    """Run one seed to its verdict."""
    return Run(seed, options or Options()).run_phases()
