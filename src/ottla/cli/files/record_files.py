"""Which format a file of records has, and the writer or the reader of that format.

Zone: real.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from ottla.cli.failure import CommandFailed

if TYPE_CHECKING:
    from types import ModuleType

    from ottla.cli.files.record_export import RecordWriter
    from ottla.cli.files.sending import Records

STANDARD: Final = "-"
"""The name of standard input and standard output."""
FILE_FORMATS: Final = ("jsonl", "csv", "parquet")
_ENDINGS: Final = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
_LINE_FACTOR: Final = 8
"""A record may take several times its size as text: escapes, base64, names of fields."""
ReadLines = Callable[[BinaryIO, int], Iterator[bytes]]


def format_of(path: str, given: str | None) -> str:
    """The format of a file by `--format`, or else by its name. Raises click.UsageError."""
    if given is not None:
        return given
    if path == STANDARD:
        return "jsonl"
    for ending, name in _ENDINGS.items():
        if path.lower().endswith(ending):
            return name
    raise click.UsageError(f"the name of {path} does not end with {', '.join(_ENDINGS)}: give --format")


def make_writer(stream: BinaryIO, topic: str, file_format: str, key_format: str, value_format: str) -> RecordWriter:
    """A writer of the format. Raises CommandFailed without pyarrow."""
    if file_format == "jsonl":
        from ottla.cli.files.jsonl_records import JsonlWriter

        return JsonlWriter(stream, topic, key_format, value_format)
    if file_format == "csv":
        from ottla.cli.files.csv_records import CsvWriter

        return CsvWriter(stream, key_format, value_format)
    writer: RecordWriter = _parquet_module().ParquetWriter(stream, key_format, value_format)
    return writer


def _parquet_module() -> ModuleType:
    try:
        from ottla.cli.files import parquet_records
    except ModuleNotFoundError as error:
        raise CommandFailed("Parquet needs the Python package pyarrow: pip install 'ottla[arrow]'") from error
    return parquet_records


@contextmanager
def open_records(
    path: str,
    file_format: str,
    skip: int,
    largest: int,
    formats: tuple[str, str],
    read_lines: ReadLines,
) -> Iterator[Records]:
    """The records of a file, for a `with` block. Raises OSError, CommandFailed; each record may raise BadLine.

    largest: the size of the largest record that can be sent. read_lines: the lines of a stream, each at most so long.
    """
    if file_format == "parquet":
        if path == STANDARD:
            raise CommandFailed("Parquet is read from its end, which standard input has not: name a file", exit_code=2)
        yield _parquet_module().read_parquet(path, skip, *formats)
        return
    longest = largest * _LINE_FACTOR
    if path == STANDARD:
        yield _read_text(sys.stdin.buffer, file_format, skip, longest, formats, read_lines)
        return
    with open(path, "rb") as stream:
        yield _read_text(stream, file_format, skip, longest, formats, read_lines)


def _read_text(
    stream: BinaryIO, file_format: str, skip: int, longest: int, formats: tuple[str, str], read_lines: ReadLines
) -> Records:
    lines = read_lines(stream, longest)
    if file_format == "jsonl":
        from ottla.cli.files.jsonl_records import read_jsonl

        return read_jsonl(lines, skip, *formats)
    from ottla.cli.files.csv_records import read_csv

    return read_csv(lines, skip, longest, *formats)
