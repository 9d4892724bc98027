"""The rows of a step that writes a table, and its failed records: both are rows of one DataFrame.

Zone: real. A row for the table has the name of the table as its topic, and a failed record that of a retry topic or of
the dead letters. The columns of a DataFrame step are in the column ROW; functions of records have those of a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.errors import BadPipeline
from ottla.pipeline.functions import ERROR, ROWS_TYPE, Failed, StepSaid, reasons_of
from ottla.pipeline.routing import HEADERS, SOURCE, Router, source_rows
from ottla.pipeline.steps import Step
from ottla.pipeline.table_output.secrets import open_secrets
from ottla.pipeline.table_output.targets import TableTarget
from ottla.tables.batches.batch_table import BatchMaking
from ottla.tables.batches.formats import prepare_batch_table

ROW: Final = "row"
RECORD: Final = ("key", "value", "headers")
"""The columns of the table where a function makes records."""


@dataclass(frozen=True)
class TableRouter(Router):
    """A Router for rows with the column ROW: good rows keep it, and failed ones have null there."""

    def _route_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        names = batch.schema.names
        reasons = reasons_of(batch.column(names.index(ERROR)))
        failed = [Failed(row, StepSaid(why)) for row, why in sorted(reasons.items())]
        good = [row for row in range(batch.num_rows) if row not in reasons]
        rows = batch.column(names.index(ROW))
        # Arrow's stream has one schema: both kinds of rows are built in the same way.
        if good:
            nothing = pa.RecordBatch.from_arrays(
                [pa.nulls(len(good), each.type) for each in ROWS_TYPE], schema=ROWS_TYPE
            )
            yield self._with_topics(nothing, [self.step.to] * len(good), None, []).append_column(
                ROW, rows.take(pa.array(good, pa.int64()))
            )
        if failed:
            letters = self._route_failed(source_rows(batch), failed)
            yield letters.append_column(ROW, pa.nulls(len(failed), rows.type))


def table_rows(step: Step, made: Any, group: str) -> Any:
    """The rows of a DataFrame step and its failed records. Raises BadPipeline."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name; slow to import

    columns = [name for name in made.columns if name not in (ERROR, SOURCE)]
    if not columns:
        raise BadPipeline(f"step {step.name}: the function returned no column for the table")
    nothing = [F.lit(None).cast(kind).alias(name) for name, kind in zip(RECORD, _RECORD_TYPES, strict=True)]
    row = F.struct(*(made[f"`{name.replace('`', '``')}`"] for name in columns)).alias(ROW)
    plain = [F.lit(step.to).alias("topic"), *nothing, row]
    if ERROR not in made.columns:
        return made.select(*plain)
    if SOURCE not in made.columns:
        raise BadPipeline(
            f"step {step.name}: rows with `{ERROR}` are forwarded as they were read: keep the column `{SOURCE}`"
        )
    schema = _nullable(made.select(*plain).schema)
    # Without the function: it runs on the driver, and may refer to objects that cannot be pickled.
    router = TableRouter(replace(step, function=_return_frame), group)
    return made.select(*plain, ERROR, SOURCE).mapInArrow(router, schema)


_RECORD_TYPES: Final = ("binary", "binary", HEADERS)


def _nullable(schema: Any) -> Any:
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415

    return StructType([StructField(each.name, each.dataType, True) for each in schema.fields])


def _return_frame(frame: Any) -> Any:
    """The function of a DataFrame step on the executors: its rows are made already."""
    return frame


def begin_table(frame: Any, writer: Any, target: TableTarget) -> Any:
    """The writer of a stream for a table, which is made or gets the columns that it lacks.

    frame: the rows of the step. Raises TableError, OSError.
    """
    from ottla.pipeline.table_output.sink import FORMAT, TARGET, TableSink  # noqa: PLC0415 - imports PySpark

    columns, making = _columns_of_frame(frame), making_of(target)
    with open_secrets(target) as opened:
        prepare_batch_table(
            target.kind, target.location, columns, making, catalog=target.catalog, properties=opened.properties
        )
    frame.sparkSession.dataSource.register(TableSink)
    return writer.format(FORMAT).option(TARGET, target.encode_text())


def making_of(target: TableTarget) -> BatchMaking:
    """How the table of a target is made."""
    return BatchMaking(target.partition_by, target.upsert)


def split_rows(batch: pa.RecordBatch, table: str) -> tuple[pa.Table | None, pa.RecordBatch]:
    """The rows for the table, or None, and those for topics. table: the name in the column `topic`."""
    is_row = pc.equal(batch.column(batch.schema.names.index("topic")), table)
    chosen = batch.filter(is_row)
    others = batch.filter(pc.invert(is_row)) if chosen.num_rows else batch
    return (_columns_of(chosen) if chosen.num_rows else None), others.select(["topic", *RECORD])


def _columns_of(rows: pa.RecordBatch) -> pa.Table:
    if ROW not in rows.schema.names:
        return pa.table(rows.select(list(RECORD)))
    row = rows.column(rows.schema.names.index(ROW))
    return pa.Table.from_arrays(row.flatten(), names=[each.name for each in row.type])


def _columns_of_frame(frame: Any) -> pa.Schema:
    """The columns that the table gets from the rows of a step. frame: of `table_rows`, or of a Router."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415
    from pyspark.sql.types import StructType  # noqa: PLC0415

    types = {each.name: each for each in frame.schema.fields}
    fields = types[ROW].dataType.fields if ROW in types else [types[name] for name in RECORD]
    return to_arrow_schema(StructType(fields), timezone="UTC")
