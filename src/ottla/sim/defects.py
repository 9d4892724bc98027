"""Defects: an exception at a random call of the broker's code while it serves a request, an alarm or an effect.

Zone: deterministic. What the broker has to make of it is judged here, by the stack at that moment: a defect in an
effect, in what an alarm goes on with, or inside a change (`ottla.changes`), may stop the broker; any other has to cost
its request, its connection, or the one call of what an alarm begins (`Purgatory.look_after`). What a stop leaves
behind, and what the broker that goes on serves, the checkers judge.
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
CALLBACK_CALLS: Final = 60
"""So many calls are made in a few alarms, or at the ends of a few completions."""
_LOOK: Final = "Look.expire"
_ROOMS: Final = ("broker", "replication", "storage", "groups", "cluster", "coordinator", "purgatory", "record")
ROOMS: Final = tuple(f"/ottla/{room}/" for room in _ROOMS)
"""Where defects are; the compiler of codecs is left out, as what it does depends on what ran before."""
CONTAINING: Final = {"contain", "close", "_tell", "fail", "_failed", "contain_callback", "_try_again"}
"""Functions that run when a defect is contained."""


class Defect(Exception):
    """What no code of the broker expects."""


class Defects:
    """Raises them, and counts what became of them."""

    def __init__(self, random: Stream, fired: Callable[[str], None]) -> None:
        self._random = random
        self._fired = fired
        self._requests_left = self._callbacks_left = self._left = 0
        self._in_request = True
        self._may_stop = False

    def arm(self) -> None:
        """One of the next requests meets a defect, at a random call."""
        self._requests_left = self._random.between(1, CALLS)

    def arm_callbacks(self, random: Stream) -> None:
        """One of the next alarms, or of the effects of completions, meets a defect, at a random call."""
        self._callbacks_left = random.between(1, CALLBACK_CALLS)

    def disarm(self) -> None:
        """No more of them."""
        self._requests_left = self._callbacks_left = 0

    def run(self, turn: Callable[[], T]) -> T:
        """Run a turn that serves a request."""
        if not self._requests_left:
            return turn()
        self._in_request, self._left = True, self._requests_left
        try:
            return self._traced(turn)
        finally:
            self._requests_left = self._left

    def run_callback(self, turn: Callable[[], T]) -> T:
        """Run a turn that an alarm begins, or the effects of a completion."""
        if not self._callbacks_left:
            return turn()
        self._in_request, self._left = False, self._callbacks_left
        try:
            return self._traced(turn)
        finally:
            self._callbacks_left = self._left

    def _traced(self, turn: Callable[[], T]) -> T:
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
            if frame.f_code.co_name == "on_frame" or frame.f_code.co_qualname == _LOOK or names & CONTAINING:
                self._left = 1  # the containment itself has none
                return
            self._may_stop = "end_turn" in names or not (self._in_request or _LOOK in names)
            self._fired("defect in a request" if self._in_request else _kind(names))
            raise Defect(f"in {frame.f_code.co_qualname}")

    def stops(self, error: Exception) -> bool:
        """Whether this exception may leave a turn; the broker ends then, and starts again."""
        if isinstance(error, HalfChanged) and _cause(error):
            self._fired("defect inside a change")
            return True
        if isinstance(error, Defect) and self._may_stop:
            self._fired("defect in an effect" if self._in_request else "defect that ends a callback's turn")
            return True
        return False


def _kind(names: set[str]) -> str:
    if "end_turn" in names:
        return "defect in an effect of a callback"
    return "defect in a look" if _LOOK in names else "defect in an alarm"


def _names(frame: FrameType | None) -> set[str]:
    found = set()
    while frame is not None:
        found.add(frame.f_code.co_name)
        found.add(frame.f_code.co_qualname)
        frame = frame.f_back
    return found


def _cause(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, Defect):
            return True
        error = error.__cause__ or error.__context__
    return False
