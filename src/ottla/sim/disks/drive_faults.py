"""What is wrong with a drive just now: set by the nemesis, asked by every operation on the disk.

Zone: deterministic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from ottla.seams import Failure, Kind
from ottla.sim.entropy import Stream
from ottla.sim.world import MS, US


class DiskOperation(Enum):
    """Operations that can fail one by one."""

    APPEND = "append"
    SHORT_WRITE = "short write"
    READ = "read"
    SYNC = "sync"
    SYNC_DIR = "directory sync"
    REPLACE = "replace"


@dataclass(slots=True)
class DriveFaults:
    """Armed errors fire once, at the next operation of their kind; after one the device stays broken until repaired."""

    armed: dict[DiskOperation, int] = field(default_factory=dict)
    fired: Callable[[str], None] = lambda _kind: None
    """Told the kind of every fault that took effect."""
    broken: bool = False
    full_told: bool = False
    """Whether the present lack of space was told to `fired`."""
    slow_until_ns: int = 0
    syncs_all: bool = True
    """Whether the system has a call that syncs all of a directory."""
    sync_mean_ns: int = 3 * MS
    read_mean_ns: int = 300 * US

    def arm(self, operation: DiskOperation) -> None:
        """Let the next operation of that kind fail."""
        self.armed[operation] = 1

    def repair(self) -> None:
        """A new device cable, a remount: nothing is wrong any more."""
        self.armed.clear()
        self.broken = False

    def check(self, operation: DiskOperation, path: str) -> None:
        """Raise Failure IO when this operation fails."""
        if self.armed and self.armed.pop(operation, 0):
            self.fired(f"disk {operation.value} EIO")
            self.broken = True
        if self.broken:
            raise Failure(Kind.IO, f"{operation.value}: {path}")

    def full(self) -> None:
        """An append met a drive without space; a spell of that counts once."""
        if not self.full_told:
            self.full_told = True
            self.fired("disk full")

    def short_write(self) -> bool:
        """Whether the next append is to break off half way, for lack of space."""
        if not self.armed or not self.armed.pop(DiskOperation.SHORT_WRITE, 0):
            return False
        self.fired("disk short write")
        return True

    def delay(self, mean_ns: int, now_ns: int, random: Stream) -> int:
        """How long an operation off the loop takes."""
        slow = 40 if now_ns < self.slow_until_ns else 1
        return 20 * US + int(random.exponential(mean_ns)) * slow
