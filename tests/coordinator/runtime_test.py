"""The runtime of coordinators, with a small state machine: appended records are applied, committed ones answered."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
from tests.coordinator.bench import Bench, Ledger

from ottla.config.topic import TopicConfig
from ottla.coordinator.coordinator import RELOAD_MS, Coordinator
from ottla.coordinator.loading import ENTRIES_PER_STEP
from ottla.coordinator.shard import JournalProducer
from ottla.coordinator.shard_runtime import LINE_MS, RETRY_MS, ShardState
from ottla.record.batch import Record, encode_batch
from ottla.sim.disks.drive_faults import DiskOperation
from ottla.sim.machines.machine import Death


def test_a_single_replica_answers_every_command_in_its_turn():
    bench = Bench()
    bench.lead()
    assert bench.ask("put", amount=5) == 5
    assert bench.ask("get") == 5
    assert bench.ask("ping") == "pong"
    assert bench.log.end_offset == 1


def test_a_partition_without_a_leader_has_no_coordinator():
    bench = Bench()
    assert bench.ask("put") == "NOT_COORDINATOR"
    bench.lead()
    bench.ask("put")
    bench.lead(load=False)
    assert bench.ask("get") == "COORDINATOR_LOAD_IN_PROGRESS"
    bench.pass_ms(100)
    assert bench.ask("get", "b") is None
    assert bench.said[-1] == (("get", "b", 0), None)


def test_answers_that_wait_for_a_commit_keep_the_order():
    bench = Bench((1, 2))
    bench.lead()
    assert bench.ask("put", "a", 1) is None
    assert bench.ask("put", "b", 2) is None
    assert bench.ask("get", "a") is None, "a read of what is not committed"
    assert bench.ask("ping") == "pong", "what needs no commit never waits"
    bench.replicate(1)
    assert bench.said[1:] == [(("put", "a", 1), 1)]
    bench.replicate()
    assert bench.said[2:] == [(("put", "b", 2), 2), (("get", "a", 0), 1)]
    assert bench.ask("get", "b") == 2


def test_a_missing_commit_ends_the_wait_with_an_error():
    bench = Bench((1, 2), commit_timeout_ms=3000)
    bench.lead()
    bench.ask("put", "a", 1)
    bench.pass_ms(2000)
    bench.ask("get", "a")
    bench.pass_ms(999)
    assert bench.said == []
    bench.pass_ms(2)
    assert bench.said == [(("put", "a", 1), "COORDINATOR_NOT_AVAILABLE")]
    bench.pass_ms(2000)
    assert bench.said[1:] == [(("get", "a", 0), "COORDINATOR_NOT_AVAILABLE")]
    bench.replicate()
    assert bench.ask("get", "a") == 1, "it was appended, and has been committed since"


def test_a_refused_append_drops_the_whole_decision():
    bench = Bench((1, 2))
    bench.lead(isr=(1,))
    bench.ask("wait", "a", 60_000)
    bench.partition.replicas = (1, 2)  # of which one is in sync
    bench.partition.apply_config(TopicConfig(min_insync_replicas=2))
    assert bench.ask("put", "a", 7) == "COORDINATOR_NOT_AVAILABLE"
    assert bench.said == [(("put", "a", 7), "COORDINATOR_NOT_AVAILABLE")], "the guest waits as before"
    assert list(bench.ledger.guests) == ["a"]
    assert bench.ledger.balances == {}
    assert bench.log.end_offset == 0


@pytest.mark.slow
def test_a_decision_larger_than_a_batch_is_refused():
    bench = Bench()
    bench.lead()
    assert bench.ask("fill", "a", 100_000) == "MESSAGE_TOO_LARGE"
    assert bench.ledger.balances == {}
    assert bench.ask("put", "a", 1) == 1


def test_a_failing_disk_ends_the_coordinator():
    bench = Bench()
    bench.lead()
    bench.faults.arm_error(DiskOperation.APPEND)
    assert bench.ask("put") == "NOT_COORDINATOR"
    assert bench.ledger.balances == {}
    bench.ask("wait", "a", 60_000)
    bench.turn(bench.partition.go_offline)
    assert bench.said[-1] == (("wait", "a", 60_000), "NOT_COORDINATOR")


def test_lost_leadership_answers_not_coordinator_to_all_waiting_requests():
    bench = Bench((1, 2))
    bench.lead()
    bench.ask("put", "a", 1)
    bench.ask("get", "a")
    bench.ask("wait", "b", 60_000)
    bench.follow()
    assert sorted(bench.said) == [
        (("get", "a", 0), "NOT_COORDINATOR"),
        (("put", "a", 1), "NOT_COORDINATOR"),
        (("wait", "b", 60_000), "NOT_COORDINATOR"),
    ]
    assert bench.ask("ping") == "NOT_COORDINATOR"
    bench.pass_ms(120_000)
    assert len(bench.said) == 4, "no timer of the old shard does anything"


def test_a_new_leader_epoch_loads_the_log_again():
    bench = Bench()
    bench.lead()
    bench.ask("put", "a", 1)
    old = bench.ledger
    bench.lead()
    assert bench.ledger is not old
    assert bench.ledger.balances == {"a": 1}


def test_reads_of_a_new_leader_wait_until_what_it_loaded_is_committed():
    bench = Bench((1, 2))
    bench.lead()
    bench.ask("put", "a", 1)
    bench.lead()
    assert bench.ask("get", "a") is None
    assert bench.ask("ping") == "pong"
    bench.replicate()
    assert bench.said[-1] == (("get", "a", 0), 1)


@pytest.mark.slow
@pytest.mark.parametrize("death", [Death.KILL, Death.STOP])
def test_loaded_state_equals_applied_state(death: Death):
    bench = Bench()
    bench.lead()
    for at in range(50):
        bench.ask("put", f"a{at % 7}", at)
    bench.ask("fill", "f", 3 * ENTRIES_PER_STEP)
    before, entries = dict(bench.ledger.balances), list(bench.ledger.log)
    bench.restart(death)
    bench.lead()
    assert bench.ledger.balances == before
    assert bench.ledger.log == entries


def test_a_newest_only_codec_loads_the_last_record_of_each_key():
    bench = Bench(newest_only=True)
    bench.lead()
    for at in range(50):
        bench.ask("put", f"a{at % 7}", at)
    before, entries = dict(bench.ledger.balances), list(bench.ledger.log)
    bench.lead()
    assert bench.ledger.balances == before
    assert bench.ledger.log == entries[-7:], "in the order of the log"
    assert bench.ask("get", "a0") == before["a0"]


@pytest.mark.slow
def test_loading_in_steps_serves_requests_in_between():
    bench = Bench()
    bench.lead()
    bench.ask("fill", "f", 5 * ENTRIES_PER_STEP)
    bench.lead(load=False)
    seen = []
    while bench.state is ShardState.LOADING:
        bench.pass_ms(1)
        seen.append(len(bench.ledger.log))
    assert len([each for each in seen if 0 < each < 5 * ENTRIES_PER_STEP]) >= 3
    assert seen[-1] == 5 * ENTRIES_PER_STEP


@pytest.mark.slow
def test_leadership_lost_while_loading():
    bench = Bench()
    bench.lead()
    bench.ask("fill", "f", 5 * ENTRIES_PER_STEP)
    bench.lead(load=False)
    bench.pass_ms(2)
    assert bench.state is ShardState.LOADING
    bench.follow()
    assert bench.coordinator.find_shard(0) is None
    bench.pass_ms(100)
    bench.lead()
    assert bench.state is ShardState.ACTIVE


# -- transactions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_control_batches_are_applied_in_log_order(commit: bool):
    bench = Bench()
    bench.lead()
    producer = JournalProducer(7, 0)
    bench.ask("put", "a", 1, producer)
    assert bench.ask("get", "b") is None
    assert bench.ledger.balances == {}
    bench.end_transaction(producer, commit)
    bench.ask("put", "b", 2)
    expected = {"a": 1, "b": 2} if commit else {"b": 2}
    assert bench.ledger.balances == expected
    live = list(bench.ledger.log)
    bench.lead()
    assert bench.ledger.balances == expected
    assert bench.ledger.log == [
        (entry, origin._replace(timestamp=other.timestamp))
        for (entry, origin), (_, other) in zip(live, bench.ledger.log, strict=True)
    ]


def test_a_marker_during_loading_is_applied_once():
    bench = Bench()
    bench.lead()
    producer = JournalProducer(7, 0)
    bench.ask("put", "a", 1, producer)
    bench.lead(load=False)
    bench.end_transaction(producer, True)
    bench.pass_ms(100)
    assert bench.ledger.balances == {"a": 1}
    assert len(bench.ledger.log) == 2


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_deadline_is_acted_on():
    bench = Bench()
    bench.lead()
    bench.ask("put", "a", 3)
    bench.ask("wait", "a", 500)
    bench.pass_ms(499)
    assert bench.ledger.balances == {"a": 3}
    bench.pass_ms(2)
    assert bench.ledger.balances == {}
    assert bench.said[-1] == (("wait", "a", 500), "too late")


def test_a_refused_append_at_a_deadline_is_retried():
    bench = Bench((1, 2))
    bench.lead(isr=(1,))
    bench.ask("wait", "a", 100)
    bench.partition.replicas = (1, 2)  # of which one is in sync
    bench.partition.apply_config(TopicConfig(min_insync_replicas=2))
    bench.pass_ms(200)
    assert "a" in bench.ledger.guests
    assert bench.said == []
    bench.partition.apply_config(TopicConfig(min_insync_replicas=1))
    bench.pass_ms(RETRY_MS)
    assert "a" not in bench.ledger.guests


def test_many_deadlines_at_once_take_several_turns():
    bench = Bench()
    bench.lead()
    for at in range(100):
        bench.ask("wait", f"a{at}", 50)
    bench.pass_ms(80)
    assert len(bench.said) == 100


def test_a_turn_writes_a_bounded_number_of_records(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ottla.coordinator.shard_runtime.RECORDS_PER_TURN", 3)
    bench = Bench()
    bench.lead()
    for at in range(10):
        bench.ask("wait", f"a{at}", 50)
    ends = [bench.partition.log.end_offset]
    while len(bench.ledger.guests):
        bench.pass_ms(1)
        ends.append(bench.partition.log.end_offset)
    assert max(later - before for before, later in pairwise(ends)) == 3


# -- defects -----------------------------------------------------------------------------------------------------------


def test_a_defect_in_a_change_fences_its_shard_alone_and_loads_it_again(caplog: pytest.LogCaptureFixture):
    bench = Bench()
    bench.lead()
    bench.ask("put", "a", 1)
    bench.ask("wait", "g", 60_000)
    with caplog.at_level(logging.ERROR):
        bench.ask("spoil")
    assert "__ledger-0 is fenced until it is loaded again" in caplog.text
    assert [value for _, value in bench.said][-2:] == ["COORDINATOR_NOT_AVAILABLE"] * 2
    assert bench.ask("ping") == "COORDINATOR_NOT_AVAILABLE"
    bench.pass_ms(RELOAD_MS + 100)
    assert bench.ask("ping") == "pong", "it was thrown away, and read from its log"
    assert bench.ledger.balances["a"] == 1


def test_a_defect_in_a_decision_fails_its_request_only(caplog: pytest.LogCaptureFixture):
    bench = Bench()
    bench.lead()
    bench.ask("wait", "g", 60_000)
    with caplog.at_level(logging.ERROR):
        assert bench.ask("break") == "UNKNOWN_SERVER_ERROR"
    assert "__ledger-0: a decision failed, nothing has changed" in caplog.text
    assert len(bench.said) == 1, "the one that waits goes on waiting"
    assert bench.ask("ping") == "pong"


def test_requests_that_fail_again_and_again_write_one_line(caplog: pytest.LogCaptureFixture):
    bench = Bench((1, 2))
    bench.lead(isr=(1,))
    bench.partition.replicas = (1, 2)  # of which one is in sync
    bench.partition.apply_config(TopicConfig(min_insync_replicas=2))
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            assert bench.ask("put", "a", 1) == "COORDINATOR_NOT_AVAILABLE"
            assert bench.ask("break") == "UNKNOWN_SERVER_ERROR"
        assert len(caplog.records) == 1
        bench.pass_ms(LINE_MS)
        bench.ask("put", "a", 1)
    assert len(caplog.records) == 2


def test_the_log_names_a_corrupt_record(caplog: pytest.LogCaptureFixture):
    bench = Bench()
    bench.lead()
    bench.ask("put", "a", 1)
    record = Record(0, 1, b"Lb", b"short", ())
    batch = memoryview(encode_batch([record]))
    bench.turn(lambda: bench.partition.leader_role.append_own(batch, bench.process.clock.now()))
    with caplog.at_level(logging.ERROR):
        bench.lead()
    assert "the record at offset 1: a balance of 5 bytes" in caplog.text
    assert bench.state is ShardState.FENCED
    assert bench.ask("get") == "COORDINATOR_NOT_AVAILABLE"


def test_the_log_names_a_damaged_batch(caplog: pytest.LogCaptureFixture):
    bench = Bench()
    bench.lead()
    bench.ask("put", "a", 1)
    path = next(path for path, _ in bench.drive.walk_files() if path.endswith(".log"))
    inode = dict(bench.drive.walk_files())[path]
    inode.data[-1] ^= 1
    with caplog.at_level(logging.ERROR):
        bench.lead()
    assert "the checksum of the batch at offset 0 is wrong" in caplog.text
    assert bench.state is ShardState.FENCED


def test_records_of_unknown_types_are_skipped():
    bench = Bench()
    bench.lead()
    record = Record(0, 1, b"?", b"from the future", ())
    batch = memoryview(encode_batch([record]))
    bench.turn(lambda: bench.partition.leader_role.append_own(batch, bench.process.clock.now()))
    bench.ask("put", "a", 1)
    bench.lead()
    assert bench.ledger.balances == {"a": 1}


def test_requests_beyond_the_limit_of_waiters_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ottla.coordinator.deferred_events.MAX_PARKED", 3)
    bench = Bench((1, 2))
    bench.lead()
    for at in range(3):
        assert bench.ask("put", "a", at) is None
    assert bench.ask("put", "a", 9) == "COORDINATOR_NOT_AVAILABLE"
    assert bench.ask("get") == "COORDINATOR_NOT_AVAILABLE"
    bench.replicate()
    assert bench.ledger.balances == {"a": 2}
    assert [value for _, value in bench.said[2:]] == [0, 1, 2]


def test_stop_refuses_all_requests():
    bench = Bench((1, 2))
    bench.lead()
    bench.ask("put", "a", 1)
    bench.turn(bench.coordinator.stop_shards)
    assert bench.said == [(("put", "a", 1), "NOT_COORDINATOR")]
    bench.lead()
    assert bench.coordinator.find_shard(0) is None
    assert isinstance(bench.coordinator, Coordinator)
    assert list(bench.coordinator.active_shards()) == []
    assert Ledger(0).balances == {}
