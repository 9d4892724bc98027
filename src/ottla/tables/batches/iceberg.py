"""An Iceberg table that takes batches: the number of a query's last batch is in the summary of its snapshot.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
)
from pyiceberg.io.pyarrow import _dataframe_to_data_files, _determine_partitions, parquet_files_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import UnknownTransform

from ottla.tables.batches.batch_table import KEY, TIME_COLUMN, BatchMaking, columns_of_rows, merge_columns
from ottla.tables.batches.upserts import join_changes, split_changes
from ottla.tables.column_types import standard_schema
from ottla.tables.errors import CommitConflict, OffsetsLostError, TableError
from ottla.tables.iceberg import (
    BATCH,
    MODE,
    UPSERT,
    IcebergWriter,
    batches_of,
    catalog_errors,
    create_iceberg,
    delete_keys,
    has_upserts,
    without_retries,
)
from ottla.tables.partitionings import partition_name
from ottla.tables.rows import BYTES
from ottla.tables.writers import require_mode, require_partitioning

_FORMAT: Final = "write.format.default"
_PARTITION: Final = 3
"""The place of the partition in a `DataFile`, which has no setter for it."""


class IcebergBatches:
    """A table of a catalog, which must be there (`prepare_iceberg`)."""

    def __init__(self, identifier: str, making: BatchMaking, catalog: str, properties: Mapping[str, str]) -> None:
        """properties: of the catalog, as pyiceberg documents them. Raises TableError."""
        self.name = f"Iceberg table {identifier}"
        self._making = making
        with catalog_errors(self.name):
            self._table = _load_table(load_catalog(catalog, **properties), identifier, self.name)

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table, as of its opening."""
        return standard_schema(self._table.schema().as_arrow())

    def write_rows(self, rows: pa.Table, query: str, batch: int) -> list[str]:  # noqa: ARG002 - the seam's
        """Write rows into new files; their paths, below the table's location. Raises TableError."""
        with catalog_errors(self.name):
            if self._making.upsert:
                paths = [self._write_changes(rows)]
            else:
                rows = _with_partition_columns(rows, self._table.spec(), self._table.schema())
                made = _dataframe_to_data_files(self._table.metadata, rows, self._table.io)
                paths = [each.file_path for each in made]
        return [each.removeprefix(f"{self._table.location()}/") for each in paths]

    def _write_changes(self, rows: pa.Table) -> str:
        path = self._table.location_provider().new_data_location(f"changes-{uuid4()}.parquet")
        with self._table.io.new_output(path).create() as file:
            pq.write_table(rows, file, compression="zstd")
        return path

    def last_batch(self, query: str) -> int | None:
        """The number in the newest snapshot that has numbers of batches. Raises TableError."""
        with catalog_errors(self.name):
            self._table.refresh()
        text = batches_of(self._table).get(f"{BATCH}{query}")
        return None if text is None else self._parse_batch(text)

    def _parse_batch(self, text: str) -> int:
        if not text.isdecimal():
            raise TableError(f"{self.name}: a snapshot has {text[:50]!r} as a batch", "Copy its rows into a new table")
        return int(text)

    def add_files(self, query: str, batch: int, files: Sequence[str]) -> None:
        """One snapshot with the files and the batch. Raises CommitConflict, TableError."""
        # pyiceberg would repeat a commit that lost against another writer without a look at the batch.
        without_retries(self._table)
        paths = [each if "://" in each else f"{self._table.location()}/{each}" for each in files]
        try:
            with catalog_errors(self.name), self._table.transaction() as transaction:
                _require_mode(self._table, self._making, self.name)
                # With those of other queries: older snapshots may then expire.
                summary = {**batches_of(self._table), f"{BATCH}{query}": str(batch)}
                if self._making.upsert:
                    self._change_rows(transaction, paths, {**summary, MODE: UPSERT})
                else:
                    self._append_files(transaction, paths, summary)
        except (CommitFailedException, CommitStateUnknownException) as error:
            raise CommitConflict(f"{self.name}: the commit failed: {error}", "Start again") from error
        except FileNotFoundError as error:
            raise OffsetsLostError(
                f"{self.name}: a file of batch {batch} of query {query} was deleted before it was added: {error}",
                "Start the step with another name, to write all rows again into a new table; and maintain a table only "
                "with an age that is longer than the pauses of its queries",
            ) from error

        if self._making.upsert:
            self._delete_changes(paths)

    def _append_files(self, transaction: Transaction, paths: Sequence[str], summary: dict[str, str]) -> None:
        made = [each for path in paths for each in self._describe_file(path)]
        with transaction.update_snapshot(summary).fast_append() as append:
            for each in made:
                append.append_data_file(each)

    def _change_rows(self, transaction: Transaction, paths: Sequence[str], summary: dict[str, str]) -> None:
        changes = join_changes([self._read_rows(each) for each in paths], self.columns, self.name)
        keys, rows = split_changes(changes)
        # Both snapshots have the batch: whichever is the newest that is kept has it.
        delete_keys(transaction, self._table, KEY, keys, summary)
        transaction.append(rows, summary)

    def _delete_changes(self, paths: Sequence[str]) -> None:
        # The table has the rows in files of its own. A file that is left is one for `ottla table maintain`.
        for each in paths:
            with suppress(OSError):
                self._table.io.delete(each)

    def _describe_file(self, path: str) -> list[DataFile]:
        """A file as a manifest has it, with the least and greatest values of its columns."""
        io, spec, schema = self._table.io, self._table.spec(), sanitize_column_names(self._table.schema())
        # The columns have other names in files, where a name is none of Avro's.
        metadata = self._table.metadata.model_copy(update={"schemas": [schema]})
        if spec.is_unpartitioned():
            return list(parquet_files_to_data_files(io, metadata, iter([path])))
        found = self._read_rows(path, _columns_of_partitions(spec, schema))
        partitions = list(_determine_partitions(spec, schema, _with_partition_columns(found, spec, schema)))
        # The table was partitioned otherwise after the rows were written.
        if len(partitions) != 1:
            rows = _with_partition_columns(self._read_rows(path), spec, schema)
            return list(_dataframe_to_data_files(metadata, rows, io))
        # pyiceberg reads the partition from the bounds of columns: a hash is not in them, nor a long text.
        whole = metadata.model_copy(update={"partition_specs": [PartitionSpec(spec_id=spec.spec_id)]})
        (made,) = parquet_files_to_data_files(io, whole, iter([path]))
        made[_PARTITION] = partitions[0].partition_key.partition
        return [made]

    def _read_rows(self, path: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a file, without columns that it lacks."""
        with self._table.io.new_input(path).open() as opened:
            file = pq.ParquetFile(opened)
            return file.read(None if columns is None else [each for each in columns if each in file.schema_arrow.names])


def prepare_iceberg(
    identifier: str, rows: pa.Schema, making: BatchMaking, catalog: str, properties: Mapping[str, str]
) -> None:
    """Make the table, with its namespace, if it is not there, and add the columns that it lacks.

    rows: the columns of the rows. Raises TableError.
    """
    name = f"Iceberg table {identifier}"
    if "." not in identifier:
        raise TableError(f"{name} has no namespace", "Name it NAMESPACE.TABLE")
    wanted = columns_of_rows(rows, IcebergWriter.types, making, name)
    with catalog_errors(name):
        source = load_catalog(catalog, **properties)
        if not source.table_exists(identifier):
            column = KEY if making.has_buckets else TIME_COLUMN
            create_iceberg(source, identifier, wanted, column, making.partition_by or "none")
        table = _load_table(source, identifier, name)
        if making.partition_by is not None:
            found = [each.name for each in table.spec().fields]
            require_partitioning(name, partition_name(making.partition_by), found)
        _require_mode(table, making, name)
        _check_layout(table, name)
        merged = merge_columns(standard_schema(table.schema().as_arrow()), wanted, IcebergWriter.types, name)
        if merged != standard_schema(table.schema().as_arrow()):
            with table.update_schema() as update:
                update.union_by_name(merged)


def _columns_of_partitions(spec: PartitionSpec, schema: Schema) -> list[str]:
    """The columns, nested ones as a whole, that the partitions are made of; in the order of the table."""
    names = {(schema.find_column_name(each.source_id) or "").partition(".")[0] for each in spec.fields}
    return [each.name for each in schema.fields if each.name in names]


def _with_partition_columns(rows: pa.Table, spec: PartitionSpec, schema: Schema) -> pa.Table:
    """The rows with nulls in the columns of partitions that they lack."""
    types = schema.as_arrow()
    for name in _columns_of_partitions(spec, schema):
        if name not in rows.schema.names:
            rows = rows.append_column(name, pa.nulls(len(rows), types.field(name).type))
    return rows


def _load_table(catalog: Catalog, identifier: str, name: str) -> Table:
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError as error:
        raise TableError(f"{name} is not there any more: {error}", "Start the query again, which makes it") from error


def _require_mode(table: Table, making: BatchMaking, name: str) -> None:
    # An empty table may become one of both kinds.
    if table.current_snapshot() is not None:
        require_mode(name, BYTES._replace(is_upsert=making.upsert), is_upsert=has_upserts(table))


def _check_layout(table: Table, name: str) -> None:
    for each in table.spec().fields:
        if isinstance(each.transform, UnknownTransform):
            raise TableError(
                f"{name} is partitioned by {each.name}, in a way that is unknown here", "Name another table"
            )
    if table.metadata.properties.get(_FORMAT, "parquet") != "parquet":
        raise TableError(f"{name} has files of another format than Parquet", f"Set its property {_FORMAT} to parquet")
