"""The effect of a defect while a request is decoded, handled or encoded, and of one inside a change.

Zone: real. The defects are real ones: values that no codec can encode, a clock and a disk that raise.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from ottla.broker.containment import LINES_PER_S
from ottla.changes import HalfChanged, changes_state
from ottla.errors import ErrorCode
from ottla.requests import Parts, handles
from ottla.sim.machines.machine import Death
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    LeaderAndIsrRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    ListOffsetsRequest,
    MetadataRequest,
    MetadataResponse,
    UpdateMetadataRequest,
)


class Broken:
    """Handlers with a defect each."""

    def __init__(self) -> None:
        self.waiting = []

    @handles(ApiKey.DESCRIBE_CLUSTER, 0, 2)
    def raises(self, _context, _request) -> DescribeClusterResponse:
        raise MemoryError

    @handles(ApiKey.METADATA, 0, 13)
    def raises_without_a_place(self, _context, _request) -> MetadataResponse:
        raise RecursionError

    @handles(ApiKey.LIST_GROUPS, 0, 5)
    def answers_what_cannot_be_encoded(self, _context, _request) -> ListGroupsResponse:
        return ListGroupsResponse(groups=[ListGroupsResponse.ListedGroup(group_id="g" * 40_000)])

    @handles(ApiKey.DELETE_TOPICS, 0, 6)
    def answers_late(self, context, _request) -> None:
        self.waiting.append(context)


@pytest.fixture
def broken(node):
    """The node with the defective handlers in the place of its own."""
    dispatch = node.broker._dispatch
    handlers = Broken()
    for key in (ApiKey.DESCRIBE_CLUSTER, ApiKey.METADATA, ApiKey.LIST_GROUPS, ApiKey.DELETE_TOPICS):
        del dispatch.cold[key]
    dispatch.add_handlers([handlers])
    node.handlers = handlers
    return node


def contained(node, api: str) -> float:
    return node.broker.metrics.value_of("ottla_contained_defects_total", request=api)


def test_a_handler_that_raises_costs_its_request(broken, caplog) -> None:
    answer = broken.ask(DescribeClusterRequest(), 0)
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert not broken.network.closed
    assert "127.0.0.1: DescribeCluster in version 0 failed with MemoryError at broker/containment_test" in caplog.text
    assert contained(broken, "DescribeCluster") == 1
    assert broken.produce("t", b"a").error_code == 0


def test_where_the_answer_has_no_place_for_an_error_the_connection_is_closed(broken) -> None:
    place = broken.send(MetadataRequest(topics=None), 12)
    assert not place.answered
    (why,) = broken.network.closed
    assert why.startswith("Metadata in version 12 failed with RecursionError")
    assert contained(broken, "Metadata") == 1


def test_where_only_elements_have_a_place_for_an_error_each_is_answered(broken) -> None:
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in ("a", "b")]
    answer = broken.ask(MetadataRequest(topics=topics), 12)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("a", -1), ("b", -1)]
    assert not broken.network.closed
    assert contained(broken, "Metadata") == 1


def test_a_part_of_a_large_request_that_fails_costs_its_own_elements(broken) -> None:
    """The other parts, which may have changed something, are answered as ever."""
    asked = []

    def fails_once(_context, request) -> MetadataResponse:
        asked.append(len(request.topics))
        if len(asked) == 2:
            raise ZeroDivisionError
        found = [MetadataResponse.MetadataResponseTopic(name=topic.name) for topic in request.topics]
        return MetadataResponse(topics=found)

    cold = broken.broker._dispatch.cold[ApiKey.METADATA]
    cold.handler = fails_once
    cold.declaration = cold.declaration._replace(parts=Parts(1000, (("topics",),), (("topics",),)))
    topics = [MetadataRequest.MetadataRequestTopic(name=f"topic-{at:08}") for at in range(200)]
    answer = broken.ask(MetadataRequest(topics=topics), 12)
    codes = [topic.error_code for topic in answer.topics]
    assert len(asked) > 2
    assert [topic.name for topic in answer.topics] == [topic.name for topic in topics]
    assert codes == [0] * asked[0] + [-1] * asked[1] + [0] * (200 - asked[0] - asked[1])
    assert not broken.network.closed


def test_a_produce_that_wants_no_answer_costs_its_connection(node) -> None:
    handler = node.broker._dispatch.hot[ApiKey.PRODUCE].handler.__self__
    handler._now = lambda: 1 / 0
    place = node.send(node.produce_request("t", b"a", acks=0), 9)
    assert not place.answered
    assert node.network.closed[0].startswith("Produce in version 9 failed with ZeroDivisionError")


def test_a_fetch_of_a_version_without_an_error_of_the_whole_is_answered_by_partition(node) -> None:
    node.produce("t", b"a")
    log = node.broker.hosted.find_partition("t", 0).log
    type_read = type(log).read
    try:
        type(log).read = lambda *_: 1 / 0
        answer = node.ask(node.fetch_request("t", 0), 4)
    finally:
        type(log).read = type_read
    (partition,) = answer.responses[0].partitions
    assert (answer.responses[0].topic, partition.partition_index, partition.error_code) == ("t", 0, -1)
    assert partition.high_watermark == -1


def test_an_answer_that_cannot_be_encoded_costs_its_request(broken) -> None:
    assert broken.ask(ListGroupsRequest(), 0).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert contained(broken, "ListGroups") == 1


def test_a_late_answer_that_cannot_be_encoded_costs_its_request(broken) -> None:
    place = broken.send(DeleteTopicsRequest(timeout_ms=1), 5)
    (context,) = broken.handlers.waiting
    one = DeleteTopicsResponse.DeletableTopicResult(name="x", error_code=1 << 20)
    broken.process.post_turn(0, "late", context.send_reply, DeleteTopicsResponse(responses=[one]))
    broken.pass_ms(1)
    assert not place.answered
    assert broken.network.closed[0].startswith("DeleteTopics in version 5 failed with error")


def test_a_late_response_of_a_failed_handler_is_not_sent(broken) -> None:
    place = broken.send(DeleteTopicsRequest(timeout_ms=1), 5)
    (context,) = broken.handlers.waiting
    context.failed = context.answered = True
    broken.process.post_turn(0, "late", context.send_reply, DeleteTopicsResponse())
    broken.pass_ms(1)
    assert not place.answered


def test_defects_are_counted_but_not_a_flood_of_lines(broken, caplog) -> None:
    with caplog.at_level(logging.ERROR):
        for _ in range(3 * LINES_PER_S):
            broken.ask(DescribeClusterRequest(), 0)
    assert caplog.text.count("failed with MemoryError") == LINES_PER_S
    assert contained(broken, "DescribeCluster") == 3 * LINES_PER_S


def test_a_memory_error_lets_go_of_the_stack_that_held_the_memory(broken) -> None:
    kept = []

    def raises(_context, _request) -> None:
        held = bytearray(1)
        error = MemoryError()
        kept.append((error, held))
        raise error

    broken.broker._dispatch.cold[ApiKey.DESCRIBE_CLUSTER].handler = raises
    broken.ask(DescribeClusterRequest(), 0)
    assert kept[0][0].__traceback__ is None


def test_a_defect_before_an_append_costs_its_request_and_changes_nothing(node) -> None:
    handler = node.broker._dispatch.hot[ApiKey.PRODUCE].handler.__self__

    def now() -> None:
        raise ZeroDivisionError

    clock, handler._now = handler._now, now
    place = node.send(node.produce_request("t", b"a"), 9)
    handler._now = clock
    (topic,) = node.answer(place).responses
    (answer,) = topic.partition_responses
    assert (topic.name, answer.index, answer.error_code) == ("t", 0, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert answer.base_offset == -1
    assert not node.network.closed
    assert contained(node, "Produce") == 1
    assert node.produce("t", b"b").base_offset == 0
    assert node.values("t") == [b"b"]


def test_a_produce_that_fails_after_its_verification_costs_its_request(node) -> None:
    """It runs in an effect of the turn in which the coordinator has answered."""
    handler = node.broker._dispatch.hot[ApiKey.PRODUCE].handler.__self__
    asked = []
    handler._verifier = SimpleNamespace(ask_at_once=asked.append)  # None: the answer comes later
    request = node.produce_request("t", b"a", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    request.transactional_id = "id"
    place = node.send(request, 9)
    (question,) = asked
    handler._now, clock = (lambda: 1 / 0), handler._now
    codes = dict.fromkeys(question.partitions, ErrorCode.NONE)
    node.process.post_turn(0, "verified", question.done, codes)
    node.pass_ms(1)
    handler._now = clock
    assert not place.answered
    assert node.network.closed[0].startswith("Produce in version 9 failed with ZeroDivisionError")
    assert node.produce("t", b"b").base_offset == 0


def test_a_failed_produce_leaves_no_verification(node) -> None:
    handler = node.broker._dispatch.hot[ApiKey.PRODUCE].handler.__self__
    handler._verifier = SimpleNamespace(ask_at_once=lambda asked: dict.fromkeys(asked.partitions, ErrorCode.NONE))
    request = node.produce_request("t", b"a", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    request.transactional_id = "id"
    handler._now, clock = (lambda: 1 / 0), handler._now
    place = node.send(request, 9)
    handler._now = clock
    assert place.answered
    assert not node.broker.hosted.find_partition("t", 0).guards, "else a later batch would pass for verified"
    assert node.produce("t", b"b").base_offset == 0


def test_a_defect_within_an_append_stops_the_broker(node) -> None:
    partition = node.broker.hosted.find_partition("t", 0)
    node.produce("t", b"a")
    partition.log.segments.slots[-1].file = SimpleNamespace(append=lambda _parts: 1 / 0, size=0)
    frame_of = node.produce_request("t", b"b")
    with pytest.raises(AssertionError, match="HalfChanged: an append to t-0 was left in the middle of a change"):
        node.send(frame_of, 9)
    assert node.machine.deaths[Death.CRASH] == 1


def test_a_fetch_that_fails_costs_its_request_and_its_session(node) -> None:
    node.produce("t", b"a")
    opened = node.ask(node.fetch_request("t", 0, session_epoch=0), 12)
    assert opened.session_id
    log = node.broker.hosted.find_partition("t", 0).log
    type_read = type(log).read
    try:
        type(log).read = lambda *_: 1 / 0
        again = node.ask(node.fetch_request("t", 0, session_id=opened.session_id, session_epoch=1), 12)
    finally:
        type(log).read = type_read
    assert again.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    gone = node.ask(node.fetch_request("t", 0, session_id=opened.session_id, session_epoch=2), 12)
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert node.values("t") == [b"a"]


def test_a_fetch_that_fails_when_it_is_woken_costs_its_request(node) -> None:
    place = node.send(node.fetch_request("t", 0, max_wait_ms=1000), 12)
    log = node.broker.hosted.find_partition("t", 0).log
    type_read = type(log).read
    try:
        type(log).read = lambda *_: 1 / 0
        assert node.produce("t", b"a").error_code == 0, "the one that wakes it is another"
    finally:
        type(log).read = type_read
    assert node.answer(place).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_half_changed_state_is_never_contained(broken) -> None:
    def raises(_context, _request) -> None:
        raise HalfChanged("a change")

    broken.broker._dispatch.cold[ApiKey.DESCRIBE_CLUSTER].handler = raises
    with pytest.raises(AssertionError, match="HalfChanged"):
        broken.ask(DescribeClusterRequest(), 0)


def test_an_order_that_fails_is_not_answered_since_the_controller_would_believe_it(node) -> None:
    def raises(_context, _request) -> None:
        raise ZeroDivisionError

    node.broker._dispatch.cold[ApiKey.UPDATE_METADATA].handler = raises
    node.peer.listener = ""
    place = node.send(UpdateMetadataRequest(), 8)
    assert not place.answered
    assert node.network.closed[0].startswith("UpdateMetadata in version 8 failed with ZeroDivisionError")


def test_an_order_that_is_half_taken_stops_the_broker(node) -> None:
    """The next order would wait for ever for one that is not carried out."""
    epoch, controller_epoch = node.broker._fence.broker_epoch, node.broker._fence.controller_epoch
    node.broker.cluster.has_settings = lambda _name: 1 / 0
    state = LeaderAndIsrRequest.LeaderAndIsrTopicState(topic_name="t")
    state.partition_states = [LeaderAndIsrRequest.LeaderAndIsrPartitionState(partition_index=0)]
    node.peer.listener = ""
    order = LeaderAndIsrRequest(
        controller_id=1, controller_epoch=controller_epoch, broker_epoch=epoch, topic_states=[state]
    )
    with pytest.raises(AssertionError, match="HalfChanged"):
        node.send(order, 5)


# -- what completes in another's turn ------------------------------------------------------------------------------


def new_topics(*names):
    topic = CreateTopicsRequest.CreatableTopic
    topics = [topic(name=name, num_partitions=1, replication_factor=1) for name in names]
    return CreateTopicsRequest(topics=topics, timeout_ms=60_000)


@pytest.mark.parametrize("count", [1, 40])
def test_a_creation_whose_completion_fails_costs_its_request(node, count) -> None:
    place = node.send(new_topics(*(f"new-{number}" for number in range(count))), 5)
    assert not place.answered
    handlers = node.broker._dispatch.cold[ApiKey.CREATE_TOPICS].handler.__self__
    cluster, handlers._cluster = handlers._cluster, SimpleNamespace()  # without what describes the topic's settings
    topics = node.answer(place).topics
    handlers._cluster = cluster
    assert {each.error_code for each in topics} == {ErrorCode.UNKNOWN_SERVER_ERROR}
    assert len(topics) == count
    assert contained(node, "CreateTopics") >= 1
    assert node.ask(new_topics("new-0", "another"), 5).topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_lookup_by_time_whose_completion_fails_costs_its_request(node) -> None:
    node.produce("t", b"a")
    asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=0)
    request = ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[asked])])
    log = node.broker.hosted.find_partition("t", 0).log
    epochs, log.epochs = log.epochs, SimpleNamespace(latest=0)
    place = node.send(request, 5)
    (topic,) = node.answer(place).topics
    log.epochs = epochs
    assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert contained(node, "ListOffsets") == 1
    assert node.ask(request, 5).topics[0].partitions[0].offset == 0


def test_a_step_inside_a_change_is_not_contained(broken) -> None:
    broken.send(DeleteTopicsRequest(timeout_ms=1), 5)
    (context,) = broken.handlers.waiting

    @changes_state
    def change() -> None:
        raise ZeroDivisionError

    with pytest.raises(HalfChanged):
        context.wrap_step(change)()
