"""Changes of state: the code in which a defect must stop the broker, because it may leave half of a change.

Zone: pure. The contract of containment (ARCHITECTURE.md, "Containment"): a function that changes what outlives its
request, or the alarm that called it, is marked by `@changes_state`, or on the hot path by the same `try` written out.
A refusal (ApiError, Failure) passes: the code that raises one has changed nothing, or has taken it back. Any other
exception leaves the function as HalfChanged, which is never contained. So what leaves a handler as another exception
has changed nothing, or whole changes only, and costs its request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from ottla.errors import ApiError
from ottla.seams import Failure

P = ParamSpec("P")
R = TypeVar("R")


class HalfChanged(Exception):
    """A defect inside a change: the state may be half changed, so the broker has to stop. The cause is chained."""


def changes_state(method: Callable[P, R]) -> Callable[P, R]:
    """Mark a function as a change."""

    @wraps(method)
    def marked(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return method(*arguments, **named)
        except (ApiError, Failure, HalfChanged):
            raise
        except Exception as error:
            raise half_changed(method.__qualname__) from error

    return marked


def half_changed(what: str) -> HalfChanged:
    """The exception that a change is left by."""
    return HalfChanged(f"{what} was left in the middle of a change")
