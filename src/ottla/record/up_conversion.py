"""Converts messages of formats v0 and v1 to record batches of v2 at the same offsets, for the cleaner.

Zone: pure. The cleaner writes only format v2, because an old message has no place for a delete horizon. Consecutive
plain messages become one batch, so that the log does not grow; a wrapper becomes one batch in its codec. Batches of v2
stay, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from ottla.record.batch import LOG_OVERHEAD, MAGIC_V2, TIMESTAMP_TYPE, Record, encode_batch
from ottla.record.errors import CorruptRecord
from ottla.record.header_fields import ATTRIBUTES, BASE_OFFSET, BATCH_LENGTH, MAGIC, MAX_TIMESTAMP
from ottla.record.log_entries import covered_from, entries_of, entry_checksum, is_wrapper, records_at
from ottla.record.validation import HeaderTuple

TOGETHER: Final = 16 * 1024
"""The most bytes of plain messages that become one batch; a single message may be larger."""
_Run = tuple[bool, int, int, int]


def convert_to_v2(chunk: bytes, max_bytes: int) -> bytes:
    """The entries of a chunk as batches of v2; wrappers expand to at most `max_bytes` each.

    A job for workers. Raises CorruptRecord, also for a checksum of an old message that is wrong.
    """
    return b"".join(
        _convert_run(chunk, run, list(found), max_bytes)
        for run, found in groupby(_entries_by_run(chunk), lambda e: e[0])
    )


def _entries_by_run(chunk: bytes) -> Iterator[tuple[_Run, int, HeaderTuple]]:
    """(what must be equal in a batch, position, header) of each entry."""
    size, number = 0, 0
    for at, header in entries_of(chunk):
        # The number separates runs: it grows before and after an entry that is a batch of its own, and when a run is
        # full.
        alone = header[MAGIC] == MAGIC_V2 or is_wrapper(header)
        size += header[BATCH_LENGTH] + LOG_OVERHEAD
        if alone or size > TOGETHER:
            size, number = header[BATCH_LENGTH] + LOG_OVERHEAD, number + 1
        append_time = bool(header[ATTRIBUTES] & TIMESTAMP_TYPE)
        yield (append_time, header[MAX_TIMESTAMP] if append_time else 0, header[MAGIC], number), at, header
        number += alone


def _convert_run(chunk: bytes, run: _Run, found: list[tuple[_Run, int, HeaderTuple]], max_bytes: int) -> bytes:
    _, at, header = found[0]
    if header[MAGIC] == MAGIC_V2:
        assert len(found) == 1, "a v2 batch is a run of its own"
        return chunk[at : at + header[BATCH_LENGTH] + LOG_OVERHEAD]
    records: list[Record] = []
    for _, pos, each in found:
        end = pos + each[1] + LOG_OVERHEAD
        if entry_checksum(each, memoryview(chunk)[pos + covered_from(each) : end]) != each[4]:
            raise CorruptRecord(f"the message at offset {each[0]} does not match its checksum")
        records += records_at(chunk, pos, max_bytes=max_bytes)
    if not records:
        raise CorruptRecord(f"the wrapper message at offset {header[BASE_OFFSET]} is empty")
    base, last = records[0].offset, max(records[-1].offset, found[-1][2][BASE_OFFSET])
    codec = header[ATTRIBUTES] & 7
    return bytes(
        encode_batch(records, base_offset=base, codec=codec, timestamp_type=run[0], last_offset_delta=last - base)
    )
