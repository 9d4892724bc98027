"""The result of a fetch for one partition, and iteration over its record batches.

Zone: pure. Finds the boundaries of batches, checks headers and checksums, and applies the read_committed filter;
`records` decodes the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from ottla.client.errors import ClientError, CorruptBatchError
from ottla.record.batch import (
    ATTRIBUTES_POS,
    CONTROL,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    BatchHeader,
    batches_of,
    records_of,
)
from ottla.record.control import ControlType, control_type
from ottla.record.crc import crc32c
from ottla.record.errors import CorruptRecord
from ottla.renamed import warn_renamed
from ottla.types import TopicPartition

_CONTROL_BATCH_MAX_BYTES = 65_536
_unpack_span = Struct(">qi4xb6xi").unpack_from
"""Base offset, length, magic and last offset delta of a batch."""
_unpack_marks = Struct(">8xi4xbIh").unpack_from
"""Length, magic, checksum and attributes of a batch."""


class Fetched(NamedTuple):
    """The part of one answer for one partition."""

    tp: TopicPartition
    fetch_offset: int
    """The requested offset. The first batch may begin before it."""
    next_offset: int
    """Where to continue: after the last batch, visible or not; `fetch_offset` if there is no batch."""
    records: memoryview
    """Whole record batches, in the answer's buffer, which is not reused while this view exists. May be empty."""
    end_offset: int
    """The end of the readable part: the high watermark, or the last stable offset under read_committed."""
    high_watermark: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset) of aborted transactions among the batches, by first offset."""
    caught_up: bool
    """No readable record was left after `next_offset`, even if that is below `end_offset` (compaction)."""
    error: ClientError | None
    """Why the partition is not fetched until the next `seek`: OFFSET_OUT_OF_RANGE, no permission, corrupt data …"""

    @property
    def where(self) -> TopicPartition:
        """The old name of `tp`."""
        warn_renamed("where", "tp")
        return self.tp


def whole_batches(records: memoryview, tp: TopicPartition, fetch_offset: int) -> tuple[memoryview, int]:
    """(the whole batches, the offset after them). Brokers cut the last batch at the size limit of an answer.

    Raises CorruptBatchError if there is no whole batch, or if offsets do not rise or lie before `fetch_offset`.
    """
    next_offset, pos, whole = fetch_offset, 0, len(records)
    while whole - pos >= HEADER_SIZE:
        base, length, magic, delta = _unpack_span(records, pos)
        if magic != MAGIC_V2 or length < HEADER_SIZE - LOG_OVERHEAD:
            wrong = f"magic {magic}" if magic != MAGIC_V2 else f"batchLength {length}"
            raise CorruptBatchError(f"{tp} from offset {next_offset} on: {wrong} at position {pos}")
        # The last batch is cut off: it is fetched again, as the first batch of the next answer.
        if pos + LOG_OVERHEAD + length > whole:
            break
        if delta < 0 or base + delta < next_offset or (pos and base < next_offset):
            raise CorruptBatchError(f"{tp}: a batch with offsets {base} to {base + delta} instead of {next_offset}")
        # The header counts, not the last record: compaction keeps the last offset of a batch when it removes records.
        next_offset = base + delta + 1
        pos += LOG_OVERHEAD + length
    if not pos:
        raise CorruptBatchError(f"{tp}: {whole} bytes at offset {fetch_offset} do not contain a whole batch")
    return records[:pos], next_offset


def visible_batches(
    records: memoryview,
    tp: TopicPartition,
    aborted: Sequence[tuple[int, int]] = (),
    *,
    check_crcs: bool = True,
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of batches with application data: leaves out control batches and aborted transactions.

    aborted: (producer id, first offset), by first offset, as a fetch under read_committed returns them.
    Raises CorruptBatchError at the first batch that does not match its checksum (unless `check_crcs` is off).
    """
    # A stack: the transaction with the smallest first offset is popped first.
    waiting = list(reversed(aborted))
    open_aborted: set[int] = set()
    try:
        for pos, header in batches_of(records):
            covered = records[pos + ATTRIBUTES_POS : pos + LOG_OVERHEAD + header.batch_length]
            if check_crcs and crc32c(covered) != header.crc:
                raise CorruptBatchError(
                    f"{tp}: the batch at offset {header.base_offset} does not match its checksum",
                    "Fetch again; if the error persists, the broker's disk or memory is damaged",
                )
            # 1. Aborted transactions that begin in this batch or before it are open. 2. Their abort marker ends them.
            # 3. Until then the batches of their producer are left out.
            while waiting and waiting[-1][1] <= header.last_offset:
                open_aborted.add(waiting.pop()[0])
            if header.attributes & CONTROL:
                if header.producer_id in open_aborted and _is_abort(records, pos):
                    open_aborted.discard(header.producer_id)
            elif not (open_aborted and header.is_transactional and header.producer_id in open_aborted):
                yield pos, header
    except CorruptRecord as error:
        raise CorruptBatchError(f"{tp}: {error.message}") from error


def visible_positions(
    records: memoryview,
    tp: TopicPartition,
    aborted: Sequence[tuple[int, int]] = (),
    *,
    check_crcs: bool = True,
) -> list[int]:
    """The positions of the batches of `visible_batches`, for callers that need nothing else.

    Raises CorruptBatchError. Hot: batches of a producer with Kafka's defaults have only some hundred records.
    """
    found: list[int] = []
    pos, whole = 0, len(records)
    while whole - pos >= HEADER_SIZE and not aborted:
        length, magic, crc, attributes = _unpack_marks(records, pos)
        end = pos + LOG_OVERHEAD + length
        if magic != MAGIC_V2 or length < HEADER_SIZE - LOG_OVERHEAD or end > whole:
            break
        if check_crcs and crc32c(records[pos + ATTRIBUTES_POS : end]) != crc:
            break
        if not attributes & CONTROL:
            found.append(pos)
        pos = end
    if pos < whole:  # not only whole, valid batches: the complete checks decide
        return [pos for pos, _ in visible_batches(records, tp, aborted, check_crcs=check_crcs)]
    return found


def _is_abort(records: memoryview, pos: int) -> bool:
    # A marker has some bytes. The limit keeps a compressed control batch from a broken broker out of memory.
    marker = next(records_of(records, pos, max_bytes=_CONTROL_BATCH_MAX_BYTES), None)
    return marker is not None and control_type(marker.key) == ControlType.ABORT
