"""Index files, checked against the log they belong to.

Zone: real. Reads .index, .timeindex and .txnindex; the broker's own code for them (`storage.indexes`) is not used, so
that the tool can show what the broker would refuse.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from ottla.record import legacy
from ottla.record.batch import MAGIC_V2, records_of
from ottla.record.errors import CorruptRecord
from ottla.storage.dump.files import BATCH_MAX, BatchFile, Frame
from ottla.storage.dump.items import Fields, Item, Words

_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")
_TXN_ENTRY = Struct(">hqqqq")
_CHUNK_ENTRIES: Final = 4096
MISMATCHES_MAX: Final = 100_000
"""How many faults of each kind are kept for the report about an index."""


class CorruptIndex(Exception):
    """An index that fails the sanity check by which a broker decides, at its start, to rebuild it."""


class NameWithoutOffset(CorruptIndex):
    """A name that does not begin with an offset."""

    def __init__(self, path: str, beginning: str) -> None:
        super().__init__(f"{path}: the name does not begin with an offset")
        self.beginning = beginning


class IndexOptions(NamedTuple):
    """How an index is checked and shown."""

    sanity_only: bool = False
    verify_only: bool = False
    max_message_size: int = 5 * 1024 * 1024


class TimeErrors(NamedTuple):
    """The faults of a time index, in the order found."""

    mismatches: list[tuple[int, int]]
    """(index timestamp, log timestamp)"""
    out_of_order: list[tuple[int, int]]
    """(index timestamp, the one before it)"""
    not_found: list[tuple[int, int]]
    """(index offset, log offset)"""


def base_offset_of(path: str) -> int:
    """The offset in a file's name. Raises NameWithoutOffset when there is none."""
    digits = os.path.basename(path).partition(".")[0]
    if not (digits.isascii() and digits.isdigit()):
        raise NameWithoutOffset(path, digits)
    return int(digits)


def sibling_path(path: str, suffix: str) -> str:
    """The file of the same segment with another suffix."""
    return os.path.join(os.path.dirname(path), os.path.basename(path).partition(".")[0] + suffix)


def dump_offset_index(path: str, options: IndexOptions, mismatches: dict[int, int]) -> Iterator[Item]:
    """Entries of an offset index; `mismatches` gets index offset → offset that the log has there (-1: none).

    Raises OSError and CorruptIndex.
    """
    base = base_offset_of(path)
    with Entries(path, _OFFSET_ENTRY) as index:
        if index.count == 0:
            yield Words(f"{path} is empty.")
            return
        if options.sanity_only:
            check_offset_index(path, base, index)
            yield Words(f"{path} passed sanity check.")
            return
        with BatchFile(sibling_path(path, ".log")) as log:
            for relative, position in index.until_zeros(1, 0):
                found = _last_offset_at(log, position, options.max_message_size)
                if found != base + relative and len(mismatches) < MISMATCHES_MAX:
                    mismatches[base + relative] = found
                if not options.verify_only:
                    yield Fields("index entry", (("offset", base + relative), ("position", position)))


def _last_offset_at(log: BatchFile, position: int, max_message_size: int) -> int:
    try:
        frame = log.frame_at(position) if position >= 0 else None
    except CorruptRecord:
        return -1
    return -1 if frame is None or frame.size > max_message_size else frame.last_offset


def dump_time_index(path: str, options: IndexOptions, errors: TimeErrors) -> Iterator[Item]:
    """Entries of a time index, looked up in the log through the offset index; `errors` gets its faults.

    Raises OSError and CorruptIndex.
    """
    base = base_offset_of(path)
    with Entries(path, _TIME_ENTRY) as index:
        if options.sanity_only:
            check_time_index(path, base, index)
            yield Words(f"{path} passed sanity check.")
            return
        with (
            BatchFile(sibling_path(path, ".log")) as log,
            Entries(sibling_path(path, ".index"), _OFFSET_ENTRY) as offsets,
        ):
            before = -1
            for timestamp, relative in index.until_zeros(1, 1):
                _check_time_entry(log, offsets, timestamp, base, relative, before, errors)
                if not options.verify_only:
                    yield Fields("time index entry", (("timestamp", timestamp), ("offset", base + relative)))
                before = timestamp


def _check_time_entry(
    log: BatchFile, offsets: Entries, timestamp: int, base: int, relative: int, before: int, errors: TimeErrors
) -> None:
    offset = base + relative
    frame = _first_ending_at_or_after(log, offsets.lookup_position(relative), offset)
    if frame is None or frame.last_offset != offset:
        _keep_fault(errors.not_found, (offset, -1 if frame is None else frame.last_offset))
        return
    largest = _largest_timestamp(log, frame)
    if largest != timestamp:
        _keep_fault(errors.mismatches, (timestamp, largest))
    if before >= timestamp:
        _keep_fault(errors.out_of_order, (timestamp, before))


def _keep_fault(faults: list[tuple[int, int]], fault: tuple[int, int]) -> None:
    if len(faults) < MISMATCHES_MAX:
        faults.append(fault)


def _first_ending_at_or_after(log: BatchFile, position: int, offset: int) -> Frame | None:
    try:
        return next((frame for frame in log.iter_frames(position) if frame.last_offset >= offset), None)
    except CorruptRecord:
        return None


def _largest_timestamp(log: BatchFile, frame: Frame) -> int:
    """The largest timestamp of the records, which may differ from the one in the header."""
    try:
        if frame.magic >= MAGIC_V2:
            records = records_of(log.read_batch(frame), 0, max_bytes=BATCH_MAX)
            return max((record.timestamp for record in records), default=-1)
        message = legacy.message_at(log.read_batch(frame), 0)
        return max((inner.timestamp for inner in legacy.messages_in(message, BATCH_MAX)), default=-1)
    except CorruptRecord:
        return -1


def dump_txn_index(path: str) -> Iterator[Item]:
    """Aborted transactions. Raises OSError and CorruptIndex."""
    with Entries(path, _TXN_ENTRY) as index:
        for version, producer_id, first, last, stable in index:
            if version != 0:
                raise CorruptIndex(f"{path}: an aborted transaction of version {version}")
            yield Fields(
                "aborted transaction",
                (
                    ("version", version),
                    ("producerId", producer_id),
                    ("firstOffset", first),
                    ("lastOffset", last),
                    ("lastStableOffset", stable),
                ),
            )
        if index.trailing:
            raise CorruptIndex(f"{path}: {index.trailing} bytes after the last whole entry of {_TXN_ENTRY.size}")


class Entries:
    """A file of fixed-size entries."""

    def __init__(self, path: str, entry: Struct) -> None:
        self._file = BatchFile(path)
        self._entry = entry
        self.count, self.trailing = divmod(self._file.size, entry.size)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.__exit__(None, None, None)

    def __getitem__(self, i: int) -> tuple[int, ...]:
        return self._entry.unpack(self._file.read(i * self._entry.size, self._entry.size))

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        size = self._entry.size
        for start in range(0, self.count, _CHUNK_ENTRIES):
            entries = min(_CHUNK_ENTRIES, self.count - start)
            yield from self._entry.iter_unpack(self._file.read(start * size, entries * size))

    def until_zeros(self, after: int, field: int) -> Iterator[tuple[int, int]]:
        """Entries up to the zeros of a sparse file: from number `after` on, the first one with a 0 in `field`."""
        for i, entry in enumerate(self):
            if i >= after and entry[field] == 0:
                return
            yield entry[0], entry[1]

    def lookup_position(self, relative: int) -> int:
        """For an offset index: the position of the largest entry at or below `relative`; 0 without one."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            entry = self[middle]
            # Zeros after the first entry are the unused part of a sparse file: larger than everything.
            if entry[0] > relative or (middle > 0 and entry[0] == 0):
                high = middle
            else:
                low = middle + 1
        return self[low - 1][1] if low else 0


def check_offset_index(path: str, base: int, index: Entries) -> None:
    """The sanity check of an offset index. Raises CorruptIndex."""
    if index.trailing:
        raise CorruptIndex(f"{path}: {index.trailing} bytes after the last whole entry of {_OFFSET_ENTRY.size}")
    if index.count and index[index.count - 1][0] < 0:
        last = base + index[index.count - 1][0]
        raise CorruptIndex(f"{path}: the last offset is {last}, below the base offset {base}")


def check_time_index(path: str, base: int, index: Entries) -> None:
    """The sanity check of a time index. Raises CorruptIndex."""
    if index.trailing:
        raise CorruptIndex(f"{path}: {index.trailing} bytes after the last whole entry of {_TIME_ENTRY.size}")
    if not index.count:
        return
    timestamp, relative = index[index.count - 1]
    if timestamp < index[0][0]:
        raise CorruptIndex(f"{path}: the last timestamp is {timestamp}, below the first, {index[0][0]}")
    if relative < 0:
        raise CorruptIndex(f"{path}: the last offset is {base + relative}, below the base offset {base}")
