"""Which names a long list has more than once, found in steps and with few bytes a name.

Zone: pure. Only hashes are kept: two names of the same hash would count as one that is repeated, which is as likely as
a guess of 64 bits, for texts are hashed with a key of the process.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Hashable, Iterable
from typing import Final

_BUCKETS: Final = 64


class Repeats:
    """Names as they come."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets = [array("q") for _ in range(_BUCKETS)]

    def add(self, names: Iterable[Hashable]) -> int:
        """Take names: texts, or tuples. Returns how many they were."""
        count = 0
        for name in names:
            value = hash(name)
            self._buckets[value % _BUCKETS].append(value)
            count += 1
        return count

    def find(self) -> Generator[int, None, set[int]]:
        """The hashes of names that came more than once; yields after each step how many names it looked at."""
        repeated: set[int] = set()
        while self._buckets:
            bucket = self._buckets.pop()
            seen: set[int] = set()
            for value in bucket:
                (repeated if value in seen else seen).add(value)
            yield len(bucket)
        return repeated
