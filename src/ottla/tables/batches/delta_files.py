"""The data files of a Delta table: one for each partition, and what the log has about each.

Zone: real. The footer of a file has the values of its partition, because the file has no columns of them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from ottla.tables.batches.delta_statistics import file_statistics
from ottla.tables.errors import TableError
from ottla.tables.rows import DELETED

MAX_PARTITIONS: Final = 1_000
"""Most partitions that the rows of one file in memory may have: each is a file of its own."""
_PARTITION: Final = b"ottla.partition"
_TIME: Final = "%Y-%m-%d %H:%M:%S"
"""Delta's text for timestamps of partitions; PyArrow adds the fraction of a second."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_MAX_FOLDER: Final = 80


def is_partition_type(kind: pa.DataType) -> bool:
    """Whether rows are written into partitions by a column of this type."""
    checks = (pa.types.is_string, pa.types.is_integer, pa.types.is_date, pa.types.is_boolean, pa.types.is_timestamp)
    return any(check(kind) for check in checks)


def write_partitions(files: pa_fs.FileSystem, rows: pa.Table, by: Sequence[str], name: str) -> list[str]:
    """Write rows into new files, one for each partition; their paths. name: of the table. Raises TableError."""
    return [_write_file(files, part, values) for values, part in _split_rows(rows, by, name)]


def _write_file(files: pa_fs.FileSystem, rows: pa.Table, values: Mapping[str, str | None]) -> str:
    # Only for people: the path of a file does not decide about its partition, so that characters may be replaced.
    folders = (f"{column}={value}" for column, value in values.items())
    folder = "".join(f"{_UNSAFE.sub('_', each.replace('=', '-', 1))[:_MAX_FOLDER]}/" for each in folders)
    path = f"{folder}part-{uuid4()}.parquet"
    footer = {_PARTITION: json.dumps(values)} if values else None
    pq.write_table(rows.replace_schema_metadata(footer), path, filesystem=files, compression="zstd")
    return path


def _split_rows(rows: pa.Table, by: Sequence[str], name: str) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """The rows of each partition without the columns of partitions, whose values are texts as in Delta's log."""
    if not by:
        yield {}, rows
        return
    texts = [_partition_text(rows[each]) if each in rows.schema.names else pa.nulls(len(rows), "string") for each in by]
    numbers = [f"{number}" for number in range(len(by))]
    keys = pa.table([*texts, pa.array(range(len(rows)), pa.int64())], names=[*numbers, "at"])
    found = keys.group_by(numbers, use_threads=False).aggregate([("at", "list")])
    if len(found) > MAX_PARTITIONS:
        raise TableError(
            f"{name}: {len(rows)} rows have {len(found)} partitions, and at most {MAX_PARTITIONS} are written at once",
            "Partition the table by a column with fewer values",
        )
    rest = rows.drop_columns([each for each in by if each in rows.schema.names]).combine_chunks()
    for group in found.to_pylist():
        yield (
            {each: group[number] for each, number in zip(by, numbers, strict=True)},
            rest.take(pa.array(group["at_list"])),
        )


def _partition_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_timestamp(column.type):
        return column.cast(pa.string())
    return pc.strftime(column, _TIME)


def describe_file(files: pa_fs.FileSystem, path: str, by: Sequence[str], properties: Mapping[str, Any]) -> AddAction:
    """The entry of a file in Delta's log.

    by: the columns by which the table is partitioned. properties: of the table. Raises FileNotFoundError, ValueError.
    """
    with files.open_input_file(path) as file:
        size, found = file.size(), pq.read_metadata(file)
    values = json.loads((found.metadata or {}).get(_PARTITION, b"{}"))
    if DELETED in found.schema.names:
        raise ValueError(f"{path} has changes by key, and is no file of a table")
    if list(values) != list(by):
        raise ValueError(f"{path} was written for partitions by {list(values)}, and the table has {list(by)}")
    counted = json.dumps(file_statistics(found, properties))
    return AddAction(path, size, values, int(time.time() * 1000), data_change=True, stats=counted)
