"""A simulated computer whose process runs only the storage package of a broker.

Zone: deterministic. It has one drive, or two between which logs move. A cleaner looks for work whenever a script lets
time pass, unless it is off, as in starts that only read the logs after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.sim.disks.disk import SimDisk
from ottla.sim.disks.drive import Drive
from ottla.sim.disks.drive_faults import DriveFaults
from ottla.sim.entropy import Streams
from ottla.sim.machines.machine import Machine, Process
from ottla.sim.machines.workers import SimWorkers
from ottla.sim.world import MS, WALL_START_MS, Timeline
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir
from ottla.storage.log_manager import LogManager
from ottla.types import TopicPartition

CONFIG: Final = TopicConfig(
    segment_bytes=6000,
    index_interval_bytes=500,
    segment_index_bytes=1200,
    retention_ms=-1,
    file_delete_delay_ms=20,
)
_COMPACTED: Final = replace(
    CONFIG,
    segment_bytes=1500,
    index_interval_bytes=250,
    cleanup_policy=("compact",),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=2000,
)
PLAIN, KEYED, SHORTENED = "t", "k", "kd"
CONFIGS: Final = {
    PLAIN: CONFIG,
    KEYED: _COMPACTED,
    SHORTENED: replace(_COMPACTED, cleanup_policy=("compact", "delete")),
}
"""Settings by topic."""
LOOKS_MS: Final = 100
"""How often the cleaner looks for work."""
_CLEANING: Final = BrokerConfig.from_properties({"log.dirs": "data", "log.cleaner.backoff.ms": str(LOOKS_MS)})[0]
_LOOKING: Final = BrokerConfig.from_properties({"log.dirs": "data", "log.cleaner.enable": "false"})[0]


def is_compacted(tp: TopicPartition) -> bool:
    """Whether records may be missing in the middle of its log."""
    return "compact" in CONFIGS[tp.topic].cleanup_policy


class Watched(Process):
    """A process that reports every operation on its disks before the operation."""

    def __init__(self, machine: Machine, life: int, told: Callable[[], None]) -> None:
        super().__init__(machine, life)
        self._told = told
        self.serving = True

    def burn_fuse(self) -> None:
        """Called by the disk before each operation."""
        self._told()
        super().burn_fuse()


class Computer(Machine):
    """A machine whose processes are watched."""

    watcher: Callable[[], None] | None = None

    def _told(self) -> None:
        if self.watcher is not None:
            self.watcher()

    def boot_process(self) -> Process:
        """A new process."""
        assert self.process is None
        self.lives += 1
        self.process = Watched(self, self.lives, self._told)
        return self.process


class Site:
    """A computer with one drive or two, and a log manager in its process."""

    def __init__(
        self,
        drives: Sequence[Drive],
        seed: int,
        now_ns: int = 0,
        *,
        cleans: bool = False,
    ) -> None:
        self.timeline = Timeline()
        self.timeline.now_ns = now_ns
        self.machine = Computer(1, self.timeline, Streams(seed), drives)
        self.drives = drives
        self.cleans = cleans
        self.boot()

    @property
    def wall_ms(self) -> int:
        """The present wall time."""
        return WALL_START_MS + self.timeline.now_ns // MS

    def boot(self) -> None:
        """Start a new process, which has not opened any log yet."""
        self.process = self.machine.boot_process()
        self.disks = [SimDisk(drive, DriveFaults(), self.process) for drive in self.drives]

    def load(self) -> None:
        """Open all logs in a turn."""
        self.process.run_turn(self.open)

    def open(self) -> None:
        """Open all logs, within a turn. Raises WrongDirectory."""
        self.manager = LogManager(
            self.disks,
            self.process.clock,
            self.process.entropy,
            _CLEANING if self.cleans else _LOOKING,
            lambda _name: None,
            SimWorkers(self.process),
        )
        self.manager.claim_directories("cluster", 1)
        self.manager.load_logs(lambda topic: CONFIGS[topic])

    def logs(self) -> dict[TopicPartition, Log]:
        """All logs in service."""
        return {log.tp: log for log in sorted(self.manager.online_logs(), key=lambda log: log.tp)}

    def home_of(self, tp: TopicPartition) -> LogDir:
        """The directory of a log."""
        return next(each for each in self.manager.dirs if tp in each.logs)

    def settle(self) -> None:
        """Run all pending events."""
        while self.timeline.run_next_event():
            pass

    def let_pass(self, ms: int) -> None:
        """Let time pass, and run the events that are due."""
        self.timeline.run_until(self.timeline.now_ns + ms * MS)
        self.process.run_turn(self.manager.run_due)
        self.settle()

    def stop(self) -> object:
        """Stop cleanly; returns the report of `stop_logs`."""
        answers: list[object] = []
        self.process.run_turn(self.manager.stop_logs, answers.append)
        self.settle()
        return answers[0] if answers else "no answer"
