"""Chooses the partition of each row of a column: Kafka's choice for keys, an even spread for rows without a key.

Zone: pure. For keys it has the results of `ottla.client.partitioner`, computed as vectors over `columnar.fields_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_ROWS_PER_CHUNK = 512


def murmur2(fields: tuple[Bytes, Ints]) -> Words:
    """The unsigned hash of every field; a null field has the hash of an empty one."""
    data, (at, size) = fields
    length = np.maximum(size, 0)
    h: Words = length.astype(np.uint32) ^ _SEED
    for block in range(int(length.max(initial=0)) // 4):
        some = np.nonzero(length >= 4 * block + 4)[0]
        k = _read_word(data, at[some] + 4 * block, 4) * _M
        k ^= k >> np.uint32(24)
        h[some] = (h[some] * _M) ^ (k * _M)
    for rest in (1, 2, 3):
        some = np.nonzero(length & 3 == rest)[0]
        h[some] = (h[some] ^ _read_word(data, at[some] + (length[some] & ~3), rest)) * _M
    h ^= h >> np.uint32(13)
    h *= _M
    h ^= h >> np.uint32(15)
    return h


def _read_word(data: Bytes, at: Ints, count: int) -> Words:
    """The first `count` bytes at each position, little-endian."""
    word: Words = data[at].astype(np.uint32)
    for number in range(1, count):
        word |= data[at + number].astype(np.uint32) << np.uint32(8 * number)
    return word


def partitions_of_keys(fields: tuple[Bytes, Ints], count: int) -> Ints:
    """The partition of each key, of `count` partitions; -1 for null."""
    chosen: Ints = (murmur2(fields) & np.uint32(0x7FFFFFFF)).astype(np.int64) % count
    chosen[fields[1][1] < 0] = -1
    return chosen


def partition_chunks(rows: int, available: Sequence[int], turn: int) -> list[tuple[int, slice]]:
    """(partition, its rows) for rows without a key. A partition gets neighbouring rows, 512 or more if there are that
    many, so that batches stay large (KIP-480). `turn` selects the first of the `available` partitions; none repeats.
    """
    count = max(1, min(len(available), rows // _ROWS_PER_CHUNK))
    edges = [-(-number * rows // count) for number in range(count + 1)]  # row i is in chunk i * count // rows
    return [
        (available[(turn + number) % len(available)], slice(first, last))
        for number, (first, last) in enumerate(pairwise(edges))
    ]


def spread_rows(rows: int, available: Sequence[int], turn: int) -> Ints:
    """The partition of each row, chosen by `partition_chunks`."""
    chosen = np.empty(rows, np.int64)
    for partition, some in partition_chunks(rows, available, turn):
        chosen[some] = partition
    return chosen
