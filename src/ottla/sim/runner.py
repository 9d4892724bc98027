"""One run: a world from a seed, faults and load in it, then healing, then the verdict.

Zone: deterministic. The same seed and options give the same run, event by event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from ottla.broker.containment import ContainmentSafeguards
from ottla.broker.safeguards import BrokerSafeguards
from ottla.sim.checkers import violations
from ottla.sim.entropy import Streams
from ottla.sim.faults import ACKNOWLEDGED_MIN, FAULTS_MIN, SECONDS_MIN, Nemesis
from ottla.sim.history import History
from ottla.sim.machines.node import SimNode
from ottla.sim.networks.network import Network
from ottla.sim.workload.catalog import Catalog
from ottla.sim.workload.workload import STEP_NS, Workload
from ottla.sim.world import SECOND, Timeline
from ottla.storage.safeguards import Safeguards as StorageSafeguards

SETTLE_NS: Final = 4 * SECOND
"""Load goes on that long after everything was healed."""
CONVERGE_NS: Final = 40 * SECOND
"""Then producers and readers have that long to finish."""
CONTAINMENT: Final = "containment"
"""Before the names of safeguards that only runs with defects miss."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a run consists of, besides its seed."""

    seconds: int = 60
    """Length of the phase with faults, in simulated seconds."""
    without: str | None = None
    """Name of the safeguard that is switched off."""
    defects: bool = False
    """Whether exceptions are raised at random places of the broker while it serves requests."""
    trace: Callable[[str], None] | None = None
    """Receives one line per noted event."""


@dataclass(slots=True)
class Result:
    """What a run was and what it found."""

    seed: int
    simulated_ns: int = 0
    events: int = 0
    acknowledged: int = 0
    """Records."""
    read: int = 0
    """Records, by all readers."""
    recoveries: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    violations: list[tuple[str, str]] = field(default_factory=list)
    """(property, sentence)."""
    trace_hash: str = ""
    written: int = 0
    """Records of compacted topics that were acknowledged."""
    kept: int = 0
    """Records that are left of them; where there are several replicas, of the one that has most."""
    keys: int = 0
    """Keys that were deleted for good."""
    processor_s: float = 0.0
    """What it cost; not part of the run."""

    @property
    def ok(self) -> bool:
        """Whether every property held."""
        return not self.violations

    @property
    def short_of(self) -> list[str]:
        """Why the seed does not count, if it does not: too short, too little load, too few faults."""
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
        self.network = Network(self.timeline, streams.stream("net"))
        every = _safeguards(options.without)
        self.network.check_generation = every.storage.region_generation
        self.node = SimNode(0, self.timeline, streams, self.network, self.history, _properties(streams), every)
        self.workload = Workload(self.network, streams.scoped("workload"), self.catalog, self.history)
        self.nemesis = Nemesis(self.node, self.network, self.catalog, streams.stream("faults"), self.history)
        if options.defects:
            self.nemesis.raise_defects(streams.stream("defects"), streams.stream("callback defects"))

    def run(self) -> Result:
        """Safety phase, liveness phase, verdict."""
        self.node.start()
        self.workload.start()
        self._until(lambda: len(self.catalog.topics) > 1, 5 * SECOND)
        self.nemesis.start()
        self.timeline.run_until(self.options.seconds * SECOND)
        self._converge()
        return self._result()

    def _until(self, holds: Callable[[], bool], limit_ns: int) -> bool:
        return self.timeline.run_until_holds(holds, limit_ns, STEP_NS)

    def _converge(self) -> None:
        """Heal; load goes on for a while; then everything has to come to an end."""
        self.nemesis.heal()
        before = {producer.name: producer.acknowledged for producer in self.workload.producers}
        self.workload.admin.working = False
        stuck = self.history.stuck
        if not self._until(self.workload.admin.complete, CONVERGE_NS):
            stuck.append(f"topics: {[topic.name for topic in self.catalog.topics]} exist")
        self.timeline.run_until(self.timeline.now_ns + SETTLE_NS)
        self._until(lambda: all(p.acknowledged > before[p.name] for p in self.workload.producers), CONVERGE_NS)
        stuck.extend(
            f"{producer.name} gets nothing acknowledged"
            for producer in self.workload.producers
            if producer.acknowledged == before[producer.name]
        )
        self.workload.wind_down()
        self._until(lambda: not self.workload.unacknowledged(), CONVERGE_NS)
        stuck.extend(f"unacknowledged: {what}" for what in self.workload.unacknowledged())
        self.timeline.run_until(self.timeline.now_ns + SECOND)
        self.workload.read_all()
        self._until(lambda: not self.workload.unread(), CONVERGE_NS)
        stuck.extend(f"unread: {what}" for what in self.workload.unread())
        self.workload.note_final()

    def _result(self) -> Result:
        self.history.crashes.extend(self.node.machine.crashes)
        return Result(
            self.seed,
            self.timeline.now_ns,
            self.timeline.events,
            self.workload.acknowledged,
            sum(len(read.records) for read in self.history.reads),
            self.node.recoveries,
            dict(sorted(self.nemesis.fired.counts.items())),
            violations(self.history),
            self.timeline.trace_hash,
            **cleaned(self.history),
        )


def _safeguards(without: str | None) -> BrokerSafeguards:
    room, _, name = (without or "").rpartition(".")
    if room == CONTAINMENT:
        return BrokerSafeguards(containment=replace(ContainmentSafeguards(), **{name: False}))
    storage = StorageSafeguards()
    return BrokerSafeguards(storage=storage if without is None else replace(storage, **{without: False}))


def cleaned(history: History) -> dict[str, int]:
    """What a result says of compacted topics."""
    writes = [write for write in history.writes if write.log in history.compacted and history.promised(write)]
    most: dict[str, int] = {}
    for (log, _), count in history.kept.items():
        most[log] = max(most.get(log, 0), count)
    return {
        "written": sum(len(write.values) for write in writes),
        "kept": sum(most.values()),
        "keys": sum(text.endswith(b"=") for write in writes for text in write.values),
    }


def _properties(streams: Streams) -> dict[str, str]:
    """The broker's configuration: everything that usually takes minutes happens in seconds."""
    random, cleaners = streams.stream("config"), streams.stream("cleaners")
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


def run(seed: int, options: Options | None = None) -> Result:
    """Run one seed to its verdict."""
    return Run(seed, options or Options()).run()
