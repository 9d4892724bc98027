"""Chunks of a segment that a pass of compaction has read: which entries are whole.

Zone: pure. A chunk ends anywhere, also within an entry; entries may be messages of formats v0 and v1.
"""

from __future__ import annotations

from ottla.record.batch import LOG_OVERHEAD, MAGIC_V2, BatchHeader, batches_of
from ottla.record.header_fields import BATCH_LENGTH, MAGIC
from ottla.record.log_entries import entries_of, entry_at

Batch = tuple[bytes, BatchHeader]


def whole_entries_size(data: bytes) -> tuple[int, bool]:
    """Bytes of the whole entries at the beginning, and whether any is of format v0 or v1. Raises CorruptRecord."""
    size, is_old = 0, False
    for pos, header in entries_of(data):
        size = pos + header[BATCH_LENGTH] + LOG_OVERHEAD
        is_old = is_old or header[MAGIC] != MAGIC_V2
    return size, is_old


def first_entry_size(data: bytes) -> int | None:
    """Bytes of the first entry, which need not be whole; None if not even its header is. Raises CorruptRecord."""
    first = entry_at(data, 0, len(data))
    return None if first is None else first[BATCH_LENGTH] + LOG_OVERHEAD


def whole_batches(data: bytes) -> list[Batch]:
    """The whole batches at the beginning. Raises CorruptRecord."""
    return [(data[pos : pos + header.size], header) for pos, header in batches_of(data)]
