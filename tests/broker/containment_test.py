"""An exception of the broker's own code costs a request or its connection, until state is changed; then it is raised.

Zone: real. A handler that fails stands in for a defect that nobody knows yet.
"""

from __future__ import annotations

import logging

import pytest

from ottla.errors import ErrorCode
from ottla.record.batch import Record, encode_batch
from ottla.seams import Gate
from ottla.wire.messages import (
    DescribeConfigsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListGroupsRequest,
    MetadataRequest,
    ProduceRequest,
)


def dispatch(node):
    return node.broker._dispatch


def closed(node) -> list[str]:
    """Why connections were closed."""
    return node.broker._world.network.closed


def break_handler(node, key: int, error: BaseException, *, after_change: bool = False) -> None:
    """From now on the handler of an API raises `error`; after_change: once something was changed."""
    api = dispatch(node).cold[key]

    def handler(context, request):
        node.broker._turn.changes = node.broker._turn.changes or after_change
        raise error

    api.handler = handler


def counted(node, api: str) -> float:
    """The API's contained failures, as /metrics tells them."""
    (metric,) = [each for each in node.broker.metrics if each.name == "ottla_network_contained_failures_total"]
    return sum(sample.value for sample in metric.samples() if sample.labels["request"] == api)


@pytest.mark.parametrize("error", [ValueError("x" * 100_000), MemoryError(), RecursionError("deep"), AssertionError()])
def test_a_handler_that_fails_costs_its_request(node, caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    break_handler(node, ListGroupsRequest.API_KEY, error)
    with caplog.at_level(logging.ERROR):
        place = node.send(ListGroupsRequest(), 4)
    assert node.answer(place).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "ListGroups v4 failed for the first time at containment_test.py:" in caplog.text
    assert max(map(len, caplog.messages)) < 500
    assert not closed(node)
    assert node.answer(node.send(MetadataRequest(topics=None), 12)).topics


def test_where_no_answer_can_tell_it_costs_the_connection(node, caplog: pytest.LogCaptureFixture) -> None:
    break_handler(node, DescribeConfigsRequest.API_KEY, ValueError("oops"))
    node.send(DescribeConfigsRequest(), 4)
    assert "DescribeConfigs failed: UNKNOWN_SERVER_ERROR" in closed(node)[0]


def test_an_answer_that_cannot_be_encoded_becomes_an_error(node) -> None:
    too_long = FindCoordinatorResponse(host="h" * 70_000)
    dispatch(node).cold[FindCoordinatorRequest.API_KEY].handler = lambda *_: too_long
    place = node.send(FindCoordinatorRequest(key="g"), 2)
    assert node.answer(place).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert not closed(node)


def test_a_failure_in_a_hand_written_handler_costs_the_connection(node) -> None:
    def handler(*_: object) -> Gate:
        raise MemoryError

    dispatch(node).hot[FetchRequest.API_KEY].handler = handler
    node.send(FetchRequest(), 12)
    assert "Fetch v12 failed in the broker: MemoryError" in closed(node)[0]
    other = type(node.peer)()
    assert node.send(MetadataRequest(topics=None), 12, other).answered


def test_what_fails_after_a_change_is_not_contained(node) -> None:
    break_handler(node, ListGroupsRequest.API_KEY, ValueError("half done"), after_change=True)
    with pytest.raises(AssertionError, match="ValueError: half done"):
        node.send(ListGroupsRequest(), 4)


def test_an_append_marks_the_turn_before_it_writes(node, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = next(iter(node.broker.hosted))
    log = partition.log

    def append(*_: object) -> int:
        raise MemoryError

    monkeypatch.setattr(type(log), "append", append)
    records = memoryview(bytes(encode_batch([Record(0, 0, b"k", b"v", ())])))
    data = ProduceRequest.PartitionProduceData(index=partition.tp.partition, records=records)
    topic = ProduceRequest.TopicProduceData(name=partition.tp.topic, partition_data=[data])
    with pytest.raises(AssertionError, match="MemoryError"):
        node.send(ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 9)


def test_a_request_that_fails_again_and_again_is_logged_ever_less(node, caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("again")
    break_handler(node, ListGroupsRequest.API_KEY, error)
    with caplog.at_level(logging.ERROR):
        for _ in range(100):
            node.answer(node.send(ListGroupsRequest(), 4))
    assert len([each for each in caplog.messages if "ListGroups" in each]) == 7, "1, 2, 4, 8, 16, 32, 64"
    assert counted(node, "ListGroups") == 100
