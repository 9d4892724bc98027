"""Chooses the partition of a record by its key.

Zone: pure. Kafka's murmur2; for records without a key the producer chooses (`producer.topic_metadata`).
"""

from __future__ import annotations

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash that Kafka's Java client uses, as an unsigned number.

    Java's result is the same 32 bits read as a signed number. Source: Kafka's `Utils.murmur2`; Austin Appleby's
    MurmurHash2 with Kafka's own seed.
    """
    size = len(data)
    h = _SEED ^ size
    whole = size & ~3
    for at in range(0, whole, 4):
        k = (int.from_bytes(data[at : at + 4], "little") * _M) & _MASK
        k = ((k ^ (k >> 24)) * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    if size > whole:
        h = ((h ^ int.from_bytes(data[whole:], "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition of a key: the hash without its sign bit, modulo the number of all partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
