"""Maps a group or transactional id to its partition of an internal topic.

Zone: pure.
"""

from __future__ import annotations

from typing import Final

REMEMBERED: Final = 100_000
"""Names whose partition is cached: that of a producer is needed ten times for each of its transactions."""


def java_hash(text: str) -> int:
    """String.hashCode of Java: over UTF-16 code units, as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def partition_for(name: str, partitions: int) -> int:
    """`abs(hash) % partitions`. The minimum, which has no absolute value in Java, counts as 0, as in Kafka."""
    value = java_hash(name)
    return 0 if value == -(2**31) else abs(value) % partitions


class PartitionOf:
    """A cache of `partition_for`."""

    __slots__ = ("_known", "_partitions")

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._partitions = 0

    def __call__(self, name: str, partitions: int) -> int:
        """The partition that coordinates a name."""
        if partitions != self._partitions or len(self._known) >= REMEMBERED:
            self._partitions = partitions
            self._known.clear()
        index = self._known.get(name)
        if index is None:
            index = self._known[name] = partition_for(name, partitions)
        return index
