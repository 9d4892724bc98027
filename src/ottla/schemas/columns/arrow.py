"""Avro payloads as an Arrow array: a struct of the schema's fields, or an array of its type.

Zone: pure. Logical types become Arrow's: dates, times, timestamps (millis and micros, UTC or local), decimals, uuids as
text. A union of several types is a struct `member0`, `member1` … of which one is set, as spark-avro reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from ottla.schemas.avro import AvroSchema
from ottla.schemas.columns.kernel import Bytes, Ints, gather_bytes, run_program
from ottla.schemas.columns.program import Column, compile_program
from ottla.schemas.errors import InvalidSchema

ROWS_MAX: Final = 1 << 27
"""Most rows of all columns together: 17 bytes each. A few bytes can hold many nulls."""


class AvroColumns:
    """Decodes the payloads of one schema."""

    def __init__(self, schema: AvroSchema) -> None:
        """Raises InvalidSchema for a schema without columns (`compile_program`)."""
        self._program = compile_program(schema)
        self._code = np.array(self._program.code, np.int64)
        self._branches = np.array(self._program.branches or [0], np.int64)
        self._layout = np.array([(each.end, each.kind in ("array", "map")) for each in self._program.columns], np.int64)

    @property
    def type(self) -> pa.DataType:
        """The type of the arrays."""
        return self.decode(pa.array([], pa.binary()))[0].type

    def decode(self, payloads: pa.Array, skipped: int = 0) -> tuple[pa.Array, np.ndarray[Any, np.dtype[np.bool_]]]:
        """Decode payloads (binary), without the first `skipped` bytes of each. A null is a null.

        Returns the rows, and for each whether it was not written with the schema; then it is a null. Raises
        InvalidSchema: the rows of all columns are more than ROWS_MAX; decode fewer payloads at a time.
        """
        data, spans = _spans_of(payloads, skipped)
        bad = np.zeros(len(spans), np.uint8)
        read = _Read(data, self._count_rows(data, spans, bad), self._program.columns)
        counts = np.zeros(len(self._program.columns), np.int64)
        run_program(
            self._code, self._branches, self._layout, data, spans, counts, read.bases, read.slots, read.lengths,
            read.valid, bad, True,
        )  # fmt: skip
        return read.array_of(0), bad.astype(np.bool_)

    def _count_rows(self, data: Bytes, spans: Ints, bad: Bytes) -> Ints:
        """The rows of each column; marks bad records if there are lists."""
        counts = np.zeros(len(self._program.columns), np.int64)
        if not self._program.has_lists:
            counts[:] = len(spans)
        else:
            none = np.zeros(0, np.int64)
            run_program(
                self._code, self._branches, self._layout, data, spans, counts, none, none, none, bad[:0], bad, False
            )
        if counts.sum() > ROWS_MAX:
            raise InvalidSchema(f"the payloads have more than {ROWS_MAX:,} values: decode fewer at a time")
        return counts


def _spans_of(payloads: pa.Array, skipped: int) -> tuple[Bytes, Ints]:
    """The bytes of all payloads, and begin and end of each; begin -1: a null."""
    payloads = payloads.cast(pa.large_binary())
    _, offsets_buffer, data_buffer = payloads.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[payloads.offset : payloads.offset + len(payloads) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    spans = np.stack([offsets[:-1] + skipped, offsets[1:]], axis=1) if len(payloads) else np.zeros((0, 2), np.int64)
    if payloads.null_count:
        spans[~np.asarray(payloads.is_valid()), 0] = -1
    return data, np.ascontiguousarray(spans)


class _Read:
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

    def array_of(self, number: int) -> pa.Array:
        """The array of a column."""
        column = self._columns[number]
        begin, count = self.bases[number], self._counts[number]
        part = slice(begin, begin + count)
        rows = _Rows(self.slots[part], self.lengths[part], _bitmap(self.valid[part]), int(count))
        array: pa.Array = _MAKERS[column.kind](self, column, rows)
        return array

    def make_int(self, column: Column, rows: _Rows) -> pa.Array:
        """`int`, which may be a date or a time."""
        types = {"date": pa.date32(), "time-millis": pa.time32("ms")}
        return rows.as_array(types.get(_logical_type(column.node), pa.int32()), rows.slots.astype(np.int32))

    def make_long(self, column: Column, rows: _Rows) -> pa.Array:
        """`long`, which may be a time or a timestamp."""
        return rows.as_array(_LONGS.get(_logical_type(column.node), pa.int64()), rows.slots)

    def make_bytes(self, column: Column, rows: _Rows) -> pa.Array:
        """`bytes` and `fixed`, which may be decimals."""
        array = self._gather(pa.large_binary(), rows).cast(pa.binary())
        return _decimals(column.node, array) if _logical_type(column.node) == "decimal" else array

    def make_string(self, _: Column, rows: _Rows) -> pa.Array:
        """`string`."""
        return self._gather(pa.large_string(), rows).cast(pa.string())

    def make_enum(self, column: Column, rows: _Rows) -> pa.Array:
        """`enum`, as text."""
        return pa.array(column.node["symbols"], pa.string()).take(
            rows.as_array(pa.int32(), rows.slots.astype(np.int32))
        )

    def make_struct(self, column: Column, rows: _Rows) -> pa.Array:
        """`record`, and a union of several types."""
        parts = [self.array_of(each) for each in column.parts]
        names = [self._columns[each].name for each in column.parts]
        fields = [pa.field(name, part.type) for name, part in zip(names, parts, strict=True)]
        return pa.Array.from_buffers(pa.struct(fields), rows.length, [rows.bitmap], children=parts)

    def make_array(self, column: Column, rows: _Rows) -> pa.Array:
        """`array`."""
        items = self.array_of(column.parts[0])
        return pa.Array.from_buffers(pa.list_(items.type), rows.length, [rows.bitmap, rows.offsets()], children=[items])

    def make_map(self, column: Column, rows: _Rows) -> pa.Array:
        """`map`."""
        keys, values = (self.array_of(each) for each in column.parts)
        fields = [pa.field("key", keys.type, nullable=False), pa.field("value", values.type)]
        entries = pa.StructArray.from_arrays([keys, values], fields=fields)
        kind = pa.map_(keys.type, values.type)
        return pa.Array.from_buffers(kind, rows.length, [rows.bitmap, rows.offsets()], children=[entries])

    def _gather(self, kind: pa.DataType, rows: _Rows) -> pa.Array:
        offsets = np.concatenate([[0], np.cumsum(rows.lengths)]).astype(np.int64)
        into = np.empty(int(offsets[-1]), np.uint8)
        gather_bytes(self._data, rows.slots, rows.lengths, offsets, into)
        return pa.Array.from_buffers(kind, rows.length, [rows.bitmap, pa.py_buffer(offsets), pa.py_buffer(into)])


class _Rows(NamedTuple):
    """The rows of a column."""

    slots: Ints
    lengths: Ints
    bitmap: Any
    """Arrow's buffer of valid rows; None: all are."""
    length: int

    def as_array(self, kind: pa.DataType, values: Any) -> pa.Array:
        """An array of a type of fixed width."""
        return pa.Array.from_buffers(kind, self.length, [self.bitmap, pa.py_buffer(np.ascontiguousarray(values))])

    def offsets(self) -> Any:
        """Arrow's buffer of a list's offsets, of its ends."""
        return pa.py_buffer(np.concatenate([[0], self.slots]).astype(np.int32))


_MAKERS: Final[dict[str, Callable[[_Read, Column, _Rows], pa.Array]]] = {
    "null": lambda _, __, rows: pa.nulls(rows.length),
    "boolean": lambda _, __, rows: rows.as_array(
        pa.bool_(), np.packbits(rows.slots.astype(np.uint8), bitorder="little")
    ),
    "int": _Read.make_int,
    "long": _Read.make_long,
    "float": lambda _, __, rows: rows.as_array(pa.float32(), rows.slots.astype(np.uint32)),
    "double": lambda _, __, rows: rows.as_array(pa.float64(), rows.slots),
    "bytes": _Read.make_bytes,
    "fixed": _Read.make_bytes,
    "string": _Read.make_string,
    "enum": _Read.make_enum,
    "record": _Read.make_struct,
    "union": _Read.make_struct,
    "array": _Read.make_array,
    "map": _Read.make_map,
}
_LONGS: Final = {
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "timestamp-nanos": pa.timestamp("ns", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("ns"),
}


def _logical_type(node: Any) -> str:
    return str(node.get("logicalType", "")) if isinstance(node, dict) else ""


def _decimals(node: Any, array: pa.Array) -> pa.Array:
    """Big-endian two's complement numbers as decimals; those with more digits than the schema says are nulls."""
    precision, scale = int(node.get("precision", 0)), int(node.get("scale", 0))
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        return array
    exact = Context(prec=precision)
    numbers = [
        None if each is None else Decimal(int.from_bytes(each, signed=True)).scaleb(-scale, exact)
        for each in array.to_pylist()
    ]
    return pa.array(numbers, pa.decimal128(precision, scale))


def _bitmap(valid: Bytes) -> Any:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
