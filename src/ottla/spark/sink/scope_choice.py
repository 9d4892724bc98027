"""The unit that a task of a stream with `exactlyOnce=auto` chooses: its own rows, or its part of the whole batch.

Zone: real. Rows that are read in the task that writes them are written by partition. Otherwise rows may be in other
partitions when Spark runs the batch again, and then the batch is written as a whole. A task does not know the plan, so
that all tasks of a batch agree by its claim (`task_claims`):

1. A task with rows of others claims the batch as a whole before it sends any. A task that had begun to write its own
   rows finds that when it claims the batch, and has committed nothing: its next attempt writes a part of the batch.
2. If the batch is claimed by partition, other tasks may have committed. Then it claims the rest of the batch
   (`mixed_batches`).
3. In the first batch of a query each task claims before it sends rows, so that tasks which begin together agree without
   another attempt. Otherwise tasks with their own rows claim when they commit: not all of them at the same time.
4. Later batches are written as the last claimed batch if that was not written by partition, so that tasks need not
   agree again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import pyarrow as pa

from ottla.spark.errors import ChangedUnit, UnstableRows
from ottla.spark.sink.claimed_scans import Scan
from ottla.spark.sink.sink_options import Scope
from ottla.spark.sink.task_claims import BATCH, PARTITION, Claim, Claims


class Choice(NamedTuple):
    """The scope of one task, and its rows, of which some have come already."""

    scope: Scope
    rows: Iterator[pa.RecordBatch]
    rest: Sequence[Scan] | None = None
    """Not None: the task writes a part of the rest of the batch; these scans have tasks that may have committed."""


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
    unit = _choose_unit(make_claims(Scope.PARTITION), is_stable=count_ranges() == 1, has_rows=first is not None)
    if unit == PARTITION:
        return found
    # A task without rows has nothing to claim: the batch may also be written by partition.
    claim = None if first is None else claim_whole_batch(make_claims)
    if claim is None and first is not None:
        return found
    rest = None if (unit if claim is None else claim.unit) == BATCH else (claim.scans if claim else None) or ()
    return found._replace(scope=Scope.BATCH, rest=rest)


def _choose_unit(claims: Claims, *, is_stable: bool, has_rows: bool) -> str:
    unit = claims.choose_unit(is_stable=is_stable, has_rows=has_rows)
    if unit != PARTITION or not (is_stable and has_rows and claims.is_first):
        return unit
    try:
        claims.write_claim()
    except UnstableRows:  # claimed as a whole meanwhile
        return claims.choose_unit(is_stable=is_stable, has_rows=has_rows)
    return unit


def claim_whole_batch(make_claims: Callable[[Scope], Claims]) -> Claim | None:
    """Claim the batch as a whole, or what is not committed of a batch that is claimed by partition.

    None: that is not known. Raises the errors of claims.
    """
    claims = make_claims(Scope.BATCH)
    try:
        claims.write_claim()
    except ChangedUnit:
        return None
    return claims.claimed


def refuse_late_ranges(make_claims: Callable[[Scope], Claims], refused: UnstableRows) -> UnstableRows:
    """The error for a task that has read more ranges after it had chosen to write by partition, as with coalesce.

    The next attempt writes the batch as a whole, if the batch can still be claimed.
    """
    if claim_whole_batch(make_claims) is None:
        return refused
    return UnstableRows(
        "the rows of one task were read from several partitions, as with coalesce, which was known only after it had "
        "begun to write by partition. Nothing of it is committed; the next attempt writes the batch as a whole: start "
        "the query again. Set exactlyOnce=batch to write whole batches from the beginning"
    )
