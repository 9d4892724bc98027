"""An Iceberg table that takes batches: the number of a query's last batch is in the summary of its snapshot.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import _dataframe_to_data_files, parquet_files_to_data_files
from pyiceberg.table import Table

from ottla.tables.batches.batch_table import columns_of_rows, merge_columns
from ottla.tables.column_types import standard_schema
from ottla.tables.errors import CommitConflict, OffsetsLostError, TableError
from ottla.tables.iceberg import BATCH, IcebergWriter, batches_of, catalog_errors, without_retries

_FORMAT: Final = "write.format.default"


class IcebergBatches:
    """A table of a catalog, which must be there (`prepare_iceberg`)."""

    def __init__(self, identifier: str, catalog: str, properties: Mapping[str, str]) -> None:
        """properties: of the catalog, as pyiceberg documents them. Raises TableError."""
        self.name = f"Iceberg table {identifier}"
        with catalog_errors(self.name):
            self._table = _load_table(load_catalog(catalog, **properties), identifier, self.name)

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table, as of its opening."""
        return standard_schema(self._table.schema().as_arrow())

    def write_rows(self, rows: pa.Table, query: str, batch: int) -> list[str]:  # noqa: ARG002 - the seam's
        """Write rows into new files; their paths, below the table's location. Raises TableError."""
        with catalog_errors(self.name):
            made = list(_dataframe_to_data_files(self._table.metadata, rows, self._table.io))
        return [each.file_path.removeprefix(f"{self._table.location()}/") for each in made]

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
                made = list(parquet_files_to_data_files(self._table.io, self._table.metadata, iter(paths)))
                # With those of other queries: older snapshots may then expire.
                batches = {**batches_of(self._table), f"{BATCH}{query}": str(batch)}
                with transaction.update_snapshot(batches).fast_append() as append:
                    for each in made:
                        append.append_data_file(each)
        except (CommitFailedException, CommitStateUnknownException) as error:
            raise CommitConflict(f"{self.name}: the commit failed: {error}", "Start again") from error
        except FileNotFoundError as error:
            raise OffsetsLostError(
                f"{self.name}: a file of batch {batch} of query {query} was deleted before it was added: {error}",
                "Start the step with another name, to write all rows again into a new table; and maintain a table only "
                "with an age that is longer than the pauses of its queries",
            ) from error


def prepare_iceberg(identifier: str, rows: pa.Schema, catalog: str, properties: Mapping[str, str]) -> None:
    """Make the table, with its namespace, if it is not there, and add the columns that it lacks.

    rows: the columns of the rows. Raises TableError.
    """
    name = f"Iceberg table {identifier}"
    if "." not in identifier:
        raise TableError(f"{name} has no namespace", "Name it NAMESPACE.TABLE")
    wanted = columns_of_rows(rows, IcebergWriter.types, name)
    with catalog_errors(name):
        source = load_catalog(catalog, **properties)
        with suppress(NamespaceAlreadyExistsError):
            source.create_namespace(identifier.rpartition(".")[0])
        with suppress(TableAlreadyExistsError):
            if not source.table_exists(identifier):
                source.create_table(identifier, wanted)
        table = _load_table(source, identifier, name)
        _check_layout(table, name)
        merged = merge_columns(standard_schema(table.schema().as_arrow()), wanted, IcebergWriter.types, name)
        if merged != standard_schema(table.schema().as_arrow()):
            with table.update_schema() as update:
                update.union_by_name(merged)


def _load_table(catalog: Catalog, identifier: str, name: str) -> Table:
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError as error:
        raise TableError(f"{name} is not there any more: {error}", "Start the query again, which makes it") from error


def _check_layout(table: Table, name: str) -> None:
    # The values of partitions are read from the least and greatest values of a file's columns.
    wrong = [each.name for each in table.spec().fields if not each.transform.preserves_order]
    if wrong:
        raise TableError(
            f"{name} is partitioned by {wrong[0]}, whose values a file does not tell",
            "Partition it by columns or by their year, month, day or hour",
        )
    if table.metadata.properties.get(_FORMAT, "parquet") != "parquet":
        raise TableError(f"{name} has files of another format than Parquet", f"Set its property {_FORMAT} to parquet")
