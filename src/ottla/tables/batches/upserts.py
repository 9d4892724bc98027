"""One row per key: the rows of a batch as changes of a table, of which the last of each key counts.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ottla.tables.batches.batch_table import KEY, MARK, conform_table
from ottla.tables.errors import RowNotReadableError, TableError
from ottla.tables.rows import BYTES, DELETED, last_rows, live_rows

MAX_BYTES: Final = 1 << 30
"""Most rows of a batch, as bytes in memory: the driver holds them while it changes the table."""
_LAYOUT: Final = BYTES._replace(is_upsert=True)
_VALUE: Final = "value"


def conform_changes(rows: pa.Table, columns: pa.Schema, name: str) -> pa.Table:
    """The last row of each key, with the types of a table's columns, and with DELETED.

    name: of the table. Raises RowNotReadableError for a row without a key, and as `conform_table` does.
    """
    if rows[KEY].null_count:
        raise RowNotReadableError(
            f"{name}: a row has no key, and an upsert needs one",
            'Mark such rows with _error, or give a step of records required=["key"]',
        )
    kept = rows.drop_columns([MARK]) if MARK in rows.schema.names else rows
    return last_rows(conform_table(kept, columns, name).append_column(DELETED, _deleted_of(rows)), _LAYOUT)


def _deleted_of(rows: pa.Table) -> pa.ChunkedArray | pa.Array:
    if MARK in rows.schema.names:
        return pc.fill_null(rows[MARK], False)
    # As in a topic: a record without a value deletes its key.
    if _VALUE in rows.schema.names:
        return rows[_VALUE].is_null()
    return pa.repeat(pa.scalar(False), len(rows))


def join_changes(pieces: Sequence[pa.Table], columns: pa.Schema, name: str) -> pa.Table:
    """The changes of a batch: the last of each key. name: of the table. Raises TableError.

    Rows have all columns of the table: a row that takes the place of another one keeps nothing of it.
    """
    if not all(DELETED in each.schema.names for each in pieces):
        raise TableError(
            f"{name}: rows of a batch were written without upsert",
            "Start the step as it was until the batch is finished, and then with a new table",
        )
    joined = pa.concat_tables(pieces, promote_options="permissive")
    made = conform_table(joined.drop_columns([DELETED]), columns, name)
    for each in columns:
        if each.name not in made.schema.names:
            made = made.append_column(each, pa.nulls(len(made), each.type))
    return last_rows(made.append_column(DELETED, joined[DELETED]), _LAYOUT)


def split_changes(changes: pa.Table) -> tuple[pa.ChunkedArray, pa.Table]:
    """The keys that change, and the rows that the table gets for them."""
    return changes[KEY], live_rows(changes)
