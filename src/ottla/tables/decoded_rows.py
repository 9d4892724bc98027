"""Records as the rows of a table, with the columns of the schemas that their values, or keys, were written with.

Zone: deterministic. The table's columns are the union of those of all schemas whose rows it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ottla.tables.column_types import ColumnTypes, standard_schema
from ottla.tables.conforming import conform_array
from ottla.tables.decoded_columns import DecodedColumns, Decoder
from ottla.tables.rows import FLAT, Layout, Refused, Rows, require_columns, rows_of


class DecodedRows:
    """Rows with decoded values, with decoded keys, or both; the bytes of keys are a column as well."""

    def __init__(
        self,
        layout: Layout,
        types: ColumnTypes,
        values: Decoder | None = None,
        keys: Decoder | None = None,
        reserved: Sequence[str] = (),
    ) -> None:
        """values, keys: None: they are bytes, as the layout says. reserved: names of columns that the table's format
        adds."""
        self.layout = layout
        self._taken = {*layout.schema.names, layout.decoded_key, *reserved, *types.reserved}
        is_flat = layout.prefix == FLAT.prefix
        self._values, self._keys = None, None
        if values is not None:
            self._values = DecodedColumns("value", values, types, self._taken, "value", is_flat=is_flat)
        if keys is not None:
            self._keys = DecodedColumns("key", keys, types, (), layout.decoded_key, is_flat=False)
        self._parts = [each for each in (self._keys, self._values) if each is not None]

    def begin_table(self, name: str, columns: pa.Schema) -> None:
        """Continue with the table's columns. Raises TableError: those of records are missing."""
        require_columns(name, self.layout, columns, has_decoded_key=self._keys is not None)
        found = standard_schema(columns)
        if self._values is not None:
            self._values.kind = pa.struct([each for each in found if each.name not in self._taken])
        if self._keys is not None:
            self._keys.kind = pa.struct([each for each in found if each.name == self.layout.decoded_key])

    def make_rows(self, records: pa.Table) -> Rows:
        """The rows whose parts could be decoded, in their order."""
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
        headers = records["headers"].combine_chunks()
        found = [part.decode(records[part.source].combine_chunks(), headers) for part in self._parts]
        refused: dict[int, Refused] = {}
        for each in found:
            for wrong in each.refused:
                refused.setdefault(wrong.row, wrong)
        is_good = np.ones(records.num_rows, np.bool_)
        is_good[list(refused)] = False
        rows = rows_of(records, self.layout)
        for each in found:
            rows = _join_columns(rows, each.columns)
        return Rows(rows.filter(pa.array(is_good)) if refused else rows, list(refused.values()))

    def join_rows(self, pieces: Sequence[pa.Table]) -> pa.Table:
        """All rows, with all columns; those that a piece lacks are null."""
        added = [field for part in self._parts for field in part.kind]
        schema = pa.schema([*self.layout.row_schema, *added])
        return pa.Table.from_batches([_conform_batch(each, schema) for each in _batches_of(pieces)], schema)


def _join_columns(rows: pa.Table, columns: pa.StructArray) -> pa.Table:
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
