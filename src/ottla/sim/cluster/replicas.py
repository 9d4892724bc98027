"""Replicas as they lie on the drives: whether they are the same.

Zone: deterministic. Reads what the brokers' processes would read (the page cache), with nothing of their storage room.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ottla.record.batch import HEADER_SIZE, LOG_OVERHEAD, unpack_header
from ottla.sim.drive import Directory, Drive
from ottla.sim.floors import topic_id_in
from ottla.sim.inode import Inode

_SEGMENT: Final = re.compile(r"(\d{20})\.log")


class Replica(NamedTuple):
    """One copy of a log: its batches in order, as (base offset, last offset, digest of the bytes)."""

    broker: int
    batches: list[tuple[int, int, bytes]]

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.batches[-1][1] + 1 if self.batches else -1


def replica_on(broker: int, drives: Sequence[Drive], topic: str, partition: int, topic_id: bytes) -> Replica | None:
    """The copy of a log on these drives, if there is one of that topic id."""
    for drive in drives:
        directory = drive.root.names.get(f"{topic}-{partition}")
        if isinstance(directory, Directory) and topic_id_in(directory) in (None, topic_id):
            return Replica(broker, list(_batches(directory)))
    return None


def _batches(directory: Directory) -> Iterator[tuple[int, int, bytes]]:
    for name in sorted(directory.names):
        inode = directory.names[name]
        if not _SEGMENT.fullmatch(name) or not isinstance(inode, Inode):
            continue
        view = memoryview(bytes(inode.data))
        pos = 0
        while len(view) - pos >= HEADER_SIZE:
            header = unpack_header(view, pos)
            size = header[1] + LOG_OVERHEAD
            if size < HEADER_SIZE or pos + size > len(view):
                break
            digest = hashlib.blake2b(view[pos : pos + size], digest_size=8).digest()
            yield header[0], header[0] + header[6], digest
            pos += size


def difference(one: Replica, other: Replica, limit: int) -> str | None:
    """The first difference of two copies below an offset, in what both have; None: there is none."""
    first = max(one.batches[0][0] if one.batches else 0, other.batches[0][0] if other.batches else 0)
    mine = [batch for batch in one.batches if first <= batch[0] and batch[1] < limit]
    theirs = [batch for batch in other.batches if first <= batch[0] and batch[1] < limit]
    for left, right in zip(mine, theirs, strict=False):
        if left != right:
            return f"brokers {one.broker} and {other.broker} differ at {left[:2]} and {right[:2]}"
    return None
