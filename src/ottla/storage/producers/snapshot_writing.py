"""Writes the producer state of a log, so that the next start need not read the log for it.

Zone: deterministic. The entries of many producers are packed in several turns. The log takes appends meanwhile: a
producer's state at the snapshot's offset is copied before it changes. Until the file exists, a start reads the log from
the snapshot before. One snapshot of a log is written at a time; a roll during that time gets none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from ottla.storage.checkpoints import format_snapshot, join_snapshot, pack_entries
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.producers.producer_state import ProducerState

AT_ONCE: Final = 1_000
"""Producers whose entries are packed in one turn: a millisecond or two."""
_PAUSE_NS: Final = 1_000_000


SaveSnapshot = Callable[[int, bytes, Callable[[object], None]], None]
"""Begins to write a snapshot: offset, content, what is called when it is written."""


class SnapshotSource(Protocol):
    """A log, as far as its snapshots need it."""

    producers: ProducerState
    start_offset: int
    end_offset: int
    closed: bool


def write_snapshot(
    home: LogDirContext, log: SnapshotSource, save: SaveSnapshot, done: Callable[[object], None], *, whole: bool = False
) -> None:
    """Write the producer state at the log end.

    With many producers it is written in later turns, unless it has to be `whole` now; then `done` is not called.
    """
    producers = log.producers
    producers.end_offset = log.end_offset
    if whole or len(producers) <= AT_ONCE:
        producers.frozen = None
        save(log.end_offset, format_snapshot(producers.snapshot_entries()), done)
    elif producers.frozen is None:
        _SnapshotWriting(home, log, save).schedule_step()


class _SnapshotWriting:
    """One snapshot in progress."""

    __slots__ = ("_frozen", "_home", "_log", "_packed", "_producers", "_save")

    def __init__(self, home: LogDirContext, log: SnapshotSource, save: SaveSnapshot) -> None:
        self._home = home
        self._log = log
        self._save = save
        self._producers = log.producers
        self._frozen = log.producers.freeze_producers()
        self._packed: list[bytes] = []

    def schedule_step(self) -> None:
        """Begin in a later turn."""
        self._home.timers.add_timer(self._home.clock.now().mono_ns + _PAUSE_NS, self._run_step)

    def _run_step(self) -> None:
        log, frozen = self._log, self._frozen
        if self._producers.frozen is not frozen:
            return  # the log was cut, or a newer snapshot was written
        if log.closed or log.producers is not self._producers:
            self._producers.frozen = None
            return
        entries = frozen.take_entries(AT_ONCE)
        if entries:
            self._packed.append(pack_entries(entries))
            self.schedule_step()
            return
        self._producers.frozen = None
        # Below the log start a snapshot would not be read by any start: the records that it describes were deleted.
        if frozen.offset >= log.start_offset:
            self._save(frozen.offset, join_snapshot(frozen.count, self._packed), self._home.note_failure)
