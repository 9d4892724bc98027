"""The loops of the columnar codec over record bytes, in numpy: used where numba is not installed.

Zone: pure. `columnar_numba` has the same functions with the same meaning. Both have only the loops; `columnar` knows
the layout of batches.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
VARINT_MAX = 5
VARLONG_MAX = 10
SMALLEST_RECORD = 7
"""Bytes of a record without key, value and headers: length, attributes, two deltas, three counts."""


class Broken(Exception):
    """The bytes are not valid records; the argument is the position of the first fault."""


def index_records(data: Bytes, spans: Ints, rows: Ints) -> int:
    """Find every field of every record.

    `spans` has one line (start, end, record count, last offset delta) per batch, inside `data`. `rows` takes one
    column per record: (offset delta, timestamp delta, key position, key length, value position, value length, header
    position, header count); a length of -1 means null. Returns -1, or the position of the first invalid byte.
    """
    try:
        starts, ends = _find_records(data, spans)
        if len(starts):
            _index_fields(data, starts, ends, np.repeat(spans[:, 3], spans[:, 2]), rows)
    except Broken as broken:
        return int(broken.args[0])
    return -1


def place(lines: Ints, rows: Ints, offsets: Ints, times: Ints) -> bool:
    """Offsets and timestamps of the deltas in `rows`; False when offsets do not rise within a batch.

    `lines` has one line per batch: (record count, base offset, base timestamp, 1 to add timestamp deltas, else 0).
    """
    counts = lines[:, 0]
    rising = rows[0, 1:] > rows[0, :-1]
    bounds = np.cumsum(counts)
    # The first record of a batch is not compared with the last one of the batch before.
    rising[bounds[(bounds > 0) & (bounds < rows.shape[1])] - 1] = True
    np.add(rows[0], np.repeat(lines[:, 1], counts), out=offsets)
    np.multiply(rows[1], np.repeat(lines[:, 3], counts), out=times)
    times += np.repeat(lines[:, 2], counts)
    return bool(rising.all())


def index_headers(data: Bytes, at: Ints, count: Ints, fields: Ints) -> None:
    """Find key and value of every header of the records whose headers begin at `at` (positions already checked).

    `fields` takes one column per header: (key position, key length, value position, value length).
    """
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum(count)))[:-1]
    pos = at.copy()
    everywhere = np.full(len(at), len(data), np.int64)
    for number in range(int(count.max(initial=0))):
        some = np.nonzero(count > number)[0]
        # One round per header number, over all records with that many headers: rounds are few, records are many.
        slot = first[some] + number
        for line in (0, 2):
            size, start = _read_varints(data, pos[some], everywhere[some], VARINT_MAX)
            fields[line, slot] = start
            fields[line + 1, slot] = size
            pos[some] = start + np.maximum(size, 0)


def gather(data: Bytes, at: Ints, size: Ints, ends: npt.NDArray[np.int32], out: Bytes) -> None:
    """Copy the fields at `at` into `out`, one after the other; `ends` takes n+1 positions. Null counts as empty."""
    length = np.maximum(size, 0)
    ends[0] = 0
    np.cumsum(length, out=ends[1:])
    _copy_pieces(out, ends[:-1].astype(np.int64), data, at, length)


def tail_sizes(
    key: Ints, value: Ints, first: Ints, count: Ints, header_key: Ints, header_value: Ints, sizes: Ints
) -> None:
    """Bytes of key, value and headers of each row, with their lengths.

    The fields are (position, length) per field, length -1 for null; `first` and `count` are the headers of each row.
    """
    np.add(_field_sizes(key), _field_sizes(value), out=sizes)
    sizes += varint_sizes(count)
    each = _field_sizes(header_key) + _field_sizes(header_value)
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(each)))
    sizes += ends[first + count]
    sizes -= ends[first]


def cut(rows: Ints, tails: Ints, extra: int, most: int, cuts: Ints, bounds: Ints) -> int:
    """Divide `rows`, of which there is one at least, into batches of at most `most` bytes, or one record.

    `tails` has one size per row of the columns; `extra` is the most that a record needs in addition. `cuts` takes the
    first index of each batch, then the number of rows; `bounds` the most bytes that the records of each batch need.
    Returns the number of batches.
    """
    ends = np.cumsum(tails[rows] + extra)
    count = first = before = 0
    while first < len(rows):
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        cuts[count], bounds[count] = first, ends[last - 1] - before
        count, first, before = count + 1, last, int(ends[last - 1])
    cuts[count] = first
    return count


def write_records(
    out: Bytes,
    rows: Ints,
    cuts: Ints,
    tails: Ints,
    times: Ints,
    room: int,
    batches: Ints,
    key: tuple[Bytes, Ints],
    value: tuple[Bytes, Ints],
    headers: tuple[Ints, Ints, Bytes, Ints, Bytes, Ints],
) -> None:
    """Write the rows of batches that begin at `cuts` (whose last entry is the number of rows); no batch is empty.

    `batches` has a line per batch: its position, which is given, then its end, its first and its largest timestamp,
    which this function fills in; `room` bytes at its start are left for its header. `tails` and `times` have one entry
    per row of the columns. `key` and `value` are bytes and (position, length) per row; `headers` has first header and
    number of headers per row, then bytes and (position, length) of their keys and of their values.
    """
    first, count, key_data, header_key, value_data, header_value = headers
    body, deltas, numbers = _record_bodies(rows, cuts, tails, times)
    sizes = body + varint_sizes(body)
    begin = np.cumsum(sizes) - sizes
    begin += np.repeat(batches[:, 0] + room - begin[cuts[:-1]], np.diff(cuts))
    batches[:, 1] = (begin + sizes)[cuts[1:] - 1]
    batches[:, 2] = times[rows[cuts[:-1]]]
    batches[:, 3] = np.maximum.reduceat(times[rows], cuts[:-1])
    pos = _put_varints(out, begin, body)
    out[pos] = 0
    pos = _put_varints(out, pos + 1, deltas)
    pos = _put_varints(out, pos, numbers)
    for source, places in (key, value):
        pos = _put_field(out, pos, source, places[:, rows])
    first, count = first[rows], count[rows]
    pos = _put_varints(out, pos, count)
    for number in range(int(count.max(initial=0))):
        some = np.nonzero(count > number)[0]
        line = first[some] + number
        after = _put_field(out, pos[some], key_data, header_key[:, line])
        pos[some] = _put_field(out, after, value_data, header_value[:, line])


def _record_bodies(rows: Ints, cuts: Ints, tails: Ints, times: Ints) -> tuple[Ints, Ints, Ints]:
    """(size without the length prefix, timestamp delta, offset delta) of each record."""
    first = np.repeat(cuts[:-1], np.diff(cuts))
    deltas = times[rows] - times[rows[first]]
    numbers = np.arange(len(rows)) - first
    return tails[rows] + 1 + varint_sizes(deltas) + varint_sizes(numbers), deltas, numbers


def _field_sizes(places: Ints) -> Ints:
    sizes = varint_sizes(places[1])
    sizes += np.maximum(places[1], 0)
    return sizes


def varint_sizes(values: Ints) -> Ints:
    """Bytes that each value takes as a zigzag varint: 1 to 10."""
    coded = _zigzag_encode(values)
    sizes = np.ones(len(values), np.int64)
    for bits in range(7, 64, 7):
        larger = coded >= np.uint64(1 << bits)
        if not larger.any():
            break
        sizes += larger
    return sizes


def _zigzag_encode(values: Ints) -> npt.NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _find_records(data: Bytes, spans: Ints) -> tuple[Ints, Ints]:
    """(first byte after the length, end) of every record. Each length gives the next position, so this is a loop."""
    raw = data.tobytes()
    starts: list[int] = []
    ends: list[int] = []
    for start, end, count, _last in spans.tolist():
        pos = start
        for _ in range(count):
            size, at = _read_length(raw, pos, end)
            pos = at + size
            if size < SMALLEST_RECORD - 1 or pos > end:
                raise Broken(at)
            starts.append(at)
            ends.append(pos)
        if pos != end:
            raise Broken(pos)
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _read_length(raw: bytes, pos: int, end: int) -> tuple[int, int]:
    coded = 0
    for shift in range(0, 7 * VARINT_MAX, 7):
        if pos >= end:
            break
        byte = raw[pos]
        pos += 1
        coded |= (byte & 127) << shift
        if byte < 128:
            return (coded >> 1) ^ -(coded & 1), pos
    raise Broken(pos)


def _index_fields(data: Bytes, starts: Ints, ends: Ints, last: Ints, rows: Ints) -> None:
    rows[1], pos = _read_varints(data, starts + 1, ends, VARLONG_MAX)
    rows[0], pos = _read_varints(data, pos, ends, VARINT_MAX)
    _require_all((rows[0] >= 0) & (rows[0] <= last), pos)
    for line in (2, 4):
        size, start = _read_varints(data, pos, ends, VARINT_MAX)
        pos = start + np.maximum(size, 0)
        _require_all((size >= -1) & (pos <= ends), start)
        rows[line] = start
        rows[line + 1] = size
    rows[7], pos = _read_varints(data, pos, ends, VARINT_MAX)
    _require_all((rows[7] >= 0) & (rows[7] * 2 <= ends - pos), pos)
    rows[6] = pos
    _require_all(_skip_headers(data, pos, ends, rows[7]) == ends, pos)


def _skip_headers(data: Bytes, pos: Ints, ends: Ints, count: Ints) -> Ints:
    pos = pos.copy()
    for number in range(int(count.max(initial=0))):
        some = np.nonzero(count > number)[0]
        for least in (0, -1):
            size, start = _read_varints(data, pos[some], ends[some], VARINT_MAX)
            after = start + np.maximum(size, 0)
            _require_all((size >= least) & (after <= ends[some]), start)
            pos[some] = after
    return pos


def _require_all(good: npt.NDArray[np.bool_], pos: Ints) -> None:
    if not good.all():
        raise Broken(int(pos[int(np.argmin(good))]))


def _read_varints(data: Bytes, pos: Ints, ends: Ints, most: int) -> tuple[Ints, Ints]:
    """(values, positions after them) of the zigzag varints at `pos`, which end before `ends`. Raises Broken."""
    coded = np.zeros(len(pos), np.uint64)
    pos = pos.copy()
    some = np.arange(len(pos))
    for shift in range(0, 7 * most, 7):
        at = pos[some]
        _require_all(at < ends[some], at)
        byte = data[at].astype(np.uint64)
        coded[some] |= (byte & np.uint64(127)) << np.uint64(shift)
        pos[some] = at + 1
        some = some[byte >= 128]
        if not len(some):
            value = (coded >> np.uint64(1)).view(np.int64) ^ -(coded & np.uint64(1)).view(np.int64)
            return value, pos
    raise Broken(int(pos[some[0]]))


def _put_varints(out: Bytes, pos: Ints, values: Ints) -> Ints:
    """Write values as zigzag varints at `pos`; returns the positions after them."""
    coded = _zigzag_encode(values)
    pos = pos.copy()
    some = np.arange(len(pos))
    while len(some):
        rest = coded[some] >> np.uint64(7)
        more = rest > 0
        low = (coded[some] & np.uint64(127)).astype(np.uint8)
        out[pos[some]] = np.where(more, low | np.uint8(128), low)
        pos[some] += 1
        coded[some] = rest
        some = some[more]
    return pos


def _put_field(out: Bytes, pos: Ints, source: Bytes, places: Ints) -> Ints:
    pos = _put_varints(out, pos, places[1])
    length: Ints = np.maximum(places[1], 0)
    _copy_pieces(out, pos, source, places[0], length)
    return pos + length


def _copy_pieces(out: Bytes, to: Ints, source: Bytes, at: Ints, length: Ints) -> None:
    """Copy pieces of different lengths without a loop: computes one index per byte."""
    total = int(length.sum())
    if not total:
        return
    begin = np.concatenate((np.zeros(1, np.int64), np.cumsum(length)[:-1]))
    step = np.arange(total, dtype=np.int64)
    out[np.repeat(to - begin, length) + step] = source[np.repeat(at - begin, length) + step]
