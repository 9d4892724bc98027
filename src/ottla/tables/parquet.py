"""A folder of Parquet files: the name of each file has the offsets of its rows.

Zone: real. A file is written under a temporary name, synced and renamed, so that a name with offsets is a whole file.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ottla.tables.column_types import ColumnTypes
from ottla.tables.errors import ConcurrentWriterError, OffsetsLostError, TableError
from ottla.tables.offsets import TableOffsets
from ottla.tables.rows import BYTES
from ottla.tables.writers import Making

_NAME: Final = re.compile(r"(.+)-(\d+)-(\d{20})-(\d{20})\.parquet")
_ORIGIN: Final = "_ottla.json"
_TEMPORARY: Final = ".tmp"
_COLUMNS: Final = "_ottla.columns"
_MAX_ORIGIN: Final = 65_536
_MAX_COLUMNS_BYTES: Final = 16 << 20


class ParquetWriter:
    """A local folder; made if it is not there. A lock keeps a second writer out."""

    types = ColumnTypes(promotes=False, has_times=True)

    def __init__(self, folder: str, topic: str, making: Making) -> None:
        """Raises TableError, OSError."""
        self.name = f"Parquet folder {folder}"
        if making.partition_by != "none":
            raise TableError(
                f"{self.name} cannot be partitioned by {making.partition_by}: a range of offsets is one file",
                "Take iceberg or delta",
            )
        if making.layout.is_upsert:
            raise TableError(
                f"{self.name} cannot have one row per key: files are never changed", "Take iceberg or delta"
            )
        self._folder = Path(folder)
        self._topic = topic
        self._layout = making.layout
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = self._lock_folder()
        try:
            for left in self._folder.glob(f".*{_TEMPORARY}"):  # of a writer that was killed: we hold its lock
                left.unlink()
            self._offsets, _ = saved_files(self._folder, topic, self.name)
            self.columns = self._read_columns(making)
        except BaseException:
            self._lock.close()
            raise
        self._ends = dict(self._offsets.next_offsets) if self._offsets else {}
        """Where the last file of each partition ends."""

    def _lock_folder(self) -> IO[bytes]:
        lock = (self._folder / "_ottla.lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise ConcurrentWriterError(f"{self.name}: another process writes it", "Stop that process first") from None
        return lock

    def read_offsets(self) -> TableOffsets | None:
        """The offsets that the names of the files have."""
        return self._offsets

    def _read_columns(self, making: Making) -> pa.Schema:
        """The columns of the newest file. A folder whose rows have bytes only does not name them."""
        try:
            with (self._folder / _COLUMNS).open("rb") as file:
                return pa.ipc.read_schema(pa.BufferReader(file.read(_MAX_COLUMNS_BYTES)))
        except FileNotFoundError:
            return BYTES.schema if self._offsets else making.layout.schema
        except (pa.ArrowException, OSError) as error:
            raise TableError(
                f"{self.name}: {_COLUMNS} cannot be read ({error})", "Bring the file back, or take an empty folder"
            ) from error

    def _write_columns(self, columns: pa.Schema) -> None:
        # Before the first file that has them: a column that no file has yet is no harm.
        content = columns.serialize().to_pybytes()
        self._write_whole(_COLUMNS, lambda path: path.write_bytes(content))
        self.columns = columns

    def append_rows(self, rows: pa.Table, before: TableOffsets, after: TableOffsets) -> None:
        """A file per partition. Raises OSError."""
        if not self._offsets:
            text = json.dumps({"topic": self._topic, "topic_id": after.topic_id})
            self._write_whole(_ORIGIN, lambda path: path.write_text(text, encoding="utf-8"))
        if rows.schema != self.columns or (rows.schema != BYTES.schema and not self._offsets):
            self._write_columns(rows.schema)
        place = self._layout.partition
        # Without rows, offsets of records that became dead letters are covered by files without rows.
        for number in pc.unique(rows[place]).to_pylist() or self._moved_partitions(before, after):
            # A file begins where the one before ended, so that offsets without a visible record are covered.
            first, end = self._ends.get(number, before.next_offsets[number]), after.next_offsets[number]
            part = rows.filter(pc.equal(rows[place], number))
            name = f"{self._topic}-{number}-{first:020d}-{end:020d}.parquet"
            self._write_whole(name, partial(pq.write_table, part, compression="zstd"))
            self._ends[number] = end
        self._offsets = after

    def _moved_partitions(self, before: TableOffsets, after: TableOffsets) -> list[int]:
        ends = {**before.next_offsets, **self._ends}
        return [number for number, end in after.next_offsets.items() if end > ends.get(number, 0)]

    def _write_whole(self, name: str, write: Callable[[Path], object]) -> None:
        path = self._folder / f".{name}{_TEMPORARY}"
        write(path)
        # Synced before it gets its name, and the folder after: a name never stands for bytes that a power loss takes.
        sync_path(path)
        path.replace(self._folder / name)
        sync_path(self._folder)

    def close(self) -> None:
        """Give the lock back."""
        self._lock.close()


def has_columns(folder: Path) -> bool:
    """Whether the rows of a folder's files have the columns of a schema. Those with bytes only do not name them."""
    return (folder / _COLUMNS).exists()


def saved_files(folder: Path, topic: str, name: str) -> tuple[TableOffsets | None, list[Path]]:
    """The offsets that the names of the files in a folder have, None without files; and the files.

    name: of the folder, for messages. Raises OffsetsLostError, OSError.
    """
    # The names are the only state: there is no file that could say otherwise than the files that are there.
    ranges: dict[int, list[tuple[int, int]]] = {}
    files = [each for each in os.listdir(folder) if each.endswith(".parquet")]
    for each in files:
        match = _NAME.fullmatch(each)
        if match is None or match[1] != topic:
            raise OffsetsLostError(f"{name}: {each} is not a file of topic {topic}", "Take an empty folder")
        ranges.setdefault(int(match[2]), []).append((int(match[3]), int(match[4])))
    if not ranges:
        return None, []
    ends = {number: _end_of(name, number, found) for number, found in ranges.items()}
    return TableOffsets(_read_origin(folder, name), ends), [folder / each for each in sorted(files)]


def _end_of(name: str, number: int, ranges: list[tuple[int, int]]) -> int:
    # Each file begins where the one before ends: a gap is a file that is missing, an overlap rows that are twice.
    ranges.sort()
    for (_, end), (first, _) in pairwise(ranges):
        if first != end:
            kind = "are missing" if first > end else "are there twice"
            raise OffsetsLostError(
                f"{name}: offsets of partition {number} {kind}: {min(first, end)} to {max(first, end)}",
                "Bring back the files that this writer made, or copy the topic into an empty folder",
            )
    return ranges[-1][1]


def _read_origin(folder: Path, name: str) -> str:
    try:
        with (folder / _ORIGIN).open(encoding="utf-8") as file:
            return str(json.loads(file.read(_MAX_ORIGIN))["topic_id"])
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError, TypeError) as error:
        raise OffsetsLostError(f"{name}: {_ORIGIN} cannot be read ({error})", "Take an empty folder") from error


def sync_path(path: Path) -> None:
    """Write a file, or the names of a folder, to the disk. Raises OSError."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
