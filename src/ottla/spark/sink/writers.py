"""The batch writer and the streaming writer of `format("ottla")`.

Zone: real. Spark pickles these objects for the tasks, and makes new ones on the driver for every batch and for
`commit_prepared` and `abort`, so that they hold only options. A task's work is in `writing` (at least once) and
`transactional_write` (exactly once).

At least once, and exactly once by partition, all work is done when a task ends: `commit_prepared` does nothing, and
`abort` cannot undo anything (Spark calls it even while tasks are writing). A batch that is written as a whole is
committed by `commit_prepared`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ottla.client.batch_transaction import ConnectionCache, Prepared, abort_quietly, end_transaction, is_fenced
from ottla.client.errors import ClientError
from ottla.spark.connection_cache import cached_connections
from ottla.spark.errors import ChangedUnit, Fenced, NotOnePartition
from ottla.spark.safeguards import ALL_ON, SinkSafeguards
from ottla.spark.sink.exactly_once import Marker, TaskBatch, check_rows_are_stable, is_adaptive_off, parts_of
from ottla.spark.sink.sink_options import DEFAULT_SINK, Scope, SinkOptions, batch_scope, stream_scope
from ottla.spark.sink.task_claims import Claims, claims_of
from ottla.spark.sink.transactional_write import TransactionalWrite, make_markers, write_task_batch
from ottla.spark.sink.writing import write_batches
from ottla.spark.source.source_positions import Positions, Sources
from ottla.spark.tasks import Task, this_task
from ottla.types import TopicPartition


class Written(WriterCommitMessage):  # type: ignore[misc]  # pyspark's classes are not typed
    """The result of a task."""

    def __init__(self, rows: int, prepared: Prepared | None = None) -> None:
        self.rows = rows
        self.prepared = prepared
        """The transaction that the driver has to end."""


class _Writer:
    """Common to both writers."""

    streaming: ClassVar[bool]
    safeguards: ClassVar[SinkSafeguards] = ALL_ON

    def __init__(self, options: SinkOptions, scope: Scope | None) -> None:
        self._options = options
        self._scope = scope
        if scope is not None:
            with cached_connections(options.client) as links:
                make_markers(links)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task. Raises the errors of `errors` and of the client; Spark then runs the task again."""
        if self._scope is None:
            return Written(write_batches(self._options, iterator))
        task = this_task()
        turn = self._task_batch(task)
        if self._scope is Scope.BATCH and turn.partition and self.safeguards.one_partition:
            raise NotOnePartition(
                f"exactlyOnce=batch writes a batch as a whole, and {turn} is one of several partitions: write with "
                "repartition(1). Nothing was written"
            )
        with cached_connections(self._options.client) as links, task.held():
            return self._write_transactional(links, task, turn, iterator)

    def _make_attempt(self, links: ConnectionCache, turn: TaskBatch) -> TransactionalWrite:
        return TransactionalWrite(links, self._options, turn, self.safeguards)

    def _task_batch(self, task: Task) -> TaskBatch:
        once = self._options.once
        query, batch = (once.job, 0) if once.job is not None else task.query_batch()
        return TaskBatch(once.prefix, query, once.sink or DEFAULT_SINK, batch, task.partition)

    def _write_transactional(
        self, links: ConnectionCache, task: Task, turn: TaskBatch, iterator: Iterator[pa.RecordBatch]
    ) -> Written:
        assert self._scope is not None
        sources = Sources(self._options.once, self._scope, task.notes, lambda: _cluster_id(links))
        whole = self._scope is Scope.BATCH
        attempt = self._make_attempt(links, turn)
        if self.safeguards.one_unit:
            attempt.claims = self._make_claims(links, task, turn)

        def found() -> Positions:
            if not whole:
                self._check_parts(task)
                attempt.parts = _read_parts(task)
            # 1. Within foreachBatch there may be other writes of the same records: commit no offsets.
            if not self.streaming:
                return {}
            known = sources.known_positions()
            # 2. Called before the id was taken: an earlier attempt may have these offsets in its open transaction, so
            #    that the group's present offsets decide nothing yet.
            if not attempt.has_begun:
                return known
            # 3. Rows of a whole batch may be of earlier records: never move back. A task of many must not move a
            #    partition that other tasks read as well.
            return attempt.offsets_ahead(known) if whole else attempt.offsets_not_held(known)

        def check() -> None:
            if not whole:
                self._check_rows(task)
                sources.known_positions()

        rows = sources.watch_batches(iterator)
        outcome = write_task_batch(attempt, rows, check, begin_without_rows=whole, sources=found)
        if isinstance(outcome, Marker):  # an earlier attempt wrote them
            if not whole:
                _check_same_parts(task, turn, outcome, rows)
            return Written(outcome.rows)
        # By partition the task commits itself: Spark may never call `commit` on the driver, for instance after a crash,
        # and the marker then shows the next attempt that the rows are there.
        if outcome is not None and not whole:
            attempt.commit_prepared(outcome)
        return Written(attempt.rows, outcome if whole else None)

    def _make_claims(self, links: ConnectionCache, task: Task, turn: TaskBatch) -> tuple[Claims, ...]:
        assert self._scope is not None
        once = self._options.once
        kind = "stream" if self.streaming else "foreach" if once.job is None else "job"
        reads = not once.stable_rows and not is_adaptive_off(task.get, streaming=self.streaming)
        return claims_of(links, turn, self._scope.value, once.timeout_ms, kind=kind, reads=reads)

    def _check_rows(self, task: Task) -> None:
        """Check the origin of the rows, when the first have come."""
        if self.safeguards.stable_rows and not self._options.once.stable_rows:
            check_rows_are_stable(task.get, streaming=self.streaming, parts=len(_read_ranges(task)))

    def _check_parts(self, task: Task) -> None:
        """Check again after the last row: more notes may have come while rows were read."""
        if len(_read_ranges(task)) > 1:
            self._check_rows(task)

    def _end_transactions(self, messages: Sequence[Written | None], *, commit: bool) -> None:
        """End the transactions that tasks have prepared; runs on the driver. Raises Fenced and the client's errors."""
        waiting = [one.prepared for one in messages if one is not None and one.prepared is not None]
        if not waiting:
            return
        with cached_connections(self._options.client) as links:
            for prepared in waiting:
                if commit:
                    _commit_prepared(links, prepared)
                else:
                    abort_quietly(links, prepared)


def _read_ranges(task: Task) -> set[tuple[TopicPartition, int]]:
    """The ranges that the task has read, from its notes."""
    return {(one.tp, one.offset) for one in task.notes()}


def _read_parts(task: Task) -> str | None:
    return parts_of(ranges) if (ranges := _read_ranges(task)) else None


def _check_same_parts(task: Task, turn: TaskBatch, marker: Marker, rest: Iterable[pa.RecordBatch]) -> None:
    """Check that the rows of a marker were read from the same ranges as this task's. Raises ChangedUnit.

    Consumes the remaining rows: only then all ranges of this task are known.
    """
    if marker.parts is None:
        return
    # Reading the rows makes the readers of this task leave their notes.
    deque(rest, maxlen=0)
    if marker.parts != (now := _read_parts(task)):
        read = "other partitions of the source" if now is not None else "its rows from a shuffle or a cache"
        raise ChangedUnit(
            f"{turn} is committed, but with other rows than this task has: it reads {read} now (coalesce, repartition "
            "or union were changed). Start the query as it was, until this batch is finished, and change it then. "
            "Nothing was written"
        )


def _cluster_id(links: ConnectionCache) -> str | None:
    return links.cluster.view.cluster_id or links.cluster.refresh(()).cluster_id


def _commit_prepared(links: ConnectionCache, prepared: Prepared) -> None:
    try:
        end_transaction(links, prepared, commit=True)
    except ClientError as error:
        if is_fenced(error):
            raise Fenced(
                f"{prepared.transactional_id}: another attempt at the batch has begun (speculative execution, or a "
                "second driver), and nothing of this one is committed; start the query again"
            ) from error
        raise


class BatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]
    """The writer of `df.write`."""

    streaming = False

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options, batch_scope(options))

    def commit(self, messages: Sequence[Written | None]) -> None:
        """End the transaction of a whole batch."""
        self._end_transactions(messages, commit=True)

    def abort(self, messages: Sequence[Written | None]) -> None:
        """Abort the transaction of a whole batch; other rows stay written."""
        self._end_transactions(messages, commit=False)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The writer of one batch of `df.writeStream`."""

    streaming = True

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options, stream_scope(options))

    def commit(self, messages: Sequence[Written | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's names
        """End the transaction of a whole batch."""
        self._end_transactions(messages, commit=True)

    def abort(self, messages: Sequence[Written | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Abort the transaction of a whole batch; other rows stay written."""
        self._end_transactions(messages, commit=False)
