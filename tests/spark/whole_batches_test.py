"""A batch of several tasks that is written as a whole, without Spark: against Ottla and Apache Kafka."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.spark.attempts import Bench

from ottla.client.batch_transaction import Prepared, end_transaction
from ottla.spark.errors import ExpiredTransaction, Fenced, IncompleteBatch, UnstableRows
from ottla.spark.sink import batch_decision
from ottla.spark.sink.batch_decision import Part, abort_batch, parts_base
from ottla.spark.sink.exactly_once import Marker, TaskBatch
from ottla.spark.sink.part_ids import PartIds, take_part_id
from ottla.spark.sink.task_claims import claims_of
from ottla.spark.sink.transactional_write import TransactionalWrite, write_task_batch
from ottla.spark.sink.whole_batches import BatchCalls, TaskResult, finish_decided
from ottla.spark.sink.writers import StreamWriter, Written

pytestmark = [pytest.mark.slow, pytest.mark.interop]
VALUES = [["a", "b"], ["c"], ["d", "e", "f"]]
ALL = Counter("abcdef")


class Killed(Exception):
    """The driver is gone."""


class DiesAfterDecision(BatchCalls):
    def commit_part(self, part: Part) -> bool:
        raise Killed(part.name)


def prepared(bench: Bench, batch: int = 0) -> list[TaskResult]:
    return [bench.part(number, values, batch) for number, values in enumerate(VALUES)]


def decided(bench: Bench) -> list[TaskResult]:
    """A batch whose driver has died after the decision."""
    results = prepared(bench)
    with pytest.raises(Killed):
        bench.commit_parts(results, bench.calls(DiesAfterDecision))
    return results


def abort(bench: Bench, what: Prepared | None) -> None:
    assert what is not None
    end_transaction(bench.links(), what, commit=False)


def marker_of(bench: Bench) -> Marker:
    attempt = bench.attempt(0)
    attempt.fence()
    found = attempt.read_marker()
    assert found is not None
    return found


def test_rows_of_all_tasks_are_seen_when_the_batch_is_committed(bench: Bench) -> None:
    results = prepared(bench)
    assert not bench.committed()
    bench.commit_parts(results)
    assert bench.committed() == ALL
    assert all(bench.part(number, ["again"]).prepared is None for number in range(3)), "it is done for every task"


def test_the_first_task_need_not_have_rows(bench: Bench) -> None:
    results = [bench.part(0, []), bench.part(1, []), bench.part(2, ["a"])]
    assert results[1].prepared is None
    bench.commit_parts(results)
    assert bench.committed() == Counter("a")
    assert bench.part(0, []).prepared is None
    bench.commit_parts([bench.part(0, [], 1), bench.part(1, [], 1)])


@pytest.mark.parametrize("longest", [3_800, 60])
def test_the_next_attempt_ends_what_a_driver_has_decided(
    bench: Bench, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_decision, "_LONGEST", longest)
    decided(bench)
    assert bench.committed() != ALL
    assert bench.part(0, ["again"]).prepared is None
    assert bench.committed() == ALL
    assert marker_of(bench).lists == (1 if longest > 60 else 2)
    bench.commit_parts(prepared(bench, 1))
    assert bench.committed() == ALL + ALL


def test_a_transaction_that_was_aborted_before_the_decision_stops_it(bench: Bench) -> None:
    results = prepared(bench)
    abort(bench, results[1].prepared)
    with pytest.raises(ExpiredTransaction, match=r"partitions 1 .*transaction\.timeout\.ms"):
        bench.commit_parts(results)
    assert not bench.committed()
    bench.commit_parts(prepared(bench))
    assert bench.committed() == ALL


def test_a_transaction_that_was_aborted_after_the_decision_is_reported_at_each_start(bench: Bench) -> None:
    results = decided(bench)
    abort(bench, results[2].prepared)
    for _ in range(2):
        with pytest.raises(IncompleteBatch, match=r"batch 0 .*rows of partitions 2 are missing"):
            bench.part(0, ["again"])
    assert bench.committed() == Counter("abc"), "the others are ended all the same"
    bench.commit_parts(prepared(bench, 1))  # after batch 0 was finished in another way
    assert bench.committed() == Counter("abc") + ALL


def test_an_id_that_is_in_use_again_is_no_missing_transaction(bench: Bench) -> None:
    results = prepared(bench)
    bench.commit_parts(results)
    assert results[1].prepared is not None
    bench.part(1, ["open"], 1, results[1].prepared.transactional_id)
    turn = results[0].turn
    finish_decided(bench.links(), turn, marker_of(bench), 60_000)


def test_a_driver_that_was_overtaken_commits_nothing_and_its_transactions_are_aborted(bench: Bench) -> None:
    late, present = prepared(bench), prepared(bench)
    bench.commit_parts(present)
    with pytest.raises(ExpiredTransaction, match="second driver"):
        bench.commit_parts(late)
    with pytest.raises(Fenced):
        bench.commit_parts(late[:1])
    abort_batch(bench.calls(), late[0].turn, late[0].part, [one.part for one in late[1:] if one.part is not None])
    assert bench.committed() == ALL
    bench.commit_parts(prepared(bench, 1))
    assert bench.committed() == ALL + ALL


def test_transactions_of_attempts_that_lost_hold_up_no_reader(bench: Bench) -> None:
    lost = bench.part(1, ["lost"])
    bench.commit_parts(prepared(bench))
    assert bench.committed() == ALL, "read up to the end of the log"
    assert lost.part is not None
    assert not bench.calls().commit_part(lost.part)


def test_an_abort_leaves_a_decided_batch_alone(bench: Bench) -> None:
    results = decided(bench)
    parts = [one.part for one in results[1:] if one.part is not None]
    abort_batch(bench.calls(), results[0].turn, results[0].part, parts)
    assert bench.part(0, []).prepared is None
    assert bench.committed() == ALL


def test_an_abort_ends_all_transactions_of_a_batch_that_is_not_decided(bench: Bench) -> None:
    results = prepared(bench)
    parts = [one.part for one in results[1:] if one.part is not None]
    abort_batch(bench.calls(), results[0].turn, results[0].part, parts)
    bench.commit_parts(prepared(bench))
    assert bench.committed() == ALL


def claimed(bench: Bench, unit: str, partition: int) -> TransactionalWrite:
    attempt = bench.attempt(0, partition)
    attempt.claims = claims_of(bench.links(), attempt.turn, unit, 60_000, kind="stream", reads=False)
    return attempt


def test_a_query_that_writes_by_partition_ends_what_was_decided_as_a_whole(bench: Bench) -> None:
    """The plan was changed between two starts: both units share the marker of partition 0."""
    first = claimed(bench, "batch", 0)
    outcome = bench.prepared(first, VALUES[0])
    assert isinstance(outcome, Prepared)
    results = [TaskResult(first.turn, outcome, is_open=True, sources={})]
    results += [bench.part(number, VALUES[number]) for number in (1, 2)]
    with pytest.raises(Killed):
        bench.commit_parts(results, bench.calls(DiesAfterDecision))
    assert isinstance(bench.run(claimed(bench, "partition", 3), ["again"]), Marker)
    assert bench.committed() == ALL
    assert all(isinstance(bench.run(claimed(bench, "partition", n), ["again"]), Marker) for n in range(3))
    assert bench.committed() == ALL


def test_parts_without_the_decision_of_partition_0_are_aborted(bench: Bench) -> None:
    """Claims prevent it. Without the check the first part would be taken for the one that decides."""
    part = bench.part(1, ["a"])
    with pytest.raises(UnstableRows, match="partition 0 is written by itself"):
        StreamWriter(bench.options).commit([Written(1), Written(1, part)], 0)
    assert not bench.calls().list_open(parts_base(part.turn))
    assert not bench.committed()


def test_an_error_in_a_task_leaves_nothing_open(bench: Bench) -> None:
    attempt = bench.attempt(0, 1)
    attempt.become_part(take_part_id(parts_base(attempt.turn), None, 0))

    def failing() -> object:
        raise RuntimeError("in the function of the user")
        yield

    with pytest.raises(RuntimeError):
        write_task_batch(attempt, failing(), lambda: None, begin_without_rows=True)  # type: ignore[arg-type]
    assert not bench.calls().list_open(parts_base(attempt.turn))


def test_ids_are_used_again_in_later_batches_of_a_run_only() -> None:
    base = parts_base(TaskBatch("ottla-", "3f1c", "sink", 0, 0))
    first = [take_part_id(base, "run", 0) for _ in range(3)]
    assert len(set(first)) == 3
    assert all(name.startswith(base) for name in first)
    assert [take_part_id(base, "run", 1) for _ in range(3)] == first
    assert take_part_id(base, "run", 0) not in first, "a late task of an earlier batch"
    assert take_part_id(base, "another", 2) not in first
    assert take_part_id(base, None, 9) != take_part_id(base, None, 9)
    other = PartIds(base)
    assert other.take_id(5) not in first, "another process"
