"""Progress for people: one line on stderr that is rewritten, in a terminal and in a notebook; else one line per step.

Zone: real.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from ottla.pipeline.progress import StepProgress
from ottla.terminal import draw_status


class Line:
    """Shows how far steps are. Use as a context manager: at the end each step has its line."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet
        self._rewrites = not quiet and (self._stream.isatty() or "ipykernel" in sys.modules)

    def update(self, steps: Sequence[StepProgress]) -> None:
        """Show the figures of now."""
        if self._rewrites:
            self._rewrite(" | ".join(step.line() for step in steps))

    def end(self, steps: Sequence[StepProgress]) -> None:
        """The last figures, a line per step."""
        if self._quiet:
            return
        if self._rewrites:
            draw_status("", self._stream)
        for step in steps:
            self._stream.write(f"{step.line()} · {step.guarantee}\n")
        self._stream.flush()

    def _rewrite(self, line: str) -> None:
        draw_status(line, self._stream)
