"""A long piece of work on the loop, written as one: it yields what it waits for.

Zone: deterministic. `yield lambda done: file.read(0, 9, done)` goes on with what `done` was given, in that turn, or
raises the Failure. A view that comes this way dies with the turn: copy it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from ottla.seams import Done, Failure

T = TypeVar("T")
Wait = Callable[[Callable[[Any], None]], None]
Steps = Generator[Wait, Any, T]


def go(steps: Steps[T], done: Done[T]) -> None:
    """Begin; `done` gets the result or the Failure that ended it, in this turn when nothing was to be waited for."""

    def resume(outcome: object) -> None:
        try:
            wait = steps.throw(outcome) if isinstance(outcome, Failure) else steps.send(outcome)
        except StopIteration as end:
            done(end.value)
        except Failure as failure:
            done(failure.as_value())
        else:
            wait(resume)

    resume(None)
