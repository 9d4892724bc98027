"""The history in a folder of Parquet files: the names of the files have the offsets.

Zone: real.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ottla.tables.errors import OffsetsLostError, TableError
from ottla.tables.history.history import History
from ottla.tables.parquet import has_columns, saved_files

_LOOKS: Final = 5
"""A list of names that is read while files get theirs may lack one file and have the next."""


def parquet_history(folder: str, topic: str) -> History:
    """The files and the offsets in their names. Raises TableError, OSError."""
    name, path = f"Parquet folder {folder}", Path(folder)
    if not path.is_dir():
        raise TableError(f"{name} is not there", "Copy the topic into it with ottla table")
    if has_columns(path):
        raise TableError(
            f"{name} has the columns of a schema: keys or values were decoded, and those of the topic are bytes",
            "Read a folder that was copied without --value-schema and --key-schema, and decode with from_avro",
        )
    for look in range(_LOOKS):
        try:
            offsets, files = saved_files(path, topic, name)
            break
        except OffsetsLostError:
            if look + 1 == _LOOKS:
                raise
    return History(name, [str(each.absolute()) for each in files], offsets)
