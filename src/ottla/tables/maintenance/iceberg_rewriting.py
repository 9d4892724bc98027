"""Small Parquet files of an Iceberg table as one: the rows are copied as they are, a bounded number at a time.

Zone: real. The columns are those of the files, not of the table: a column that a file lacks is still not in it after.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table

_ROW_GROUP_BYTES: Final = 64 << 20
_BATCH_ROWS: Final = 1024
_BATCH_BYTES: Final = 8 << 20


class Rewritten(NamedTuple):
    """A file with the rows of others."""

    old: list[DataFile]
    new: DataFile


def rewrite_group(table: Table, files: Sequence[DataFile]) -> Iterator[Rewritten]:
    """Write files with the rows of a group of one partition: one for all files with the same columns. Raises OSError.

    Files without ids of columns stay as they are: other programs made them, and their columns are found by name.
    """
    by_columns: dict[bytes, list[DataFile]] = {}
    for file in files:
        schema = _read_schema(table, file)
        if schema is not None:
            by_columns.setdefault(schema.remove_metadata().serialize().to_pybytes(), []).append(file)
    for same in by_columns.values():
        if len(same) > 1:
            yield Rewritten(same, _join_files(table, same))


def delete_written(table: Table, rewritten: Rewritten) -> None:
    """Delete a file that no snapshot will name. If that fails, a later maintenance does it."""
    with suppress(OSError):
        table.io.delete(rewritten.new.file_path)


def _read_schema(table: Table, file: DataFile) -> pa.Schema | None:
    with table.io.new_input(file.file_path).open() as opened:
        schema = pq.read_schema(opened)
    try:
        pyarrow_to_schema(schema)
    except ValueError:
        return None
    return schema


def _join_files(table: Table, files: Sequence[DataFile]) -> DataFile:
    name = f"00000-0-{uuid.uuid4()}.parquet"
    path = table.location_provider().new_data_location(name)
    try:
        metadata = _copy_rows(table, files, path)
        return _describe_file(table, files[0], path, metadata)
    except BaseException:
        with suppress(OSError):
            table.io.delete(path)
        raise


def _copy_rows(table: Table, files: Sequence[DataFile], path: str) -> pq.FileMetaData:
    writer: pq.ParquetWriter | None = None
    with table.io.new_output(path).create() as output:
        for rows in _read_row_groups(table, files):
            if writer is None:
                writer = pq.ParquetWriter(output, rows.schema, compression="zstd", store_decimal_as_integer=True)
            writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        assert writer is not None
        writer.close()
    return writer.writer.metadata


def _read_row_groups(table: Table, files: Sequence[DataFile]) -> Iterator[pa.Table]:
    """The rows of all files, as tables of about the size of a row group; at least one table."""
    gathered: list[pa.RecordBatch] = []
    size, schema, is_first = 0, None, True
    for file in files:
        with table.io.new_input(file.file_path).open() as opened:
            found = pq.ParquetFile(opened)
            schema = found.schema_arrow if schema is None else schema
            for batch in found.iter_batches(_batch_rows(found.metadata)):
                gathered.append(batch)
                size += batch.nbytes
                if size >= _ROW_GROUP_BYTES:
                    yield pa.Table.from_batches(gathered, schema)
                    gathered, size, is_first = [], 0, False
    if gathered or is_first:
        yield pa.Table.from_batches(gathered, schema)


def _batch_rows(metadata: pq.FileMetaData) -> int:
    total: int = sum(metadata.row_group(at).total_byte_size for at in range(metadata.num_row_groups))
    rows: int = metadata.num_rows
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES * rows // max(total, 1)))


def _describe_file(table: Table, like: DataFile, path: str, metadata: pq.FileMetaData) -> DataFile:
    schema = pyarrow_to_schema(metadata.schema.to_arrow_schema())
    statistics = data_file_statistics_from_parquet_metadata(
        metadata, compute_statistics_plan(schema, table.metadata.properties), parquet_path_to_id_mapping(schema)
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=like.partition,
        file_size_in_bytes=len(table.io.new_input(path)),
        sort_order_id=None,
        spec_id=like.spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
