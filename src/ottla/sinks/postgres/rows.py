"""Rows for a table: appended, or merged by a unique business id.

Zone: real. Rows are sent with COPY, which is one stream instead of a statement per row; with a key they are copied into
a temporary table, and inserted from there with ON CONFLICT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

import psycopg
from psycopg import sql

from ottla.sinks.postgres.database import Cursor
from ottla.sinks.postgres.errors import BadResults, UsageError
from ottla.sinks.postgres.tables import table_name

_TEMPORARY: Final = sql.Identifier("ottla_rows")
_ADVICE: Final = (
    (psycopg.errors.UndefinedTable, "Create the table first, with a column for each column of the results"),
    (psycopg.errors.UndefinedColumn, "Select only columns that the table has, under its names"),
    (psycopg.errors.InvalidColumnReference, "Give the table a unique constraint on exactly the columns of `key`"),
    (psycopg.errors.CardinalityViolation, "Aggregate first: two rows of one transaction have the same key"),
    (psycopg.errors.UniqueViolation, "Set key=(…) for rows that replace others, or select ids that are unique"),
    (psycopg.errors.NotNullViolation, "Filter such rows, or give the column a default and do not select it"),
    (psycopg.errors.DataError, "Cast the column to the type of the table's"),
    (psycopg.errors.DatatypeMismatch, "Cast the column to the type of the table's"),
)


class Rows(NamedTuple):
    """How rows are written to a table: `Rows("totals", key=("customer",))` replaces by key, `Rows("orders")` appends.

    With `key`, a unique business id, and conflict "nothing", writing the same rows again changes nothing, with or
    without offsets.
    """

    table: str
    """The table, with its schema if that is not on the search path: `audit.orders`."""
    key: tuple[str, ...] = ()
    """Columns with a unique constraint; empty: rows are appended."""
    conflict: Literal["update", "nothing"] = "update"
    """What happens to an existing row with the same key: it is replaced, or kept."""

    def write(self, cursor: Cursor, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
        """Write rows, with values in the order of `columns`. Returns how many were inserted or replaced others.

        Raises BadResults when they do not fit the table, UsageError.
        """
        if missing := [each for each in self.key if each not in columns]:
            raise UsageError(f"the key column {missing[0]} is not among the columns", "Select it as well")
        try:
            if not self.key:
                return _copy_rows(cursor, table_name(self.table), columns, rows)
            return self._merge_rows(cursor, columns, rows)
        except tuple(kind for kind, _ in _ADVICE) as error:
            step = next(text for kind, text in _ADVICE if isinstance(error, kind))
            raise BadResults(f"table {self.table}: {' '.join(str(error).split())}", step) from error

    def __call__(self, cursor: Cursor, batch: Any, batch_id: int) -> None:  # noqa: ARG002 - of any batch
        """Write the rows of a Spark DataFrame through the driver, partition by partition."""
        self.write(cursor, batch.columns, spark_rows(batch))

    def _merge_rows(self, cursor: Cursor, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
        # COPY has no ON CONFLICT, so rows are copied into a table without constraints, and merged from there.
        table, names = table_name(self.table), _list_columns(columns)
        cursor.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
                _TEMPORARY, names, table
            )
        )
        _copy_rows(cursor, _TEMPORARY, columns, rows)
        others = [sql.Identifier(each) for each in columns if each not in self.key]
        # With key columns only there is nothing to update: an existing row equals the new one.
        change = sql.SQL("NOTHING")
        if self.conflict == "update" and others:
            sets = sql.SQL(", ").join([sql.SQL("{0} = EXCLUDED.{0}").format(each) for each in others])
            change = sql.SQL("UPDATE SET {}").format(sets)  # type: ignore[assignment]
        statement = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} ON CONFLICT ({}) DO {}")
        cursor.execute(statement.format(table, names, names, _TEMPORARY, _list_columns(self.key), change))
        written = cursor.rowcount
        cursor.execute(sql.SQL("DROP TABLE {}").format(_TEMPORARY))  # this transaction may write a second time
        return written


def _copy_rows(cursor: Cursor, table: sql.Identifier, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    with cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(table, _list_columns(columns))) as copy:
        for row in rows:
            copy.write_row(row)
    return cursor.rowcount


def _list_columns(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join([sql.Identifier(each) for each in columns])


def spark_rows(batch: Any) -> Iterator[Sequence[Any]]:
    """The rows of a DataFrame, one partition in memory at a time.

    Spark returns timestamps as local times without a zone; here they are converted to UTC.
    """
    kinds = [field.dataType.typeName() for field in batch.schema.fields]
    moments = [index for index, kind in enumerate(kinds) if kind == "timestamp"]
    rows: Iterator[Sequence[Any]] = batch.toLocalIterator(prefetchPartitions=True)
    return map(_zone_converter(moments), rows) if moments else rows


def _zone_converter(moments: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    def zoned(row: Sequence[Any]) -> Sequence[Any]:
        values = list(row)
        for index in moments:
            if isinstance(values[index], datetime):
                # `astimezone` takes a time without a zone as local time, which is what PySpark returns.
                values[index] = values[index].astimezone(UTC)
        return values

    return zoned
