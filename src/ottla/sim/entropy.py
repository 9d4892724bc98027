"""Seeded randomness: one independent stream per purpose.

Zone: deterministic. Counter-mode BLAKE2b instead of the standard generator: the numbers depend only on the seed and the
name of the stream, not on platform, Python version or hash seed. A new use never shifts the numbers of another stream.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")

_BLOCK: Final = struct.Struct("<8Q")
_UNIT: Final = 2.0**-64


class Stream:
    """One stream of random numbers."""

    __slots__ = ("_counter", "_key", "_pool")

    def __init__(self, seed: int, name: str) -> None:
        self._key = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=32).digest()
        self._counter = 0
        self._pool: list[int] = []

    def next_word(self) -> int:
        """A uniform 64-bit number."""
        if not self._pool:
            self._counter += 1
            digest = hashlib.blake2b(self._counter.to_bytes(8, "little"), key=self._key).digest()
            self._pool.extend(_BLOCK.unpack(digest))
        return self._pool.pop()

    def random_below(self, n: int) -> int:
        """A uniform integer in [0, n); the bias of the modulo is below n / 2**64."""
        assert n > 0, n
        return self.next_word() % n

    def between(self, low: int, high: int) -> int:
        """A uniform integer in [low, high]."""
        return low + self.random_below(high - low + 1)

    def random_unit(self) -> float:
        """A uniform number in [0, 1)."""
        return self.next_word() * _UNIT

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return probability > 0.0 and self.next_word() * _UNIT < probability

    def exponential(self, mean: float) -> float:
        """A waiting time with this mean, cut at eight times the mean so that no wait outlasts a run."""
        return min(-math.log(1.0 - self.random_unit()), 8.0) * mean

    def choice(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.random_below(len(items))]

    def random_bytes(self, n: int) -> bytes:
        """`n` random bytes."""
        words = [self.next_word().to_bytes(8, "little") for _ in range((n + 7) // 8)]
        return b"".join(words)[:n]


class Streams:
    """All streams of one seed. Implements the seam `Entropy` for a node through `scoped_streams`."""

    __slots__ = ("_scope", "_seed", "_streams")

    def __init__(self, seed: int, scope: str = "") -> None:
        self._seed = seed
        self._scope = scope
        self._streams: dict[str, Stream] = {}

    def named_stream(self, name: str) -> Stream:
        """The stream of that name; the same object every time."""
        found = self._streams.get(name)
        if found is None:
            found = self._streams[name] = Stream(self._seed, self._scope + name)
        return found

    def scoped_streams(self, scope: str) -> Streams:
        """A separate family of streams, for instance for each process of a broker."""
        return Streams(self._seed, f"{self._scope}{scope}/")

    def random_below(self, stream: str, n: int) -> int:
        """A uniform integer in [0, n)."""
        return self.named_stream(stream).random_below(n)

    def random_bytes(self, stream: str, n: int) -> bytes:
        """`n` random bytes."""
        return self.named_stream(stream).random_bytes(n)
