"""A mapping that never changes, and from which the next one is made without a copy of all entries.

Zone: pure. It is a large dict that many versions share, and a small one of what has changed since. When the small one
has more entries than about the square root of the large one's, both become one new dict. So a change of one entry
beside n others copies O(√n) entries on average (Kafka has org.apache.kafka.server.immutable.ImmutableMap for this).
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Final, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")
_ABSENT: Final[Any] = object()
"""Of a key without an entry among the changes."""
_REMOVED: Final[Any] = object()
"""The entry of a key that has been removed since the large dict was made."""


class ImmutableMap(Mapping[K, V]):
    """The mapping. Its order is that of a dict, except that a key that was removed and set again may keep its place."""

    __slots__ = ("_base", "_changes", "_count")

    def __init__(self, entries: Mapping[K, V] | None = None) -> None:
        self._base: dict[K, V] = dict(entries or {})
        self._changes: dict[K, V] = {}
        self._count = len(self._base)

    def updated(self, entries: Mapping[K, V]) -> ImmutableMap[K, V]:
        """This mapping with these entries."""
        return self._with_changes(entries)

    def removed(self, keys: Iterable[K]) -> ImmutableMap[K, V]:
        """This mapping without these keys."""
        return self._with_changes({key: _REMOVED for key in keys if key in self})

    def _with_changes(self, entries: Mapping[K, V]) -> ImmutableMap[K, V]:
        made: ImmutableMap[K, V] = ImmutableMap()
        made._base, made._changes = self._base, {**self._changes, **entries}
        made._count = self._count + sum((value is not _REMOVED) - (key in self) for key, value in entries.items())
        if len(made._changes) ** 2 > 2 * len(made._base):
            made._join_changes()
        return made

    def _join_changes(self) -> dict[K, V]:
        """All entries in one dict. Only the representation changes."""
        if self._changes:
            joined = {**self._base, **self._changes}
            for key, value in self._changes.items():
                if value is _REMOVED:
                    del joined[key]
            self._base, self._changes = joined, {}
        return self._base

    # -- Mapping -------------------------------------------------------------------------------------------------------

    def __getitem__(self, key: K) -> V:
        found: V = self._changes.get(key, _ABSENT)
        if found is _ABSENT:
            return self._base[key]
        if found is _REMOVED:
            raise KeyError(key)
        return found

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, /, default: V | D) -> V | D: ...
    def get(self, key: K, /, default: Any = None) -> Any:
        """The value of a key."""
        found = self._changes.get(key, _ABSENT)
        if found is _ABSENT:
            return self._base.get(key, default)
        return default if found is _REMOVED else found

    def __contains__(self, key: object) -> bool:
        found = self._changes.get(key, _ABSENT)  # type: ignore[arg-type]  # any key may be asked for
        return key in self._base if found is _ABSENT else found is not _REMOVED

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[K]:
        return iter(self._join_changes())

    def keys(self) -> KeysView[K]:
        """The keys."""
        return self._join_changes().keys()

    def values(self) -> ValuesView[V]:
        """The values."""
        return self._join_changes().values()

    def items(self) -> ItemsView[K, V]:
        """The entries."""
        return self._join_changes().items()

    def __repr__(self) -> str:
        return f"ImmutableMap({self._join_changes()!r})"
