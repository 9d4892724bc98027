"""The formats of tables by name.

Zone: real. A format's library is imported when a table of it is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.tables.errors import TableError
from ottla.tables.maintenance.plan import TableMaintainer
from ottla.tables.partitionings import describe_possible, is_possible
from ottla.tables.writers import MAKING, Making, TableWriter

FORMATS: Final = ("iceberg", "delta", "parquet")


def open_table(
    kind: str,
    location: str,
    topic: str,
    making: Making = MAKING,
    *,
    catalog: str = "default",
    properties: Mapping[str, str] | None = None,
) -> TableWriter:
    """The table, made if it is not there. location: NAMESPACE.TABLE of an Iceberg catalog, or a path.

    properties: of the Iceberg catalog or of Delta's object store. Raises TableError, OSError.
    """
    if kind != "parquet" and not is_possible(kind, making.partition_by):
        raise TableError(
            f"a table of the format {kind} cannot be partitioned by {making.partition_by}",
            f"Take one of {describe_possible(kind)}",
        )
    if kind == "iceberg":
        from ottla.tables.iceberg import IcebergWriter  # noqa: PLC0415 - libraries of 100 MB

        return IcebergWriter(location, topic, making, catalog, properties or {})
    if kind == "delta":
        from ottla.tables.delta import DeltaWriter  # noqa: PLC0415 - libraries of 100 MB

        return DeltaWriter(location, topic, making, properties or {})
    if kind != "parquet":
        raise TableError(f"no format of tables is called {kind}", f"Take one of {', '.join(FORMATS)}")
    if properties:
        raise TableError("a Parquet folder has no properties", "Leave --property out")
    from ottla.tables.parquet import ParquetWriter  # noqa: PLC0415 - libraries of 100 MB

    return ParquetWriter(location, topic, making)


def open_maintainer(
    kind: str, location: str, *, catalog: str = "default", properties: Mapping[str, str] | None = None
) -> TableMaintainer:
    """A table that is there, to be maintained; the arguments are those of `open_table`. Raises TableError."""
    if kind == "iceberg":
        from ottla.tables.maintenance.iceberg import IcebergMaintainer  # noqa: PLC0415 - libraries of 100 MB

        return IcebergMaintainer(location, catalog, properties or {})
    if kind == "delta":
        from ottla.tables.maintenance.delta import DeltaMaintainer  # noqa: PLC0415 - libraries of 100 MB

        return DeltaMaintainer(location, properties or {})
    raise TableError(
        f"Parquet folder {location} cannot be maintained: the name of each file has the offsets of its rows, and one "
        "file cannot take the place of several at once",
        "Copy the topic into an Iceberg or Delta table, or into a new folder with a larger --commit-mib",
    )
