"""Arrow arrays of the rows that the kernel has filled.

Zone: pure. One maker per type of a reader's schema. A mask of bad rows goes up with each array: rows that the reader's
type cannot hold. None: there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ottla.schemas.columns.kernel import Bytes, Ints, fill_decimals, find_not_utf8, gather_bytes
from ottla.schemas.columns.program import Column
from ottla.schemas.columns.resolution import Output

Mask = npt.NDArray[np.bool_]
Made = tuple[pa.Array, Mask | None]
_OFFSET_MAX: Final = 2**31 - 1
"""Where the offsets of Arrow's `binary` and `string` end."""


class Rows(NamedTuple):
    """The rows of a column."""

    kind: str
    """The writer's type."""
    slots: Ints
    lengths: Ints
    valid: Bytes

    @property
    def bitmap(self) -> Any:
        """Arrow's buffer of valid rows; None: all are."""
        return None if self.valid.all() else pa.py_buffer(np.packbits(self.valid, bitorder="little"))

    def as_array(self, kind: pa.DataType, values: Any) -> pa.Array:
        """An array of a type of fixed width."""
        content = pa.py_buffer(np.ascontiguousarray(values))
        return pa.Array.from_buffers(kind, len(self.slots), [self.bitmap, content])

    def numbers(self) -> Any:
        """The values of a column of numbers."""
        if self.kind == "float":
            return self.slots.astype(np.uint32).view(np.float32)
        return self.slots.view(np.float64) if self.kind == "double" else self.slots

    def offsets(self) -> Any:
        """Arrow's buffer of a list's offsets, of its ends."""
        return pa.py_buffer(np.concatenate([[0], self.slots]).astype(np.int32))


class ArrayMaker:
    """The rows of all columns, and the arrays made of them."""

    def __init__(self, data: Bytes, counts: Ints, columns: list[Column]) -> None:
        self._data = data
        self._counts = counts
        self._columns = columns
        total = int(counts.sum())
        self.bases = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
        self.slots = np.zeros(total, np.int64)
        self.lengths = np.zeros(total, np.int64)
        self.valid = np.zeros(total, np.uint8)

    def make_array(self, output: Output, length: int) -> Made:
        """The array of an output, of `length` rows."""
        if output.kind == "default":
            return pa.repeat(output.default, length), None
        array, bad = _MAKERS[output.kind](self, output, self._rows_of(output.column))
        if output.is_required:
            bad = _either(bad, self._rows_of(output.column).valid == 0)
        for each in output.unread:
            bad = _either(bad, self._rows_of(each).valid == 1)
        return array, bad

    def _rows_of(self, number: int) -> Rows:
        begin = self.bases[number]
        part = slice(begin, begin + self._counts[number])
        return Rows(self._columns[number].kind, self.slots[part], self.lengths[part], self.valid[part])

    # -- types that are not nested -------------------------------------------------------------------------------------

    def make_null(self, output: Output, rows: Rows) -> Made:
        """`null`."""
        return pa.nulls(len(rows.slots), output.type), None

    def make_boolean(self, output: Output, rows: Rows) -> Made:
        """`boolean`."""
        return rows.as_array(output.type, np.packbits(rows.slots.astype(np.uint8), bitorder="little")), None

    def make_number(self, output: Output, rows: Rows) -> Made:
        """`int`, `long`, `float`, `double`, also of a smaller type."""
        return rows.as_array(output.type, rows.numbers().astype(_NUMBERS[output.kind])), None

    def make_bytes(self, output: Output, rows: Rows) -> Made:
        """`bytes` and `fixed`, which may be decimals; also of a string."""
        if pa.types.is_decimal(output.type):
            return self._make_decimal(output, rows)
        return self._gather(pa.binary(), rows).cast(output.type), None

    def _make_decimal(self, output: Output, rows: Rows) -> Made:
        limit = 10**output.type.precision
        limit_words = np.array([limit & (2**64 - 1), limit >> 64], np.uint64)
        words, bad = np.zeros((len(rows.slots), 2), np.uint64), np.zeros(len(rows.slots), np.bool_)
        fill_decimals(self._data, rows.slots, rows.lengths, rows.valid, limit_words, words, bad)
        return rows._replace(valid=(rows.valid & ~bad).astype(np.uint8)).as_array(output.type, words), _if_any(bad)

    def make_string(self, output: Output, rows: Rows) -> Made:
        """`string`, also of bytes: those that are not UTF-8 are bad."""
        bad = None
        if rows.kind == "bytes":
            found = np.zeros(len(rows.slots), np.bool_)
            find_not_utf8(self._data, rows.slots, rows.lengths, found)
            bad = _if_any(found)
            rows = rows._replace(valid=(rows.valid & ~found).astype(np.uint8), lengths=np.where(found, 0, rows.lengths))
        return self._gather(pa.string(), rows).cast(output.type), bad

    def _gather(self, kind: pa.DataType, rows: Rows) -> pa.Array:
        """Bytes or texts with the offsets of `kind`, or with wider ones if they are too long for it."""
        offsets = np.zeros(len(rows.slots) + 1, np.int64)
        np.cumsum(rows.lengths, out=offsets[1:])
        into = np.empty(int(offsets[-1]), np.uint8)
        gather_bytes(self._data, rows.slots, rows.lengths, offsets, into)
        if len(into) > _OFFSET_MAX:
            kind = pa.large_binary() if pa.types.is_binary(kind) else pa.large_string()
        else:
            offsets = offsets.astype(np.int32)
        return pa.Array.from_buffers(kind, len(rows.slots), [rows.bitmap, pa.py_buffer(offsets), pa.py_buffer(into)])

    def make_enum(self, output: Output, rows: Rows) -> Made:
        """`enum`, as text. A symbol that the reader lacks is its default, or bad."""
        known, default = set(output.node["symbols"]), output.node.get("default")
        written = self._columns[output.column].node["symbols"]
        texts = pa.array([each if each in known else default for each in written], pa.string())
        array = texts.take(rows.as_array(pa.int32(), rows.slots.astype(np.int32)))
        if texts.null_count == 0:
            return array, None
        return array, _if_any((rows.valid == 1) & np.asarray(array.is_null()))

    # -- nested types --------------------------------------------------------------------------------------------------

    def make_struct(self, output: Output, rows: Rows) -> Made:
        """`record`, and a union of several types."""
        made = [self.make_array(each, len(rows.slots)) for each in output.parts]
        bad: Mask | None = None
        for _, each in made:
            bad = bad if each is None else _either(bad, each & (rows.valid == 1))
        bitmap = [rows.bitmap]
        return pa.Array.from_buffers(output.type, len(rows.slots), bitmap, children=[each for each, _ in made]), bad

    def make_list(self, output: Output, rows: Rows) -> Made:
        """`array`."""
        items, bad = self._make_items(output, 0)
        buffers = [rows.bitmap, rows.offsets()]
        return pa.Array.from_buffers(output.type, len(rows.slots), buffers, children=[items]), _bad_lists(rows, bad)

    def make_map(self, output: Output, rows: Rows) -> Made:
        """`map`."""
        (keys, _), (values, bad) = self._make_items(output, 0), self._make_items(output, 1)
        fields = [output.type.key_field, output.type.item_field]
        entries = pa.StructArray.from_arrays([keys, values], fields=fields)
        buffers = [rows.bitmap, rows.offsets()]
        return pa.Array.from_buffers(output.type, len(rows.slots), buffers, children=[entries]), _bad_lists(rows, bad)

    def _make_items(self, output: Output, at: int) -> Made:
        return self.make_array(output.parts[at], int(self._counts[self._columns[output.column].parts[at]]))

    def make_first(self, output: Output, rows: Rows) -> Made:
        """The first part that is not null."""
        made = [self.make_array(each, len(rows.slots)) for each in output.parts]
        if len(made) == 1:
            return made[0]
        if not made:
            return pa.nulls(len(rows.slots), output.type), None
        bad: Mask | None = None
        for each, (_, mask) in zip(output.parts, made, strict=True):
            bad = bad if mask is None else _either(bad, mask & (self._rows_of(each.column).valid == 1))
        return pc.coalesce(*(array for array, _ in made)), bad


def _either(one: Mask | None, other: Mask) -> Mask | None:
    return _if_any(other) if one is None else one | other


def _if_any(mask: Mask) -> Mask | None:
    return mask if mask.any() else None


def _bad_lists(rows: Rows, bad: Mask | None) -> Mask | None:
    """The lists with a bad item."""
    if bad is None:
        return None
    before = np.concatenate([[0], np.cumsum(bad)])
    ends = rows.slots
    begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    found: Mask = before[ends] > before[begins]
    return found


_NUMBERS: Final = {"int": np.int32, "long": np.int64, "float": np.float32, "double": np.float64}
_MAKERS: Final[dict[str, Callable[[ArrayMaker, Output, Rows], Made]]] = {
    "null": ArrayMaker.make_null,
    "boolean": ArrayMaker.make_boolean,
    "int": ArrayMaker.make_number,
    "long": ArrayMaker.make_number,
    "float": ArrayMaker.make_number,
    "double": ArrayMaker.make_number,
    "bytes": ArrayMaker.make_bytes,
    "fixed": ArrayMaker.make_bytes,
    "string": ArrayMaker.make_string,
    "enum": ArrayMaker.make_enum,
    "record": ArrayMaker.make_struct,
    "union": ArrayMaker.make_struct,
    "array": ArrayMaker.make_list,
    "map": ArrayMaker.make_map,
    "first": ArrayMaker.make_first,
}
