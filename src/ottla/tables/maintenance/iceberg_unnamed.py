"""Files in the folders of an Iceberg table that no snapshot names.

Zone: real. Those of expired snapshots, and of writers that were killed before their commit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pyarrow.fs as pafs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from ottla.tables.errors import TableError
from ottla.tables.maintenance.iceberg_files import named_files
from ottla.tables.maintenance.plan import DAY_S, MAX_FILES

_FOLDERS: Final = ("data", "metadata")
_ENDINGS: Final = (".parquet", ".avro", ".metadata.json")
_OTHER_PLACES: Final = ("write.data.path", "write.metadata.path")


def delete_unnamed(table: Table, older_than_s: float, *, is_dry_run: bool) -> int:
    """Delete files that are older than a day, and older than given; returns their number. Raises TableError.

    Younger ones may be those of a commit that another writer makes now.
    """
    if not isinstance(table.io, PyArrowFileIO) or any(each in table.metadata.properties for each in _OTHER_PLACES):
        return 0
    scheme, netloc, folder = table.io.parse_location(table.location(), table.io.properties)
    system = table.io.fs_by_scheme(scheme, netloc)
    found = list(_old_files(system, folder, time.time() - max(older_than_s, DAY_S)))
    if not found:
        return 0
    # Read after the list of files, so that the metadata has each file of it that was committed by then.
    table.refresh()
    named = named_files(table)
    unnamed = [path for path in found if path.rpartition("/")[2] not in named]
    for path in [] if is_dry_run else unnamed:
        system.delete_file(path)
    return len(unnamed)


def _old_files(system: pafs.FileSystem, folder: str, before: float) -> Iterator[str]:
    count = 0
    for each in _FOLDERS:
        selector = pafs.FileSelector(f"{folder}/{each}", allow_not_found=True, recursive=True)
        for info in system.get_file_info(selector):
            count += 1
            if count > MAX_FILES:
                raise TableError(
                    f"{folder} has more than {MAX_FILES} files", "Delete unnamed files with another program"
                )
            if info.is_file and info.base_name.endswith(_ENDINGS) and info.mtime_ns / 1e9 < before:
                yield info.path
