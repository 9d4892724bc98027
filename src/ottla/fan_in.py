"""Collects several answers for one response.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class FanIn(Generic[T]):
    """Collects answers by position, and passes them on once all have arrived; without any, at `close_slots`."""

    __slots__ = ("_answers", "_done", "_left", "_places")

    def __init__(self, done: Callable[[list[T]], None]) -> None:
        self._done = done
        self._answers: dict[int, T] = {}
        self._places = 0
        self._left = 1

    def new_slot(self) -> Callable[[T], None]:
        """A callback for one more answer, to be called exactly once. An exception as the answer loses its traceback.

        The traceback refers to frames, and one of them to this callback: a cycle that keeps memory alive.
        """
        position = self._places
        self._places += 1
        self._left += 1

        def fill(answer: T) -> None:
            if isinstance(answer, BaseException):
                answer.__traceback__ = None
            self._answers[position] = answer
            self._count_down()

        return fill

    def close_slots(self) -> None:
        """Declare that there are no more slots: from now on the last answer completes the result."""
        self._count_down()

    def _count_down(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._done([self._answers[position] for position in range(self._places)])
