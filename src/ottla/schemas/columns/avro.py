"""Avro payloads as an Arrow array: a struct of the fields of a reader's schema, or an array of its type.

Zone: pure. The types are those of `types`; `resolution` says which columns of the writer's schema they are made of.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from ottla.schemas.avro import AvroSchema
from ottla.schemas.columns.arrays import ArrayMaker
from ottla.schemas.columns.flat_kernel import flatten_program, run_flat_program
from ottla.schemas.columns.formats import SchemaText
from ottla.schemas.columns.kernel import Bytes, Ints, run_program
from ottla.schemas.columns.program import compile_program
from ottla.schemas.columns.resolution import resolve_columns
from ottla.schemas.columns.verdicts import TooManyValues, Verdict

ROWS_MAX: Final = 1 << 27
"""Most rows of all columns together: 17 bytes each. A few bytes can hold many nulls."""


class AvroColumns:
    """Decodes the payloads of one schema, as another one reads them."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema | None = None) -> None:
        """Without a reader's schema the writer's is.

        Raises InvalidSchema for a schema without columns (`compile_program`), and for one that cannot read any payload
        of the writer's (`resolve_columns`).
        """
        self._program = compile_program(writer)
        self._output = resolve_columns(self._program, reader or writer)
        self._code = np.array(self._program.code, np.int64)
        self._branches = np.array(self._program.branches or [0], np.int64)
        self._layout = np.array([(each.end, each.kind in ("array", "map")) for each in self._program.columns], np.int64)
        self._is_bytes = writer.is_bytes
        self._flat = None if self._program.has_lists else flatten_program(self._program)

    @property
    def type(self) -> pa.DataType:
        """The type of the arrays."""
        return self._output.type

    def decode(self, payloads: pa.Array, skipped: int = 0) -> tuple[pa.Array, Bytes]:
        """Decode payloads (binary), without the first `skipped` bytes of each. A null is a null.

        Returns the rows, and a Verdict for each; those that were not read are nulls. Raises TooManyValues: the rows of
        all columns are more than ROWS_MAX.
        """
        data, spans = _spans_of(payloads, skipped)
        verdicts = np.zeros(len(spans), np.uint8)
        columns = ArrayMaker(data, self._count_rows(data, spans, verdicts), self._program.columns)
        self._fill_rows(columns, data, spans, verdicts)
        array, bad = columns.make_array(self._output, len(spans))
        if bad is not None:
            verdicts[bad & (spans[:, 0] >= 0) & (verdicts == Verdict.READ)] = Verdict.NOT_READABLE
        return _without(array, verdicts == Verdict.NOT_READABLE), verdicts

    def _fill_rows(self, columns: ArrayMaker, data: Bytes, spans: Ints, verdicts: Bytes) -> None:
        if self._is_bytes:
            _fill_bytes(columns, spans, verdicts)
            return
        if self._flat is not None:
            shape = len(self._program.columns), len(spans)
            rows = columns.slots.reshape(shape), columns.lengths.reshape(shape), columns.valid.reshape(shape)
            run_flat_program(self._flat, data, spans, rows, verdicts)
            return
        counts = np.zeros(len(self._program.columns), np.int64)
        run_program(
            self._code, self._branches, self._layout, data, spans, counts, columns.bases, columns.slots,
            columns.lengths, columns.valid, verdicts, True,
        )  # fmt: skip

    def _count_rows(self, data: Bytes, spans: Ints, verdicts: Bytes) -> Ints:
        """The rows of each column; marks bad records if there are lists."""
        counts = np.zeros(len(self._program.columns), np.int64)
        if not self._program.has_lists:
            counts[:] = len(spans)
        else:
            none = np.zeros(0, np.int64)
            run_program(
                self._code, self._branches, self._layout, data, spans, counts, none, none, none, verdicts[:0],
                verdicts, False,
            )  # fmt: skip
        if counts.sum() > ROWS_MAX:
            raise TooManyValues(f"the payloads have more than {ROWS_MAX:,} values: decode fewer at a time")
        return counts


def _fill_bytes(columns: ArrayMaker, spans: Ints, verdicts: Bytes) -> None:
    """Rows of payloads that are values of type bytes, as a whole."""
    sizes = spans[:, 1] - spans[:, 0]
    is_valid = (spans[:, 0] >= 0) & (sizes >= 0)
    columns.slots[:], columns.lengths[:] = np.where(is_valid, spans[:, 0], 0), np.where(is_valid, sizes, 0)
    columns.valid[:] = is_valid
    verdicts[sizes < 0] = Verdict.NOT_WRITTEN_WITH_IT


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


def _without(array: pa.Array, rows: Any) -> pa.Array:
    """The array with nulls in these rows."""
    if not rows.any():
        return array
    return array.take(pa.array(np.arange(len(array)), mask=rows))


def make_columns(writer: SchemaText, reader: SchemaText) -> AvroColumns:
    """The decoder of a pair of schemas. Raises InvalidSchema."""
    return AvroColumns(_parse(writer), None if writer is reader else _parse(reader))


def _parse(schema: SchemaText) -> AvroSchema:
    return AvroSchema(schema.text, [text for _, text in schema.references])
