"""The loops over the bytes of many records, compiled by numba and kept in its cache.

Zone: pure. `run_program` is an interpreter of `program.Program`: it fills rows of columns, or only counts them. A
record that was not written with the schema gets a null row, and is marked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from numba import int64, njit, uint64

from ottla.schemas.columns.program import Step

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]
F = TypeVar("F", bound=Callable[..., Any])


class _Compile(Protocol):
    """The type of `njit(...)`, for the type checker: numba publishes no types."""

    def __call__(self, function: F, /) -> F: ...


inlined: _Compile = njit(inline="always")
"""A call passes seven numbers for each array."""
compiled: _Compile = njit(cache=True, nogil=True)
MAX_LOOPS = 128
"""Arrays and maps within one another."""

_END, _NULL, _BOOLEAN, _INT, _LONG = int(Step.END), int(Step.NULL), int(Step.BOOLEAN), int(Step.INT), int(Step.LONG)
_FLOAT, _DOUBLE, _BYTES, _FIXED = int(Step.FLOAT), int(Step.DOUBLE), int(Step.BYTES), int(Step.FIXED)
_ENUM, _STRUCT, _UNION, _FILL = int(Step.ENUM), int(Step.STRUCT), int(Step.UNION), int(Step.FILL)
_JUMP, _OPEN, _BLOCK, _ITEM = int(Step.JUMP), int(Step.OPEN), int(Step.BLOCK), int(Step.ITEM)
_STRING = int(Step.STRING)


@compiled
def read_varint(data: Bytes, pos: int, stop: int) -> tuple[int, int]:
    """A zigzag varint of at most ten bytes, and the position after it; position -1: there is none."""
    found: int = uint64(0)
    shift: int = uint64(0)
    while pos < stop:
        byte: int = uint64(data[pos])
        pos += 1
        if shift == 63 and byte > 1:
            return 0, -1
        found |= (byte & uint64(0x7F)) << shift
        if byte < 0x80:
            return int64(found >> uint64(1)) ^ -int64(found & uint64(1)), pos
        shift += uint64(7)
        if shift > 63:
            return 0, -1
    return 0, -1


@compiled
def is_utf8(data: Bytes, pos: int, stop: int) -> bool:
    """Whether bytes are UTF-8: no surrogates, nothing overlong, nothing above U+10FFFF (Unicode 15, table 3-7)."""
    while pos < stop:
        first = data[pos]
        pos += 1
        if first < 0x80:
            continue
        more = 1 if first < 0xE0 else 2 if first < 0xF0 else 3
        if first < 0xC2 or first > 0xF4 or more > stop - pos:
            return False
        low = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
        high = 0x9F if first == 0xED else 0x8F if first == 0xF4 else 0xBF
        if data[pos] < low or data[pos] > high:
            return False
        for at in range(1, more):
            if data[pos + at] & 0xC0 != 0x80:
                return False
        pos += more
    return True


@compiled
def fill_nulls(
    begin: int, end: int, layout: Ints, counts: Ints, bases: Ints, slots: Ints, lengths: Ints, valid: Bytes, fills: bool
) -> None:
    """Add a null to each of some columns, but not to the items of lists among them."""
    column = begin
    while column < end:
        is_list = layout[column, 1] == 1
        if fills:
            at = bases[column] + counts[column]
            valid[at] = 0
            lengths[at] = 0
            slots[at] = counts[column + 1] if is_list else 0
        counts[column] += 1
        column = layout[column, 0] if is_list else column + 1


@inlined
def read_value(step: int, argument: int, data: Bytes, pos: int, stop: int) -> tuple[int, int, int]:
    """The slot of a value, its length, and the position after it; position -1: it is not one of this step."""
    value: int = int64(0)
    length: int = int64(0)
    if step in (_LONG, _INT, _ENUM):
        value, pos = read_varint(data, pos, stop)
        low, high = -(2**31) if step == _INT else 0, argument if step == _ENUM else 2**31
        return value, length, pos if step == _LONG or low <= value < high else -1
    if step in (_BYTES, _STRING):
        length, value = read_varint(data, pos, stop)
        good = value >= 0 and 0 <= length <= stop - value
        if good and step == _STRING:
            good = is_utf8(data, value, value + length)
        return value, length, value + length if good else -1
    if step in (_DOUBLE, _FLOAT):
        size = 8 if step == _DOUBLE else 4
        if size > stop - pos:
            return value, length, -1
        for at in range(size):
            value |= int64(data[pos + at]) << (8 * at)
        return value, length, pos + size
    if step == _BOOLEAN:
        return (int64(data[pos]), length, pos + 1) if pos < stop and data[pos] <= 1 else (value, length, -1)
    if step == _FIXED:
        return pos, argument, pos + argument if argument <= stop - pos else -1
    return value, length, pos  # a struct and a null have no bytes


@inlined
def read_block(data: Bytes, pos: int, stop: int) -> tuple[int, int]:
    """The number of items of a list's next block, and the position of the first; position -1: there is no block."""
    count, pos = read_varint(data, pos, stop)
    if pos >= 0 and -(2**62) < count < 0:  # a negative one is followed by the block's size in bytes
        count = -count
        size, pos = read_varint(data, pos, stop)
        if size < 0:
            return count, -1
    # Each item has a byte at least.
    return count, pos if pos >= 0 and 0 <= count <= stop - pos else -1


@inlined
def add_row(
    column: int, is_valid: bool, value: int, length: int, counts: Ints, bases: Ints, slots: Ints, lengths: Ints,
    valid: Bytes, fills: bool,
) -> None:  # fmt: skip
    """Add a row to a column."""
    if fills:
        at = bases[column] + counts[column]
        valid[at] = 1 if is_valid else 0
        slots[at] = value
        lengths[at] = length
    counts[column] += 1


@compiled
def read_record(
    code: Ints, branches: Ints, layout: Ints, data: Bytes, pos: int, stop: int, left: Ints, counts: Ints, bases: Ints,
    slots: Ints, lengths: Ints, valid: Bytes, fills: bool,
) -> bool:  # fmt: skip
    """Read the record between two positions. False: it was not written with the schema, although rows were added."""
    address, depth = 0, 0
    while pos >= 0:
        step, column, argument, target = code[address, 0], code[address, 1], code[address, 2], code[address, 3]
        address += 1
        if step == _END:
            return pos == stop
        if step == _UNION:
            value, pos = read_varint(data, pos, stop)
            if pos < 0 or not 0 <= value < argument:
                return False
            address = branches[target + value]
        elif step == _FILL:
            fill_nulls(column, argument, layout, counts, bases, slots, lengths, valid, fills)
        elif step == _JUMP:
            address = target
        elif step == _OPEN:
            if depth == left.size:
                return False
            depth += 1
        elif step == _BLOCK:
            left[depth - 1], pos = read_block(data, pos, stop)
            if pos >= 0 and left[depth - 1] == 0:
                depth -= 1
                address = target
                add_row(column, True, counts[column + 1], 0, counts, bases, slots, lengths, valid, fills)
        elif step == _ITEM:
            left[depth - 1] -= 1
            address = target if left[depth - 1] > 0 else argument
        else:
            value, length, pos = read_value(step, argument, data, pos, stop)
            add_row(column, step != _NULL, value, length, counts, bases, slots, lengths, valid, fills)
    return False


@compiled
def run_program(
    code: Ints, branches: Ints, layout: Ints, data: Bytes, spans: Ints, counts: Ints, bases: Ints, slots: Ints,
    lengths: Ints, valid: Bytes, bad: Bytes, fills: bool,
) -> None:  # fmt: skip
    """Read records, which are `spans` of the data (begin, end; begin -1: a null), into rows of columns.

    layout: per column its end, and 1 for a list. counts: rows per column so far, 0 at first. bases: where the rows of a
    column begin in slots, lengths and valid; only if it fills. bad: marks records; if there are lists, those that
    counting has marked are given again. A slot is a value's 64 bits, the position of bytes, or the number of items up
    to the end of a list.
    """
    columns = counts.size
    saved = np.zeros(columns, np.int64)
    left = np.zeros(MAX_LOOPS, np.int64)
    for row in range(spans.shape[0]):
        for column in range(columns):
            saved[column] = counts[column]
        pos, stop = spans[row, 0], spans[row, 1]
        # A record that was found bad while rows were counted has no room for the rows before its end.
        if pos >= 0 and bad[row] == 0:
            if read_record(code, branches, layout, data, pos, stop, left, counts, bases, slots, lengths, valid, fills):
                continue
            bad[row] = 1
        counts[:] = saved
        fill_nulls(0, columns, layout, counts, bases, slots, lengths, valid, fills)


@compiled
def gather_bytes(data: Bytes, starts: Ints, lengths: Ints, offsets: Ints, into: Bytes) -> None:
    """Copy pieces of the data one after the other; `offsets` are their sums of lengths."""
    for row in range(starts.size):
        begin, size = starts[row], lengths[row]
        into[offsets[row] : offsets[row] + size] = data[begin : begin + size]


@compiled
def find_not_utf8(data: Bytes, starts: Ints, lengths: Ints, found: Bools) -> None:
    """Mark the pieces of the data that are not UTF-8."""
    for row in range(starts.size):
        found[row] = not is_utf8(data, starts[row], starts[row] + lengths[row])


@compiled
def fill_decimals(
    data: Bytes, starts: Ints, lengths: Ints, valid: Bytes, limit: Words, words: Words, bad: Bools
) -> None:
    """Big-endian numbers of any length, two's complement, as words of 128 bits (the low one first).

    bad: marks those whose magnitude is not below the limit.
    """
    for row in range(starts.size):
        if valid[row] == 0:
            continue
        begin, end = starts[row], starts[row] + lengths[row]
        sign: int = uint64(0)
        if end > begin and data[begin] >= 0x80:
            sign = ~uint64(0)
        high: int = sign
        low: int = sign
        for at in range(begin, end):
            if high >> uint64(56) != sign & uint64(0xFF):  # a digit would be lost
                bad[row] = True
            high = (high << uint64(8)) | (low >> uint64(56))
            low = (low << uint64(8)) | uint64(data[at])
        words[row, 0], words[row, 1] = low, high
        if high >> uint64(63) != sign & uint64(1):
            bad[row] = True
        if sign != 0:
            low = ~low + uint64(1)
            high = ~high + uint64(1 if low == 0 else 0)
        if high > limit[1] or (high == limit[1] and low >= limit[0]):
            bad[row] = True
