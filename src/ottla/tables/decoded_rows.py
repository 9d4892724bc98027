"""Records as the rows of a table, with the columns of the schemas that their values were written with.

Zone: deterministic. The table's columns are the union of those of all schemas whose rows it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.tables.column_types import (
    MAX_COLUMNS,
    ColumnConflict,
    ColumnTypes,
    count_columns,
    merge_types,
    standard_schema,
    table_type,
)
from ottla.tables.conforming import conform_array, conform_rows
from ottla.tables.decoding import DecodedPart
from ottla.tables.rows import FLAT, Layout, Refused, Rows, require_columns, rows_of

NOT_READABLE: Final = "ottla.tables.RowNotReadableError"
CONFLICT: Final = "ottla.tables.ColumnConflictError"
_VALUE: Final = "value"


class Decoder(Protocol):
    """Decodes values by schema: a `ValueDecoder`."""

    def decode_values(self, values: pa.Array, headers: pa.Array) -> Iterable[DecodedPart]:
        """The values, by schema."""


class DecodedRows:
    """Rows with decoded values; keys are bytes."""

    def __init__(self, decoder: Decoder, layout: Layout, types: ColumnTypes, reserved: Sequence[str] = ()) -> None:
        """reserved: names of columns that the table's format adds."""
        self.layout = layout
        self._decoder = decoder
        self._types = types
        self._reserved = {*layout.schema.names, *reserved, *types.reserved}
        self._kind: pa.DataType = pa.struct([])
        """The columns of values, as one struct."""

    def begin_table(self, name: str, columns: pa.Schema) -> None:
        """Continue with the table's columns. Raises TableError: those of records are missing."""
        require_columns(name, self.layout, columns)
        self._kind = pa.struct([each for each in standard_schema(columns) if each.name not in self._reserved])

    def make_rows(self, records: pa.Table) -> Rows:
        """The rows whose values could be decoded, in their order."""
        pieces: list[pa.Table] = []
        refused: list[Refused] = []
        offset = 0
        for batch in filter(len, records.to_batches()):
            made, wrong = self._make_batch(pa.Table.from_batches([batch]))
            pieces.append(made)
            refused += [each._replace(row=each.row + offset) for each in wrong]
            offset += batch.num_rows
        return Rows(self.join_rows(pieces), refused)

    def _make_batch(self, records: pa.Table) -> Rows:
        values, headers = records["value"].combine_chunks(), records["headers"].combine_chunks()
        parts, order, refused = [], [np.zeros(0, np.int64)], []
        for part in self._decoder.decode_values(values, headers):
            array, reasons, kind = self._fit_part(part)
            is_good = np.asarray(reasons.is_null())
            refused += [Refused(int(part.rows[at]), kind, reasons[at].as_py()) for at in np.nonzero(~is_good)[0]]
            parts.append(array.filter(pa.array(is_good)))
            order.append(part.rows[is_good])
        rows = np.concatenate(order)
        sorting = np.argsort(rows)
        columns = pa.concat_arrays([conform_array(each, self._kind) for each in parts]).take(pa.array(sorting))
        chosen = rows_of(records, self.layout).take(pa.array(rows[sorting]))
        return Rows(_join_columns(chosen, columns), refused)

    def _fit_part(self, part: DecodedPart) -> tuple[pa.Array, pa.Array, str]:
        """The part's columns, the reasons why rows were refused, and their kind. Adds columns to the table's."""
        if part.reasons.null_count == 0:
            return pa.nulls(len(part.rows), self._kind), part.reasons, NOT_READABLE
        if pa.types.is_null(part.values.type):
            return pa.nulls(len(part.rows), self._kind), part.reasons, NOT_READABLE
        try:
            self._add_columns(part.values.type)
        except ColumnConflict as error:
            reasons = pa.repeat(
                pa.scalar(f"the columns of {part.schema} do not fit the table: {error}"), len(part.rows)
            )
            return pa.nulls(len(part.rows), self._kind), reasons, CONFLICT
        array, bad = conform_rows(self._as_columns(part.values), self._kind)
        text = pa.scalar(f"the table's columns cannot hold this value of {part.schema}")
        return array, pc.if_else(pa.array(bad), text, part.reasons), NOT_READABLE

    def _add_columns(self, kind: pa.DataType) -> None:
        found = table_type(self._column_type(kind), self._types) or pa.struct([])
        taken = {each.lower() for each in self._reserved}
        for each in found:
            if each.name.lower() in taken:
                raise ColumnConflict(
                    f"{each.name} is a column of the record or the table, or reserved by the table's format: "
                    "take --columns nested"
                )
        merged = merge_types(self._kind, found, self._types)
        if count_columns(merged) > MAX_COLUMNS:
            raise ColumnConflict(f"the table would have more than {MAX_COLUMNS:,} columns")
        self._kind = merged

    def _is_flat(self, kind: pa.DataType) -> bool:
        return self.layout.prefix == FLAT.prefix and pa.types.is_struct(kind)

    def _column_type(self, kind: pa.DataType) -> pa.DataType:
        return kind if self._is_flat(kind) else pa.struct([pa.field(_VALUE, kind)])

    def _as_columns(self, values: pa.Array) -> pa.Array:
        return values if self._is_flat(values.type) else pa.StructArray.from_arrays([values], [_VALUE])

    def join_rows(self, pieces: Sequence[pa.Table]) -> pa.Table:
        """All rows, with all columns; those that a piece lacks are null."""
        schema = pa.schema([*self.layout.row_schema, *self._kind])
        return pa.Table.from_batches([_conform_batch(each, schema) for each in _batches_of(pieces)], schema)


def _join_columns(rows: pa.Table, columns: pa.Array) -> pa.Table:
    for field, column in zip(columns.type, columns.flatten(), strict=True):
        rows = rows.append_column(field, column)
    return rows


def _batches_of(pieces: Sequence[pa.Table]) -> Iterator[pa.RecordBatch]:
    for piece in pieces:
        yield from piece.to_batches()


def _conform_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [_conform_column(batch, each) for each in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _conform_column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name not in batch.schema.names:
        return pa.nulls(len(batch), field.type)
    found = batch[field.name]
    return found if found.type == field.type else conform_array(found, field.type)
