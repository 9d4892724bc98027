"""The limit of open files.

Zone: real. A broker has more segments than a process may have descriptors: the handles stay, but descriptors of idle
files are closed ("parked") and opened again on use. This module chooses the file to park; the file opens and closes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Protocol

from ottla.metrics import Registry

DEFAULT_LIMIT = 1_000
_SELDOM_SHARE: Final = 8
"""Files that are seldom used are parked first while they have more than 1/_SELDOM_SHARE of the descriptors."""


class Owner(Protocol):
    """A handle whose descriptor may be parked."""

    touched: bool
    """Whether it was used since it was last considered for parking."""
    seldom: bool
    """Whether it is used less often than others: it is parked before them."""

    @property
    def busy(self) -> bool:
        """Whether a thread or a reply uses the descriptor, or it cannot be opened again."""
        ...

    def park_descriptor(self) -> None:
        """Close the descriptor."""
        ...


class Descriptors:
    """Keeps at most `limit` descriptors open by the second-chance algorithm.

    Using a file only sets its flag: keeping the files in order of use would cost a call per append. Files that are
    seldom used (indexes) are parked first while they have more than an eighth of the descriptors, so that nearly every
    descriptor serves the log of another partition.
    """

    __slots__ = ("_limit", "_often", "_seldom", "reopened")

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        assert limit >= 1, "a limit without a descriptor"
        self._limit = limit
        self._often: OrderedDict[Owner, None] = OrderedDict()
        self._seldom: OrderedDict[Owner, None] = OrderedDict()
        self.reopened = 0
        """How often a parked file had to be opened again."""

    def __len__(self) -> int:
        return len(self._often) + len(self._seldom)

    def __iter__(self) -> Iterator[Owner]:
        return iter([*self._often, *self._seldom])

    def declare_metrics(self, registry: Registry) -> None:
        """Declare the metrics: open descriptors, their limit, and how often a parked file was opened again."""
        registry.add_gauge("ottla_log_descriptors", "Descriptors open for files of logs.", lambda: float(len(self)))
        registry.add_gauge("ottla_log_descriptors_limit", "Most of them.", lambda: float(self._limit))
        name, text = "ottla_log_descriptors_reopened_total", "Uses of a file that had to be opened for them again."
        registry.add_counter(name, text, lambda: float(self.reopened))

    def on_opened(self, owner: Owner) -> None:
        """Count a new descriptor, and park an idle one when there are too many."""
        (self._seldom if owner.seldom else self._often)[owner] = None
        if len(self) > self._limit:
            self._park_one(owner)

    def on_closed(self, owner: Owner) -> None:
        """The owner closed its descriptor itself."""
        (self._seldom if owner.seldom else self._often).pop(owner, None)

    def make_room(self) -> bool:
        """Park an idle file, because the process has no descriptor left; returns whether there was one."""
        return self._park_one(None)

    def _park_one(self, spared: Owner | None) -> bool:
        first, second = self._seldom, self._often
        if len(first) * _SELDOM_SHARE <= self._limit:
            first, second = second, first
        return _park_from(first, spared) or _park_from(second, spared)


def _park_from(owners: OrderedDict[Owner, None], spared: Owner | None) -> bool:
    # Two rounds: the first may do no more than clear flags. When all files are busy the limit has to be exceeded.
    for _ in range(2 * len(owners)):
        owner, _none = owners.popitem(last=False)
        if owner.touched or owner.busy or owner is spared:
            owner.touched = False
            owners[owner] = None
        else:
            owner.park_descriptor()
            return True
    return False
