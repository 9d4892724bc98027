"""Plans in which only some tasks read the rows that they write, with `exactlyOnce=auto`: every row once, wherever a run
stops, whatever wakes up later, and whatever partitions Spark chooses for the shuffle when it runs the batch again.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.spark.authors import Place as Stop
from tests.spark.authors import Query, Version
from tests.spark.planning import logged, stream

from ottla.spark.errors import ChangedUnit, UnstableRows
from ottla.spark.offsets import Place
from ottla.spark.safeguards import ALL_ON, SinkSafeguards
from ottla.spark.sink.claimed_scans import (
    MOST,
    ReadTask,
    Scan,
    are_ambiguous,
    may_register,
    moved_task,
    parse_scans,
    scans_to_json,
)

pytestmark = [pytest.mark.slow, pytest.mark.interop]

STEPS = ("", "begun", "prepared", "ended")
DRIVERS = ("", "all", "sent", "decided", "half", "committed")
LAST, FIRST, UNION = "moved last", "moved first", "moved before a union"
LOADS = "moved before two loads"
OWN_ENDED = {LAST: ("ended",), FIRST: ("", "", "ended"), UNION: ("", "", "ended")}
"""One task with its own rows has committed, of a plan with two tasks of a shuffle."""


def plan(kind: str, shuffled: int = 2) -> Version:
    return Version(spread=f"{shuffled} {kind}")


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.spark.group_offsets._PATIENCE_MS", 100)


@pytest.mark.parametrize("kind", OWN_ENDED)
def test_rows_of_others_come_after_a_task_has_committed_its_own(topics: Any, kind: str) -> None:
    query = Query(topics)
    query.run(plan(kind), Stop("one task has ended", OWN_ENDED[kind]))
    query.run(plan(kind))
    assert query.counts() == ([], [])
    query.more()
    query.run(plan(kind, 3))
    assert query.counts() == ([], [])


@pytest.mark.parametrize("driver", DRIVERS[1:])
@pytest.mark.parametrize("kind", OWN_ENDED)
def test_the_driver_of_the_rest_dies(topics: Any, kind: str, driver: str) -> None:
    query = Query(topics)
    query.run(plan(kind), Stop("one task has ended", OWN_ENDED[kind]))
    for asleep in (False, True) if driver == "all" else (False,):
        query.run(plan(kind), Stop(driver, driver=driver), asleep=asleep)
    query.run(plan(kind))
    query.wake()
    query.more()
    query.run(plan(kind))
    assert query.counts() == ([], [])
    assert query.ahead() == []


@pytest.mark.parametrize("shuffled", [1, 3, 4])
@pytest.mark.parametrize("kind", [FIRST, UNION])
def test_committed_rows_are_found_again_after_a_shuffle_with_another_number_of_partitions(
    topics: Any, kind: str, shuffled: int
) -> None:
    """Tasks after it have other numbers then, and do not find their markers: the driver finds them."""
    query = Query(topics)
    query.run(plan(kind), Stop("one task has ended", OWN_ENDED[kind]))
    query.run(plan(kind, shuffled), Stop("all tasks have ended", driver="all"))
    query.run(plan(kind, shuffled), Stop("decided", driver="decided"))
    query.run(plan(kind, 5 - shuffled))
    query.more()
    query.run(plan(kind, shuffled))
    assert query.counts() == ([], [])
    assert query.ahead() == []


def test_a_batch_whose_own_rows_are_all_committed_is_done_after_such_a_shuffle(topics: Any) -> None:
    query = Query(topics)
    query.run(plan(FIRST), Stop("both have ended", ("", "", "ended", "ended")))
    query.run(plan(FIRST, 1))
    query.more()
    query.run(plan(FIRST, 3))
    assert query.counts() == ([], [])


def test_two_loads_of_one_topic_after_such_a_shuffle_are_refused(topics: Any) -> None:
    """Their scans have one name, so that each may be the one whose rows are committed."""
    query = Query(topics)
    query.run(plan(LOADS), Stop("one task has ended", OWN_ENDED[FIRST]))
    for shuffled in (1, 2, 3, 4):
        with pytest.raises(UnstableRows, match="two places of the plan"):
            query.run(plan(LOADS, shuffled))
    assert not query.counts()[1]


def test_tasks_after_such_a_shuffle_do_not_commit_by_themselves(topics: Any) -> None:
    query = Query(topics)
    query.run(plan(FIRST), Stop("one task has ended", OWN_ENDED[FIRST]))
    query.run(plan(FIRST, 1), Stop("the same rows, in another task", ("", "ended")))
    query.run(plan(FIRST))
    assert query.counts() == ([], [])


def test_without_the_check_of_committed_rows_they_are_written_twice(topics: Any) -> None:
    """The safeguard is proved: the test above would notice."""
    query = Query(topics, SinkSafeguards(committed_checked=False))
    query.run(plan(FIRST), Stop("one task has ended", OWN_ENDED[FIRST]))
    query.run(plan(FIRST, 1))
    assert query.counts()[1]


def commits_late(topics: Any, safeguards: SinkSafeguards = ALL_ON) -> Query:
    """A task has read the claim by partition, and takes its id when a later run has written its rows as a part."""
    query = Query(topics, safeguards)
    query.run(plan(LAST), Stop("one has ended, one is about to begin", ("ended", "fence")), asleep=True)
    query.run(plan(LAST))
    query.wake()
    return query


def test_a_task_that_takes_its_id_late_finds_that_the_rest_is_claimed(topics: Any) -> None:
    assert commits_late(topics).counts() == ([], [])


def test_a_task_that_reads_the_claim_before_it_takes_its_id_writes_rows_twice(topics: Any) -> None:
    """The safeguard is proved: the test above would notice."""
    assert commits_late(topics, SinkSafeguards(fence_first=False)).counts()[1]


def test_tasks_of_a_first_batch_that_begin_together_agree_without_another_attempt(topics: Any) -> None:
    query = Query(topics)
    query.run(plan(LAST), Stop("two tasks write", ("begun",) * 2), asleep=True)
    query.run(plan(LAST), Stop("the others have written", ("", "", "prepared", "prepared")))
    assert not query.wake()
    query.run(plan(LAST))
    assert query.counts() == ([], [])


def test_the_first_task_of_the_next_run_ends_what_a_dead_driver_has_decided(topics: Any) -> None:
    """Not only its driver: tasks that compare what is committed read all of their rows again before that."""
    query = Query(topics)
    query.run(plan(LAST), Stop("one task has ended", OWN_ENDED[LAST]))
    query.run(plan(LAST), Stop("decided", driver="decided"))
    assert query.open_parts()
    query.run(plan(LAST), Stop("one task runs again", ("ended",)))
    assert not query.open_parts()
    query.run(plan(LAST))
    assert query.counts() == ([], [])


def test_a_later_batch_by_partition_ends_parts_that_are_in_no_decision(topics: Any) -> None:
    query = Query(topics)
    query.run(plan(LAST), Stop("one task has ended", OWN_ENDED[LAST]))
    query.run(plan(LAST), Stop("a part is written", ("", "", "prepared")))
    query.run(plan(LAST), Stop("decided", driver="decided"))
    query.run(plan(LAST))
    assert query.open_parts(), "the part of the dead task"
    query.more()
    query.run(Version("partition"))
    assert not query.open_parts()
    assert query.counts() == ([], [])


@pytest.mark.parametrize("once", ["batch", "partition"])
def test_another_mode_does_not_finish_a_batch_of_which_a_rest_is_left(topics: Any, once: str) -> None:
    query = Query(topics)
    query.run(plan(LAST), Stop("one task has ended", OWN_ENDED[LAST]))
    query.run(plan(LAST), Stop("the rest is claimed", ("", "", "prepared")))
    with pytest.raises(ChangedUnit, match="begun with exactlyOnce=auto"):
        query.run(plan(LAST)._replace(unit=once))
    query.run(plan(LAST))
    assert query.counts() == ([], [])


@pytest.mark.parametrize("seed", range(24))
def test_random_deaths_and_plans_write_every_row_once(topics: Any, seed: int) -> None:
    """Each run has another number of shuffled partitions, stops anywhere, and its tasks may wake up later."""
    chance, query = random.Random(seed), Query(topics)
    kind = chance.choice(list(OWN_ENDED))
    for _ in range(chance.randint(1, 5)):
        driver = chance.choice(("", *DRIVERS))
        place = Stop("somewhere", tuple(chance.choice(STEPS) for _ in range(6)), driver)
        with contextlib.suppress(UnstableRows, ChangedUnit):
            query.run(plan(kind, chance.randint(1, 4)), place, asleep=chance.random() < 0.5)
        if chance.random() < 0.3:
            query.wake()
    for _ in range(2):
        query.run(plan(kind, chance.randint(1, 4)))
        query.wake()
        query.more()
    query.run(plan(kind, chance.randint(1, 4)))
    assert query.counts() == ([], [])
    assert query.ahead() == []


def test_the_source_names_a_scan_in_each_run_alike_and_others_of_the_run_differently(topics: Any) -> None:
    topic = topics.make(2)
    for number in range(2):
        topics.put(topic, number, [b"x"])

    def planned() -> list[list[Place]]:
        with stream(topics, subscribe=topic, startingOffsets="earliest") as reader:
            start = logged(reader.initialOffset())
            end = logged(reader.latestOffset(start, ReadAllAvailable()))
            return [[part.place for part in reader.partitions(start, end)] for _ in range(2)]

    first, second = planned()
    assert planned() == [first, second]
    assert [(place.number, place.inputs) for place in first] == [(0, 2), (1, 2)]
    assert len({place.scan for place in [*first, *second]}) == 2


A = Scan("a", 3, 2, "run 1")


def test_a_scan_registers_beside_others_but_not_where_one_of_them_may_have_been() -> None:
    assert may_register([], A)
    assert may_register([A], A)
    assert may_register([A], A._replace(run="run 2"))
    assert may_register([A], Scan("b", 5, 2, "run 1"))
    assert may_register([A], A._replace(first=5)), "read twice in one run: a union"
    assert not may_register([A], A._replace(first=5, run="run 2")), "in another run it may have moved"
    assert not may_register([A._replace(run="")], A._replace(first=5, run="")), "Spark does not name the run"
    assert not may_register([A], Scan("b", 4, 1, "run 1")), "the tasks of another scan"
    assert not may_register([A._replace(first=2 * number) for number in range(MOST)], A._replace(first=999))


def test_two_scans_of_one_name_are_ambiguous_after_a_shuffle() -> None:
    twice = [ReadTask("a", first, 0) for first in (1, 3)]
    assert are_ambiguous(twice, [0])
    assert not are_ambiguous(twice, [5])
    assert not are_ambiguous(twice, [])
    assert not are_ambiguous([*twice[:1], ReadTask("b", 3, 0)], [0])


def test_the_task_that_has_an_input_of_a_moved_scan_is_known_where_its_name_is_there_once() -> None:
    now, other = ReadTask("a", 5, 1), ReadTask("b", 0, 1)
    assert moved_task([A], [now._replace(number=0), now, other], A, 1) == now
    assert moved_task([A], [now._replace(number=0), other], A, 1) is None
    assert moved_task([A], [now, now._replace(first=7)], A, 1) is None, "read twice"
    assert moved_task([A], [now, now._replace(first=7, number=0)], A, 1) is None, "read twice"
    assert moved_task([A, A._replace(first=9)], [now], A, 1) is None, "registered twice"


def test_scans_in_a_claim_are_checked() -> None:
    assert parse_scans(scans_to_json([A])) == (A,)
    assert parse_scans(None) is None
    for said in ([["a", -1, 1, ""]], [["a", 0, 0, ""]], [["a"]], [["a", 0, 1, ""]] * (MOST + 1)):
        with pytest.raises(ValueError):  # noqa: PT011 - the reader of the claim names the position
            parse_scans(said)
