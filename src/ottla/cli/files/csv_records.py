"""Records as CSV (RFC 4180): a row per record, and a column with the format of each key and value.

Zone: pure. CSV has no null and no bytes: the columns `key_format` and `value_format` have `null`, `base64` where the
bytes are not of the wanted format, or that format. Text is always quoted.
"""

from __future__ import annotations

import base64
import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, Final

from ottla.cli.failure import BadLine
from ottla.cli.files.cells import AUTO, BASE64, CELL_FORMATS, ShowCell, parse_cell, show_cell
from ottla.cli.views.record_text import Headers, RecordLine, Shown, headers_from_json, headers_to_json

COLUMNS: Final = ("partition", "offset", "timestamp", "key", "key_format", "value", "value_format", "headers")
_KNOWN: Final = frozenset({*COLUMNS, "topic"})
_NULL: Final = "null"
_LARGEST: Final = {"partition": 2**31 - 1, "timestamp": 2**63 - 1}


class CsvWriter:
    """Writes a header, then a row per record."""

    def __init__(self, stream: BinaryIO, key_format: str = AUTO, value_format: str = AUTO) -> None:
        self._stream = stream
        self._key, self._value = _cell_maker(key_format), _cell_maker(value_format)
        stream.write(",".join(COLUMNS).encode() + b"\r\n")

    def write_record(self, partition: int, record: Shown) -> None:
        """Write a record."""
        headers = ""
        if record.headers:
            headers = json.dumps(headers_to_json(record.headers), ensure_ascii=False, separators=(",", ":"))
        key, value = self._key(record.key), self._value(record.value)
        row = f"{partition},{record.offset},{record.timestamp},{key},{value},{_quoted(headers)}\r\n"
        self._stream.write(row.encode())

    def end_file(self) -> None:
        """Nothing is left to write."""

    def abandon_file(self) -> None:
        """Nothing marks the end of such a file."""


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if text else ""


def _cell_maker(name: str) -> Callable[[bytes | None], str]:
    """A function from bytes to two cells: the text, and the name of its format."""
    show, shown_as = show_cell(name), "text" if name == AUTO else name

    def make_cells(content: bytes | None) -> str:
        if content is None:
            return f",{_NULL}"
        text = _show_without_nul(content, show)
        if text is None:
            return f"{base64.b64encode(content).decode()},{BASE64}"
        return f"{_quoted(text)},{shown_as}"

    return make_cells


def _show_without_nul(content: bytes, show: ShowCell) -> str | None:
    """The text; None for one with a NUL, at which many readers of CSV end a cell."""
    text = show(content)
    return None if text is None or "\0" in text else text


def read_csv(
    lines: Iterable[bytes], skip: int, longest: int, key_format: str = AUTO, value_format: str = AUTO
) -> Iterator[tuple[int, RecordLine]]:
    """The number of each record, from 1 after the header, and the record. Raises BadLine.

    skip: the number of records that are not parsed. longest: a row that is longer, in characters, is an error.
    """
    csv.field_size_limit(min(longest, sys.maxsize))
    bounded = _BoundedRows(lines, longest)
    rows = csv.reader(bounded, strict=True)
    number = 0
    try:
        columns = _parse_header(next(rows, None))
        defaults = {"key": key_format, "value": value_format}
        bounded.begin_row()
        for number, row in enumerate(rows, 1):
            bounded.begin_row()
            if number > skip:
                yield number, _record_of(columns, row, defaults)
    except (ValueError, csv.Error) as error:
        # `number` is of the last record that was read whole where the next one is not CSV.
        failed = number if isinstance(error, ValueError) and not bounded.is_inside else number + 1
        raise BadLine(max(failed, 1), f"{error} (line {rows.line_num})", "record") from error


class _BoundedRows:
    """Lines of text for the CSV reader, which joins those of one row. Raises ValueError for a row without an end."""

    def __init__(self, lines: Iterable[bytes], longest: int) -> None:
        self._lines = iter(lines)
        self._longest = longest
        self._size = 0

    def __iter__(self) -> Iterator[str]:
        return self

    @property
    def is_inside(self) -> bool:
        """Whether lines were read of a row that is not whole yet."""
        return self._size > 0

    def begin_row(self) -> None:
        """A row is whole; the next line belongs to the next one."""
        self._size = 0

    def __next__(self) -> str:
        line = next(self._lines)
        self._size += len(line) + 1
        if self._size > self._longest:
            raise ValueError(f"it is longer than {self._longest} bytes: a quote may not be closed")
        try:
            return line.decode("utf-8") + "\n"
        except UnicodeDecodeError as error:
            raise ValueError(f"it is not UTF-8: {error.reason}") from None


def _parse_header(row: Sequence[str] | None) -> list[str]:
    """The names of the columns. Raises ValueError."""
    columns = list(row or ())
    if columns:
        columns[0] = columns[0].removeprefix("\ufeff")  # spreadsheets begin UTF-8 with it
    unknown = [name for name in columns if name not in _KNOWN]
    if unknown:
        raise ValueError(f"the header has the unknown column {unknown[0]!r}; the columns are {', '.join(COLUMNS)}")
    if len(set(columns)) < len(columns) or not {"key", "value"} & set(columns):
        raise ValueError(f"the header is not a header with the columns {', '.join(COLUMNS)}, each once")
    return columns


def _record_of(columns: Sequence[str], row: Sequence[str], defaults: Mapping[str, str]) -> RecordLine:
    if len(row) != len(columns):
        raise ValueError(f"it has {len(row)} columns, and the header has {len(columns)}")
    cells = dict(zip(columns, row, strict=True))
    return RecordLine(
        cells.get("topic") or None,
        _number_cell(cells, "partition"),
        _number_cell(cells, "timestamp"),
        _bytes_cell(cells, "key", defaults),
        _bytes_cell(cells, "value", defaults),
        _header_cell(cells.get("headers", "")),
    )


def _number_cell(cells: Mapping[str, str], name: str) -> int | None:
    text = cells.get(name, "")
    if text in ("", "-1"):
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20) or int(text) > _LARGEST[name]:
        raise ValueError(f"{name} is not a whole number from 0 to {_LARGEST[name]}")
    return int(text)


def _bytes_cell(cells: Mapping[str, str], name: str, defaults: Mapping[str, str]) -> bytes | None:
    found = cells.get(f"{name}_format") or defaults[name]
    if name not in cells or found == _NULL:
        return None
    if found not in CELL_FORMATS:
        raise ValueError(f"{name}_format {found!r} is none of {_NULL}, {', '.join(CELL_FORMATS)}")
    try:
        return parse_cell(found)(cells[name])
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _header_cell(text: str) -> Headers:
    return headers_from_json(text) if text else ()
