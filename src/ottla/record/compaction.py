"""The work of compaction on a batch: reads its keys, and rewrites it with some of its records.

Zone: pure. The functions are jobs for workers. `storage.cleaning` decides which records stay; this module moves
bytes. Offsets, sequence numbers and the last offset of a batch never change (KIP-534).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from ottla.int64 import INT64_MAX, add_saturating
from ottla.record.batch import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    crc_ok,
    open_batch,
    put_header,
    seal_crc,
)
from ottla.record.compression import compress
from ottla.record.errors import CorruptRecord
from ottla.record.varint import encode_varint, read_varint, read_varlong
from ottla.types import NO_TIMESTAMP

DIGEST_SIZE: Final = 16
ANSWER_RECORDS: Final = 1 << 16
"""Most records whose keys one answer holds: a batch of a few bytes may expand to millions of them."""
_NULL: Final = -1
_ENCODED_NULL: Final = 1
"""The length -1 as a varint."""


class ReadPosition(NamedTuple):
    """Where in a batch reading continues."""

    record: int = 0
    """Index of the next record."""
    position: int = 0
    """Position of that record in the decompressed records."""
    delta: int = -1
    """Offset delta of the record before it."""


_BEGINNING: Final = ReadPosition()


class Keys(NamedTuple):
    """The keys of records of one batch, in their order."""

    keys: list[bytes | None]
    """Under 16 bytes: the key itself; from there on its BLAKE2b digest of 16 bytes, so that a map of them is bounded.
    None: a record without a key."""
    deltas: Sequence[int]
    """Offsets, counted from the batch's base offset."""
    tombstones: list[int]
    """Indexes in `keys` of the records without a value."""
    rest: ReadPosition | None = None
    """Where the next piece begins; None: the batch ends here."""

    def slice_records(self, start: int, end: int) -> Keys:
        """The records [start, end) of these, without a rest."""
        if not start and end >= len(self.keys):
            return self
        tombstones = self.tombstones[bisect_left(self.tombstones, start) : bisect_left(self.tombstones, end)]
        return Keys(self.keys[start:end], self.deltas[start:end], [index - start for index in tombstones])


class Rewrite(NamedTuple):
    """A batch to rewrite."""

    batch: bytes
    keep: bytes | array[int]
    """One byte per record: 1 keeps it, 0 removes it; or the offsets to keep, for a batch without missing offsets."""
    delete_horizon_ms: int | None
    """The delete horizon to set (KIP-534); None keeps the one that the batch has."""


def keys_of(
    batches: Sequence[bytes], max_bytes: int, begin: ReadPosition = _BEGINNING, limit: int = ANSWER_RECORDS
) -> list[Keys]:
    """The keys of whole v2 batches, each expanded to at most `max_bytes`; of the first one from `begin` on.

    At most `limit` records (at least one batch's piece): the answer may be shorter than `batches`, and its last batch
    may have a rest. A job for workers. Raises CorruptRecord, also for a checksum that is wrong.
    """
    found: list[Keys] = []
    for batch in batches:
        found.append(_keys_of(batch, max_bytes, begin, limit))
        limit -= len(found[-1].keys)
        if limit <= 0 or found[-1].rest is not None:
            break
        begin = _BEGINNING
    return found


def _keys_of(batch: bytes, max_bytes: int, begin: ReadPosition, limit: int) -> Keys:
    data, header = _open_valid_batch(batch, max_bytes)
    keys: list[bytes | None] = []
    deltas: list[int] = []
    tombstones: list[int] = []
    rest = None
    for _, end, delta, _, key, has_value in _scan_records(data, header, begin):
        if not has_value:
            tombstones.append(len(keys))
        keys.append(key if key is None or len(key) < DIGEST_SIZE else blake2b(key, digest_size=DIGEST_SIZE).digest())
        deltas.append(delta)
        if len(keys) >= limit and begin.record + len(keys) < header.record_count:
            rest = ReadPosition(begin.record + len(keys), end, delta)
            break
    # Without gaps, a range takes the place of a list: few bytes to send back from the worker.
    dense = deltas and deltas[-1] - deltas[0] == len(deltas) - 1
    return Keys(keys, range(deltas[0], deltas[-1] + 1) if dense else deltas, tombstones, rest)


def sorted_offsets(latest: bytes) -> tuple[bytes, bytes]:
    """All offsets, and those of tombstones, each rising. `latest`: 64-bit numbers, ~offset for a tombstone.

    A job for workers.
    """
    numbers: array[int] = array("q")
    numbers.frombytes(latest)
    tombstones = sorted(~number for number in numbers if number < 0)
    everything = sorted(number if number >= 0 else ~number for number in numbers)
    return array("q", everything).tobytes(), array("q", tombstones).tobytes()


def rewrite_batches(rewrites: Sequence[Rewrite], max_bytes: int) -> list[bytes]:
    """Each batch with the records that stay, in its own codec; its header alone where none stays.

    A job for workers. Raises CorruptRecord as `keys_of`: a damaged batch must not get a checksum that matches.
    """
    return [bytes(_rewrite_batch(*one, max_bytes=max_bytes)) for one in rewrites]


def _rewrite_batch(batch: bytes, keep: bytes | array[int], horizon_ms: int | None, *, max_bytes: int) -> bytearray:
    data, header = _open_valid_batch(batch, max_bytes)
    mask = keep if isinstance(keep, bytes) else _keep_mask(keep, header)
    if 1 not in mask:
        return empty_batch(header)
    # A delete horizon takes the place of the base timestamp (KIP-534). All timestamp deltas move by the difference, so
    # that the records keep their timestamps.
    base = header.base_timestamp if horizon_ms is None else horizon_ms
    shift = header.base_timestamp - base
    parts: list[bytes] = []
    largest = NO_TIMESTAMP
    for start, end, ts_delta in _scan_kept_records(data, header, mask):
        parts += _shift_timestamp(data, start, end, shift) if shift else (data[start:end],)
        largest = max(largest, header.base_timestamp + ts_delta)
    # Only some topics have their records inspected when they are produced, so a timestamp may overflow.
    largest = min(largest, INT64_MAX)
    return _assemble_batch(header, b"".join(parts), sum(mask), base, largest, horizon_ms is not None)


def _keep_mask(offsets: array[int], header: BatchHeader) -> bytes:
    """One byte per record of a batch in which no offset is missing."""
    mask = bytearray(header.record_count)
    for offset in offsets:
        mask[offset - header.base_offset] = 1
    return bytes(mask)


def _open_valid_batch(batch: bytes, max_bytes: int) -> tuple[bytes, BatchHeader]:
    data, header = open_batch(batch, max_bytes=max_bytes)
    if not crc_ok(memoryview(batch), 0, len(batch)):
        raise CorruptRecord(f"the batch at offset {header.base_offset} does not match its checksum")
    return data, header


def _assemble_batch(
    header: BatchHeader, data: bytes, count: int, base_timestamp: int, max_timestamp: int, sets_horizon: bool
) -> bytearray:
    batch = bytearray(HEADER_SIZE)
    batch += compress(header.codec, data) if header.codec else data
    attributes = header.attributes | DELETE_HORIZON if sets_horizon else header.attributes
    # With LogAppendTime the header's largest timestamp is that of every record: it must not change with the records.
    largest = header.max_timestamp if header.is_append_time else max_timestamp
    head = header._replace(
        batch_length=len(batch) - LOG_OVERHEAD, attributes=attributes, base_timestamp=base_timestamp,
        max_timestamp=largest, record_count=count,
    )  # fmt: skip
    put_header(batch, head)
    seal_crc(batch, 0, len(batch))
    return batch


def empty_batch(header: BatchHeader) -> bytearray:
    """A batch without records: it keeps its offsets, and the last sequence number of its producer."""
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    batch = bytearray(HEADER_SIZE)
    head = header._replace(
        batch_length=HEADER_SIZE - LOG_OVERHEAD, attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0
    )
    put_header(batch, head)
    seal_crc(batch, 0, HEADER_SIZE)
    return batch


def _shift_timestamp(data: bytes, start: int, end: int, shift: int) -> tuple[bytes, ...]:
    """The record in data[start:end], re-encoded for a base timestamp that is smaller by `shift`."""
    # A record: length varint | attributes i8 | timestamp delta varlong | all else. Two of them change.
    _, at = read_varint(data, start)
    ts_delta, rest = read_varlong(data, at + 1)
    times = encode_varint(add_saturating(ts_delta, shift))
    size = 1 + len(times) + end - rest
    return encode_varint(size), data[at : at + 1], times, data[rest:end]


def _scan_kept_records(data: bytes, header: BatchHeader, mask: bytes) -> Iterator[tuple[int, int, int]]:
    """(start, end, timestamp delta) of the records that stay; of the others only the length is read.

    Raises CorruptRecord.
    """
    pos, whole = 0, len(data)
    if len(mask) != header.record_count:
        raise CorruptRecord(f"{header.record_count} records, {len(mask)} were expected")
    for stays in mask:
        start = pos
        try:
            size = data[pos]
            if size <= 0x7F:
                size, pos = (size >> 1) ^ -(size & 1), pos + 1
            elif data[pos + 1] <= 0x7F:
                size, pos = size & 0x7F | data[pos + 1] << 7, pos + 2
                size = (size >> 1) ^ -(size & 1)
            else:
                size, pos = read_varint(data, pos)
            if stays:
                ts_delta = data[pos + 1] >> 1 if not data[pos + 1] & 0x81 else read_varlong(data, pos + 1)[0]
        except IndexError:
            raise CorruptRecord("a record is cut short") from None
        end = pos + size
        if not pos < end <= whole:
            raise CorruptRecord(f"a record of {size} bytes at {start} of {whole}")
        if stays:
            yield start, end, ts_delta
        pos = end
    if pos != whole:
        raise CorruptRecord(f"{whole - pos} bytes after the last record")


def _scan_records(
    data: bytes, header: BatchHeader, begin: ReadPosition
) -> Iterator[tuple[int, int, int, int, bytes | None, bool]]:
    """(start, end, offset delta, timestamp delta, key, has a value) of each record from `begin` on.

    Raises CorruptRecord. Hot: numbers of one byte that are not negative are read here rather than by a call.
    """
    (first, pos, last), whole = begin, len(data)
    for _ in range(first, header.record_count):
        start = pos
        try:
            size, pos = read_varint(data, pos)
            end = pos + size
            ts_delta, pos = (data[pos + 1] >> 1, pos + 2) if not data[pos + 1] & 0x81 else read_varlong(data, pos + 1)
            delta, pos = (data[pos] >> 1, pos + 1) if not data[pos] & 0x81 else read_varint(data, pos)
            length, pos = (data[pos] >> 1, pos + 1) if not data[pos] & 0x81 else read_varint(data, pos)
            key = None if length == _NULL else data[pos : pos + length]
            pos = pos if length == _NULL else pos + length
            has_value = data[pos] != _ENCODED_NULL
        except IndexError:
            raise CorruptRecord("a record is cut short") from None
        if length < _NULL or not pos < end <= whole:
            raise CorruptRecord(f"a record of {size} bytes at {start} of {whole}")
        if not last < delta <= header.last_offset_delta:
            raise CorruptRecord(f"offset delta {delta} after {last}, last is {header.last_offset_delta}")
        yield start, end, delta, ts_delta, key, has_value
        pos, last = end, delta
    if pos != whole:
        raise CorruptRecord(f"{whole - pos} bytes after the last record")
