"""Tables that take batches, by the name of their format.

Zone: real. A format's library is imported when a table of it is opened.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from ottla.tables.batches.batch_table import MAKING, BatchMaking, BatchTable


def prepare_batch_table(
    kind: str,
    location: str,
    rows: pa.Schema,
    making: BatchMaking = MAKING,
    *,
    catalog: str,
    properties: Mapping[str, str],
) -> None:
    """Make the table if it is not there, and add the columns that it lacks.

    rows: the columns of the rows; the other arguments are those of `open_batch_table`. Raises TableError, OSError.
    """
    if kind == "iceberg":
        from ottla.tables.batches.iceberg import prepare_iceberg  # noqa: PLC0415 - libraries of 100 MB

        prepare_iceberg(location, rows, making, catalog, properties)
    elif kind == "delta":
        from ottla.tables.batches.delta import prepare_delta  # noqa: PLC0415 - libraries of 100 MB

        prepare_delta(location, rows, making, properties)
    else:
        from ottla.tables.batches.parquet import prepare_parquet  # noqa: PLC0415 - libraries of 100 MB

        prepare_parquet(location, rows)


def open_batch_table(
    kind: str, location: str, making: BatchMaking = MAKING, *, catalog: str, properties: Mapping[str, str]
) -> BatchTable:
    """The table, which must be there. kind: iceberg, delta or parquet. location: NAMESPACE.TABLE, or a path.

    making: as it was prepared; a Parquet folder has no partitions. catalog, properties: of Iceberg's catalog, or
    properties of Delta's object store. Raises TableError, OSError.
    """
    if kind == "iceberg":
        from ottla.tables.batches.iceberg import IcebergBatches  # noqa: PLC0415 - libraries of 100 MB

        return IcebergBatches(location, making, catalog, properties)
    if kind == "delta":
        from ottla.tables.batches.delta import DeltaBatches  # noqa: PLC0415 - libraries of 100 MB

        return DeltaBatches(location, making, properties)
    from ottla.tables.batches.parquet import ParquetBatches  # noqa: PLC0415 - libraries of 100 MB

    return ParquetBatches(location)
