"""Finds the names that occur more than once in a long list, in steps and with few bytes per name.

Zone: pure. Only hashes are kept. Two names with the same hash would count as a repeated one; that is as improbable as a
correct guess of 64 bits, because Python hashes texts with a random key per process.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Hashable, Iterable
from typing import Final

_FEW: Final = 2_000
"""Up to this number of names are compared in one step."""
_BUCKETS: Final = 64
"""Number of steps for more names: each compares one bucket, and equal hashes are in the same bucket."""


class DuplicateNames:
    """Collects names, and finds those that occur more than once."""

    __slots__ = ("_buckets", "_count")

    def __init__(self) -> None:
        self._buckets = [array("q")]
        self._count = 0

    def add_names(self, names: Iterable[Hashable]) -> int:
        """Add names: texts, or tuples. Returns their number."""
        before = self._count
        if len(self._buckets) == 1:
            self._buckets[0].extend(map(hash, names))
            self._count = len(self._buckets[0])
            if self._count > _FEW:
                few, self._buckets = self._buckets[0], [array("q") for _ in range(_BUCKETS)]
                self._distribute_hashes(few)
        else:
            self._count += self._distribute_hashes(map(hash, names))
        return self._count - before

    def _distribute_hashes(self, hashes: Iterable[int]) -> int:
        count = 0
        for value in hashes:
            self._buckets[value % _BUCKETS].append(value)
            count += 1
        return count

    def find_repeated(self) -> Generator[int, None, set[int]]:
        """The hashes of names that occur more than once. Yields, per step, the number of names that a step compares.

        That is the mean over all steps: hashes differ from process to process, but simulated costs must not.
        """
        repeated: set[int] = set()
        mean = self._count // len(self._buckets)
        while self._buckets:
            bucket = self._buckets.pop()
            seen: set[int] = set()  # one bucket at a time, so that the set stays small
            for value in bucket:
                (repeated if value in seen else seen).add(value)
            yield mean
        return repeated
