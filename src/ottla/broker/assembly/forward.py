"""A call to an object that is created later: one half of a cycle in the graph of objects.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Forward(Generic[P]):
    """A function whose target is bound once, later in the construction. A call before that is a defect."""

    __slots__ = ("_name", "_target")

    def __init__(self, name: str) -> None:
        self._name = name
        self._target: Callable[P, object] | None = None

    def bind(self, target: Callable[P, object]) -> None:
        """Set the target. Raises AssertionError the second time."""
        assert self._target is None, f"{self._name} is bound twice"
        self._target = target

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the target. Raises AssertionError before there is one."""
        assert self._target is not None, f"{self._name} is called before it is bound"
        self._target(*args, **kwargs)
