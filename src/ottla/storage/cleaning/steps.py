"""Runs a long piece of work on the loop, written as a generator that yields what it waits for.

Zone: deterministic. `yield lambda done: file.read(0, 9, done)` continues with the value that `done` got, in that turn,
or raises the Failure. A view that comes this way is valid in that turn only: copy it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from ottla.seams import Done, Failure

T = TypeVar("T")
Wait = Callable[[Callable[[Any], None]], None]
Steps = Generator[Wait, Any, T]


def run_steps(steps: Steps[T], done: Done[T]) -> None:
    """Start the steps; `done` gets their result, or the Failure that ended them, in this turn if they never wait."""

    def resume(outcome: object) -> None:
        try:
            wait = steps.throw(outcome) if isinstance(outcome, Failure) else steps.send(outcome)
        except StopIteration as end:
            done(end.value)
        except Failure as failure:
            done(failure.as_value())
        else:
            # A wait that completes within its call resumes from inside of `wait(resume)`: the call stack then grows
            # with each one.
            wait(resume)

    resume(None)
