"""The slow path of Produce: its scripts, and the requests that wait in them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.messagesets import message_set

from ottla.changes import HalfChanged
from ottla.record.batch import Record, encode_batch
from ottla.replication.produce.message_sets import AT_ONCE
from ottla.replication.produce.script import ScriptRun, steps_of
from ottla.requests import WAITING
from ottla.wire.messages import ProduceRequest


class Log(list):
    """A script that asks twice, and what happened to it."""

    def __init__(self) -> None:
        self.waiting = []

    def script(self):
        try:
            self.append((yield self.waiting.append))
            self.append((yield self.waiting.append))
        finally:
            self.append("end")

    def hold(self) -> None:
        self.append("hold")

    def fail(self, error: Exception) -> None:
        self.append(repr(error))


def test_a_script_whose_results_are_there_at_once_is_not_held() -> None:
    log = Log()
    log.waiting = SimpleNamespace(append=lambda done: done("at once"))
    assert ScriptRun(log.script(), log.hold, log.fail).start()
    assert log == ["at once", "at once", "end"]


def test_a_script_that_waits_is_held_once_and_continues_with_its_results() -> None:
    log = Log()
    assert not ScriptRun(log.script(), log.hold, log.fail).start()
    assert log == ["hold"]
    log.waiting.pop()("first")
    log.waiting.pop()("second")
    assert log == ["hold", "first", "second", "end"]


def test_a_script_that_cannot_be_held_is_closed_and_takes_no_result() -> None:
    log = Log()
    with pytest.raises(ZeroDivisionError):
        ScriptRun(log.script(), lambda: 1 // 0, log.fail).start()
    log.waiting.pop()("too late")
    assert log == ["end"]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_defect_is_raised_in_the_first_turn_and_contained_in_a_later_one(is_late) -> None:
    log = Log()

    def script():
        if is_late:
            yield log.waiting.append
        raise KeyError

    run = ScriptRun(script(), log.hold, log.fail)
    if is_late:
        run.start()
        log.waiting.pop()(None)
        assert log == ["hold", "KeyError()"]
    else:
        with pytest.raises(KeyError):
            run.start()


def test_a_defect_inside_a_change_passes_if_the_containment_raises_it() -> None:
    def script():
        yield waiting.append
        raise HalfChanged

    def fail(error: Exception) -> None:
        raise error

    waiting: list = []
    ScriptRun(script(), lambda: None, fail).start()
    with pytest.raises(HalfChanged):
        waiting.pop()(None)


def test_steps_wait_for_the_results_of_their_script_and_close_it() -> None:
    log, resumed = Log(), []
    steps = steps_of(log.script(), lambda: resumed.append(1))
    assert [next(steps), next(steps)] == [WAITING, WAITING], "resumed too early, it continues to wait"
    log.waiting.pop()("first")
    assert resumed == [1]
    assert next(steps) == WAITING
    steps.close()
    assert log == ["first", "end"]
    log.waiting.pop()("too late")
    assert log == ["first", "end"]


@pytest.mark.parametrize("version", [2, 9])
def test_a_defect_after_the_result_of_a_worker_costs_its_request(node, version: int) -> None:
    """The workers are another implementation of the seam, whose results have a form that no job has."""
    node.create("old", message_format_version="0.9.0")
    process, now = node.process, node.process.clock.now().wall_ms
    rows = [(b"k", b"v" * 1000, now)] * (2 * AT_ONCE // 1000)
    records = [Record(at, now, *row[:2]) for at, row in enumerate(rows)]
    request = node.produce_request("old", b"a")
    content = message_set(1, 0, rows) if version == 2 else bytes(encode_batch(records))
    request.topic_data[0].partition_data[0].records = memoryview(content)
    node.broker._world.workers.run_job = lambda _job, _arguments, done, _owner: process.post_done(
        0, "worker", done, lambda: (1, 2, 3)
    )
    place = node.send(request, version)
    node.pass_ms(10)
    assert not place.answered
    assert node.network.closed[0].startswith(f"Produce in version {version} failed with ValueError")
    assert node.produce("t", b"b").base_offset == 0


def test_an_inspection_within_the_turn_copies_no_frame(node) -> None:
    node.create("c", cleanup_policy="compact")
    node.network.hold_frame = None
    records = [Record(0, node.process.clock.now().wall_ms, b"k", b"v")]
    data = ProduceRequest.PartitionProduceData(index=0, records=memoryview(bytes(encode_batch(records))))
    topic = ProduceRequest.TopicProduceData(name="c", partition_data=[data])
    place = node.send(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), 9)
    assert place.answered
    assert node.values("c") == [b"v"]


def test_a_large_request_whose_connection_ends_leaves_no_verification(node) -> None:
    node.create("wide", 600)
    asked = []
    node.broker._dispatch.hot[0].handler.__self__._slow._verifier = SimpleNamespace(ask_at_once=asked.append)
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    request = node.produce_request("wide", b"a", **producer)
    (first,) = request.topic_data[0].partition_data
    request.topic_data[0].partition_data = [
        ProduceRequest.PartitionProduceData(index=at, records=first.records) for at in range(600)
    ]
    request.transactional_id = "id"
    node.send(request, 9)
    node.pass_ms(50)
    (question,) = asked
    guards = node.broker.hosted.find_partition("wide", 0).leader_role.guards
    assert guards, "the first slice waits for its coordinator"
    node.process.post_turn(0, "gone", node.broker.on_gone, node.peer)
    node.pass_ms(1)
    assert not guards
    node.process.post_turn(0, "verified", question.done, dict.fromkeys(question.partitions, 0))
    node.pass_ms(50)
    assert node.fetch("wide", 0).high_watermark == 0
