"""The history in a Delta table: the files of its present version.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from ottla.tables.delta import saved_offsets
from ottla.tables.errors import TableError
from ottla.tables.history.history import History, require_bytes

_DELETION_VECTORS: Final = "deletionVectors"


def delta_history(uri: str, topic: str, properties: Mapping[str, str]) -> History:
    """The files and the offsets of the present version. Raises TableError."""
    name = f"Delta table {uri}"
    try:
        table = DeltaTable(uri, storage_options=dict(properties))
        offsets, is_upsert = saved_offsets(table, topic, name)
        # Rows that such a vector deletes are in the files.
        if _DELETION_VECTORS in (table.protocol().reader_features or ()):
            raise TableError(f"{name} has deletion vectors, which another program switched on", "Copy the topic again")
        columns = pa.schema(table.schema().to_arrow())
        require_bytes(name, columns, is_upsert=is_upsert, added=table.metadata().partition_columns)
        return History(name, table.file_uris(), offsets)
    except TableNotFoundError as error:
        raise TableError(f"{name} is not there: {error}", "Copy the topic into it with ottla table") from error
    except DeltaError as error:
        raise TableError(f"{name}: {error}", "Check --table and --property") from error
