"""How many files are open at once.

Zone: real. A broker has more segments than a process may have descriptors: handles stay, descriptors of idle files are
closed and opened again on use. Choosing the idle one lives here; opening and closing is the file's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Protocol

from ottla.metrics import Registry

DEFAULT_LIMIT = 1_000
_SELDOM_SHARE: Final = 8
"""So many times the descriptors of files that are seldom used are allowed altogether, before these give way first."""


class Owner(Protocol):
    """A handle whose descriptor may be taken away."""

    touched: bool
    """Used since it was last looked at."""
    seldom: bool
    """Used less often than others: it is parked before they are."""

    @property
    def busy(self) -> bool:
        """The descriptor is in use by a thread or a reply, or cannot be opened again."""
        ...

    def park(self) -> None:
        """Close the descriptor."""
        ...


class Descriptors:
    """Keeps at most `limit` descriptors open by the second-chance rule.

    Using a file only sets its flag: an ordered list would cost a call per append. Files that are seldom used, indexes,
    give way first, until they have no more than an eighth: so nearly one partition has its place for each descriptor.
    """

    __slots__ = ("_limit", "_often", "_seldom", "reopened")

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        assert limit >= 1, "a limit without a descriptor"
        self._limit = limit
        self._often: OrderedDict[Owner, None] = OrderedDict()
        self._seldom: OrderedDict[Owner, None] = OrderedDict()
        self.reopened = 0
        """How often a descriptor was missing when its file was used."""

    def __len__(self) -> int:
        return len(self._often) + len(self._seldom)

    def __iter__(self) -> Iterator[Owner]:
        return iter([*self._often, *self._seldom])

    def declare_metrics(self, registry: Registry) -> None:
        """How many are open, how many may be, and what it costs that there are no more."""
        registry.gauge("ottla_log_descriptors", "Descriptors open for files of logs.", lambda: float(len(self)))
        registry.gauge("ottla_log_descriptors_limit", "Most of them.", lambda: float(self._limit))
        name, text = "ottla_log_descriptors_reopened_total", "Uses of a file that had to be opened for them again."
        registry.counter(name, text, lambda: float(self.reopened))

    def on_opened(self, owner: Owner) -> None:
        """Count a new descriptor, and park an idle one when there are too many."""
        (self._seldom if owner.seldom else self._often)[owner] = None
        if len(self) > self._limit:
            self._park_one(owner)

    def on_closed(self, owner: Owner) -> None:
        """The owner closed its descriptor itself."""
        (self._seldom if owner.seldom else self._often).pop(owner, None)

    def make_room(self) -> bool:
        """The system has no descriptor left: park one that is idle. Whether there was one."""
        return self._park_one(None)

    def _park_one(self, spared: Owner | None) -> bool:
        first, second = self._seldom, self._often
        if len(first) * _SELDOM_SHARE <= self._limit:
            first, second = second, first
        return _park_from(first, spared) or _park_from(second, spared)


def _park_from(owners: OrderedDict[Owner, None], spared: Owner | None) -> bool:
    # Two rounds: the first may only take flags away. When all are busy the limit is exceeded, as it must be.
    for _ in range(2 * len(owners)):
        owner, _none = owners.popitem(last=False)
        if owner.touched or owner.busy or owner is spared:
            owner.touched = False
            owners[owner] = None
        else:
            owner.park()
            return True
    return False
