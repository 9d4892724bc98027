"""Defects: an exception at a random call of the broker's code while it serves a request, an alarm or an effect.

Zone: deterministic. The stack at that moment decides which consequence is allowed:

1. A defect in an effect, in the continuation of an alarm, or inside a change (`ottla.changes`) may stop the broker.
2. Any other defect may only fail its request, close its connection, or fail one call that an alarm starts
   (`Purgatory.look_after`).

The checkers judge the data after a stop, and the answers of a broker that continues.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeVar

from ottla.broker.containment import Containment
from ottla.broker.dispatch import Dispatch
from ottla.changes import HalfChanged
from ottla.purgatory.purgatory import Look
from ottla.replication.fetch.fetch_completion import FetchCompletion
from ottla.sim.entropy import Stream

T = TypeVar("T")
CALLS: Final = 90
"""Roughly the number of calls that a request makes."""
CALLBACK_CALLS: Final = 60
"""Roughly the number of calls in a few alarms, or in the effects of a few completions."""
_LOOK: Final = Look.expire.__qualname__
_ROOMS: Final = ("broker", "replication", "storage", "groups", "cluster", "coordinator", "purgatory", "record")
ROOMS: Final = tuple(f"/ottla/{room}/" for room in _ROOMS)
"""Packages with defects. `ottla.wire` is left out: it compiles codecs once, so its calls depend on earlier runs."""
CONTAINING: Final = {"fail"} | {
    function.__name__
    for function in (
        Containment.contain_defect,
        Containment.contain_callback,
        Containment.close_connection,
        Containment._send_error,
        Dispatch._on_failed,
        FetchCompletion.fail_request,
        Look._try_again,
    )
}
"""Functions of the broker that run while a defect is contained."""


class Defect(Exception):
    """An exception that no code of the broker expects."""


class Defects:
    """Raises defects, and counts their consequences."""

    def __init__(self, random: Stream, fired: Callable[[str], None]) -> None:
        self._random = random
        self._fired = fired
        self._requests_left = self._callbacks_left = self._left = 0
        self._in_request = True
        self._may_stop = False

    def arm_request(self) -> None:
        """Raise a defect at a random call of one of the next requests."""
        self._requests_left = self._random.between(1, CALLS)

    def arm_callbacks(self, random: Stream) -> None:
        """Raise a defect at a random call of one of the next alarms or effects of completions."""
        self._callbacks_left = random.between(1, CALLBACK_CALLS)

    def disarm_all(self) -> None:
        """Raise no more defects."""
        self._requests_left = self._callbacks_left = 0

    def run_request(self, turn: Callable[[], T]) -> T:
        """Run a turn that serves a request."""
        if not self._requests_left:
            return turn()
        self._in_request, self._left = True, self._requests_left
        try:
            return self._run_traced(turn)
        finally:
            self._requests_left = self._left

    def run_callback(self, turn: Callable[[], T]) -> T:
        """Run a turn of an alarm, or the effects of a completion."""
        if not self._callbacks_left:
            return turn()
        self._in_request, self._left = False, self._callbacks_left
        try:
            return self._run_traced(turn)
        finally:
            self._callbacks_left = self._left

    def _run_traced(self, turn: Callable[[], T]) -> T:
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
            names = _names_on_stack(frame)
            if frame.f_code.co_name == "on_frame" or frame.f_code.co_qualname == _LOOK or names & CONTAINING:
                self._left = 1  # no defect inside the containment: raise it at the next call
                return
            # Effects run at the end of a turn, after their decision was applied: there a defect may stop the broker.
            self._may_stop = "end_turn" in names or not (self._in_request or _LOOK in names)
            self._fired("defect in a request" if self._in_request else _fault_kind(names))
            raise Defect(f"in {frame.f_code.co_qualname}")

    def may_stop_broker(self, error: Exception) -> bool:
        """Whether this exception may leave a turn and stop the broker, which then restarts."""
        if isinstance(error, HalfChanged) and _is_caused_by_defect(error):
            self._fired("defect inside a change")
            return True
        if isinstance(error, Defect) and self._may_stop:
            self._fired("defect in an effect" if self._in_request else "defect that ends a callback's turn")
            return True
        return False


def _fault_kind(names: set[str]) -> str:
    if "end_turn" in names:
        return "defect in an effect of a callback"
    return "defect in a look" if _LOOK in names else "defect in an alarm"


def _names_on_stack(frame: FrameType | None) -> set[str]:
    found = set()
    while frame is not None:
        found.add(frame.f_code.co_name)
        found.add(frame.f_code.co_qualname)
        frame = frame.f_back
    return found


def _is_caused_by_defect(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, Defect):
            return True
        # A handler may wrap what it caught: the defect is somewhere in the chain.
        error = error.__cause__ or error.__context__
    return False
