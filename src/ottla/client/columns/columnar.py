"""Record batches (format v2) as columns: bytes of a fetch to Arrow arrays, and Arrow arrays to bytes for a produce.

Zone: pure. This module handles codecs, offsets, timestamps and batch headers, batch by batch. The work per record is in
vectors and compiled loops of `columnar_numba` / `columnar_numpy`.

Layout of a batch and of a record: https://kafka.apache.org/documentation/#recordbatch. Arrow types on both sides:
`binary` with 32-bit offsets for keys and values, `list<struct<key: string, value: binary>>` for headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from struct import Struct
from types import ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.client.columns.columnar_numpy import varint_sizes
from ottla.record import batch as layout
from ottla.record.compression import compress, decompress
from ottla.record.errors import CorruptRecord, ExpandsTooFar

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
View = bytes | bytearray | memoryview

HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
SMALLEST_RECORD: Final = 7
_NO_END: Final = 2**63 - 1
"""Above every offset: the last offset of a log is smaller, because its successor must also be an int64."""
_HEADER: Final = Struct(">qiibIhiqqqhii")
_FIELDS: Final = np.dtype(
    [
        ("base_offset", ">i8"), ("batch_length", ">i4"), ("leader_epoch", ">i4"), ("magic", "i1"), ("crc", ">u4"),
        ("attributes", ">i2"), ("last_offset_delta", ">i4"), ("base_timestamp", ">i8"), ("max_timestamp", ">i8"),
        ("producer_id", ">i8"), ("producer_epoch", ">i2"), ("base_sequence", ">i4"), ("record_count", ">i4"),
    ]
)  # fmt: skip
MAX_DECODED: Final = 1 << 30
"""The most bytes of records that one call decodes; Arrow's 32-bit offsets end at 2 GiB."""
BATCH_BYTES: Final = 900_000
"""Default size of a batch before compression: below the default `max.message.bytes` with room for its header."""


class Columns(NamedTuple):
    """Records as columns, in offset order."""

    offsets: Ints
    timestamps: Ints
    """Milliseconds since 1970; -1: unknown."""
    timestamp_types: npt.NDArray[np.int32]
    """0 CreateTime, 1 LogAppendTime."""
    keys: pa.Array
    values: pa.Array
    headers: pa.Array | None


class Producer(NamedTuple):
    """Identity of the producer, by which brokers recognise repeated batches."""

    id: int = -1
    epoch: int = -1
    sequence: int = -1
    """Of the first record; -1 without idempotence."""
    transactional: bool = False


ANONYMOUS: Final = Producer()


class Encoded(NamedTuple):
    """A record batch ready to be sent."""

    records: int
    data: View


class Plain(NamedTuple):
    """A record batch whose header is not filled in; `data` has room for it in front."""

    records: int
    base_timestamp: int
    max_timestamp: int
    data: memoryview


def decode_batches(
    view: View,
    batches: Sequence[int],
    *,
    start: int = 0,
    end: int | None = None,
    headers: bool = False,
    max_bytes: int = MAX_DECODED,
) -> Columns:
    """The records of batches in `view` with `start` ≤ offset < `end`.

    `batches`: positions of complete batches, from `ottla.client.fetching.batches.visible_positions`, which also
    checks checksums and transactions. `max_bytes` bounds the decompressed size. Raises CorruptRecord for bytes that no
    correct producer sends; every position is checked before it is used.
    """
    # Brokers return whole batches: the first may begin before `start`, the last may end after `end`. Batches outside
    # are not decompressed, and single records are left out below, after decoding.
    at = np.array(batches, np.int64)
    heads = _batch_headers(_readonly_bytes(view), at)
    base = heads["base_offset"].astype(np.int64)
    last = base + heads["last_offset_delta"]
    end = _NO_END if end is None else end
    whole = bool(len(at)) and int(base.min()) >= start and int(last.max()) < end
    if not whole:
        wanted = (last >= start) & (base < end)
        at, heads = at[wanted], heads[wanted]
    data, spans = _open_batches(memoryview(view), at, heads, max_bytes)
    rows = _empty_array(8 * int(spans[:, 2].sum()), np.int64).reshape(8, -1)
    broken = record_loops().index_records(data, spans, rows)
    if broken >= 0:
        raise CorruptRecord(f"a record cannot be read (at byte {broken} of {len(data)})")
    offsets, times, types = _offsets_and_times(heads, rows)
    if not whole:
        keep = (offsets >= start) & (offsets < end)
        rows, offsets, times, types = rows[:, keep], offsets[keep], times[keep], types[keep]
    return Columns(
        offsets,
        times,
        types,
        _binary_array(data, rows[2], rows[3]),
        _binary_array(data, rows[4], rows[5]),
        _header_array(data, rows[6], rows[7]) if headers else None,
    )


@cache
def record_loops() -> ModuleType:
    """The module with the loops: compiled by numba if it is installed, else numpy."""
    try:
        from ottla.client.columns import columnar_numba  # noqa: PLC0415 - numba is optional and slow to import
    except (ImportError, RuntimeError):  # no numba, or no writable directory for its compiled code
        from ottla.client.columns import columnar_numpy  # noqa: PLC0415

        return columnar_numpy
    return columnar_numba


def _batch_headers(data: Bytes, at: Ints) -> Any:
    """The headers at these positions, by field."""
    return data[at[:, None] + np.arange(layout.HEADER_SIZE)].view(_FIELDS)[:, 0]


def _open_batches(view: memoryview, at: Ints, heads: Any, max_bytes: int) -> tuple[Bytes, Ints]:
    """All records in one buffer, and (start, end, records, last delta) per batch. Copies only if a batch is compressed.

    Raises CorruptRecord.
    """
    spans = np.empty((len(at), 4), np.int64)
    spans[:, 0] = at + layout.HEADER_SIZE
    spans[:, 1] = at + layout.LOG_OVERHEAD + heads["batch_length"]
    spans[:, 2] = heads["record_count"]
    spans[:, 3] = heads["last_offset_delta"]
    codecs = heads["attributes"] & layout.CODEC_MASK
    data = _readonly_bytes(_decompress_batches(view, spans, codecs, max_bytes) if codecs.any() else view)
    sizes, counts = spans[:, 1] - spans[:, 0], spans[:, 2]
    # A count is not trusted before memory is reserved for it: a record takes at least 7 bytes, so a larger count
    # lies.
    wrong = (counts < 0) | (counts > sizes // SMALLEST_RECORD) | ((counts == 0) & (sizes > 0))
    if not wrong.any() and sizes.sum() > max_bytes:
        raise ExpandsTooFar(f"{len(sizes)} batches have {sizes.sum()} bytes of records (limit {max_bytes})")
    if wrong.any():
        which = int(np.argmax(wrong))
        raise CorruptRecord(f"{counts[which]} records in {sizes[which]} bytes")
    return data, spans


def _decompress_batches(view: memoryview, spans: Ints, codecs: Ints, max_bytes: int) -> bytes:
    """The records of all batches, decompressed, in one buffer. Changes `spans` to positions in that buffer."""
    pieces: list[View] = []
    for codec, (start, end, _, _) in zip(codecs.tolist(), spans.tolist(), strict=True):
        piece = view[start:end]
        pieces.append(decompress(codec, piece, max_bytes) if codec else piece)
        # Each batch may use what the ones before have left: the limit is for all batches of the call together.
        max_bytes = max(0, max_bytes - len(pieces[-1]))
    spans[:, 1] = np.cumsum([len(piece) for piece in pieces])
    spans[0, 0], spans[1:, 0] = 0, spans[:-1, 1]
    return b"".join(pieces)


def _offsets_and_times(heads: Any, rows: Ints) -> tuple[Ints, Ints, npt.NDArray[np.int32]]:
    """(offset, timestamp, timestamp type) of every record. Raises CorruptRecord."""
    by_broker = (heads["attributes"] & layout.TIMESTAMP_TYPE) != 0
    lines = np.empty((len(heads), 4), np.int64)
    lines[:, 0] = heads["record_count"]
    lines[:, 1] = heads["base_offset"]
    # LogAppendTime: all records have the batch's max timestamp, and their deltas do not count.
    lines[:, 2] = np.where(by_broker, heads["max_timestamp"], heads["base_timestamp"])
    lines[:, 3] = ~by_broker
    count = rows.shape[1]
    offsets, times = _empty_array(count, np.int64), _empty_array(count, np.int64)
    if not record_loops().place(lines, rows, offsets, times):
        raise CorruptRecord("offsets do not rise within a batch")
    if not by_broker.any():
        return offsets, times, np.zeros(count, np.int32)
    return offsets, times, np.repeat(by_broker.astype(np.int32), lines[:, 0])


def _empty_array(count: int, kind: type[Any]) -> Any:
    """An uninitialized array of `count` numbers, from Arrow's pool, which reuses pages instead of mapping new ones."""
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(kind).itemsize), kind)


def _binary_array(data: Bytes, at: Ints, size: Ints) -> pa.Array:
    """An Arrow `binary` array with copies of the fields; length -1 means null."""
    count = len(at)
    if not count or int(size.max()) < 0:
        return pa.nulls(count, pa.binary())
    at, size = np.ascontiguousarray(at), np.ascontiguousarray(size)
    null = size < 0 if int(size.min()) < 0 else None
    # A null has the length -1, so the sum is short by one for each of them.
    out = _empty_array(int(size.sum()) + (0 if null is None else int(null.sum())), np.uint8)
    ends = _empty_array(count + 1, np.int32)
    record_loops().gather(data, at, size, ends, out)
    valid = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), count, [valid, pa.py_buffer(ends), pa.py_buffer(out)])


def _header_array(data: Bytes, at: Ints, count: Ints) -> pa.Array:
    """Headers as Spark's Kafka source shows them: a list of (key, value), null where a record has none."""
    fields = np.empty((4, int(count.sum())), np.int64)
    record_loops().index_headers(data, np.ascontiguousarray(at), np.ascontiguousarray(count), fields)
    ends = np.zeros(len(count) + 1, np.int32)
    np.cumsum(count, out=ends[1:])
    pairs = pa.StructArray.from_arrays(
        [_text_array(_binary_array(data, fields[0], fields[1])), _binary_array(data, fields[2], fields[3])],
        fields=list(HEADER_TYPE),
    )
    valid = pa.py_buffer(np.packbits(count > 0, bitorder="little"))
    kind = pa.list_(pa.field("element", HEADER_TYPE))
    return pa.Array.from_buffers(kind, len(count), [valid, pa.py_buffer(ends)], children=[pairs])


def _text_array(array: pa.Array) -> pa.Array:
    """UTF-8 decoded to strings; invalid bytes become U+FFFD, as in Java."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([one.as_py().decode("utf-8", "replace") for one in array], pa.string())


class Encoder:
    """Encodes columns as record batches; choose the rows of each partition with `encode_batches`.

    `keys`, `values`: Arrow binary or string arrays (`keys` None: no keys). `timestamps`: milliseconds, one per row.
    `headers`: a list array of (key, value) structs, or None. Header keys must not be null (ValueError).
    """

    def __init__(
        self, keys: pa.Array | None, values: pa.Array, timestamps: Ints, headers: pa.Array | None = None
    ) -> None:
        rows = len(values)
        self._values = fields_of(values)
        self._keys = _no_fields(rows) if keys is None else fields_of(keys)
        self._times = timestamps.view()  # read-only like Arrow's columns: numba compiles a loop per type
        self._times.flags.writeable = False
        first, count = _header_places(headers, rows)
        (key_data, header_key), (value_data, header_value) = _header_fields(headers)
        if (header_key[1] < 0).any():
            raise ValueError("a header has no key: header keys must not be null")
        self._headers = (first, count, key_data, header_key, value_data, header_value)
        self._tail = np.empty(rows, np.int64)
        record_loops().tail_sizes(self._keys[1], self._values[1], first, count, header_key, header_value, self._tail)
        self._extra = _record_overhead(self._tail, timestamps)

    def sizes_alone(self) -> Ints:
        """The size of each record if it is the only record of its batch, without the batch's header."""
        body = self._tail + 3
        return body + varint_sizes(body)

    def encode_plain(self, rows: Ints, max_bytes: int) -> Iterator[Plain]:
        """Encode `rows` into batches of at most `max_bytes` (or one record), each when the iterator reaches it."""
        if not len(rows):
            return
        cuts, bounds = self._cut_batches(rows, max_bytes)
        for first, last, bound in zip(cuts, cuts[1:], bounds.tolist(), strict=False):
            out, lines = self._lay_out_batches(rows[first:last], np.array([0, last - first], np.int64), bound)
            _, end, base, latest = lines[0]
            yield Plain(int(last - first), base, latest, out.data[:end])

    def encode_batches(
        self,
        rows: Ints,
        *,
        codec: int = 0,
        level: int | None = None,
        max_bytes: int = BATCH_BYTES,
        producer: Producer = ANONYMOUS,
    ) -> list[Encoded]:
        """Encode `rows`, in this order, into batches of at most `max_bytes` before compression (or one record).

        `codec` and `level` as in `ottla.record.compression`. Sequence numbers start at `producer.sequence` and wrap
        after 2^31 - 1.
        """
        if not len(rows):
            return []
        cuts, bounds = self._cut_batches(rows, max_bytes)
        out, lines = self._lay_out_batches(rows, cuts, bounds)
        return _seal_batches(out, lines, cuts, codec, level, producer)

    def _cut_batches(self, rows: Ints, max_bytes: int) -> tuple[Ints, Ints]:
        """(first row of each batch, then the number of rows; the most bytes that the records of each batch need)."""
        cuts, bounds = np.empty(len(rows) + 1, np.int64), np.empty(len(rows), np.int64)
        count = record_loops().cut(
            np.ascontiguousarray(rows, np.int64), self._tail, self._extra, max_bytes, cuts, bounds
        )
        return cuts[: count + 1], bounds[:count]

    def _lay_out_batches(self, rows: Ints, cuts: Ints, bounds: Ints | int) -> tuple[Bytes, list[list[int]]]:
        """Write the records of the batches that begin at `cuts`, with room for their headers.

        Returns the buffer, and (position, end, first timestamp, largest timestamp) of each batch.
        """
        ends = np.cumsum(np.atleast_1d(bounds) + layout.HEADER_SIZE)
        batches = np.zeros((len(ends), 4), np.int64)
        batches[1:, 0] = ends[:-1]
        out = _empty_array(int(ends[-1]), np.uint8)
        record_loops().write_records(
            out, np.ascontiguousarray(rows, np.int64), cuts, self._tail, self._times, layout.HEADER_SIZE, batches,
            self._keys, self._values, self._headers,
        )  # fmt: skip
        return out, batches.tolist()


def _record_overhead(tails: Ints, times: Ints) -> int:
    """The most bytes that a record needs before its key: its length, attributes, timestamp and offset."""
    if not len(tails):
        return 0
    span = int(times.max()) - int(times.min())
    later, earlier, number = varint_sizes(np.array([span, -span, len(tails)], np.int64)).tolist()
    besides = 1 + max(later, earlier) + number
    return int(besides + varint_sizes(np.array([tails.max() + besides], np.int64))[0])


def _seal_batches(
    out: Bytes, lines: list[list[int]], cuts: Ints, codec: int, level: int | None, producer: Producer
) -> list[Encoded]:
    """Compress the records of every batch if `codec` is set, and write its header."""
    view = out.data
    sealed = []
    for (first, last), (begin, end, *times) in zip(pairwise(cuts.tolist()), lines, strict=True):
        data = view[begin:end]
        if codec:
            packed = compress(codec, data[layout.HEADER_SIZE :], level)
            # Only the records are compressed; the header stays readable for the broker.
            data = memoryview(bytearray(layout.HEADER_SIZE) + packed)
        sequence = producer.sequence if producer.sequence < 0 else (producer.sequence + first) & 0x7FFFFFFF
        _write_header(data, codec, last - first, times, producer._replace(sequence=sequence))
        sealed.append(Encoded(last - first, data))
    return sealed


def _write_header(data: memoryview, codec: int, count: int, times: Sequence[int], producer: Producer) -> None:
    attributes = codec | (layout.TRANSACTIONAL if producer.transactional else 0)
    who = (producer.id, producer.epoch, producer.sequence)
    # Base offset 0, length after the first 12 bytes, leader epoch -1, magic 2, CRC 0: the broker sets the first and the
    # third, and the CRC is computed when the rest is there.
    _HEADER.pack_into(data, 0, 0, len(data) - 12, -1, 2, 0, attributes, count - 1, *times, *who, count)
    layout.seal_crc(data, 0, len(data))


def fields_of(array: pa.Array) -> tuple[Bytes, Ints]:
    """The data buffer of an Arrow binary or string array and (position, length) per row; length -1 means null."""
    count = len(array)
    if array.null_count == count:
        return _no_fields(count)
    array = array.cast(pa.binary())
    places = np.empty((2, count), np.int64)
    _valid, ends, data = array.buffers()
    # A slice of an Arrow array shares the buffers: its rows begin at `offset`, and each offset takes four bytes.
    edges = np.frombuffer(ends, np.int32, count + 1, array.offset * 4).astype(np.int64)
    places[0] = edges[:-1]
    places[1] = np.diff(edges)
    if array.null_count:
        places[1, _null_rows(array)] = -1
    return _readonly_bytes(b"" if data is None else data), places


def _null_rows(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Which rows of an array with nulls are null. Arrow's conversion to numpy would import pandas, if installed."""
    valid = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8), bitorder="little")
    missing: npt.NDArray[np.bool_] = valid[array.offset : array.offset + len(array)] == 0
    return missing


def _readonly_bytes(data: View | pa.Buffer) -> Bytes:
    """A read-only array over `data`, so that the compiled loops see one type of array."""
    array = np.frombuffer(data, np.uint8)
    array.flags.writeable = False
    return array


def _no_fields(count: int) -> tuple[Bytes, Ints]:
    places = np.zeros((2, count), np.int64)
    places[1] = -1
    return _readonly_bytes(b""), places


def _header_places(headers: pa.Array | None, rows: int) -> tuple[Ints, Ints]:
    """(index of the first header, number of headers) per row."""
    if headers is None or not rows:
        none = np.zeros(rows, np.int64)
        return none, none
    edges = np.asarray(headers.offsets).astype(np.int64)
    count = np.diff(edges)
    if headers.null_count:
        count[_null_rows(headers)] = 0
    return edges[:-1], count


def _header_fields(headers: pa.Array | None) -> tuple[tuple[Bytes, Ints], tuple[Bytes, Ints]]:
    """Keys and values of all headers."""
    if headers is None:
        return _no_fields(0), _no_fields(0)
    keys, values = headers.values.flatten()
    return fields_of(keys), fields_of(values)
