"""The loop over records without lists, compiled by numba and kept in its cache.

Zone: pure. Each column has one row for each record, so that a row needs no counter, and a null is the zeros that are
there already. The steps are those of `flatten_program`, which has no jumps.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import int64, uint64

from ottla.schemas.columns.kernel import Bytes, Ints, compiled, inlined, is_utf8, read_varint
from ottla.schemas.columns.program import Program, Step

Rows = npt.NDArray[np.int64]
"""A row of it for each column, an element of that for each record."""

_END, _NULL, _BOOLEAN, _INT, _LONG = int(Step.END), int(Step.NULL), int(Step.BOOLEAN), int(Step.INT), int(Step.LONG)
_FLOAT, _DOUBLE, _BYTES, _FIXED = int(Step.FLOAT), int(Step.DOUBLE), int(Step.BYTES), int(Step.FIXED)
_ENUM, _STRUCT, _UNION, _STRING = int(Step.ENUM), int(Step.STRUCT), int(Step.UNION), int(Step.STRING)


def flatten_program(program: Program) -> tuple[Ints, Ints]:
    """The code and the branches of a program without lists: the address of each step is that of the next one.

    Steps that fill nulls are left out, and jumps are followed once, here.
    """

    # Rows of zeros are nulls already, so that nothing has to be filled, and a jump costs nothing at run time.
    def follow(address: int) -> int:
        while program.code[address][0] in (Step.FILL, Step.JUMP):
            address = program.code[address][3] if program.code[address][0] == Step.JUMP else address + 1
        return address

    code = [
        (step, column, argument, address if step == Step.UNION else at + 1 if step == Step.END else follow(at + 1))
        for at, (step, column, argument, address) in enumerate(program.code)
    ]
    return np.array(code, np.int64), np.array([follow(each) for each in program.branches] or [0], np.int64)


@inlined
def read_short_varint(data: Bytes, pos: int, stop: int) -> tuple[int, int]:
    """As `read_varint`, which it calls for varints of more than two bytes."""
    # One or two bytes are nearly all varints of real records: small numbers, lengths, branches of unions.
    if pos < stop and data[pos] < 0x80:
        first: int = int64(data[pos])
        return (first >> 1) ^ -(first & 1), pos + 1
    if stop - pos > 1 and data[pos + 1] < 0x80:
        both: int = int64(data[pos] & 0x7F) | (int64(data[pos + 1]) << 7)
        return (both >> 1) ^ -(both & 1), pos + 2
    return read_varint(data, pos, stop)


@inlined
def is_text(data: Bytes, pos: int, stop: int) -> bool:
    """Whether bytes are UTF-8. Most texts are ASCII: no byte has its highest bit."""
    # Without a branch in the loop, so that it is compiled to instructions over many bytes.
    every: int = uint64(0)
    for at in range(pos, stop):
        every |= data[at]
    return bool(every < 0x80 or is_utf8(data, pos, stop))


@inlined
def read_number(data: Bytes, pos: int, size: int) -> int:
    """The bits of a float or a double."""
    value: int = uint64(0)
    for at in range(size):
        value |= uint64(data[pos + at]) << uint64(8 * at)
    bits: int = int64(value)
    return bits


@inlined
def read_sized(step: int, argument: int, data: Bytes, pos: int, stop: int) -> tuple[int, int, int]:
    """The position of bytes, a text or a fixed, its length, and the position after it; -1: it is not one."""
    length: int = int64(argument)
    if step != _FIXED:
        length, pos = read_short_varint(data, pos, stop)
    if pos < 0 or not 0 <= length <= stop - pos:
        return int64(0), int64(0), int64(-1)
    if step == _STRING and not is_text(data, pos, pos + length):
        return int64(0), int64(0), int64(-1)
    return pos, length, pos + length


@inlined
def read_flat_value(step: int, argument: int, data: Bytes, pos: int, stop: int) -> tuple[int, int]:
    """The slot of a value without a length, and the position after it; -1: it is not one of this step."""
    if step in (_LONG, _INT, _ENUM):
        value, pos = read_short_varint(data, pos, stop)
        # A long has no bounds besides 64 bits; an int and an enum are checked, because their columns are narrower.
        low, high = -(2**31) if step == _INT else 0, argument if step == _ENUM else 2**31
        return value, pos if step == _LONG or low <= value < high else int64(-1)
    if step == _DOUBLE:
        return (read_number(data, pos, 8), pos + 8) if stop - pos >= 8 else (int64(0), int64(-1))
    if step == _FLOAT:
        return (read_number(data, pos, 4), pos + 4) if stop - pos >= 4 else (int64(0), int64(-1))
    if step == _BOOLEAN:
        return (int64(data[pos]), pos + 1) if pos < stop and data[pos] <= 1 else (int64(0), int64(-1))
    return int64(0), pos  # a struct


@compiled
def run_flat_program(
    program: tuple[Ints, Ints], data: Bytes, spans: Ints, rows: tuple[Rows, Rows, npt.NDArray[np.uint8]], bad: Bytes
) -> None:
    """Read records, which are `spans` of the data (begin, end; begin -1: a null), into rows of zeros.

    program: code and branches. rows: slots, lengths and valid, each with a row per column. bad: marks records that were
    not written with the schema; their rows are nulls.
    """
    (code, branches), (slots, lengths, valid) = program, rows
    for row in range(spans.shape[0]):
        pos, stop, address = spans[row, 0], spans[row, 1], int64(0)
        if pos < 0:
            continue
        while pos >= 0:
            step, column, argument = code[address, 0], code[address, 1], code[address, 2]
            if step == _END:
                break
            # The branch decides which step is next; the columns of other branches stay nulls.
            if step == _UNION:
                value, pos = read_short_varint(data, pos, stop)
                if pos < 0 or not 0 <= value < argument:
                    pos = int64(-1)
                    break
                address = branches[code[address, 3] + value]
                continue
            if step in (_STRING, _BYTES, _FIXED):
                slots[column, row], lengths[column, row], pos = read_sized(step, argument, data, pos, stop)
            else:
                slots[column, row], pos = read_flat_value(step, argument, data, pos, stop)
            valid[column, row] = step != _NULL
            address = code[address, 3]
        # Bytes were missing, or some are left. The values read so far are taken back, or they would be shown.
        if pos != stop:
            bad[row] = 1
            for column in range(slots.shape[0]):
                slots[column, row] = lengths[column, row] = valid[column, row] = 0
