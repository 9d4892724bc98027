"""The present faults of a drive: the nemesis sets them, every operation on the disk checks them.

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
    """An armed error fires once, at the next operation of its kind; then the device is broken until its repair."""

    armed: dict[DiskOperation, int] = field(default_factory=dict)
    fired: Callable[[str], None] = lambda _kind: None
    """Called with the kind of every fault that took effect."""
    broken: bool = False
    full_reported: bool = False
    """Whether `fired` was called for the present lack of space."""
    slow_until_ns: int = 0
    syncs_all: bool = True
    """Whether the system has a call that syncs all of a directory."""
    sync_mean_ns: int = 3 * MS
    read_mean_ns: int = 300 * US

    def arm_error(self, operation: DiskOperation) -> None:
        """Make the next operation of that kind fail."""
        self.armed[operation] = 1

    def repair_device(self) -> None:
        """End all errors, as a new cable and a remount do."""
        self.armed.clear()
        self.broken = False

    def check_operation(self, operation: DiskOperation, path: str) -> None:
        """Raise Failure IO when this operation fails."""
        if self.armed and self.armed.pop(operation, 0):
            self.fired(f"disk {operation.value} EIO")
            self.broken = True
        if self.broken:
            raise Failure(Kind.IO, f"{operation.value}: {path}")

    def note_full(self) -> None:
        """Note that an append failed for lack of space. One lack of space counts as one fault."""
        if not self.full_reported:
            self.full_reported = True
            self.fired("disk full")

    def short_write(self) -> bool:
        """Whether the present append fails half way, for lack of space."""
        if not self.armed or not self.armed.pop(DiskOperation.SHORT_WRITE, 0):
            return False
        self.fired("disk short write")
        return True

    def draw_delay(self, mean_ns: int, now_ns: int, random: Stream) -> int:
        """Draw the duration of an asynchronous operation."""
        slow = 40 if now_ns < self.slow_until_ns else 1
        return 20 * US + int(random.exponential(mean_ns)) * slow
