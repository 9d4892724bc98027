"""The columns of decoded values, or of decoded keys: those of all schemas that they were written with.

Zone: deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.tables.column_types import MAX_COLUMNS, ColumnConflict, ColumnTypes, count_columns, merge_types, table_type
from ottla.tables.conforming import conform_array, conform_rows
from ottla.tables.decoding import DecodedPart
from ottla.tables.rows import Refused

NOT_READABLE: Final = "ottla.tables.RowNotReadableError"
CONFLICT: Final = "ottla.tables.ColumnConflictError"


class Decoder(Protocol):
    """Decodes values, or keys, by schema: a `SchemaDecoder` or a `TextDecoder`."""

    def decode_payloads(self, payloads: pa.Array, headers: pa.Array) -> Iterable[DecodedPart]:
        """The values (binary), by schema."""


class Decoded(NamedTuple):
    """What became of the values of some records."""

    columns: pa.StructArray
    """A row for each record; nulls for those that are refused."""
    refused: list[Refused]


class DecodedColumns:
    """Decodes one part of records, and has the columns of all that it decoded."""

    def __init__(
        self, source: str, decoder: Decoder, types: ColumnTypes, taken: Iterable[str], column: str, *, is_flat: bool
    ) -> None:
        """source: the part of a record, `key` or `value`. taken: names of other columns. column: of what is decoded;
        with is_flat only of what is no record, the fields of which are columns."""
        self.source = source
        self.kind: pa.DataType = pa.struct([])
        """The columns, as one struct."""
        self._decoder = decoder
        self._types = types
        self._taken = {each.lower() for each in taken}
        self._column = column
        self._flattens = is_flat

    def decode(self, payloads: pa.Array, headers: pa.Array) -> Decoded:
        """The columns of at least one value. Columns that only these have are added to `kind`."""
        parts, order, refused = [], [], list[Refused]()
        for part in self._decoder.decode_payloads(payloads, headers):
            array, reasons, kind = self._fit_part(part)
            bad = np.nonzero(np.asarray(reasons.is_valid()))[0]
            refused += [Refused(int(part.rows[at]), kind, reasons[int(at)].as_py()) for at in bad]
            parts.append(array)
            order.append(part.rows)
        sorting = pa.array(np.argsort(np.concatenate(order)))
        return Decoded(pa.concat_arrays([conform_array(each, self.kind) for each in parts]).take(sorting), refused)

    def _fit_part(self, part: DecodedPart) -> tuple[pa.Array, pa.Array, str]:
        """The part's columns, the reasons why rows were refused, and their kind."""
        if part.reasons.null_count == 0:
            return pa.nulls(len(part.rows), self.kind), part.reasons, NOT_READABLE
        if pa.types.is_null(part.values.type):
            return pa.nulls(len(part.rows), self.kind), part.reasons, NOT_READABLE
        try:
            self._add_columns(part.values.type)
        except ColumnConflict as error:
            reasons = pa.repeat(
                pa.scalar(f"the columns of {part.schema} do not fit the table: {error}"), len(part.rows)
            )
            return pa.nulls(len(part.rows), self.kind), reasons, CONFLICT
        array, bad = conform_rows(self._as_columns(part.values), self.kind)
        text = pa.scalar(f"the table's columns cannot hold this {self.source} of {part.schema}")
        return array, pc.if_else(pa.array(bad), text, part.reasons), NOT_READABLE

    def _add_columns(self, kind: pa.DataType) -> None:
        found = table_type(self._column_type(kind), self._types) or pa.struct([])
        for each in found:
            if each.name.lower() in self._taken:
                raise ColumnConflict(
                    f"{each.name} is a column of the record or the table, or reserved by the table's format: "
                    "take --columns nested"
                )
        merged = merge_types(self.kind, found, self._types)
        if count_columns(merged) > MAX_COLUMNS:
            raise ColumnConflict(f"the table would have more than {MAX_COLUMNS:,} columns")
        self.kind = merged

    def _is_flat(self, kind: pa.DataType) -> bool:
        return self._flattens and pa.types.is_struct(kind)

    def _column_type(self, kind: pa.DataType) -> pa.DataType:
        return kind if self._is_flat(kind) else pa.struct([pa.field(self._column, kind)])

    def _as_columns(self, values: pa.Array) -> pa.Array:
        return values if self._is_flat(values.type) else pa.StructArray.from_arrays([values], [self._column])
