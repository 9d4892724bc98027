"""Small files that have to be written some time: one at a time.

Zone: deterministic. One request can make a file due in each of thousands of logs. Each is written, synced and renamed
in a thread; thousands that wait for that at the same time would take memory and hold up what clients ask for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from ottla.seams import Clock
from ottla.storage.timers import Timers

PAUSE_NS: Final = 20_000_000
"""Between two files when more are due: none of them is urgent, and each costs two syncs, which are felt by all that
share the device and the processor."""


class DueFile(Protocol):
    """A file that may be due."""

    def write_due(self) -> bool:
        """Begin to write it if it is due; whether it was."""
        ...

    def when_idle(self, tell: Callable[[object], None]) -> None:
        """Call back once no write is on its way; only asked while one is."""
        ...


class DueFiles:
    """The files of one log directory that are due."""

    __slots__ = ("_busy", "_clock", "_due", "_timers")

    def __init__(self, clock: Clock, timers: Timers) -> None:
        self._clock = clock
        self._timers = timers
        self._due: dict[DueFile, None] = {}
        self._busy = False

    def add(self, file: DueFile) -> None:
        """Have a file written: at once if it is the only one, else in its turn."""
        self._due[file] = None
        if not self._busy:
            self._busy = True
            self._write_next()

    def _write_next(self) -> None:
        while self._due:
            file = next(iter(self._due))
            del self._due[file]
            if file.write_due():
                file.when_idle(self._on_written)
                return
        self._busy = False

    def _on_written(self, _: object) -> None:
        if self._due:
            self._timers.add(self._clock.now().mono_ns + PAUSE_NS, self._write_next)
        else:
            self._busy = False
