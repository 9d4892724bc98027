"""Each change that an author can make between two runs, at each place where a batch can stop: the batch ends with every
row once, or the change is refused by name and the batch can still be finished as it was begun.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import pytest
from tests.spark.authors import Place, Query, Version

from ottla.spark.errors import BadCheckpoint, ChangedUnit, OffsetsOutside, StaleDriver, UnstableRows
from ottla.spark.safeguards import SinkSafeguards
from ottla.types import TopicPartition

pytestmark = [pytest.mark.slow, pytest.mark.interop]

PLACES = (
    Place("before any task"),
    Place("a task has its id", ("begun",)),
    Place("a task has written", ("prepared",)),
    Place("one of two tasks has ended", ("ended",)),
    Place("one has ended, one has written", ("ended", "prepared")),
    Place("the second has ended, the first has written", ("prepared", "ended")),
    Place("all tasks have ended", driver="all"),
    Place("the decision is sent", driver="sent"),
    Place("the driver has committed", driver="committed"),
    Place("the batch is finished", driver="logged"),
)
ENDED, COMMITTED = PLACES[3], PLACES[8]
LEFT = ("dead", "wakes before", "wakes after")
"""Whether the tasks of a stopped run are dead, or wake up before or after the next run."""

ONCE, TWICE, UNNOTICED = "", "twice", "unnoticed"
"""Outcomes of a change that is not refused: every row once; none missing; "not noticed" in docs/pyspark.md."""
CHANGED, UNSTABLE = "ChangedUnit", "UnstableRows"
"""How a change is refused once a task has ended."""


class Change(NamedTuple):
    """The author's first version, and the changed one."""

    name: str
    first: Version
    then: Version
    outcome: str = ONCE


READ = Version()
WHOLE = Version("batch", "one")
SHUFFLED = Version(spread="two", adaptive=False)
UNION = Version(spread="union")
MOVED = Version(spread="two")
"""A shuffle with adaptive execution, for which `auto` chooses whole batches."""
SEVERAL = Version("batch", "two")
TASKS = Version("partition")
UNADAPTIVE = Version(adaptive=False)
FOREACH = Version("partition", foreach=True, sink="counts")
CHANGES = (
    Change("nothing", READ, READ),
    Change("nothing in whole batches", WHOLE, WHOLE),
    Change("nothing after a shuffle", SHUFFLED, SHUFFLED),
    Change("nothing in a union", UNION, UNION),
    Change("nothing in foreachBatch", FOREACH, FOREACH),
    Change("tasks to whole batches", READ, WHOLE, CHANGED),
    Change("whole batches to tasks", WHOLE, READ),
    Change("whole batches of several tasks to tasks", SEVERAL, TASKS),
    Change("tasks to whole batches of several tasks", TASKS, SEVERAL, CHANGED),
    Change("nothing after an adaptive shuffle", MOVED, MOVED),
    Change("an adaptive shuffle", READ, MOVED, UNSTABLE),
    Change("no adaptive shuffle any more", MOVED, READ),
    Change("an adaptive shuffle to tasks", MOVED, TASKS),
    Change("another number of partitions of an adaptive shuffle", MOVED, Version(spread="three")),
    Change("exactly once to at least once", READ, Version("off"), TWICE),
    Change("at least once to exactly once", Version("off"), READ, TWICE),
    Change("whole batches to at least once", WHOLE, Version("off"), TWICE),
    Change("coalesce", READ, Version(spread="coalesced"), UNSTABLE),
    Change("a shuffle", READ, SHUFFLED, CHANGED),
    Change("no shuffle any more", SHUFFLED, READ, CHANGED),
    Change("no adaptive execution", READ, UNADAPTIVE),
    Change("adaptive execution", UNADAPTIVE, READ),
    Change("the number of partitions of a shuffle", SHUFFLED, Version(spread="three", adaptive=False), UNNOTICED),
    Change("partitions of the output", READ, Version(partitions=3)),
    Change("topic of the output", READ, Version(topic=1)),
    Change("topic of the output, whole batches", WHOLE, WHOLE._replace(topic=1)),
    Change("the expression", READ, Version(text="b")),
    Change("the name of the sink", READ, Version(sink="other"), CHANGED),
    Change("the prefix", READ, Version(prefix="other-"), CHANGED),
    Change("the prefix, whole batches", WHOLE, WHOLE._replace(prefix="other-"), CHANGED),
    Change("offsets inside", Version(offsets="false"), READ),
    Change("offsets demanded", READ, Version(offsets="true")),
    Change("offsets outside", READ, Version(offsets="false")),
    Change("the group", READ, Version(group="others")),
    Change("one more source", READ, Version(reads=(0, 1))),
    Change("a union", READ, UNION, UNNOTICED),
    Change("no union any more", UNION, READ, UNNOTICED),
    Change("foreachBatch", READ, FOREACH._replace(sink="sink"), CHANGED),
    Change("no foreachBatch any more", FOREACH._replace(sink="sink"), READ, CHANGED),
    Change("foreachBatch under another name", READ, FOREACH, CHANGED),
    Change("whole batches to foreachBatch", WHOLE, FOREACH, CHANGED),
    Change("foreachBatch to whole batches", FOREACH, WHOLE, CHANGED),
    Change("foreachBatch, tasks to whole batches", FOREACH, FOREACH._replace(unit="batch", spread="one"), CHANGED),
    Change("foreachBatch, whole batches to tasks", FOREACH._replace(unit="batch", spread="one"), FOREACH),
    Change("the name of a write in foreachBatch", FOREACH, FOREACH._replace(sink="other"), UNNOTICED),
)


class Found(NamedTuple):
    """The outcome of a change."""

    refused: str
    missing: list[str]
    twice: list[str]
    ahead: list[TopicPartition]
    """Where a group was past rows that were not committed, at any moment."""


def change_over(topics: Any, change: Change, place: Place, left: str) -> Found:
    """A batch that stops at a place, the change, and the next batch."""
    query = Query(topics)
    query.run(change.first, place, asleep=left != "dead")
    ahead, refused = query.ahead(), ""
    if left == "wakes before":
        query.wake()
    try:
        query.run(change.then)
    except (ChangedUnit, UnstableRows) as error:
        refused = type(error).__name__
        query.wake()
        query.run(change.first)  # which is the next step in the error
    query.wake()
    ahead += query.ahead()
    query.more()
    query.run(change.then if change.outcome != UNSTABLE else change.first)
    return Found(refused, *query.counts(), [*ahead, *query.ahead()])


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """With open transactions of dead tasks, whose offsets are committed later."""
    monkeypatch.setattr("ottla.spark.group_offsets._PATIENCE_MS", 100)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_after_a_change_every_row_is_there_once_or_it_is_refused(topics: Any, change: Change) -> None:
    for place in PLACES:
        stays = {"begun", "prepared"} & {*place.tasks} or place.driver == "all"
        for left in LEFT if stays else LEFT[:1]:
            found = change_over(topics, change, place, left)
            where = f"{place.name}, {left}: {found}"
            assert not found.ahead or change.outcome == UNNOTICED, where
            assert found.refused in ("", change.outcome), where
            if place == ENDED:
                assert found.refused == (change.outcome if change.outcome in (CHANGED, UNSTABLE) else ""), where
                assert found.missing or found.twice or change.outcome != UNNOTICED, f"docs/pyspark.md: {where}"
            assert not found.missing or change.outcome == UNNOTICED, where
            assert not found.twice or change.outcome in (TWICE, UNNOTICED), where


def test_a_batch_that_reads_what_the_next_query_does_not_read_is_finished_first(topics: Any) -> None:
    """Another query in the same directory: its checkpoint determines what the batch reads."""
    query = Query(topics)
    query.run(READ, ENDED)
    query.run(Version(reads=(1,)))
    assert query.counts() == ([], [])
    with pytest.raises(BadCheckpoint, match="use a new checkpoint directory"):
        query.run(Version(reads=(1,)))


def test_a_task_with_other_partitions_than_its_marker_is_refused(topics: Any) -> None:
    """As with coalesce, without adaptive execution: the rows of the second task would be left out."""
    query = Query(topics)
    query.run(UNADAPTIVE, ENDED)
    with pytest.raises(ChangedUnit, match="other partitions of the source"):
        query.run(UNADAPTIVE._replace(spread="coalesced"))
    query.run(UNADAPTIVE)
    assert query.counts() == ([], [])


def test_a_driver_with_an_older_batch_than_the_claim_is_refused(topics: Any) -> None:
    """Nothing of the later batch is committed yet, so that there is no marker of it."""
    query = Query(topics)
    query.batch = 1
    query.run(READ, Place("claimed", ("prepared",)))
    query.batch = 0
    with pytest.raises(StaleDriver, match="batch 1 is being written already"):
        query.run(READ)


def test_offsets_that_are_demanded_of_a_union_are_refused(topics: Any) -> None:
    query = Query(topics)
    with pytest.raises(OffsetsOutside, match="read in several places"):
        query.run(UNION._replace(offsets="true"))


MIXED = Version(spread="mixed")


def test_tasks_with_their_own_rows_write_parts_of_a_batch_that_another_task_claimed(topics: Any) -> None:
    query = Query(topics)
    query.run(MIXED, Place("the task with rows of others", ("prepared",)))
    query.run(MIXED)
    query.more()
    query.run(MIXED._replace(spread="mixed, own rows first"))  # as the last batch: a whole one
    assert query.counts() == ([], [])


def test_a_task_that_began_by_partition_commits_nothing_into_a_whole_batch(topics: Any) -> None:
    query = Query(topics)
    query.run(READ, Place("its own rows are sent", ("begun",)), asleep=True)
    query.run(MIXED)
    query.wake()
    assert query.counts() == ([], [])


def test_a_claim_of_the_whole_batch_stays_when_a_task_that_began_by_partition_wakes_up(topics: Any) -> None:
    query = Query(topics)
    query.run(READ, Place("the second task's own rows are sent", ("", "begun")), asleep=True)
    query.run(MIXED, Place("the first task has claimed the batch", ("prepared",)))
    query.wake()
    query.run(MIXED)
    assert query.counts() == ([], [])


def test_a_task_that_reads_several_ranges_one_after_the_other_writes_a_whole_batch_when_it_runs_again(
    topics: Any,
) -> None:
    query, coalesced = Query(topics), Version(spread="coalesced", late=True)
    with pytest.raises(UnstableRows, match="start the query again"):
        query.run(coalesced)
    query.run(coalesced)
    query.more()
    query.run(coalesced)
    assert query.counts() == ([], [])


SAME_NAMES = ("foreachBatch", "no foreachBatch any more")
"""Refused, and would do no harm, as these writes have the names of the ones before them by chance."""
HARMFUL = [change for change in CHANGES if change.outcome == CHANGED and change.name not in SAME_NAMES]


@pytest.mark.parametrize("change", HARMFUL, ids=lambda change: change.name)
def test_without_the_claim_a_change_loses_rows_or_writes_them_twice(topics: Any, change: Change) -> None:
    """The safeguard is proved: the test above would notice."""
    query = Query(topics, SinkSafeguards(one_unit=False))
    query.run(change.first, COMMITTED if change.first.unit == "batch" else ENDED)
    with contextlib.suppress(ChangedUnit):
        query.run(change.then)
    assert query.counts() != ([], [])
