"""What a fetch brings of one partition, and the walk through its record batches.

Zone: pure. Where batches end and which of them an application may see: headers, checksums and the read_committed
filter; single records are in `records`.
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
"""Of a batch: base offset, length, magic and last offset delta."""
_unpack_marks = Struct(">8xi4xbIh").unpack_from
"""Of a batch: length, magic, checksum and attributes."""


class Fetched(NamedTuple):
    """What one answer says of one partition."""

    tp: TopicPartition
    fetch_offset: int
    """The offset asked for. The first batch may begin before it."""
    next_offset: int
    """Where to go on: behind the last batch, visible or not; `fetch_offset` when there is none."""
    records: memoryview
    """Whole record batches, in the answer's own buffer: valid as long as anybody holds them. Maybe empty."""
    end_offset: int
    """Where the readable part ended: the high watermark, or the last stable offset under read_committed."""
    high_watermark: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset) of aborted transactions among the batches, by first offset."""
    caught_up: bool
    """Nothing readable was left behind `next_offset` at the time, even if that is below `end_offset` (compaction)."""
    error: ClientError | None
    """Why the partition is not fetched any more until `seek`: OFFSET_OUT_OF_RANGE, no permission, corrupt data …"""

    @property
    def where(self) -> TopicPartition:
        """The old name of `tp`."""
        warn_renamed("where", "tp")
        return self.tp


def whole_batches(records: memoryview, tp: TopicPartition, fetch_offset: int) -> tuple[memoryview, int]:
    """(the whole batches, the offset behind them): a broker that fills an answer to the byte cuts the last batch.

    Raises CorruptBatchError when there is no whole batch, when offsets do not rise, or lie before `fetch_offset`.
    """
    next_offset, pos, whole = fetch_offset, 0, len(records)
    while whole - pos >= HEADER_SIZE:
        base, length, magic, delta = _unpack_span(records, pos)
        if magic != MAGIC_V2 or length < HEADER_SIZE - LOG_OVERHEAD:
            wrong = f"magic {magic}" if magic != MAGIC_V2 else f"batchLength {length}"
            raise CorruptBatchError(f"{tp} behind offset {next_offset}: {wrong} at position {pos}")
        if pos + LOG_OVERHEAD + length > whole:
            break
        if delta < 0 or base + delta < next_offset or (pos and base < next_offset):
            raise CorruptBatchError(f"{tp}: a batch with offsets {base} to {base + delta} where {next_offset} was due")
        next_offset = base + delta + 1
        pos += LOG_OVERHEAD + length
    if not pos:
        raise CorruptBatchError(f"{tp}: {whole} bytes at offset {fetch_offset} are no whole batch")
    return records[:pos], next_offset


def visible_batches(
    records: memoryview,
    tp: TopicPartition,
    aborted: Sequence[tuple[int, int]] = (),
    *,
    check_crcs: bool = True,
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of the batches with application data: no control batches, none of aborted transactions.

    aborted: (producer id, first offset), by first offset, as a fetch under read_committed returns them.
    Raises CorruptBatchError at the first batch that does not match its checksum (unless `check_crcs` is off).
    """
    waiting = list(reversed(aborted))
    open_aborted: set[int] = set()
    try:
        for pos, header in batches_of(records):
            covered = records[pos + ATTRIBUTES_POS : pos + LOG_OVERHEAD + header.batch_length]
            if check_crcs and crc32c(covered) != header.crc:
                raise CorruptBatchError(
                    f"{tp}: the batch at offset {header.base_offset} does not match its checksum",
                    "Fetch again; if it stays, the broker's disk or memory is damaged",
                )
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
    """Where the batches of `visible_batches` begin, for who reads nothing else of their headers.

    Raises CorruptBatchError. Hot: a batch of a producer with Kafka's defaults holds but a hundred records or two.
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
    if pos < whole:  # anything but whole batches to the end is a case for the careful way
        return [pos for pos, _ in visible_batches(records, tp, aborted, check_crcs=check_crcs)]
    return found


def _is_abort(records: memoryview, pos: int) -> bool:
    marker = next(records_of(records, pos, max_bytes=_CONTROL_BATCH_MAX_BYTES), None)
    return marker is not None and control_type(marker.key) == ControlType.ABORT
