"""The iteration order of Java's hash maps.

Zone: pure. Kafka's assignors iterate over hash maps, and among equally good assignments they take the first one found.
A Java client may lead the same group next time, so its iteration order is part of the protocol of assignors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ottla.types import TopicPartition

_SMALLEST_TABLE: Final = 16


def string_key(text: str) -> bytes:
    """A sort key with the order of `String.compareTo`: UTF-16 units, whose order differs above U+FFFF."""
    return text.encode("utf-16-be", "surrogatepass")


def string_hash(text: str) -> int:
    """`String.hashCode`, as an unsigned 32-bit number."""
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (value * 31 + unit) & 0xFFFF_FFFF
        return value
    units = string_key(text)
    for at in range(0, len(units), 2):
        value = (value * 31 + units[at] * 256 + units[at + 1]) & 0xFFFF_FFFF
    return value


def partition_hash(tp: TopicPartition) -> int:
    """`TopicPartition.hashCode`, unsigned."""
    # Java's order of fields: partition first, then topic. Another order gives other buckets, and so other assignments.
    return ((31 + tp.partition) * 31 + string_hash(tp.topic)) & 0xFFFF_FFFF


def table_size(count: int) -> int:
    """Buckets of a `HashMap` with `count` keys, put one by one: it doubles when it is more than 3/4 full."""
    size = _SMALLEST_TABLE
    while count * 4 > size * 3:
        size *= 2
    return size


def hash_order(keys: Iterable[str]) -> list[str]:
    """Distinct strings in the order of a `HashMap` into which they were put in this order.

    Within a bucket the order is that of insertion; growing the table keeps it.
    """
    inserted = list(dict.fromkeys(keys))
    mask = table_size(len(inserted)) - 1
    return sorted(inserted, key=lambda key: _spread_bits(string_hash(key)) & mask)


def _spread_bits(value: int) -> int:
    return value ^ (value >> 16)


class PartitionSet:
    """A `HashSet<TopicPartition>` that supports only reading the first element."""

    __slots__ = ("_members", "_most")

    def __init__(self) -> None:
        self._members: dict[TopicPartition, int] = {}
        self._most = 0

    def __bool__(self) -> bool:
        return bool(self._members)

    def add_partition(self, tp: TopicPartition) -> None:
        """Add a partition, after those in the same bucket."""
        self._members.setdefault(tp, _spread_bits(partition_hash(tp)))
        self._most = max(self._most, len(self._members))

    def discard_partition(self, tp: TopicPartition) -> None:
        """Remove a partition, if it is there; the table does not shrink."""
        self._members.pop(tp, None)

    def first_partition(self) -> TopicPartition:
        """The first element of its iterator."""
        mask = table_size(self._most) - 1
        return min(self._members, key=lambda tp: self._members[tp] & mask)
