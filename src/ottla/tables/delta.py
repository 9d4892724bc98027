"""A Delta table: the offsets are the versions of application transactions, one per partition of the topic.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from ottla.tables.column_types import ColumnTypes, standard_schema
from ottla.tables.errors import CommitConflict, OffsetsLostError, TableError
from ottla.tables.offsets import TableOffsets
from ottla.tables.rows import DELETED, live_rows
from ottla.tables.writers import Making, require_mode, require_partitioning

COMPRESSED: Final = WriterProperties(compression="ZSTD")
"""As in Iceberg tables and Parquet folders. With Snappy, the default of delta-rs, files of text are twice as large, and
the kernel's copies of them cost nearly the CPU that zstd costs."""
_APPLICATION: Final = "ottla/"
_PARTITION_FORMATS: Final = {"day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}


class DeltaWriter:
    """A table by its path or URI; made if it is not there."""

    types = ColumnTypes(promotes=False, has_times=False)

    def __init__(self, uri: str, topic: str, making: Making, properties: Mapping[str, str]) -> None:
        """properties: of the object store, as delta-rs documents them. Raises TableError."""
        self.name = f"Delta table {uri}"
        self._topic = topic
        self._app = f"{_APPLICATION}{topic}"
        self._making = making
        self._found: TableOffsets | None = None
        """As of the last `read_offsets`."""
        with self._table_errors():
            if DeltaTable.is_deltatable(uri, dict(properties)):
                self._table = DeltaTable(uri, storage_options=dict(properties))
            else:
                self._table = create_delta(uri, making.layout.schema, making.partition_by, properties)
            require_partitioning(self.name, making.partition_by, self._table.metadata().partition_columns)

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table without that of its partitions, as of the last `read_offsets`."""
        found = standard_schema(pa.schema(self._table.schema().to_arrow()))
        return pa.schema([each for each in found if each.name != self._making.partition_by])

    def read_offsets(self) -> TableOffsets | None:
        """The offsets in the newest version. Raises TableError."""
        self._found = self._find_offsets()
        return self._found

    def _find_offsets(self) -> TableOffsets | None:
        with self._table_errors():
            self._table.update_incremental()
            found, is_upsert = saved_offsets(self._table, self._topic, self.name)
        if found is not None:
            require_mode(self.name, self._making.layout, is_upsert=is_upsert)
        return found

    def append_rows(self, rows: pa.Table, before: TableOffsets, after: TableOffsets) -> None:  # noqa: ARG002  # the seam's
        """One version with the rows and the offsets. Raises CommitConflict, TableError."""
        # No retries in delta-rs: after a conflict the offsets are read again first.
        commit = CommitProperties(max_commit_retries=0, app_transactions=self._transactions(after))
        try:
            with self._table_errors():
                if self._making.layout.is_upsert:
                    self._merge_rows(self._with_partition(rows), commit)
                else:
                    self._append(self._with_partition(rows), commit)
        except CommitFailedError as error:
            raise CommitConflict(f"{self.name}: the commit failed: {error}", "Start again") from error

    def _append(self, rows: pa.Table, commit: CommitProperties) -> None:
        is_wider = self._is_wider(rows.schema)
        write_deltalake(
            self._table,
            rows,
            mode="append",
            schema_mode="merge" if is_wider else None,
            writer_properties=COMPRESSED,
            commit_properties=commit,
        )

    def _merge_rows(self, rows: pa.Table, commit: CommitProperties) -> None:
        if self._is_wider(rows.schema):
            self._add_columns(rows.schema)
        before, key = self._found, self._making.layout.key
        merge_rows(self._table, rows, key, commit)
        # A merge that changes no row (tombstones of keys that the table lacks) makes no version, and stores no offsets.
        if self.read_offsets() == before:
            write_deltalake(self._table, live_rows(rows), mode="append", commit_properties=commit)

    def _add_columns(self, schema: pa.Schema) -> None:
        """A version of its own, because a merge adds no parts of nested columns."""
        before = self._found
        wanted = pa.schema([each for each in schema if each.name != DELETED])
        commit = CommitProperties(max_commit_retries=0)
        write_deltalake(self._table, wanted.empty_table(), mode="append", schema_mode="merge", commit_properties=commit)
        if self.read_offsets() != before:
            raise CommitConflict(f"{self.name} changed while columns were added", "Start again")

    def _is_wider(self, schema: pa.Schema) -> bool:
        found = standard_schema(pa.schema(self._table.schema().to_arrow()))
        known = {each.name: each.type for each in found}
        return any(known.get(each.name) != each.type for each in schema if each.name != DELETED)

    def _transactions(self, after: TableOffsets) -> list[Transaction]:
        # The id in two halves, because a version is a signed number of 64 bits.
        raw = bytes.fromhex(after.topic_id)
        versions = {str(number): offset for number, offset in after.next_offsets.items()} | {
            "partitions": max(after.next_offsets) + 1,
            "id/high": int.from_bytes(raw[:8], "big", signed=True),
            "id/low": int.from_bytes(raw[8:], "big", signed=True),
        }
        if self._making.layout.is_upsert:
            versions["upsert"] = 1
        return [Transaction(f"{self._app}/{name}", version) for name, version in versions.items()]

    def _with_partition(self, rows: pa.Table) -> pa.Table:
        return with_time_partition(rows, self._making.layout.time, self._making.partition_by)

    def close(self) -> None:
        """Nothing is held."""

    @contextmanager
    def _table_errors(self) -> Iterator[None]:
        try:
            yield
        except CommitFailedError:
            raise
        except DeltaError as error:
            raise TableError(f"{self.name}: {error}", "Check the location and --property") from error


def create_delta(uri: str, schema: pa.Schema, by: str, properties: Mapping[str, str]) -> DeltaTable:
    """A table that is made if it is not there. by: day, hour or none, the partitions. Raises DeltaError."""
    partitioned = by in _PARTITION_FORMATS
    return DeltaTable.create(
        uri,
        schema.append(pa.field(by, pa.string())) if partitioned else schema,
        mode="ignore",
        partition_by=[by] if partitioned else None,
        storage_options=dict(properties),
    )


def merge_rows(table: DeltaTable, rows: pa.Table, key: str, commit: CommitProperties) -> None:
    """Change a table by its keys: rows with DELETED delete, the others are updates or new. Raises DeltaError.

    A merge that changes no row makes no version.
    """
    values = {f"`{name}`": f"s.`{name}`" for name in rows.schema.names if name != DELETED}
    on = f"t.`{key}` = s.`{key}`"
    merge = table.merge(rows, on, "s", "t", writer_properties=COMPRESSED, commit_properties=commit)
    merge = merge.when_matched_delete(f"s.`{DELETED}`").when_matched_update(values)
    merge.when_not_matched_insert(values, f"NOT s.`{DELETED}`").execute()


def with_time_partition(rows: pa.Table, column: str, by: str) -> pa.Table:
    """The rows with the column `day` or `hour` of their timestamps. by: day, hour or none."""
    if by not in _PARTITION_FORMATS:
        return rows
    times = rows[column].cast(pa.timestamp("s", "UTC"), safe=False)
    return rows.append_column(by, pc.strftime(times, _PARTITION_FORMATS[by]))


def saved_offsets(table: DeltaTable, topic: str, name: str) -> tuple[TableOffsets | None, bool]:
    """The offsets of a topic in a table, None in one without rows; and whether the table has one row per key.

    name: of the table. Raises OffsetsLostError, DeltaError.
    """
    app = f"{_APPLICATION}{topic}"
    number = table.transaction_version(f"{app}/partitions")
    # A table without offsets is new, or its rows are of another origin, and not this topic's.
    if number is None:
        if table.file_uris():
            raise OffsetsLostError(
                f"{name} has rows, but no offsets of this topic: they expired "
                "(delta.setTransactionRetentionDuration), or the table has another origin",
                "Copy the topic into a new table",
            )
        return None, False
    # One application per partition: a version is a single number, and only its own partition changes it.
    found = {at: table.transaction_version(f"{app}/{at}") for at in range(number)}
    high, low = table.transaction_version(f"{app}/id/high"), table.transaction_version(f"{app}/id/low")
    if high is None or low is None:
        raise OffsetsLostError(f"{name} has offsets without a topic id", "Copy the topic into a new table")
    topic_id = (high.to_bytes(8, "big", signed=True) + low.to_bytes(8, "big", signed=True)).hex()
    offsets = TableOffsets(topic_id, {at: offset for at, offset in found.items() if offset is not None})
    return offsets, table.transaction_version(f"{app}/upsert") is not None
