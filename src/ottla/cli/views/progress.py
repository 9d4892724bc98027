"""A progress line on stderr for work that takes longer than a second.

Zone: real. Nothing is written when stderr is not a terminal, or with --quiet.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType

from ottla.cli.options import option_value
from ottla.terminal import draw_status

_FIRST_AFTER_S = 1.0
_EVERY_S = 0.2


class Progress:
    """Counts records and bytes; a `with` statement around the work clears the line at its end."""

    def __init__(self, verb: str, *, shown: bool = True, first_after_s: float = _FIRST_AFTER_S) -> None:
        """verb: as in "1,000 records read". shown: False when data goes to the same terminal.

        first_after_s: work that takes less than this draws no line.
        """
        self._verb = verb
        self._shown = shown and sys.stderr.isatty() and not option_value("quiet", False)
        self._began = time.monotonic()
        self._next = self._began + first_after_s
        self._drawn = False
        self.records = 0
        self.bytes = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            draw_status(self.status_line(), end="\n")

    def add_progress(self, records: int, size: int) -> None:
        """Count, and draw the line when it is time."""
        self.records += records
        self.bytes += size
        if self._shown and time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_S
            self._drawn = True
            draw_status(self.status_line())

    def status_line(self) -> str:
        """The text of the line now."""
        seconds = max(time.monotonic() - self._began, 1e-3)
        rate, megabytes = self.records / seconds, self.bytes / 1e6
        return f"{self.records:,} records {self._verb}, {megabytes:,.1f} MB, {rate:,.0f} records/s, {seconds:.0f} s"
