"""Deprecated public names, which work for one more release and warn.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar
from warnings import warn

P = ParamSpec("P")
T = TypeVar("T")


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn the caller of the caller that `old` is now `new`."""
    warn(
        f"{old} is now {new}; the old name will be removed in the next release",
        DeprecationWarning,
        stacklevel=stacklevel,
    )


def renamed_argument(old: str, new: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function so that it also accepts the keyword argument `old` for `new`, with a warning."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> T:
            if old in named:
                warn_renamed(f"the argument {old} of {function.__name__}", new)
                named[new] = named.pop(old)
            return function(*arguments, **named)

        return call

    return decorate
