"""How long records take until readers of a table find them, while a topic gets records; for `bench/tables.py`.

Zone: real. A reader of the format's own library looks for files that are new in the table. A file's statistics have the
timestamp of its oldest record.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from bench.table_work import TABLE, catalog_properties
from ottla.client.producer import Producer

PAUSE_S = 0.2
ENDED_S = 60


class Arrivals(NamedTuple):
    """Records that are sent, and for how long."""

    bootstrap: str
    topic: str
    seconds: float
    per_second: int
    value: bytes


def iceberg_files(folder: Path) -> Callable[[], list[str]]:
    """A function that returns the data files of the newest snapshot."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError
    from sqlalchemy.exc import SQLAlchemyError

    catalog, known = load_catalog("default", **catalog_properties(str(folder))), {"": list[str]()}

    def find_files() -> list[str]:
        try:
            found = catalog.load_table(TABLE)
        except (NoSuchTableError, SQLAlchemyError):  # the command has not made the table, or the catalog
            return []
        # The snapshot's manifests are read once.
        if found.metadata_location not in known:
            files = [each.file.file_path.removeprefix("file://") for each in found.scan().plan_files()]
            known[found.metadata_location] = files
        return known[found.metadata_location]

    return find_files


def delta_files(folder: Path) -> Callable[[], list[str]]:
    """A function that returns the data files of the newest version."""
    from deltalake import DeltaTable

    uri = str(folder / "table")

    def find_files() -> list[str]:
        return DeltaTable(uri).file_uris() if DeltaTable.is_deltatable(uri) else []

    return find_files


FILES = {"iceberg": iceberg_files, "delta": delta_files}


def slowest_lags(
    arrivals: Arrivals, commands: Mapping[str, Sequence[str]], folders: Mapping[str, Path]
) -> dict[str, float]:
    """Seconds from the timestamp of a record until a reader finds it, of the slowest record, by format.

    commands: of the copies, which are started, and ended after the last record with a signal; folders: of the tables.
    """
    copies = {kind: start_command(command, folders[kind] / "log") for kind, command in commands.items()}
    finders = {kind: FILES[kind](folder) for kind, folder in folders.items()}
    over = threading.Event()
    sending = threading.Thread(target=send_records, args=(arrivals, over))
    sending.start()
    slowest, known = dict.fromkeys(folders, 0.0), {kind: set[str]() for kind in folders}
    stop = time.monotonic() + arrivals.seconds
    try:
        while time.monotonic() < stop:
            for kind, find_files in finders.items():
                new, now = set(find_files()) - known[kind], time.time()
                known[kind] |= new
                slowest[kind] = max([slowest[kind], *(now - oldest_time(file) for file in new)])
            time.sleep(PAUSE_S)
    finally:
        over.set()
        sending.join()
        for each in copies.values():
            each.send_signal(signal.SIGTERM)
            each.wait(ENDED_S)
    without = [kind for kind, files in known.items() if not files]
    if without:
        log = (folders[without[0]] / "log").read_text()
        raise SystemExit(f"{without[0]}: no commit in {arrivals.seconds:.0f} s:\n{log}")
    return slowest


def start_command(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """A process that writes to a log."""
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output)


def send_records(arrivals: Arrivals, over: threading.Event) -> None:
    """Send records at a steady rate until it is over."""
    due = time.perf_counter()
    with Producer({"bootstrap.servers": arrivals.bootstrap}) as producer:
        while not over.is_set():
            for _ in range(arrivals.per_second // 20):
                producer.send(arrivals.topic, arrivals.value)
            due += 1 / 20
            over.wait(max(0.0, due - time.perf_counter()))


def oldest_time(file: str) -> float:
    """The timestamp of the oldest record of a file, in seconds since 1970."""
    metadata = pq.read_metadata(file)
    # Parquet numbers the leaves of columns: the list of headers has two.
    leaves = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    column = leaves.index("timestamp")
    oldest = [metadata.row_group(at).column(column).statistics.min for at in range(metadata.num_row_groups)]
    return min(each.timestamp() for each in oldest)
