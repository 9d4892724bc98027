"""A Delta table: the offsets are the versions of application transactions, one per partition of the topic.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from ottla.tables.errors import CommitConflict, OffsetsLostError, TableError
from ottla.tables.offsets import TableOffsets
from ottla.tables.rows import SCHEMA
from ottla.tables.writers import require_partitioning

_PARTITION_FORMATS: Final = {"day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}


class DeltaWriter:
    """A table by its path or URI; made if it is not there."""

    def __init__(self, uri: str, topic: str, partition_by: str, properties: Mapping[str, str]) -> None:
        """properties: of the object store, as delta-rs documents them. Raises TableError."""
        self.name = f"Delta table {uri}"
        self._app = f"ottla/{topic}"
        self._partition_by = partition_by
        with self._table_errors():
            if DeltaTable.is_deltatable(uri, dict(properties)):
                self._table = DeltaTable(uri, storage_options=dict(properties))
            else:
                self._table = self._create_table(uri, properties)
            require_partitioning(self.name, partition_by, self._table.metadata().partition_columns)

    def _create_table(self, uri: str, properties: Mapping[str, str]) -> DeltaTable:
        by = self._partition_by
        partitioned = by in _PARTITION_FORMATS
        return DeltaTable.create(
            uri,
            SCHEMA.append(pa.field(by, pa.string())) if partitioned else SCHEMA,
            mode="ignore",
            partition_by=[by] if partitioned else None,
            storage_options=dict(properties),
        )

    def read_offsets(self) -> TableOffsets | None:
        """The offsets in the newest version. Raises TableError."""
        with self._table_errors():
            self._table.update_incremental()
            number = self._table.transaction_version(f"{self._app}/partitions")
            # A table without offsets is new, or its rows are of another origin, and not this topic's.
            if number is None:
                self._require_empty()
                return None
            # One application per partition: a version is a single number, and only its own partition changes it.
            found = {at: self._table.transaction_version(f"{self._app}/{at}") for at in range(number)}
            high = self._table.transaction_version(f"{self._app}/id/high")
            low = self._table.transaction_version(f"{self._app}/id/low")
        if high is None or low is None:
            raise OffsetsLostError(f"{self.name} has offsets without a topic id", "Copy the topic into a new table")
        topic_id = (high.to_bytes(8, "big", signed=True) + low.to_bytes(8, "big", signed=True)).hex()
        return TableOffsets(topic_id, {at: offset for at, offset in found.items() if offset is not None})

    def _require_empty(self) -> None:
        if self._table.file_uris():
            raise OffsetsLostError(
                f"{self.name} has rows, but no offsets of this topic: they expired "
                "(delta.setTransactionRetentionDuration), or the table has another origin",
                "Copy the topic into a new table",
            )

    def append_rows(self, rows: pa.Table, before: TableOffsets, after: TableOffsets) -> None:  # noqa: ARG002  # the seam's
        """One version with the rows and the offsets. Raises CommitConflict, TableError."""
        # No retries in delta-rs: after a conflict the offsets are read again first.
        commit = CommitProperties(max_commit_retries=0, app_transactions=self._transactions(after))
        try:
            with self._table_errors():
                write_deltalake(self._table, self._with_partition(rows), mode="append", commit_properties=commit)
        except CommitFailedError as error:
            raise CommitConflict(f"{self.name}: the commit failed: {error}", "Start again") from error

    def _transactions(self, after: TableOffsets) -> list[Transaction]:
        # The id in two halves, because a version is a signed number of 64 bits.
        raw = bytes.fromhex(after.topic_id)
        versions = {str(number): offset for number, offset in after.next_offsets.items()} | {
            "partitions": max(after.next_offsets) + 1,
            "id/high": int.from_bytes(raw[:8], "big", signed=True),
            "id/low": int.from_bytes(raw[8:], "big", signed=True),
        }
        return [Transaction(f"{self._app}/{name}", version) for name, version in versions.items()]

    def _with_partition(self, rows: pa.Table) -> pa.Table:
        by = self._partition_by
        if by not in _PARTITION_FORMATS:
            return rows
        return rows.append_column(
            by, pc.strftime(rows["timestamp"].cast(pa.timestamp("s", "UTC"), safe=False), _PARTITION_FORMATS[by])
        )

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
