"""Defects: an exception at a random call of the broker's code while it serves one request.

Zone: deterministic. What the broker has to make of it is judged here, by the stack at that moment: a defect at the end
of a turn, or inside a change (`ottla.changes`), may stop the broker; any other has to cost its request or its
connection. What a stop leaves behind, and what the broker that goes on serves, the checkers judge.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeVar

from ottla.changes import HalfChanged
from ottla.sim.entropy import Stream

T = TypeVar("T")
CALLS: Final = 90
"""A request of these runs makes so many calls, more or less."""
_ROOMS: Final = ("broker", "replication", "storage", "groups", "cluster", "coordinator", "purgatory", "record")
ROOMS: Final = tuple(f"/ottla/{room}/" for room in _ROOMS)
"""Where defects are; the compiler of codecs is left out, as what it does depends on what ran before."""
CONTAINING: Final = {"contain", "close", "_tell", "fail", "_failed"}
"""Functions that run when a defect is contained."""


class Defect(Exception):
    """What no code of the broker expects."""


class Defects:
    """Raises them, and counts what became of them."""

    def __init__(self, random: Stream, fired: Callable[[str], None]) -> None:
        self._random = random
        self._fired = fired
        self._left = 0
        self._may_stop = False

    def arm(self) -> None:
        """One of the next requests meets a defect, at a random call."""
        self._left = self._random.between(1, CALLS)

    def disarm(self) -> None:
        """No more of them."""
        self._left = 0

    def run(self, turn: Callable[[], T]) -> T:
        """Run a turn that serves a request."""
        if not self._left:
            return turn()
        before = sys.gettrace()
        sys.settrace(self._on_call)
        try:
            value = turn()
        finally:
            sys.settrace(before)
        return value

    def _on_call(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call" or not self._left or not any(room in frame.f_code.co_filename for room in ROOMS):
            return
        self._left -= 1
        if self._left == 0:
            names = _names(frame)
            if frame.f_code.co_name == "on_frame" or names & CONTAINING:
                self._left = 1  # the containment itself has none
                return
            self._may_stop = "end_turn" in names
            raise Defect(f"in {frame.f_code.co_qualname}")

    def stops(self, error: Exception) -> bool:
        """Whether this exception may leave a turn; the broker ends then, and starts again."""
        if isinstance(error, HalfChanged) and _cause(error):
            self._fired("defect inside a change")
            return True
        if isinstance(error, Defect) and self._may_stop:
            self._fired("defect in an effect")
            return True
        return False


def _names(frame: FrameType | None) -> set[str]:
    found = set()
    while frame is not None:
        found.add(frame.f_code.co_name)
        frame = frame.f_back
    return found


def _cause(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, Defect):
            return True
        error = error.__cause__ or error.__context__
    return False
