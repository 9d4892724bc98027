"""Progress on stderr: one line per step, rewritten in a terminal.

Zone: real.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from ottla.terminal import draw_status


class Progress:
    """Steps with their time. Without a terminal each step is one line, printed when it is done."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet
        self._terminal = not quiet and self._stream.isatty()
        self._step = ""
        self._since = time.monotonic()
        self._shown = 0

    def begin_step(self, step: str) -> None:
        """Begin a step."""
        self._step = step
        self._since = time.monotonic()
        self.update_step("")

    def update_step(self, state: str) -> None:
        """Show the progress of the step."""
        if self._terminal:
            self._rewrite_line(f"{self._step} {state}".rstrip() + " …")

    def end_step(self, result: str = "") -> None:
        """End the step, and show its result and time."""
        seconds = time.monotonic() - self._since
        line = f"{self._step} {result}".rstrip() + f" ({seconds:.1f} s)"
        if self._terminal:
            self._rewrite_line(line)
        elif not self._quiet:
            self._stream.write(line)
        self._end_line()

    def add_note(self, text: str) -> None:
        """Print an event in the middle of a step, on a line of its own."""
        if self._terminal:
            self._rewrite_line(f"  {text}")
        elif not self._quiet:
            self._stream.write(f"  {text}")
        self._end_line()

    @contextlib.contextmanager
    def left_alone_on_failure(self) -> Iterator[None]:
        """Begin a new line when an exception leaves this block, so that its text is not appended to the progress."""
        try:
            yield
        except BaseException:
            if self._shown:
                self._end_line()
            raise

    def _end_line(self) -> None:
        if not self._quiet:
            self._stream.write("\n")
            self._stream.flush()
        self._shown = 0

    def _rewrite_line(self, line: str) -> None:
        draw_status(line, self._stream)
        self._shown = len(line)
