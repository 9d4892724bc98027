"""The unit that a task of a stream with `exactlyOnce=auto` chooses: its own rows, or its part of the whole batch.

Zone: real. Rows that are read in the task that writes them are written by partition. Otherwise rows may be in other
partitions when Spark runs the batch again, and then the batch is written as a whole. A task does not know the plan, so
that all tasks of a batch agree by its claim (`task_claims`):

1. A task with rows of others claims the batch as a whole before it sends any. A task that had begun to write its own
   rows finds that when it claims the batch, and has committed nothing: its next attempt writes a part of the batch.
2. After a claim by partition, rows of others are refused (`UnstableRows`), because other tasks may have committed.
3. Later batches are written as the last claimed batch if that was a whole one, so that tasks need not agree again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

import pyarrow as pa

from ottla.spark.errors import ChangedUnit, UnstableRows
from ottla.spark.sink.sink_options import Scope
from ottla.spark.sink.task_claims import BATCH, Claims


class Choice(NamedTuple):
    """The scope of one task, and its rows, of which some have come already."""

    scope: Scope
    rows: Iterator[pa.RecordBatch]


def choose_scope(
    make_claims: Callable[[Scope], Claims], rows: Iterator[pa.RecordBatch], count_ranges: Callable[[], int]
) -> Choice:
    """Choose the scope when the first rows have come: the task's readers have left their notes by then.

    make_claims: the claim of the batch in a scope. count_ranges: how many ranges of topics the task has read so far.
    Raises the errors of claims.
    """
    coming = (batch for batch in rows if batch.num_rows)
    first = next(coming, None)
    found = Choice(Scope.PARTITION, chain([] if first is None else [first], coming))
    if make_claims(Scope.PARTITION).choose_unit(is_stable=count_ranges() == 1) != BATCH:
        return found
    # A task without rows has nothing to claim: the batch may also be written by partition.
    if first is None or claim_whole_batch(make_claims):
        return found._replace(scope=Scope.BATCH)
    return found


def claim_whole_batch(make_claims: Callable[[Scope], Claims]) -> bool:
    """Claim the batch as a whole; False if it is claimed by partition. Raises the errors of claims."""
    try:
        make_claims(Scope.BATCH).write_claim()
    except ChangedUnit:
        return False
    return True


def refuse_late_ranges(make_claims: Callable[[Scope], Claims], refused: UnstableRows) -> UnstableRows:
    """The error for a task that has read more ranges after it had chosen to write by partition, as with coalesce.

    The next attempt writes the batch as a whole, if the batch can still be claimed.
    """
    if not claim_whole_batch(make_claims):
        return refused
    return UnstableRows(
        "the rows of one task were read from several partitions, as with coalesce, which was known only after it had "
        "begun to write by partition. Nothing of it is committed; the next attempt writes the batch as a whole: start "
        "the query again. Set exactlyOnce=batch to write whole batches from the beginning"
    )
