"""What a task knows of itself, and what reader and writer of one task tell each other.

Zone: real. Runs in Spark's Python workers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pyspark import SparkFiles, TaskContext

from ottla.spark.errors import NoBatch
from ottla.spark.exactly_once import BATCH, QUERY
from ottla.spark.source_positions import Noted
from ottla.types import TopicPartition

_SLOTS: Final = 4096


class Task(NamedTuple):
    """The running task."""

    partition: int
    get: Callable[[str], str | None]
    """Spark's settings and properties, by name."""
    notes: Callable[[], Sequence[Noted]]
    """What was read from topics in this task, so far."""

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
    return Task(context.partitionId(), context.getLocalProperty, lambda: notes_of(_notes(), number))


def leave_note(read: Noted) -> None:
    """For the reader: the writer of the same task, which runs in another process, may want to know. Outside of a task,
    and where there is no place for the note, nothing happens: then the writer assumes less."""
    context = TaskContext.get()
    if context is None:
        return
    try:
        add_note(_notes(), context.taskAttemptId(), read)
    except OSError:
        return


def add_note(notes: Path, task: int, read: Noted) -> None:
    """Leave a note of a task. Many tasks share a file, one after the other, so that there are not more and more; the
    notes of the latest stay."""
    notes.mkdir(exist_ok=True)
    ours = _lines(notes, task) is not None
    # Appended: the writer may be reading the earlier ones.
    with _slot(notes, task).open("a" if ours else "w") as file:
        line = json.dumps([read.cluster, read.group, *read.where, read.offset])
        file.write(f"{line}\n" if ours else f"{task}\n{line}\n")


def notes_of(notes: Path, task: int) -> list[Noted]:
    """The notes of a task."""
    found = []
    for line in _lines(notes, task) or ():
        cluster, group, topic, partition, offset = json.loads(line)
        found.append(Noted(cluster, group, TopicPartition(topic, partition), offset))
    return found


def _lines(notes: Path, task: int) -> list[str] | None:
    """Those that are written to their end; None while the file is another task's."""
    try:
        first, *lines = _slot(notes, task).read_text().split("\n")
    except OSError:
        return None
    return lines[:-1] if first == str(task) else None


def _slot(notes: Path, task: int) -> Path:
    return notes / str(task % _SLOTS)


def _notes() -> Path:
    """In the directory that all Python workers of an executor share, and that Spark removes at the end."""
    return Path(SparkFiles.getRootDirectory()) / ".ottla-read-here"
