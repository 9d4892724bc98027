"""A folder of Parquet files that takes batches: a file gets its name when its batch is added.

Zone: real. A folder has no commit, so readers may see some files of a batch before the others. Files that are renamed
already are no fault: after a kill the next call renames the rest. The number of the last batch is in a file of its own.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from ottla.tables.batches.batch_table import MAKING, columns_of_rows, merge_columns
from ottla.tables.errors import OffsetsLostError, TableError
from ottla.tables.parquet import ParquetWriter, sync_path

_COLUMNS: Final = "_ottla.columns"
_ORIGIN: Final = "_ottla.json"
_TEMPORARY: Final = ".tmp"
_MAX_COLUMNS_BYTES: Final = 16 << 20
_MAX_DIGITS: Final = 20


class ParquetBatches:
    """A folder that all tasks and the driver see under the same path; it must be there (`prepare_parquet`)."""

    def __init__(self, folder: str) -> None:
        """Raises TableError, OSError."""
        self.name = f"Parquet folder {folder}"
        self._folder = Path(folder)
        found = _read_columns(self._folder, self.name)
        if found is None:
            raise TableError(f"{self.name} is not there any more", "Start the query again, which makes it")
        self.columns = found

    def write_rows(self, rows: pa.Table, query: str, batch: int) -> list[str]:
        """Write rows into a file without a name for readers; the name that it gets. Raises OSError."""
        name = f"{query}-{batch}-{uuid4().hex}.parquet"
        pq.write_table(rows, path := self._hidden(name), compression="zstd")
        sync_path(path)
        sync_path(self._folder)
        return [name]

    def _hidden(self, name: str) -> Path:
        return self._folder / f".{name}{_TEMPORARY}"

    def last_batch(self, query: str) -> int | None:
        """The number in the query's file. Raises TableError, OSError."""
        try:
            with (self._folder / _done_name(query)).open(encoding="ascii", errors="replace") as file:
                text = file.read(_MAX_DIGITS)
        except FileNotFoundError:
            return None
        if not text.isdecimal():
            raise TableError(f"{self.name}: {_done_name(query)} has {text!r}", "Bring the file back, or delete it")
        return int(text)

    def add_files(self, query: str, batch: int, files: Sequence[str]) -> None:
        """Rename the files, and write the batch's number after it. Raises TableError, OSError."""
        with _folder_lock(self._folder):
            last = self.last_batch(query)
            # A driver that was replaced, and waited here meanwhile.
            if last is not None and last >= batch:
                return
            for name in files:
                self._publish_file(name, batch)
            sync_path(self._folder)
            self._write_done(query, batch)
            self._delete_left(query, batch)

    def _publish_file(self, name: str, batch: int) -> None:
        try:
            self._hidden(name).replace(self._folder / name)
        except FileNotFoundError:
            if not (self._folder / name).exists():
                raise OffsetsLostError(
                    f"{self.name}: the file {name} of batch {batch} was deleted before it was added",
                    "Start the step with another name, to write all rows again into a new folder",
                ) from None

    def _write_done(self, query: str, batch: int) -> None:
        _write_whole(self._folder, _done_name(query), lambda path: path.write_text(str(batch), encoding="ascii"))

    def _delete_left(self, query: str, batch: int) -> None:
        """Delete files of attempts that were not decided: the query begins none of these batches again."""
        for path in self._folder.glob(f".{query}-*.parquet{_TEMPORARY}"):
            number = path.name.removeprefix(f".{query}-").partition("-")[0]
            if number.isdecimal() and int(number) <= batch:
                path.unlink(missing_ok=True)


def prepare_parquet(folder: str, rows: pa.Schema) -> None:
    """Make the folder if it is not there, and add the columns that its files lack.

    rows: the columns of the rows. Raises TableError, OSError.
    """
    name, path = f"Parquet folder {folder}", Path(folder)
    wanted = columns_of_rows(rows, ParquetWriter.types, MAKING, name)
    path.mkdir(parents=True, exist_ok=True)
    if (path / _ORIGIN).exists():
        raise TableError(f"{name} is a copy of a topic (`ottla table`)", "Name another folder")
    with _folder_lock(path):
        found = _read_columns(path, name)
        merged = wanted if found is None else merge_columns(found, wanted, ParquetWriter.types, name)
        if merged != found:
            content = merged.serialize().to_pybytes()
            _write_whole(path, _COLUMNS, lambda place: place.write_bytes(content))


def _read_columns(folder: Path, name: str) -> pa.Schema | None:
    try:
        with (folder / _COLUMNS).open("rb") as file:
            return pa.ipc.read_schema(pa.BufferReader(file.read(_MAX_COLUMNS_BYTES)))
    except FileNotFoundError:
        return None
    except pa.ArrowException as error:
        raise TableError(f"{name}: {_COLUMNS} cannot be read ({error})", "Bring the file back") from error


def _done_name(query: str) -> str:
    return f"_ottla.batch.{query}"


def _write_whole(folder: Path, name: str, write: Callable[[Path], object]) -> None:
    path = folder / f".{name}.{uuid4().hex}{_TEMPORARY}"
    write(path)
    # Synced before it gets its name, and the folder after: a name never stands for bytes that a power loss takes.
    sync_path(path)
    path.replace(folder / name)
    sync_path(folder)


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Wait until no other driver adds files; the system releases the lock of a process that ends."""
    number = os.open(folder / "_ottla.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)
