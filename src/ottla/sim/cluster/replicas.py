"""Reads replicas from the drives and compares them.

Zone: deterministic. Reads the same bytes as the brokers' processes (the page cache), but without Ottla's storage code.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ottla.record.batch import Record, header_at, records_of
from ottla.record.control import parse_marker
from ottla.sim.disks.drive import Directory, Drive
from ottla.sim.disks.durable_offsets import topic_id_in
from ottla.sim.disks.inode import Inode
from ottla.sim.disks.log_bytes import offsets_of, whole_batches

_RECORDS_MAX_BYTES: Final = 1 << 20
_SEGMENT: Final = re.compile(r"(\d{20})\.log")


class Replica(NamedTuple):
    """One copy of a log: its batches in order, as (base offset, last offset, digest of the bytes)."""

    broker: int
    batches: list[tuple[int, int, bytes]]

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.batches[-1][1] + 1 if self.batches else -1


class Content(NamedTuple):
    """The records that are left in one copy of a compacted log."""

    broker: int
    records: dict[int, Record]
    """By offset, with control records."""
    values: dict[bytes | None, bytes]
    """The newest committed value of every key that is not deleted."""


def replica_on(broker: int, drives: Sequence[Drive], topic: str, partition: int, topic_id: bytes) -> Replica | None:
    """The copy of a log on these drives; None if there is none with that topic id."""
    directory = directory_on(drives, topic, partition, topic_id)
    return None if directory is None else Replica(broker, list(_read_batches(directory)))


def content_on(broker: int, drives: Sequence[Drive], topic: str, partition: int, topic_id: bytes) -> Content | None:
    """The content of a compacted log's copy on these drives; None if there is none with that topic id."""
    directory = directory_on(drives, topic, partition, topic_id)
    return None if directory is None else _read_content(broker, directory)


def directory_on(drives: Sequence[Drive], topic: str, partition: int, topic_id: bytes) -> Directory | None:
    """The directory of a log's copy on these drives; None if there is none with that topic id."""
    for drive in drives:
        directory = drive.root.names.get(f"{topic}-{partition}")
        if isinstance(directory, Directory) and topic_id_in(directory) in (None, topic_id):
            return directory
    return None


def _read_content(broker: int, directory: Directory) -> Content:
    records: dict[int, Record] = {}
    newest: dict[bytes | None, Record] = {}
    waiting: dict[int, list[Record]] = {}
    for piece in batch_views(directory):
        header = header_at(piece)
        found = list(records_of(piece, max_bytes=_RECORDS_MAX_BYTES))
        records.update((record.offset, record) for record in found)
        if header.is_control:
            marker = parse_marker(found[0].key, found[0].value) if found else None
            ended = waiting.pop(header.producer_id, [])
            _keep_newest(newest, ended if marker is not None and marker.commit else [])
        elif header.is_transactional:
            waiting.setdefault(header.producer_id, []).extend(found)
        else:
            _keep_newest(newest, found)
    return Content(broker, records, {key: each.value for key, each in newest.items() if each.value is not None})


def _keep_newest(newest: dict[bytes | None, Record], records: list[Record]) -> None:
    for record in records:
        if record.key not in newest or newest[record.key].offset < record.offset:
            newest[record.key] = record


def _read_batches(directory: Directory) -> Iterator[tuple[int, int, bytes]]:
    for piece in batch_views(directory):
        yield *offsets_of(piece), hashlib.blake2b(piece, digest_size=8).digest()


def batch_views(directory: Directory) -> Iterator[memoryview]:
    """Every complete batch of a log, in order; of older formats every message."""
    for name in sorted(directory.names):
        inode = directory.names[name]
        if not _SEGMENT.fullmatch(name) or not isinstance(inode, Inode):
            continue
        yield from whole_batches(memoryview(bytes(inode.data)))


def find_difference(one: Replica, other: Replica, limit: int) -> str | None:
    """The first difference below `limit` between two copies, from the offset where both have records; or None."""
    first = max(one.batches[0][0] if one.batches else 0, other.batches[0][0] if other.batches else 0)
    mine = [batch for batch in one.batches if first <= batch[0] and batch[1] < limit]
    theirs = [batch for batch in other.batches if first <= batch[0] and batch[1] < limit]
    for left, right in zip(mine, theirs, strict=False):
        if left != right:
            return f"brokers {one.broker} and {other.broker} differ at {left[:2]} and {right[:2]}"
    return None


def find_contradiction(one: Content, other: Content, limit: int) -> str | None:
    """The first offset below `limit` at which two copies of a compacted log have different records.

    Brokers compact for themselves, so a record that only one copy has is not a contradiction.
    """
    for offset in sorted(one.records.keys() & other.records.keys()):
        if offset < limit and one.records[offset] != other.records[offset]:
            return f"brokers {one.broker} and {other.broker} have different records at {offset}"
    return None


def find_other_value(one: Content, other: Content) -> str | None:
    """The first key with different values in two copies of a compacted log."""
    for key in sorted({*one.values, *other.values}, key=repr):
        if one.values.get(key) != other.values.get(key):
            return f"brokers {one.broker} and {other.broker} have different values of the key {key!r}"
    return None
