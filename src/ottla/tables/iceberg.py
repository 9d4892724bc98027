"""An Iceberg table: the offsets are in the summary of each snapshot that adds rows.

Zone: real.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import BooleanExpression, In
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import DayTransform, HourTransform, Transform, parse_transform
from sqlalchemy.exc import SQLAlchemyError

from ottla.tables.column_types import ColumnTypes, standard_schema
from ottla.tables.errors import CommitConflict, OffsetsLostError, TableError
from ottla.tables.offsets import TableOffsets, decode_offsets
from ottla.tables.partitionings import has_buckets, partition_name
from ottla.tables.rows import live_rows
from ottla.tables.writers import Making, require_mode, require_partitioning

OFFSETS: Final = "ottla.offsets"
TOPIC: Final = "ottla.topic"
MODE: Final = "ottla.mode"
BATCH: Final = "ottla.batch."
"""Before a query's id: the number of the last batch of a streaming query (`ottla.tables.batches`)."""
_MAX_QUERIES: Final = 1_000
"""Queries whose last batch a table keeps."""
UPSERT: Final = "upsert"
"""The mode of a table with one row per key."""
_TRANSFORMS: Final[dict[str, Transform[Any, Any]]] = {"day": DayTransform(), "hour": HourTransform()}
_RETRIES: Final = "commit.retry.num-retries"
_RESERVED: Final = frozenset(
    ("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")
)
"""Metadata columns of Iceberg's readers. pyiceberg makes a table with them, and Spark then cannot read it."""


class IcebergWriter:
    """A table of a catalog; made, with its namespace, if it is not there."""

    types = ColumnTypes(promotes=True, has_times=True, reserved=_RESERVED)

    def __init__(
        self, identifier: str, topic: str, making: Making, catalog: str, properties: Mapping[str, str]
    ) -> None:
        """properties: of the catalog, as pyiceberg documents them. Raises TableError."""
        self.name = f"Iceberg table {identifier}"
        self._topic = topic
        self._layout = making.layout
        self._identifier = identifier
        if "." not in identifier:
            raise TableError(f"{self.name} has no namespace", "Name it NAMESPACE.TABLE")
        with catalog_errors(self.name):
            self._table = self._open_table(load_catalog(catalog, **properties), making)

    def _open_table(self, catalog: Catalog, making: Making) -> Table:
        try:
            table = catalog.load_table(self._identifier)
        except NoSuchTableError:
            column = making.layout.key if has_buckets(making.partition_by) else making.layout.time
            create_iceberg(catalog, self._identifier, making.layout.schema, column, making.partition_by)
            table = catalog.load_table(self._identifier)
        wanted, found = partition_name(making.partition_by), [field.name for field in table.spec().fields]
        require_partitioning(self.name, wanted, found)
        return table

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table, as of the last `read_offsets`."""
        return standard_schema(self._table.schema().as_arrow())

    def read_offsets(self) -> TableOffsets | None:
        """The offsets of the newest snapshot that has them. Raises TableError."""
        with catalog_errors(self.name):
            self._table.refresh()
        # A table without a snapshot has no rows: the topic is copied from its beginning.
        if self._table.current_snapshot() is None:
            return None
        found, is_upsert = saved_offsets(self._table, self._topic, self.name)
        require_mode(self.name, self._layout, is_upsert=is_upsert)
        return found

    def append_rows(self, rows: pa.Table, before: TableOffsets, after: TableOffsets) -> None:  # noqa: ARG002  # the seam's
        """One snapshot with the rows and the offsets. Raises CommitConflict, TableError."""
        # pyiceberg would repeat a commit that lost against another writer, on top of that writer's rows and without a
        # look at the offsets.
        without_retries(self._table)
        try:
            with catalog_errors(self.name), self._table.transaction() as transaction:
                self._write_rows(transaction, rows, after)
        except (CommitFailedException, CommitStateUnknownException) as error:
            raise CommitConflict(f"{self.name}: the commit failed: {error}", "Start again") from error

    def _write_rows(self, transaction: Transaction, rows: pa.Table, after: TableOffsets) -> None:
        # All snapshots of a transaction have the offsets: whichever is the newest that is kept has them.
        summary = {TOPIC: self._topic, OFFSETS: after.encode_text()}
        if self._layout.is_upsert:
            summary[MODE] = UPSERT
            keys, rows = rows[self._layout.key], live_rows(rows)
            delete_keys(transaction, self._table, self._layout.key, keys, summary)
        if rows.schema != self.columns:
            with transaction.update_schema() as update:
                update.union_by_name(rows.schema)
        transaction.append(rows, summary)

    def close(self) -> None:
        """Nothing is held."""


def create_iceberg(catalog: Catalog, identifier: str, schema: pa.Schema, column: str, by: str) -> None:
    """Make a table, with its namespace, if it is not there.

    by: day, hour, bucket[NUMBER] or none, the partitions. column: of their values. Raises what `catalog_errors` takes.
    """
    with suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace(identifier.rpartition(".")[0])
    # The table and its partitioning appear together: a process that is killed leaves both or neither.
    with suppress(TableAlreadyExistsError), catalog.create_table_transaction(identifier, schema) as transaction:
        if by != "none":
            transform = _TRANSFORMS[by] if by in _TRANSFORMS else parse_transform(by)
            with transaction.update_spec() as update:
                update.add_field(column, transform, partition_name(by))


def delete_keys(
    transaction: Transaction, table: Table, column: str, keys: pa.ChunkedArray, summary: dict[str, str]
) -> None:
    """Delete the rows of a table that have one of the keys in a column, as part of a transaction."""
    # Without a snapshot there is nothing to delete. A key that the table lacks is no fault either.
    if table.current_snapshot() is None or not len(keys):
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Delete operation did not match any records")
        transaction.delete(_is_one_of(column, keys.to_pylist()), summary)


def summaries_of(table: Table) -> Iterator[Mapping[str, str]]:
    """The properties in the summaries of the present snapshot and of its ancestors, as far as they have not expired."""
    # By number: pyiceberg would search all snapshots for each ancestor.
    snapshots = {each.snapshot_id: each for each in table.metadata.snapshots}
    number = table.metadata.current_snapshot_id
    while number is not None and (snapshot := snapshots.pop(number, None)) is not None:
        yield snapshot.summary.additional_properties if snapshot.summary else {}
        number = snapshot.parent_snapshot_id


def saved_offsets(table: Table, topic: str, name: str) -> tuple[TableOffsets, bool]:
    """The offsets of the newest snapshot that has them, and whether the table has one row per key.

    name: of the table. Raises OffsetsLostError.
    """
    # Compaction and other writers add snapshots without offsets: the newest ancestor that has them counts.
    for summary in summaries_of(table):
        if OFFSETS in summary and summary.get(TOPIC) == topic:
            return decode_offsets(str(summary[OFFSETS]), name), summary.get(MODE) == UPSERT
    raise OffsetsLostError(
        f"{name} has snapshots, but none of them has the offsets of topic {topic}: they expired, or the table has "
        "another origin",
        f"Copy the topic into a new table, and expire only snapshots that are older than the newest with {OFFSETS} in "
        "its summary",
    )


def batches_of(table: Table) -> dict[str, str]:
    """The last batch of each streaming query, of the newest snapshot that has them; others may be above it."""
    for summary in summaries_of(table):
        if found := {key: value for key, value in summary.items() if key.startswith(BATCH)}:
            return dict(list(found.items())[-_MAX_QUERIES:])
    return {}


def has_upserts(table: Table) -> bool:
    """Whether the newest snapshot of a copy or of a query says that the table has one row per key."""
    own = (each for each in summaries_of(table) if OFFSETS in each or any(key.startswith(BATCH) for key in each))
    return next(own, {}).get(MODE) == UPSERT


@contextmanager
def catalog_errors(name: str) -> Iterator[None]:
    """Raise TableError for what a catalog or its table refuses. name: of the table."""
    try:
        yield
    except (RESTError, SQLAlchemyError, ValueError) as error:
        raise TableError(f"{name}: the catalog or the table refused: {error}", "Check --property") from error


def without_retries(table: Table) -> None:
    """Let a commit of a table fail if another came first, in memory only: the table's property stays as it is."""
    metadata = table.metadata
    table.metadata = metadata.model_copy(update={"properties": {**metadata.properties, _RETRIES: "0"}})


def _is_one_of(column: str, values: list[Any]) -> BooleanExpression:
    return In(column, values)  # type: ignore[call-arg, arg-type]  # its metaclass hides the signature
