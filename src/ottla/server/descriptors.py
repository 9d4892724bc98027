"""How many files are open at once.

Zone: real. A broker has more segments than a process may have descriptors: handles stay, descriptors of idle files are
closed and opened again on use. Choosing the idle one lives here; opening and closing is the file's.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

DEFAULT_LIMIT = 1_000


class Owner(Protocol):
    """A handle whose descriptor may be taken away."""

    touched: bool
    """Used since it was last looked at."""

    @property
    def busy(self) -> bool:
        """The descriptor is in use by a thread or a reply, or cannot be opened again."""
        ...

    def park(self) -> None:
        """Close the descriptor."""
        ...


class Descriptors:
    """Keeps at most `limit` descriptors open by the second-chance rule.

    Using a file only sets its flag: an ordered list would cost a call per append.
    """

    __slots__ = ("_limit", "_open")

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        assert limit >= 1, "a limit without a descriptor"
        self._limit = limit
        self._open: OrderedDict[Owner, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, owner: Owner) -> None:
        """Count a new descriptor, and park an idle one when there are too many."""
        self._open[owner] = None
        if len(self._open) > self._limit:
            self._park_one(owner)

    def closed(self, owner: Owner) -> None:
        """The owner closed its descriptor itself."""
        self._open.pop(owner, None)

    def make_room(self) -> bool:
        """The system has no descriptor left: park one that is idle. Whether there was one."""
        return self._park_one(None)

    def _park_one(self, spared: Owner | None) -> bool:
        # Two rounds: the first may only take flags away. When all are busy the limit is exceeded, as it must be.
        for _ in range(2 * len(self._open)):
            owner, _none = self._open.popitem(last=False)
            if owner.touched or owner.busy or owner is spared:
                owner.touched = False
                self._open[owner] = None
            else:
                owner.park()
                return True
        return False
