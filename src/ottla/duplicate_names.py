"""Which names a long list has more than once, found in steps and with few bytes a name.

Zone: pure. Only hashes are kept: two names of the same hash would count as one that is repeated, which is as likely as
a guess of 64 bits, for texts are hashed with a key of the process.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Hashable, Iterable
from typing import Final

_FEW: Final = 2_000
"""Names that are compared in one step."""
_BUCKETS: Final = 64
"""Steps in which more of them are compared: equal hashes are in the same bucket."""


class DuplicateNames:
    """Names as they come."""

    __slots__ = ("_buckets", "_count")

    def __init__(self) -> None:
        self._buckets = [array("q")]
        self._count = 0

    def add(self, names: Iterable[Hashable]) -> int:
        """Take names: texts, or tuples. Returns how many they were."""
        before = self._count
        if len(self._buckets) == 1:
            self._buckets[0].extend(map(hash, names))
            self._count = len(self._buckets[0])
            if self._count > _FEW:
                few, self._buckets = self._buckets[0], [array("q") for _ in range(_BUCKETS)]
                self._distribute(few)
        else:
            self._count += self._distribute(map(hash, names))
        return self._count - before

    def _distribute(self, hashes: Iterable[int]) -> int:
        count = 0
        for value in hashes:
            self._buckets[value % _BUCKETS].append(value)
            count += 1
        return count

    def find(self) -> Generator[int, None, set[int]]:
        """The hashes of names that came more than once; yields after each step how many names a step looks at.

        That is the mean of all steps: hashes differ from process to process, and a simulation must not.
        """
        repeated: set[int] = set()
        mean = self._count // len(self._buckets)
        while self._buckets:
            bucket = self._buckets.pop()
            seen: set[int] = set()
            for value in bucket:
                (repeated if value in seen else seen).add(value)
            yield mean
        return repeated
