"""Batches that are claimed by partition when a task with rows of others begins: what is not committed then, the rest,
is written as a whole.

Zone: real. A task that reads its rows may have committed them, and a task with rows of others cannot: Spark may put
those into other partitions when it runs the batch again. So the claim of the batch changes once, from then on no task
commits by itself, and the driver commits the rest like a whole batch, under names of its own.

1. A task that commits by partition registers its scan in the claim first. It takes its transactional id before it reads
   the claim. So when a task of the rest has taken the id and finds no marker, no other attempt can commit under it.
2. Each task whose scan is registered either finds its rows committed, or writes a part of the rest.
3. Before its decision the driver looks at the ids of the registered tasks that this run does not have, and takes them.
   Where it finds a marker, a shuffle before the scan has another number of partitions now: the same input of the scan
   was read by another task, whose part has the committed rows again and is aborted. Where that task is not known, the
   plan is another, and nothing is committed.
4. The decision is about all rows of the batch. A later run finds it, ends the parts and writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.client.batch_transaction import BatchTransaction, ConnectionCache
from ottla.client.stable_positions import present_positions
from ottla.spark.errors import StaleDriver, UnstableRows
from ottla.spark.safeguards import ALL_ON, SinkSafeguards
from ottla.spark.sink.batch_decision import REST, Batch, Part, abort_parts, commit_batch
from ottla.spark.sink.claimed_scans import ReadTask, Scan, are_ambiguous, moved_task
from ottla.spark.sink.exactly_once import MARKER, Marker, TaskBatch, already_written, parse_marker
from ottla.spark.sink.task_claims import Claims
from ottla.spark.sink.whole_batches import BatchCalls, finish_decided


def rest_of(turn: TaskBatch) -> TaskBatch:
    """The identity of a task's part of the rest: the rest has names as if it were written by another sink."""
    return turn._replace(sink=turn.sink + REST)


def batch_of(rest: TaskBatch) -> TaskBatch:
    """Inverse of `rest_of`."""
    return rest._replace(sink=rest.sink.removesuffix(REST))


def is_rest(turn: TaskBatch) -> bool:
    """Whether a task wrote a part of the rest of a batch."""
    return turn.sink.endswith(REST)


def find_decided(
    links: ConnectionCache, turn: TaskBatch, timeout_ms: int, safeguards: SinkSafeguards = ALL_ON
) -> Marker | None:
    """The marker of a batch whose rest is committed. That of partition 0 also ends what its driver has left open.

    Raises StaleDriver, IncompleteBatch, BadCheckpoint and the client's errors.
    """
    rest = rest_of(turn._replace(partition=0))
    found = present_positions(links.coordinators.groups, rest.name, [MARKER]).get(MARKER)
    marker = parse_marker(found, rest.name)
    if turn.partition:
        # It may miss a commit of this moment: the driver finds it.
        return marker if already_written(rest, marker) else None
    if not already_written(rest, marker):
        # A driver may have died before the end of the transaction. Taking its id ends that, instead of waiting for it.
        _, marker = _take_id(links, rest, timeout_ms)
    if marker is not None:
        finish_decided(links, rest, marker, timeout_ms, safeguards)
    return marker


class Tasks(NamedTuple):
    """The tasks of the run that ends a batch, as the driver knows them."""

    batch: TaskBatch
    """The batch, in any of its tasks."""
    read: Sequence[ReadTask | None]
    """By partition; None: the task has rows of others, or none."""
    rows: Sequence[int]
    """Of the parts, by partition; 0 for a task without a part."""
    parts: tuple[Part, ...]

    def without(self, partitions: frozenset[int]) -> Tasks:
        """The same without the rows and the parts of these tasks."""
        rows = [0 if partition in partitions else count for partition, count in enumerate(self.rows)]
        return self._replace(rows=rows, parts=tuple(part for part in self.parts if part.partition not in partitions))


def commit_rest(
    links: ConnectionCache,
    calls: BatchCalls,
    claims: Claims,
    tasks: Tasks,
    timeout_ms: int,
    safeguards: SinkSafeguards = ALL_ON,
) -> None:
    """Commit the rest of a batch. claims: those of the batch.

    Raises UnstableRows and StaleDriver before anything is committed, what `commit_batch` raises, and the client's
    errors.
    """
    rest = rest_of(tasks.batch._replace(partition=0))
    transaction, marker = _take_id(links, rest, timeout_ms)
    if marker is not None:
        # An earlier run has committed the batch: the rows of this one are not needed.
        finish_decided(links, rest, marker, timeout_ms, safeguards)
        abort_parts(calls, tasks.parts)
        return
    if not tasks.parts:
        return
    try:
        scans = claims.read_scans() if safeguards.committed_checked else ()
        committed = _find_committed_again(links, tasks, scans, timeout_ms)
    except (UnstableRows, StaleDriver):
        abort_parts(calls, tasks.parts)
        raise
    abort_parts(calls, [part for part in tasks.parts if part.partition in committed])
    tasks = tasks.without(committed)
    if tasks.parts:
        decider = Part(0, *transaction.prepared_transaction())
        commit_batch(calls, Batch(rest, sum(tasks.rows), tasks.parts), decider, is_open=False, safeguards=safeguards)


def _find_committed_again(
    links: ConnectionCache, tasks: Tasks, scans: Sequence[Scan], timeout_ms: int
) -> frozenset[int]:
    """The tasks of this run whose parts have rows that tasks of an earlier run have committed by partition.

    Raises UnstableRows if some of the committed rows are in parts of tasks that are not known.
    """
    present = {task: partition for partition, task in enumerate(tasks.read) if task is not None}
    if scans and are_ambiguous(present, (partition for partition, task in enumerate(tasks.read) if task is None)):
        raise UnstableRows(_changed_text(tasks.batch, "two places of the plan read the same records after a shuffle"))
    found = set()
    for scan in scans:
        for number, partition in enumerate(scan.tasks):
            if ReadTask(scan.name, scan.first, number) in present:
                continue
            _, marker = _take_id(links, tasks.batch._replace(partition=partition), timeout_ms)
            if marker is None:
                continue
            now = moved_task(scans, present, scan, number)
            if now is None:
                why = f"the rows of partition {partition} are in other tasks now"
                raise UnstableRows(_changed_text(tasks.batch, why))
            found.add(present[now])
    return frozenset(found)


def _take_id(links: ConnectionCache, turn: TaskBatch, timeout_ms: int) -> tuple[BatchTransaction, Marker | None]:
    transaction = BatchTransaction(links, turn.name, timeout_ms)
    transaction.fence_producer()
    marker = parse_marker(transaction.committed_position(turn.name, MARKER), turn.name)
    return transaction, marker if already_written(turn, marker) else None


def _changed_text(turn: TaskBatch, why: str) -> str:
    return (
        f"batch {turn.batch} of {turn.query} is committed in part, by tasks that read the rows that they write, and "
        f"{why}: rows would be written twice. Nothing was written. Start the query as it was, until this batch is "
        "finished; or, if records may be written twice, finish it with exactlyOnce=off. Set exactlyOnce=batch to write "
        "whole batches from the beginning"
    )
