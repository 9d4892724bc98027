"""The batch writer and the streaming writer of `format("ottla")`.

Zone: real. Spark pickles these objects for the tasks, and makes new ones on the driver for every batch and for
`commit_prepared` and `abort`, so that they hold only options. A task's work is in `writing` (at least once) and
`transactional_write` (exactly once).

At least once, and exactly once by partition, all work is done when a task ends: `commit_prepared` does nothing, and
`abort` cannot undo anything (Spark calls it even while tasks are writing). A batch that is written as a whole is
committed by `commit`: each task leaves its transaction open, and `batch_decision` ends all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ottla.client.batch_transaction import ConnectionCache, Prepared
from ottla.spark.connection_cache import cached_connections
from ottla.spark.errors import ChangedUnit, UnstableRows
from ottla.spark.offsets import Place
from ottla.spark.safeguards import ALL_ON, SinkSafeguards
from ottla.spark.sink.batch_decision import Batch, abort_batch, abort_parts, commit_batch, parts_base
from ottla.spark.sink.claimed_scans import ReadTask, Scan, is_registered, scan_of
from ottla.spark.sink.exactly_once import (
    RUN,
    Marker,
    RunningBatch,
    TaskBatch,
    check_rows_are_stable,
    is_adaptive_off,
    parts_of,
)
from ottla.spark.sink.mixed_batches import Tasks, batch_of, commit_rest, find_decided, is_rest, rest_of
from ottla.spark.sink.output_owner import claim_output
from ottla.spark.sink.part_ids import take_part_id
from ottla.spark.sink.scope_choice import Choice, choose_scope, refuse_late_ranges
from ottla.spark.sink.sink_options import DEFAULT_SINK, Scope, SinkOptions, batch_scope, stream_scope
from ottla.spark.sink.task_claims import BATCH, Claims, claims_of
from ottla.spark.sink.transactional_write import TransactionalWrite, make_markers, write_task_batch
from ottla.spark.sink.whole_batches import BatchCalls, TaskResult, merge_sources
from ottla.spark.sink.writing import write_batches
from ottla.spark.source.source_positions import Positions, Sources
from ottla.spark.tasks import Task, this_task
from ottla.types import TopicPartition


class Written(WriterCommitMessage):  # type: ignore[misc]  # pyspark's classes are not typed
    """The result of a task."""

    def __init__(self, rows: int, result: TaskResult | None = None) -> None:
        self.rows = rows
        self.result = result
        """Of a batch that is written as a whole: the transaction that the driver has to end."""
        self.files: tuple[str, ...] = ()
        """Of a table, with other rows of the task; the decision about the batch names them."""
        self.table_bytes = 0
        """The size of the rows in these files, in memory."""
        self.read: ReadTask | None = None
        """The task, if it has read the rows that it wrote."""


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
        return self._write_task(iterator)

    def _write_task(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        if self._scope is None:
            return Written(write_batches(self._options, iterator))
        task = self._find_task()
        turn = self._task_batch(task)
        with cached_connections(self._options.client) as links, task.held():
            once = self._options.once
            if once.output is not None:
                claim_output(links, f"{once.prefix}{once.output}-owner", turn.query, once.timeout_ms)
            return self._write_transactional(links, task, turn, iterator)

    def _find_task(self) -> Task:
        """The running task, with the batch that `write_batch` names where Spark does not."""
        task, running = this_task(), self._options.once.running
        return task if running is None else task.in_batch(RunningBatch.parse(running))

    def _make_calls(self, links: ConnectionCache, turn: TaskBatch, sources: Positions) -> BatchCalls:  # noqa: ARG002 - for tests
        once = self._options.once
        return BatchCalls(links, once.timeout_ms, sources, demands_offsets=once.offsets == "true")

    def _make_attempt(self, links: ConnectionCache, turn: TaskBatch) -> TransactionalWrite:
        return TransactionalWrite(links, self._options, turn, self.safeguards)

    def _task_batch(self, task: Task) -> TaskBatch:
        once = self._options.once
        query, batch = (once.job, 0) if once.job is not None else task.query_batch()
        return TaskBatch(once.prefix, query, once.sink or DEFAULT_SINK, batch, task.partition)

    def _write_transactional(
        self, links: ConnectionCache, task: Task, turn: TaskBatch, iterator: Iterator[pa.RecordBatch]
    ) -> Written:
        choice = self._choose_scope(links, task, turn, iterator)
        done = None if choice.rest is None else self._find_committed(links, task, turn, choice)
        written = self._write_choice(links, task, turn, choice) if done is None else done
        written.read = _read_task(task)
        return written

    def _find_committed(self, links: ConnectionCache, task: Task, turn: TaskBatch, choice: Choice) -> Written | None:
        """The result of a task whose rows are committed, of a batch whose rest is written as a whole."""
        nothing = TaskResult(rest_of(turn), None, is_open=False, sources={})
        if (marker := find_decided(links, turn, self._options.once.timeout_ms, self.safeguards)) is not None:
            return Written(marker.rows, nothing)
        own = _scan_of(task)
        if own is None or not is_registered(choice.rest or (), own):
            return None
        attempt = self._make_attempt(links, turn)
        # From now on no earlier attempt can commit by partition.
        attempt.fence()
        if (marker := attempt.read_marker()) is None:
            return None
        _check_same_parts(task, turn, marker, choice.rows)
        return Written(marker.rows, nothing)

    def _write_choice(self, links: ConnectionCache, task: Task, turn: TaskBatch, choice: Choice) -> Written:
        sources = Sources(self._options.once, choice.scope, task.notes, lambda: _cluster_id(links))
        whole = choice.scope is Scope.BATCH
        attempt = self._begin_attempt(links, task, turn, choice)

        def found() -> Positions:
            if not whole:
                self._check_parts(links, task, turn)
                attempt.parts = _read_parts(task)
            # 1. Within foreachBatch there may be other writes of the same records: commit no offsets.
            if not self.streaming:
                return {}
            known = sources.known_positions()
            # 2. Called before the id was taken: an earlier attempt may have these offsets in its open transaction, so
            #    that the group's present offsets decide nothing yet.
            if not attempt.has_begun and not attempt.is_part:
                return known
            # 3. The driver commits the offsets of all tasks of a whole batch.
            if attempt.is_part:
                return {}
            # 4. Rows of a whole batch may be of earlier records: never move back. A task of many must not move a
            #    partition that other tasks read as well.
            return attempt.offsets_ahead(known) if whole else attempt.offsets_not_held(known)

        def check() -> None:
            if not whole:
                self._check_rows(task)
                sources.known_positions()

        rows = sources.watch_batches(choice.rows)
        # Where tasks choose, that of partition 0 may be the one that decides about the parts of the others.
        first = (whole or self._may_choose(task)) and not turn.partition and not attempt.is_part
        outcome = write_task_batch(attempt, rows, check, begin_without_rows=first, sources=found)
        if whole or (first and outcome is None):
            known = sources.known_positions() if self.streaming else {}
            return _whole_batch_result(attempt, outcome, known)
        if isinstance(outcome, Marker):  # an earlier attempt wrote them
            _check_same_parts(task, turn, outcome, rows)
            return Written(outcome.rows)
        # By partition the task commits itself: Spark may never call `commit` on the driver, for instance after a crash,
        # and the marker then shows the next attempt that the rows are there.
        if outcome is not None:
            attempt.commit_prepared(outcome)
        return Written(attempt.rows)

    def _choose_scope(
        self, links: ConnectionCache, task: Task, turn: TaskBatch, rows: Iterator[pa.RecordBatch]
    ) -> Choice:
        assert self._scope is not None
        if not self._may_choose(task):
            return Choice(self._scope, rows)
        return choose_scope(partial(self._make_claim, links, task, turn), rows, lambda: len(_read_ranges(task)))

    def _begin_attempt(self, links: ConnectionCache, task: Task, turn: TaskBatch, choice: Choice) -> TransactionalWrite:
        named = turn if choice.rest is None else rest_of(turn)
        attempt = self._make_attempt(links, named)
        if choice.rest is not None or (choice.scope is Scope.BATCH and turn.partition):
            attempt.become_part(take_part_id(parts_base(named), task.get(RUN), turn.batch))
        if self.safeguards.one_unit:
            attempt.claims = self._make_claims(links, task, turn, choice.scope)
            attempt.fences_before_claims = choice.scope is Scope.PARTITION and self._may_choose(task)
        return attempt

    def _make_claims(self, links: ConnectionCache, task: Task, turn: TaskBatch, scope: Scope) -> tuple[Claims, ...]:
        once = self._options.once
        kind = "stream" if self.streaming else "foreach" if once.job is None else "job"
        reads = not once.stable_rows and not is_adaptive_off(task.get, streaming=self.streaming)
        may_choose = self._may_choose(task)
        scan = _scan_of(task) if may_choose else None
        return claims_of(
            links, turn, scope.value, once.timeout_ms, kind=kind, reads=reads, may_replace=not may_choose, scan=scan
        )

    def _make_claim(self, links: ConnectionCache, task: Task, turn: TaskBatch, scope: Scope) -> Claims:
        return self._make_claims(links, task, turn, scope)[0]

    def _may_choose(self, task: Task) -> bool:
        """Whether a task chooses its unit, because rows may be in other partitions when the batch is run again."""
        once, safe = self._options.once, self.safeguards
        is_auto = self.streaming and once.mode == "auto" and safe.one_unit and safe.stable_rows
        return is_auto and not once.stable_rows and not is_adaptive_off(task.get, streaming=True)

    def _check_rows(self, task: Task) -> None:
        """Check the origin of the rows, when the first have come."""
        if self.safeguards.stable_rows and not self._options.once.stable_rows:
            check_rows_are_stable(task.get, streaming=self.streaming, parts=len(_read_ranges(task)))

    def _check_parts(self, links: ConnectionCache, task: Task, turn: TaskBatch) -> None:
        """Check again after the last row: more notes may have come while rows were read."""
        if len(_read_ranges(task)) <= 1:
            return
        try:
            self._check_rows(task)
        except UnstableRows as error:
            if not self._may_choose(task):
                raise
            raise refuse_late_ranges(partial(self._make_claim, links, task, turn), error) from None

    def _commit_batch(self, messages: Sequence[Written | None]) -> None:
        """Commit a batch that is written as a whole; runs on the driver. Raises what `commit_batch` raises."""
        results = results_of(messages)
        if not results:
            return
        if any(is_rest(one.turn) for one in results):
            self._commit_rest(messages)
            return
        first, parts = results[0], tuple(one.part for one in results[1:] if one.part is not None)
        if first.turn.partition:
            self._refuse_without_first(results)
            return
        with cached_connections(self._options.client) as links:
            # Partition 0 alone has no list, and has sent its offsets itself.
            sources = merge_sources(results) if parts else {}
            calls = self._make_calls(links, first.turn, sources)
            # An earlier attempt has committed the batch: the rows of this one are not needed.
            if first.part is None:
                abort_parts(calls, parts)
                return
            rows = sum(one.rows for one in messages if one is not None)
            files = tuple(file for one in messages if one is not None for file in one.files)
            batch = Batch(first.turn, rows, parts, files)
            commit_batch(calls, batch, first.part, is_open=first.is_open, safeguards=self.safeguards)

    def _commit_rest(self, messages: Sequence[Written | None]) -> None:
        """Commit what tasks have not committed by partition; runs on the driver."""
        once, rest = self._options.once, [one for one in results_of(messages) if is_rest(one.turn)]
        turn = batch_of(rest[0].turn)
        tasks = Tasks(
            turn,
            [None if one is None else one.read for one in messages],
            [0 if one is None or one.result is None else one.rows for one in messages],
            tuple(one.part for one in rest if one.part is not None),
        )
        with cached_connections(self._options.client) as links:
            claims = claims_of(links, turn, BATCH, once.timeout_ms, kind="stream", reads=True, may_replace=False)[0]
            calls = self._make_calls(links, rest_of(turn._replace(partition=0)), merge_sources(rest))
            commit_rest(links, calls, claims, tasks, once.timeout_ms, self.safeguards)

    def _refuse_without_first(self, results: Sequence[TaskResult]) -> None:
        """Partition 0 was written by itself: no transaction of another task can be part of a whole batch.

        The claim prevents it; without its decision rows would be missing. Raises UnstableRows.
        """
        parts = [one.part for one in results if one.part is not None]
        if not parts:
            return
        with cached_connections(self._options.client) as links:
            abort_parts(self._make_calls(links, results[0].turn, {}), parts)
        raise UnstableRows(
            f"{results[0].turn}: it is a part of a whole batch, and partition 0 is written by itself. The part was "
            "aborted; set exactlyOnce=batch and start the query again"
        )

    def _abort_batch(self, messages: Sequence[Written | None]) -> None:
        """Abort the transactions of a batch that is written as a whole, unless it may be committed."""
        results = results_of(messages)
        rest = [one for one in results if is_rest(one.turn)]
        parts = [one.part for one in rest or results if one.part is not None and (rest or one.turn.partition)]
        first = next((one.part for one in results if one.part is not None and not (rest or one.turn.partition)), None)
        if first is None and not parts:
            return
        with cached_connections(self._options.client) as links:
            calls = BatchCalls(links, self._options.once.timeout_ms)
            turn = (rest or results)[0].turn._replace(partition=0)
            # Only the driver that has failed had the transaction that decides about a rest.
            if not rest or calls.is_undecided(turn):
                abort_batch(calls, turn, first, parts)


def _whole_batch_result(attempt: TransactionalWrite, outcome: Marker | Prepared | None, sources: Positions) -> Written:
    """The result of a task of a whole batch."""
    if isinstance(outcome, Marker):
        return Written(outcome.rows, TaskResult(attempt.turn, None, is_open=False, sources={}))
    # Partition 0 decides also when it has no rows itself: the driver then needs its id.
    prepared = outcome if attempt.is_part or outcome is not None else attempt.identity()
    return Written(attempt.rows, TaskResult(attempt.turn, prepared, outcome is not None, sources))


def results_of(messages: Sequence[Written | None]) -> list[TaskResult]:
    """The results of the tasks of a whole batch, in the order of their partitions."""
    found = [one.result for one in messages if one is not None and one.result is not None]
    return sorted(found, key=lambda result: result.turn.partition)


def _read_ranges(task: Task) -> set[tuple[TopicPartition, int]]:
    """The ranges that the task has read, from its notes."""
    return {(one.tp, one.offset) for one in task.notes()}


def _place_of(task: Task) -> Place | None:
    """Where the task's input is in the plan, if it has one input."""
    places = {one.place for one in task.notes()}
    return next(iter(places)) if len(places) == len(_read_ranges(task)) == 1 else None


def _scan_of(task: Task) -> Scan | None:
    return None if (place := _place_of(task)) is None else scan_of(place, task.partition, task.get(RUN))


def _read_task(task: Task) -> ReadTask | None:
    place = _place_of(task)
    return None if place is None else ReadTask(place.scan, task.partition - place.number, place.number)


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


class BatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]
    """The writer of `df.write`."""

    streaming = False

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options, batch_scope(options))

    def commit(self, messages: Sequence[Written | None]) -> None:
        """Commit a whole batch."""
        self._commit_batch(messages)

    def abort(self, messages: Sequence[Written | None]) -> None:
        """Abort the transactions of a whole batch; other rows stay written."""
        self._abort_batch(messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The writer of one batch of `df.writeStream`."""

    streaming = True

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options, stream_scope(options))

    def commit(self, messages: Sequence[Written | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's names
        """Commit a whole batch."""
        self._commit_batch(messages)

    def abort(self, messages: Sequence[Written | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Abort the transactions of a whole batch; other rows stay written."""
        self._abort_batch(messages)
