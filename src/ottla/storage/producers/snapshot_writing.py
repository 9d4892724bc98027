"""Writes the snapshot of a log with many producers: packs its entries in several turns, some at a time.

Zone: deterministic. The log takes appends meanwhile: a producer's state at the snapshot's offset is copied before it
changes. Until the file exists, a start reads the log from the snapshot before. One snapshot of a log is written at a
time; a roll during that time gets none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.storage.checkpoints import join_snapshot, pack_entries
from ottla.storage.log_dir_context import LogDirContext

if TYPE_CHECKING:
    from ottla.storage.log_files import LogFiles

AT_ONCE: Final = 1_000
"""Producers whose entries are packed in one turn: a millisecond or two."""
_PAUSE_NS: Final = 1_000_000


class SnapshotWriting:
    """One snapshot in progress."""

    __slots__ = ("_frozen", "_home", "_log", "_packed", "_producers")

    def __init__(self, log: LogFiles, home: LogDirContext) -> None:
        self._log = log
        self._home = home
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
        if frozen.offset >= log.start_offset:
            log.save_snapshot(frozen.offset, join_snapshot(frozen.count, self._packed), self._home.note_failure)
