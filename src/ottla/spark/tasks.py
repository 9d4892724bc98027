"""What a task knows of itself, and what reader and writer of one task tell each other.

Zone: real. Runs in Spark's Python workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from pyspark import SparkFiles, TaskContext

from ottla.spark.errors import NoBatch
from ottla.spark.exactly_once import BATCH, QUERY

_SLOTS: Final = 4096
_WIDTH: Final = 8


class Task(NamedTuple):
    """The running task."""

    partition: int
    get: Callable[[str], str | None]
    """Spark's settings and properties, by name."""
    read_here: Callable[[], bool]
    """Whether rows were read from topics in this task."""

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
    return Task(context.partitionId(), context.getLocalProperty, lambda: has_read(_notes(), number))


def note_that_rows_are_read_here() -> None:
    """For the reader: the writer of the same task, which runs in another process, may want to know. Outside of a task,
    and where there is no place for the note, nothing happens: then the writer assumes less."""
    context = TaskContext.get()
    if context is None:
        return
    try:
        note_read(_notes(), context.taskAttemptId())
    except OSError:
        return


def note_read(notes: Path, task: int) -> None:
    """Leave the note of a task. The file has one slot for many tasks, so it never grows; the latest stays."""
    handle = os.open(notes, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(handle, (task + 1).to_bytes(_WIDTH, "big"), task % _SLOTS * _WIDTH)
    finally:
        os.close(handle)


def has_read(notes: Path, task: int) -> bool:
    """Whether the note of a task is there."""
    try:
        handle = os.open(notes, os.O_RDONLY)
    except OSError:
        return False
    try:
        return int.from_bytes(os.pread(handle, _WIDTH, task % _SLOTS * _WIDTH), "big") == task + 1
    finally:
        os.close(handle)


def _notes() -> Path:
    """In the directory that all Python workers of an executor share, and that Spark removes at the end."""
    return Path(SparkFiles.getRootDirectory()) / ".ottla-read-here"
