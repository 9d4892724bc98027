"""The history in an Iceberg table: the data files of its present snapshot.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from ottla.tables.errors import TableError
from ottla.tables.history.history import History, require_bytes
from ottla.tables.iceberg import catalog_errors, saved_offsets


def iceberg_history(identifier: str, topic: str, catalog: str, properties: Mapping[str, str]) -> History:
    """The files and the offsets of the present snapshot. Raises TableError."""
    name = f"Iceberg table {identifier}"
    with catalog_errors(name):
        try:
            table = load_catalog(catalog, **properties).load_table(identifier)
        except NoSuchTableError as error:
            raise TableError(f"{name} is not there: {error}", "Copy the topic into it with ottla table") from error
        # Without a snapshot the table has no rows.
        if table.current_snapshot() is None:
            return History(name, (), None)
        offsets, is_upsert = saved_offsets(table, topic, name)
        require_bytes(name, table.schema().as_arrow(), is_upsert=is_upsert)
        return History(name, _data_files(table, name), offsets)


def _data_files(table: Table, name: str) -> list[str]:
    files = []
    for each in table.scan().plan_files():
        # Only other programs write them: copies and maintenance replace whole files.
        if each.delete_files:
            raise TableError(f"{name} has delete files, which another program wrote", "Compact the table with it")
        files.append(each.file.file_path)
    return files
