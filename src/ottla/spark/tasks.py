"""The running task: its identity, and the notes that its reader leaves for its writer.

Zone: real. Runs in Spark's Python workers.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from pyspark import SparkFiles, TaskContext

from ottla.spark.errors import NoBatch
from ottla.spark.offsets import Place
from ottla.spark.sink.exactly_once import BATCH, QUERY, RunningBatch
from ottla.spark.source.source_positions import TaskPosition
from ottla.types import TopicPartition

KEPT_NOTES: Final = 4096
"""How many files of tasks are kept that no writer holds: a writer opens its file long before this many tasks begin."""
_SWEEP_EVERY: Final = 512
"""Old files are removed at the first note of a process, and at every 512th one."""
_left: Final = count()


class Task(NamedTuple):
    """The running task."""

    partition: int
    get: Callable[[str], str | None]
    """Spark's settings and properties, by name."""
    notes: Callable[[], Sequence[TaskPosition]]
    """What this task has read from topics so far."""
    held: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """A context in which the notes are kept, while the task writes."""

    def in_batch(self, running: RunningBatch) -> Task:
        """The same task with the properties of a batch: a task of a write under Spark Connect has none."""
        return self._replace(get=lambda name: running.get_property(name) or self.get(name))

    def query_batch(self) -> tuple[str, int]:
        """The query id and the number of the batch. Raises NoBatch outside of a streaming query."""
        query, batch = self.get(QUERY), self.get(BATCH)
        if not query or batch is None or not batch.isdigit():
            raise NoBatch(
                f"Spark gives no batch for this task ({QUERY}={query!r}, {BATCH}={batch!r}). Outside of streaming "
                "queries and foreachBatch, name the write with jobId"
            )
        return query, int(batch)


def this_task() -> Task:
    """The task of this process. Raises NoBatch outside of a task."""
    context = TaskContext.get()
    if context is None:
        raise NoBatch("no task is running in this process: rows are written only in Spark's tasks")
    number = context.taskAttemptId()
    return Task(
        context.partitionId(),
        context.getLocalProperty,
        lambda: read_notes(_notes_directory(), number),
        lambda: hold_notes(_notes_directory(), number),
    )


def write_note(read: TaskPosition) -> None:
    """Leave a note for the writer of the same task, which runs in another process.

    Does nothing outside of a task, or when the note cannot be written: the writer then assumes that it reads nothing.
    """
    context = TaskContext.get()
    if context is None:
        return
    try:
        add_note(_notes_directory(), context.taskAttemptId(), read)
    except OSError:
        return


def add_note(notes: Path, task: int, read: TaskPosition) -> None:
    """Append a note of a task to its file. Files of much earlier tasks are removed at intervals, unless a writer holds
    them (`hold_notes`)."""
    notes.mkdir(exist_ok=True)
    with _notes_file(notes, task).open("a") as file:
        file.write(json.dumps([read.cluster, read.group, *read.tp, read.offset, read.place]) + "\n")
    if next(_left) % _SWEEP_EVERY == 0:
        _sweep_notes(notes, task - KEPT_NOTES)


@contextlib.contextmanager
def hold_notes(notes: Path, task: int) -> Iterator[None]:
    """Keep the notes of a task while its writer runs, and remove them afterwards. Does nothing when the file cannot be
    opened."""
    try:
        notes.mkdir(exist_ok=True)
        file = os.open(_notes_file(notes, task), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        yield
        return
    try:
        # `_sweep_notes` needs an exclusive lock to remove the file. The system releases this one when the process ends,
        # also after SIGKILL.
        fcntl.flock(file, fcntl.LOCK_SH)
        yield
    finally:
        with contextlib.suppress(OSError):
            _notes_file(notes, task).unlink()
        os.close(file)


def _sweep_notes(notes: Path, before: int) -> None:
    """Remove the files of tasks with ids below `before` that no writer holds."""
    for name in os.listdir(notes):
        if not name.isdigit() or int(name) >= before:
            continue
        with contextlib.suppress(OSError), (notes / name).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises when a writer holds it
            (notes / name).unlink()


def read_notes(notes: Path, task: int) -> list[TaskPosition]:
    """The complete notes of a task; a line that is being written is left out."""
    try:
        lines = _notes_file(notes, task).read_text().split("\n")[:-1]
    except OSError:
        return []
    found = []
    for line in lines:
        cluster, group, topic, partition, offset, place = json.loads(line)
        read = TaskPosition(cluster, group, TopicPartition(topic, partition), offset)
        found.append(read if place is None else read._replace(place=Place(*place)))
    return found


def _notes_file(notes: Path, task: int) -> Path:
    return notes / str(task)


def _notes_directory() -> Path:
    return notes_directory(Path(SparkFiles.getRootDirectory()), os.environ.get("SPARK_JOB_ARTIFACT_UUID"))


def notes_directory(files: Path, session: str | None) -> Path:
    """A directory in the one that all Python workers of an executor share, and that Spark removes at its end.

    files: Spark's directory of files for the worker. session: the name of the worker's session, if it has a directory.
    """
    # Under Spark Connect each session has a directory in the shared one. Within foreachBatch rows are read by the
    # session of the query, and written by a clone of it.
    return (files.parent if files.name == session else files) / ".ottla-read-here"
