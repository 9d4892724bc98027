"""Records as Parquet: the columns of `ottla table`, with keys and values as bytes or as text.

Zone: real. Needs pyarrow (extra `arrow`). A bounded number of records is in memory, in both directions.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ottla.cli.failure import BadLine, CommandFailed
from ottla.cli.files.cells import AUTO, CELL_FORMATS, ShowCell, parse_cell, show_cell
from ottla.cli.views.record_text import Headers, RecordLine, Shown
from ottla.utf8 import encode_text

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_COLUMNS: Final = ("key", "value", "headers", "timestamp", "partition", "offset")
_KNOWN: Final = frozenset({*_COLUMNS, "topic"})
_READ: Final = ("partition", "timestamp", "key", "value", "headers")
_GROUP_BYTES: Final = 16 << 20
_GROUP_RECORDS: Final = 50_000
"""A row group has at most as many bytes of keys, values and headers, and as many records."""
_BATCH_BYTES: Final = 4 << 20
_BATCH_RECORDS: Final = 1_000


class ParquetWriter:
    """Writes row groups. A file without `end_file` has no footer, so that no reader takes it for a whole one."""

    def __init__(self, stream: BinaryIO, key_format: str = AUTO, value_format: str = AUTO) -> None:
        """An explicit format makes a column of text, whose name is in the metadata of the column."""
        self._sink = _Sink(stream)
        self._formats = key_format, value_format
        self._schema = _make_schema(key_format, value_format)
        self._writer = pq.ParquetWriter(pa.PythonFile(self._sink, "w"), self._schema, compression="zstd")
        self._shows = _shows(key_format), _shows(value_format)
        self._rows: list[tuple[object, ...]] = []
        self._size = 0

    def write_record(self, partition: int, record: Shown) -> None:
        """Add a record. Raises CommandFailed for bytes that are not of the wanted format."""
        place = partition, record.offset
        key = _cell(record.key, self._shows[0], self._formats[0], "key", place)
        value = _cell(record.value, self._shows[1], self._formats[1], "value", place)
        headers = [_header_cell(name, content, place) for name, content in record.headers]
        timestamp = record.timestamp if record.timestamp >= 0 else None
        self._rows.append((key, value, headers, timestamp, partition, record.offset))
        self._size += len(record.key or b"") + len(record.value or b"") + _header_bytes(record.headers)
        if self._size >= _GROUP_BYTES or len(self._rows) >= _GROUP_RECORDS:
            self._write_group()

    def end_file(self) -> None:
        """Write the last row group and the footer."""
        if self._rows:
            self._write_group()
        self._writer.close()

    def abandon_file(self) -> None:
        """Write nothing more, and no footer."""
        self._sink.abandoned = True
        self._writer.close()

    def _write_group(self) -> None:
        columns = zip(*self._rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema), row_group_size=_GROUP_RECORDS)
        self._rows.clear()
        self._size = 0


class _Sink(io.RawIOBase):
    """The stream of a file; pyarrow writes a footer when it is released, which an abandoned file must not get."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream
        self._position = 0
        self.abandoned = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        if not self.abandoned:
            self._stream.write(data)
        self._position += size
        return size


def _make_schema(key_format: str, value_format: str) -> pa.Schema:
    return pa.schema(
        [
            _bytes_field("key", key_format),
            _bytes_field("value", value_format),
            pa.field("headers", pa.list_(pa.field("element", _HEADER))),
            pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),
        ]
    )


_FORMAT_KEY: Final = b"ottla.format"


def _bytes_field(name: str, cell_format: str) -> pa.Field:
    if cell_format == AUTO:
        return pa.field(name, pa.binary())
    return pa.field(name, pa.string(), metadata={_FORMAT_KEY: cell_format.encode()})


def _shows(cell_format: str) -> ShowCell | None:
    return None if cell_format == AUTO else show_cell(cell_format)


def _cell(
    content: bytes | None, show: ShowCell | None, cell_format: str, field: str, place: tuple[int, int]
) -> bytes | str | None:
    if content is None or show is None:
        return content
    text = show(content)
    if text is None:
        raise CommandFailed(
            f"the {field} at partition {place[0]}, offset {place[1]} is not of the format {cell_format}: "
            f"without --{field}-format the column has its bytes"
        )
    return text


def _header_cell(name: str, content: bytes | None, place: tuple[int, int]) -> dict[str, object]:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise CommandFailed(
            f"a header at partition {place[0]}, offset {place[1]} has a key that is not UTF-8, as text in Parquet "
            "must be: export it as jsonl or csv"
        ) from None
    return {"key": name, "value": content}


def _header_bytes(headers: Headers) -> int:
    return sum(len(name) + len(content or b"") for name, content in headers)


def read_parquet(
    path: str, skip: int, key_format: str = AUTO, value_format: str = AUTO
) -> Iterator[tuple[int, RecordLine]]:
    """The number of each row, from 1, and its record; the first `skip` rows are passed over. Raises BadLine,
    CommandFailed for a file that has not these columns.

    The formats are those of columns of text, unless the file has their names in its metadata.
    """
    with open(path, "rb"):  # pyarrow's error for a file that is not there has no errno
        pass
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            formats = _check_schema(file.schema_arrow, {"key": key_format, "value": value_format})
            columns = [name for name in _READ if name in file.schema_arrow.names]
            groups, number = _groups_after(file.metadata, skip)
            for batch in file.iter_batches(_batch_records(file.metadata), groups, columns):
                if number + batch.num_rows > skip:
                    yield from _records_of(batch, number, skip, formats)
                number += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        text = " ".join(str(error).split())
        raise CommandFailed(f"{path} cannot be read as Parquet after {number} records: {text}") from error


def _groups_after(metadata: pq.FileMetaData, skip: int) -> tuple[list[int], int]:
    """The row groups that have rows after the first `skip`, and how many rows are before them."""
    before = first = 0
    while first < metadata.num_row_groups and before + metadata.row_group(first).num_rows <= skip:
        before += metadata.row_group(first).num_rows
        first += 1
    return list(range(first, metadata.num_row_groups)), before


def _batch_records(metadata: pq.FileMetaData) -> int:
    """How many rows are in memory at once: by their mean size in the row group with the largest ones."""
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    mean = max((each.total_byte_size // max(each.num_rows, 1) for each in groups), default=0)
    return min(_BATCH_RECORDS, max(1, _BATCH_BYTES // max(mean, 1)))


def _check_schema(schema: pa.Schema, defaults: Mapping[str, str]) -> dict[str, str]:
    """The formats of the key and value columns. Raises CommandFailed for other columns."""
    names: Sequence[str] = schema.names
    unknown = [name for name in names if name not in _KNOWN]
    if unknown or len(set(names)) < len(names) or not {"key", "value"} & set(names):
        wrong = f"the unknown column {unknown[0]!r}" if unknown else "no key and no value, or a column twice"
        raise CommandFailed(f"the file has {wrong}: its columns may be {', '.join(_COLUMNS)}")
    return {name: _column_format(schema.field(name), defaults[name]) for name in ("key", "value") if name in names}


def _column_format(field: pa.Field, default: str) -> str:
    kind = field.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return AUTO
    if not pa.types.is_string(kind) and not pa.types.is_large_string(kind):
        raise CommandFailed(f"the column {field.name} is {kind}: it must be bytes or text")
    found = (field.metadata or {}).get(_FORMAT_KEY, default.encode()).decode(errors="replace")
    if found not in CELL_FORMATS:
        raise CommandFailed(f"the column {field.name} has the unknown format {found!r}")
    return str(found)


def _records_of(
    batch: pa.RecordBatch, before: int, skip: int, formats: Mapping[str, str]
) -> Iterator[tuple[int, RecordLine]]:
    parsers = {name: parse_cell(found) for name, found in formats.items()}
    columns = {name: _column_values(name, batch.column(name)) for name in batch.schema.names}
    for at in range(max(0, skip - before), batch.num_rows):
        row = {name: values[at] for name, values in columns.items()}
        try:
            for name, parse in parsers.items():
                row[name] = parse(row[name]) if isinstance(row[name], str) else row[name]
            record = RecordLine(
                None,
                _number_cell(row, "partition"),
                _number_cell(row, "timestamp"),
                row.get("key"),
                row.get("value"),
                tuple(_read_header(each) for each in row.get("headers") or ()),
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise BadLine(before + at + 1, str(error), "record") from error
        yield before + at + 1, record


def _column_values(name: str, column: pa.Array) -> list[Any]:
    """The values as Python's. Timestamps are ms since 1970, whatever their unit is in the file."""
    if name == "timestamp" and pa.types.is_timestamp(column.type):
        # Not by `to_pylist`: a timestamp is any number, and datetime knows the years 1 to 9999 only.
        column = pc.cast(pc.cast(column, pa.timestamp("ms", tz=column.type.tz), safe=False), pa.int64())
    return list(column.to_pylist())


def _number_cell(row: Mapping[str, Any], name: str) -> int | None:
    value = row.get(name)
    if value is None or value == -1:
        return None
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} is not a whole number from 0 on")
    return value


def _read_header(cell: Any) -> tuple[str, bytes | None]:
    name, value = (cell["key"], cell["value"]) if isinstance(cell, dict) else cell
    if not isinstance(name, str):
        raise ValueError("the key of a header is not text")
    return name, encode_text(value) if isinstance(value, str) else value
