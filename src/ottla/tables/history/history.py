"""A table's files and offsets of one moment, and which formats have them.

Zone: real. A format's library is imported when a table of it is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from ottla.tables.errors import TableError
from ottla.tables.offsets import TableOffsets
from ottla.tables.rows import BYTES

MAX_FILES: Final = 100_000
"""Most files of a table that is read: Spark's driver holds all their names."""


class History(NamedTuple):
    """The rows that a table has of a topic."""

    name: str
    """Of the table, for messages."""
    files: Sequence[str]
    """Paths or URIs of Parquet files, with all rows and no others."""
    offsets: TableOffsets | None
    """Up to where the files have the topic; None without rows."""


def open_history(
    kind: str, location: str, topic: str, *, catalog: str = "default", properties: Mapping[str, str] | None = None
) -> History:
    """The history in a table that `ottla table` wrote; the arguments are those of `formats.open_table`.

    Raises TableError, OSError.
    """
    if kind == "iceberg":
        from ottla.tables.history.iceberg import iceberg_history  # noqa: PLC0415 - libraries of 100 MB

        return _checked(iceberg_history(location, topic, catalog, properties or {}))
    if kind == "delta":
        from ottla.tables.history.delta import delta_history  # noqa: PLC0415 - libraries of 100 MB

        return _checked(delta_history(location, topic, properties or {}))
    from ottla.tables.history.parquet import parquet_history  # noqa: PLC0415 - libraries of 100 MB

    return _checked(parquet_history(location, topic))


def _checked(found: History) -> History:
    if len(found.files) > MAX_FILES:
        raise TableError(
            f"{found.name} has {len(found.files)} files, and at most {MAX_FILES} are read", "Run ottla table maintain"
        )
    return found


def require_bytes(name: str, columns: pa.Schema, *, is_upsert: bool, added: Sequence[str] = ()) -> None:
    """Check that each record is a row with keys and values as bytes. Raises TableError.

    columns: of the table. added: columns that only the table has, by which it is partitioned.
    """
    if is_upsert:
        raise TableError(
            f"{name} has one row per key, and records of the topic are changes of them",
            "Read a table that was copied without --upsert",
        )
    others = [each.name for each in columns if each.name not in added]
    if sorted(others) != sorted(BYTES.schema.names):
        raise TableError(
            f"{name} has the columns {', '.join(others)}: keys or values were decoded, and the topic's are bytes",
            "Read a table that was copied without --value-schema and --key-schema, and decode with from_avro",
        )
