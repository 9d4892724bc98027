"""Marks changes of state: code in which a defect must stop the broker, because it may leave half of a change.

Zone: pure. The contract of containment (ARCHITECTURE.md, "Containment"): a function that changes state which outlives
its request, or the alarm that called it, is marked by `@changes_state`, or on the hot path by the same `try` inline.
An ApiError or Failure passes: the code that raises one has changed nothing, or has undone it. Any other exception
becomes HalfChanged, which is never contained. So a handler that raises another exception has changed nothing, or made
whole changes only, and only its request fails.
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
    """Mark a function as a change: a defect in it raises HalfChanged."""

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
    """The exception for a change that was interrupted; `what` names the change."""
    return HalfChanged(f"{what} was left in the middle of a change")
