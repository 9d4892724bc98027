"""What a task knows of itself, and what reader and writer of one task tell each other.

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
from ottla.spark.sink.exactly_once import BATCH, QUERY
from ottla.spark.source.source_positions import TaskPosition
from ottla.types import TopicPartition

KEPT_NOTES: Final = 4096
"""Files of tasks that no writer holds: a writer opens its task's file long before so many other tasks have begun."""
_SWEEP_EVERY: Final = 512
"""Notes of this process between two looks for old files; the first one looks, too."""
_left: Final = count()


class Task(NamedTuple):
    """The running task."""

    partition: int
    get: Callable[[str], str | None]
    """Spark's settings and properties, by name."""
    notes: Callable[[], Sequence[TaskPosition]]
    """What was read from topics in this task, so far."""
    held: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """Keeps the notes while the task writes."""

    def batch(self) -> tuple[str, int]:
        """(query id, number of the batch). Raises NoBatch outside of a streaming query."""
        query, batch = self.get(QUERY), self.get(BATCH)
        if not query or batch is None or not batch.isdigit():
            raise NoBatch(
                f"Spark names no batch for this task ({QUERY}={query!r}, {BATCH}={batch!r}). Outside of streaming "
                "queries and foreachBatch give the write a name with jobId"
            )
        return query, int(batch)


def this_task() -> Task:
    """Raises NoBatch outside of a task."""
    context = TaskContext.get()
    if context is None:
        raise NoBatch("there is no task: rows are written in Spark's tasks only")
    number = context.taskAttemptId()
    return Task(
        context.partitionId(),
        context.getLocalProperty,
        lambda: notes_of(_notes(), number),
        lambda: held_notes(_notes(), number),
    )


def leave_note(read: TaskPosition) -> None:
    """For the reader: the writer of the same task, which runs in another process, may want to know. Outside of a task,
    and where there is no place for the note, nothing happens: then the writer assumes less."""
    context = TaskContext.get()
    if context is None:
        return
    try:
        add_note(_notes(), context.taskAttemptId(), read)
    except OSError:
        return


def add_note(notes: Path, task: int, read: TaskPosition) -> None:
    """Append a note of a task. Each task has a file of its own; files of earlier tasks are removed from time to time,
    except those that a writer holds (`held_notes`)."""
    notes.mkdir(exist_ok=True)
    with _file(notes, task).open("a") as file:
        file.write(json.dumps([read.cluster, read.group, *read.tp, read.offset]) + "\n")
    if next(_left) % _SWEEP_EVERY == 0:
        _sweep_notes(notes, task - KEPT_NOTES)


@contextlib.contextmanager
def held_notes(notes: Path, task: int) -> Iterator[None]:
    """Keep the notes of a task while its writer runs, however many other tasks begin; remove them afterwards. Does
    nothing where there is no place for notes."""
    try:
        notes.mkdir(exist_ok=True)
        file = os.open(_file(notes, task), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        yield
        return
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield
    finally:
        with contextlib.suppress(OSError):
            _file(notes, task).unlink()
        os.close(file)


def _sweep_notes(notes: Path, before: int) -> None:
    """Remove the files of tasks with lower ids that no writer holds."""
    for name in os.listdir(notes):
        if not name.isdigit() or int(name) >= before:
            continue
        with contextlib.suppress(OSError), (notes / name).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises when a writer holds it
            (notes / name).unlink()


def notes_of(notes: Path, task: int) -> list[TaskPosition]:
    """The notes of a task that are written to their end."""
    try:
        lines = _file(notes, task).read_text().split("\n")[:-1]
    except OSError:
        return []
    found = []
    for line in lines:
        cluster, group, topic, partition, offset = json.loads(line)
        found.append(TaskPosition(cluster, group, TopicPartition(topic, partition), offset))
    return found


def _file(notes: Path, task: int) -> Path:
    return notes / str(task)


def _notes() -> Path:
    """In the directory that all Python workers of an executor share, and that Spark removes at the end."""
    return Path(SparkFiles.getRootDirectory()) / ".ottla-read-here"
