"""The loops of the columnar codec over record bytes, compiled by numba.

Zone: pure. `columnar_numpy` has the same functions and documents them. Importing this module needs numba. Compiled code
is cached beside the file, or in the user's cache directory if that is not writable.

Compiled loops do not check indexes: every position is compared with the end of its record before a byte is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from numba import int64, njit, uint64

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., Any])


class _Compile(Protocol):
    """The type of `njit(...)`, for the type checker: numba publishes no types."""

    def __call__(self, function: F, /) -> F: ...


_inlined: _Compile = njit(inline="always")
_compiled: _Compile = njit(cache=True, nogil=True)


@_inlined
def _read_varint(data: Bytes, pos: int, end: int, most: int) -> tuple[int, int]:
    """(value, position after it); the position is -1 if the varint is too long or reaches `end`."""
    if pos >= end:
        return 0, -1
    first: int = int64(data[uint64(pos)])  # unsigned: numba omits the check for a negative index
    if first < 128:
        return (first >> 1) ^ -(first & 1), pos + 1
    coded = uint64(first & 127)
    shift = uint64(7)
    stop = min(end, pos + most)
    pos += 1
    while True:
        if pos >= stop:
            return 0, -1
        byte = uint64(data[uint64(pos)])
        pos += 1
        coded |= (byte & uint64(127)) << shift
        if byte < uint64(128):
            break
        shift += uint64(7)
    return int64(coded >> uint64(1)) ^ -int64(coded & uint64(1)), pos


@_inlined
def _read_field(data: Bytes, pos: int, end: int, least: int) -> tuple[int, int, int]:
    """(length, start, position after it) of a length-prefixed field; the last is -1 if the field does not fit."""
    size, start = _read_varint(data, pos, end, 5)
    after = start + max(size, 0)
    if start < 0 or size < least or after > end:
        after = -1
    return size, start, after


@_compiled
def _skip_headers(data: Bytes, pos: int, end: int, count: int) -> int:
    """The position after `count` headers, or -1."""
    for _ in range(count):
        _size, _start, pos = _read_field(data, pos, end, 0)
        if pos < 0:
            return -1
        _size, _start, pos = _read_field(data, pos, end, -1)
        if pos < 0:
            return -1
    return pos


@_compiled
def index_records(data: Bytes, spans: Ints, rows: Ints) -> int:
    """As `columnar_numpy.index_records`.

    Headers, the rare case, are parsed by a call: inlined, they would make this loop three times as slow.
    """
    row = uint64(0)
    for batch in range(len(spans)):
        pos: int = spans[batch, 0]
        end: int = spans[batch, 1]
        last: int = spans[batch, 3]
        for _ in range(spans[batch, 2]):
            size, at = _read_varint(data, pos, end, 5)
            if at < 0 or size < 6 or at + size > end:
                return pos
            stop = at + size
            time, pos = _read_varint(data, at + 1, stop, 10)
            if pos < 0:
                return at
            delta, pos = _read_varint(data, pos, stop, 5)
            if pos < 0 or delta < 0 or delta > last:
                return at
            key_size, key, pos = _read_field(data, pos, stop, -1)
            if pos < 0:
                return at
            value_size, value, pos = _read_field(data, pos, stop, -1)
            if pos < 0:
                return at
            count, headers = _read_varint(data, pos, stop, 5)
            # A header takes at least two bytes: its two lengths. A larger count lies.
            if headers < 0 or count < 0 or count * 2 > stop - headers:
                return at
            if (_skip_headers(data, headers, stop, count) if count else headers) != stop:
                return at
            rows[0, row], rows[1, row], rows[2, row], rows[3, row] = delta, time, key, key_size
            rows[4, row], rows[5, row], rows[6, row], rows[7, row] = value, value_size, headers, count
            pos = stop
            row += uint64(1)
        if pos != end:
            return pos
    return -1


@_compiled
def place(lines: Ints, rows: Ints, offsets: Ints, times: Ints) -> bool:
    """As `columnar_numpy.place`."""
    row = uint64(0)
    rising = True
    for batch in range(len(lines)):
        base, stamp, counts = lines[batch, 1], lines[batch, 2], lines[batch, 3]
        last = int64(-1)
        for _ in range(lines[batch, 0]):
            delta = rows[0, row]
            rising = rising and delta > last
            last = delta
            offsets[row] = base + delta
            times[row] = stamp + counts * rows[1, row]
            row += uint64(1)
    return rising


@_compiled
def index_headers(data: Bytes, at: Ints, count: Ints, fields: Ints) -> None:
    """As `columnar_numpy.index_headers`."""
    slot = 0
    end = len(data)
    for row in range(len(at)):
        pos = at[row]
        for _ in range(count[row]):
            fields[1, slot], fields[0, slot], pos = _read_field(data, pos, end, 0)
            fields[3, slot], fields[2, slot], pos = _read_field(data, pos, end, -1)
            slot += 1


@_compiled
def gather(data: Bytes, at: Ints, size: Ints, ends: npt.NDArray[np.int32], out: Bytes) -> None:
    """As `columnar_numpy.gather`."""
    to = uint64(0)
    for row in range(len(at)):
        ends[row] = to
        start = uint64(at[row])
        length = uint64(max(size[row], 0))
        for number in range(length):
            out[to + uint64(number)] = data[start + uint64(number)]
        to += length
    ends[len(at)] = to


@_inlined
def _put_varint(out: Bytes, pos: int, value: int) -> int:
    coded: int = uint64((value << 1) ^ (value >> 63))
    while coded >= uint64(128):
        out[pos] = (coded & uint64(127)) | uint64(128)
        pos += 1
        coded >>= uint64(7)
    out[pos] = coded
    return pos + 1


@_inlined
def _put_field(out: Bytes, pos: int, source: Bytes, at: int, size: int) -> int:
    pos = _put_varint(out, pos, size)
    # Unsigned: without the check for negative indexes the compiler turns the loop into a copy of whole words.
    to, start, length = uint64(pos), uint64(at), uint64(max(size, 0))
    for number in range(length):
        out[to + uint64(number)] = source[start + uint64(number)]
    return pos + max(size, 0)


@_inlined
def _varint_size(value: int) -> int:
    """Size of a value as a zigzag varint."""
    coded = uint64((value << 1) ^ (value >> 63))
    size = 1
    while coded >= uint64(128):
        coded >>= uint64(7)
        size += 1
    return size


@_inlined
def _field_size(length: int) -> int:
    return _varint_size(length) + max(length, 0)


@_compiled
def tail_sizes(
    key: Ints, value: Ints, first: Ints, count: Ints, header_key: Ints, header_value: Ints, sizes: Ints
) -> None:
    """As `columnar_numpy.tail_sizes`."""
    for row in range(len(sizes)):
        size = _field_size(key[1, row]) + _field_size(value[1, row]) + _varint_size(count[row])
        for line in range(first[row], first[row] + count[row]):
            size += _field_size(header_key[1, line]) + _field_size(header_value[1, line])
        sizes[row] = size


@_compiled
def cut(rows: Ints, tails: Ints, extra: int, most: int, cuts: Ints, bounds: Ints) -> int:
    """As `columnar_numpy.cut`."""
    count, first, total = 0, 0, int64(0)
    for at in range(len(rows)):
        size = tails[rows[at]] + extra
        if at > first and total + size > most:
            cuts[count], bounds[count] = first, total
            count, first, total = count + 1, at, 0
        total += size
    cuts[count], bounds[count], cuts[count + 1] = first, total, len(rows)
    return count + 1


@_compiled
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
    """As `columnar_numpy.write_records`."""
    firsts, counts, key_data, header_key, value_data, header_value = headers
    for batch in range(len(cuts) - 1):
        pos = batches[batch, 0] + room
        base = times[rows[cuts[batch]]]
        latest = base
        for at in range(cuts[batch], cuts[batch + 1]):
            row = rows[at]
            delta = times[row] - base
            latest = max(latest, times[row])
            number = at - cuts[batch]
            pos = _put_varint(out, pos, tails[row] + 1 + _varint_size(delta) + _varint_size(number))
            out[pos] = 0
            pos = _put_varint(out, pos + 1, delta)
            pos = _put_varint(out, pos, number)
            pos = _put_field(out, pos, key[0], key[1][0, row], key[1][1, row])
            pos = _put_field(out, pos, value[0], value[1][0, row], value[1][1, row])
            pos = _put_varint(out, pos, counts[row])
            for line in range(firsts[row], firsts[row] + counts[row]):
                pos = _put_field(out, pos, key_data, header_key[0, line], header_key[1, line])
                pos = _put_field(out, pos, value_data, header_value[0, line], header_value[1, line])
        batches[batch, 1], batches[batch, 2], batches[batch, 3] = pos, base, latest
