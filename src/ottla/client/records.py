"""Decodes fetched batches to single records.

Zone: pure. For tools, tests and other code that need not be fast; `columns` decodes whole batches.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.client.errors import CorruptBatchError
from ottla.client.fetching.batches import Fetched, visible_batches
from ottla.record.batch import Record, records_of
from ottla.record.errors import CorruptRecord

MAX_BATCH_BYTES = 256 * 2**20
"""Default limit for one decompressed batch: far more than a sane producer compresses to a megabyte."""


def records_in(
    fetched: Fetched, *, check_crcs: bool = True, max_batch_bytes: int = MAX_BATCH_BYTES
) -> Iterator[Record]:
    """The application's records from `fetch_offset` on, in offset order.

    Leaves out control records, aborted transactions, and records before `fetch_offset` in the first batch.
    Raises CorruptBatchError for a batch that breaks the format, or is larger than `max_batch_bytes` decompressed.
    """
    for pos, header in visible_batches(fetched.records, fetched.tp, fetched.aborted, check_crcs=check_crcs):
        try:
            for record in records_of(fetched.records, pos, max_bytes=max_batch_bytes):
                if record.offset >= fetched.fetch_offset:
                    yield record
        except CorruptRecord as error:
            cause = f"{fetched.tp}: the batch at offset {header.base_offset}: {error.message}"
            raise CorruptBatchError(cause) from error
