"""Reads the batches of a segment, many at a time.

Zone: real. Reads at positions, in bounded memory. Files are not mapped: truncating a mapped file kills the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from ottla.logtable.errors import CorruptLog, LogChanged
from ottla.record.batch import MAGIC_V2, BatchHeader, batches_of
from ottla.record.errors import CorruptRecord
from ottla.storage import layout
from ottla.storage.dump.files import BATCH_MAX, BatchFile, Frame

CHUNK: Final = 1 << 22
_LAST_OFFSET: Final = 2**63 - 1


class Chunk(NamedTuple):
    """Whole v2 batches, one after the other."""

    position: int
    """Its position in the file."""
    data: memoryview
    batches: list[tuple[int, BatchHeader]]
    """Position in `data` and header of each."""


class Old(NamedTuple):
    """An entry of a message set of format v0 or v1."""

    position: int
    data: bytes


@contextmanager
def open_segment(path: str) -> Iterator[BatchFile]:
    """Open a segment. Raises LogChanged when the file cannot be opened or read."""
    try:
        with BatchFile(path) as file:
            yield file
    except OSError as error:
        raise LogChanged(path, error.strerror or str(error)) from error


def read_chunks(file: BatchFile, *, last: bool, skip: bool) -> Iterator[Chunk | Old]:
    """All entries of a segment. `last`: no segment follows, so a batch that is cut short ends the log after a crash.

    Raises CorruptLog where no batch can begin; with `skip` the segment ends there.
    """
    position, due = 0, _base_offset(file.path)
    while position < file.size:
        try:
            frame = file.frame_at(position)
            found = None if frame is None else _read_chunk(file, frame)
        except CorruptRecord as error:
            # After a crash the last segment may end in zeros: space that was reserved and not written.
            if skip or (last and _only_zeros_follow(file, position)):
                return
            raise CorruptLog(file.path, position, error.message) from error
        if found is None:
            if skip or last:
                return
            raise CorruptLog(file.path, position, f"{file.size - position} bytes are not a whole batch")
        # With `skip`, offsets are not checked: a wrong one does not make the batches after it unreadable.
        if not skip:
            due = _check_offsets_rise(file.path, found, due)
        yield found
        position += len(found.data)


def _base_offset(path: str) -> int:
    name = layout.parse_file_name(os.path.basename(path))
    return 0 if name is None else name.base_offset


def _check_offsets_rise(path: str, found: Chunk | Old, due: int) -> int:
    """The offset that may come next. Raises CorruptLog where offsets do not rise: no checksum covers them."""
    if isinstance(found, Old):
        spans = [(0, offset := int.from_bytes(found.data[:8], "big", signed=True), offset)]
    else:
        spans = [(at, header.base_offset, header.last_offset) for at, header in found.batches]
    for at, first, last in spans:
        if first < due:
            raise CorruptLog(path, found.position + at, f"a batch begins at offset {first} where {due} was due")
        due = last + 1
    return due


def _read_chunk(file: BatchFile, frame: Frame) -> Chunk | Old:
    if frame.magic < MAGIC_V2:
        return Old(frame.position, file.read_batch(frame))
    if frame.size > BATCH_MAX:
        raise CorruptRecord(f"a batch of {frame.size} bytes")
    data = memoryview(file.read(frame.position, max(CHUNK, frame.size)))
    batches = _whole_v2_batches(data)
    if not batches:
        raise CorruptRecord("the file was cut while it was read")
    return Chunk(frame.position, data[: batches[-1][0] + batches[-1][1].size], batches)


def _whole_v2_batches(data: memoryview) -> list[tuple[int, BatchHeader]]:
    """Whole v2 batches up to the first entry that is not one; the next read begins there and reports what it is."""
    found: list[tuple[int, BatchHeader]] = []
    try:
        for position, header in batches_of(data):
            if header.last_offset_delta < 0 or not 0 <= header.base_offset <= header.last_offset <= _LAST_OFFSET:
                raise CorruptRecord(f"a batch with offsets {header.base_offset} to {header.last_offset}")
            found.append((position, header))
    except CorruptRecord:
        if not found:
            raise
    return found


def _only_zeros_follow(file: BatchFile, position: int) -> bool:
    """Whether only zeros follow."""
    while part := file.read(position, CHUNK):
        if any(part):
            return False
        position += len(part)
    return True


def read_headers_of(path: str, *, last: bool, skip: bool) -> Iterator[tuple[BatchFile, int, BatchHeader]]:
    """(file, position, header) of every v2 batch of a segment. Raises CorruptLog, LogChanged."""
    with open_segment(path) as file:
        for chunk in read_chunks(file, last=last, skip=skip):
            if isinstance(chunk, Chunk):
                for at, header in chunk.batches:
                    yield file, chunk.position + at, header
