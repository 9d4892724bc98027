"""Produce and Fetch of many partitions: handled in slices, and answered as small ones are.

Zone: real.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.broker.slicing_test import COUNT
from tests.handnode import Node, Place
from tests.steps import count_steps

from ottla.broker.slicing import TURN_US
from ottla.coordinator.shard import EntryOrigin, TransactionEnd
from ottla.errors import ErrorCode
from ottla.groups.records import OffsetCommitted, Position
from ottla.replication.fetch import fetch_completion, large_fetch
from ottla.replication.produce import large_produce
from ottla.seams import Gate
from ottla.wire.codec import encode_bytes
from ottla.wire.header import encode_request_header
from ottla.wire.messages import (
    CreateTopicsRequest,
    DescribeTopicPartitionsRequest,
    FetchRequest,
    MetadataRequest,
    ProduceRequest,
)

pytestmark = pytest.mark.slow
HOSTED = 600
VERY_MANY = 5_000
MADE = 10
"""Logs that a turn makes: each is twenty system calls, a millisecond."""
TURN_STEPS = 300_000
"""Instructions of a turn that a large request may take: some milliseconds."""


class Counted(dict):
    """A directory of topics that counts how often it is asked."""

    asked = 0

    def get(self, key, default=None):
        self.asked += 1
        return super().get(key, default)


def asked_per_turn(node, request, version):
    """The answer, and how many partitions were looked up in each turn."""
    hosted = node.broker.hosted
    topics = Counted(hosted.by_id if version >= 13 else hosted.by_name)
    if version >= 13:
        hosted.by_id = topics
    else:
        hosted.by_name = topics
    produce = node.broker._dispatch.hot[0].handler.__self__
    produce._topics[:] = [topics] * len(produce._topics)
    place = node.send(request, version)
    turns = [topics.asked]
    while not place.answered:
        assert not node.network.closed, node.network.closed
        topics.asked = 0
        node.pass_ms(1)
        turns.append(topics.asked)
        assert len(turns) < 20_000
    return node.answer(place), turns


def fetch_of(*topics, **more):
    """(name, partitions) each."""
    part, topic = FetchRequest.FetchPartition, FetchRequest.FetchTopic
    request = FetchRequest(max_wait_ms=more.pop("max_wait_ms", 0), min_bytes=1, max_bytes=1 << 20)
    request.topics = [
        topic(topic=name, partitions=[part(partition=number, partition_max_bytes=1 << 20) for number in numbers])
        for name, numbers in topics
    ]
    for key, value in more.items():
        setattr(request, key, value)
    return request


def produce_of(node, *topics, acks=-1):
    """(name, partitions) each, one batch for each partition."""
    whole = node.produce_request("t", b"value", acks=acks)
    records = whole.topic_data[0].partition_data[0].records
    data, topic = ProduceRequest.PartitionProduceData, ProduceRequest.TopicProduceData
    whole.topic_data = [
        topic(name=name, partition_data=[data(index=number, records=records) for number in numbers])
        for name, numbers in topics
    ]
    return whole


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_a_produce_of_many_partitions_takes_many_turns(node, version) -> None:
    node.create("wide", HOSTED)
    answer, turns = asked_per_turn(node, produce_of(node, ("wide", range(HOSTED)), ("none", range(COUNT))), version)
    slices = TURN_US // large_produce._APPEND_US + 1
    most = slices * (2 * large_produce.APPENDED + 1)
    assert max(turns) <= most, "each is looked up to be appended, where it is not here once more; a slice's topic once"
    wide, none = answer.responses
    assert [(row.index, row.error_code, row.base_offset) for row in wide.partition_responses] == [
        (number, 0, 0) for number in range(HOSTED)
    ]
    codes = {row.error_code for row in none.partition_responses}
    assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert [row.index for row in none.partition_responses] == list(range(COUNT))
    assert [node.fetch("wide", 0, partition=number).high_watermark for number in (0, 299, HOSTED - 1)] == [1, 1, 1]


@pytest.mark.parametrize("version", [4, 11, 12])
def test_a_fetch_of_many_partitions_takes_many_turns(node, version) -> None:
    node.create("wide", HOSTED)
    node.produce("wide", b"here", partition=7)
    answer, turns = asked_per_turn(node, fetch_of(("none", range(COUNT)), ("wide", range(HOSTED))), version)
    per_turn = (TURN_US // large_fetch._DECODE_US + 1) * fetch_completion.SLICE
    assert max(turns) <= per_turn
    rows = {
        (topic.topic, row.partition_index): (row.error_code, len(bytes(row.records or b"")))
        for topic in answer.responses
        for row in topic.partitions
    }
    assert len(rows) == COUNT + HOSTED
    assert rows["none", 5] == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)
    assert rows["wide", 5] == (0, 0)
    assert rows["wide", 7][0] == 0
    assert rows["wide", 7][1] > 0


def test_a_large_produce_that_is_cut_appends_nothing(node) -> None:
    request = produce_of(node, ("t", [0] * COUNT))
    request.topic_data[-1].partition_data[-1].records = memoryview(b"")
    place = send_cut(node, request, 9)
    for _ in range(1_000):
        node.pass_ms(1)
    assert "cannot be decoded" in node.network.closed[0]
    assert not place.answered
    assert node.fetch("t", 0).high_watermark == 0


def send_cut(node, request, version):
    """Send a request without its last two bytes."""
    content = encode_request_header(0, version, 7, "hand") + encode_bytes(request, version)
    frame = bytearray(content[:-2])
    place = Place(node.peer, 0, version)
    node.process.post_turn(0, "frame", lambda: node.broker.on_frame(place, memoryview(frame)))
    return place


def test_others_are_served_during_a_large_fetch_and_a_large_produce(node) -> None:
    for request in (fetch_of(("none", range(COUNT))), produce_of(node, ("none", range(COUNT)))):
        place = node.send(request, 9 if isinstance(request, ProduceRequest) else 12)
        assert not place.answered
        assert place.gate is Gate.WAIT
        assert node.send(MetadataRequest(topics=[]), 12, type(node.peer)()).answered
        node.answer(place)


def test_a_large_produce_without_acks_that_fails_closes_its_connection(node) -> None:
    place = node.send(produce_of(node, ("none", range(COUNT)), acks=0), 9)
    node.pass_ms(500)
    assert place.answered
    assert not place.parts
    assert node.network.closed[0].startswith("Produce with acks=0 failed")


def test_a_large_fetch_of_what_is_here_begins_a_session_and_waits(node) -> None:
    node.create("wide", 2 * HOSTED)
    asked = fetch_of(("wide", range(2 * HOSTED)), session_epoch=0)
    first = node.ask(asked, 12)
    assert first.session_id
    assert sum(len(topic.partitions) for topic in first.responses) == 2 * HOSTED
    asked.session_id, asked.session_epoch, asked.max_wait_ms = first.session_id, 1, 5_000
    place = node.send(asked, 12)
    node.pass_ms(200)
    assert not place.answered, "there is nothing new"
    node.send(node.produce_request("wide", b"new", partition=1_111), 9, type(node.peer)())
    rows = [row for topic in node.answer(place).responses for row in topic.partitions]
    assert [row.partition_index for row in rows] == [1_111]
    forgotten = FetchRequest.ForgottenTopic(topic="wide", partitions=list(range(2 * HOSTED - 1)) * 10)
    last = fetch_of(session_id=first.session_id, session_epoch=2, forgotten_topics_data=[forgotten])
    assert node.ask(last, 12).error_code == 0
    session = node.broker._fetch.sessions.find_session(first.session_id)
    assert [key[1] for key in session.partitions] == [2 * HOSTED - 1]


def test_a_large_fetch_of_what_is_not_here_gets_no_session(node) -> None:
    asked = fetch_of(("none", range(COUNT)), ("t", [0]), session_epoch=0)
    assert node.ask(asked, 12).session_id == 0
    known = node.ask(fetch_of(("t", [0]), session_epoch=0), 12)
    asked.session_id, asked.session_epoch = known.session_id, 1
    assert node.ask(asked, 12).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("version", [12, 17])
def test_a_response_about_many_partitions_has_diverging_epochs(node, version) -> None:
    node.produce("t", b"here")
    asked = fetch_of(("absent", range(1_100)), ("t", [0]))
    for topic in asked.topics:
        topic.topic_id = node.topic_id("t") if topic.topic == "t" else b"absent".ljust(16)
    asked.topics[1].partitions[0].fetch_offset = 9
    asked.topics[1].partitions[0].last_fetched_epoch = 0
    answer = node.ask(asked, version)
    assert sum(len(topic.partitions) for topic in answer.responses) == 1_101
    diverging = answer.responses[-1].partitions[0].diverging_epoch
    assert (diverging.epoch, diverging.end_offset) == (0, 1)


def test_a_reader_that_goes_during_its_large_fetch_leaves_nothing(node) -> None:
    node.create("wide", 2 * HOSTED)
    asked = fetch_of(("wide", range(2 * HOSTED)), max_wait_ms=60_000)
    for ms in range(6):
        place = node.send(asked, 12)
        node.pass_ms(ms)
        node.process.post_turn(0, "gone", node.broker.on_gone, node.peer)
        node.pass_ms(50)
        assert not place.answered
        topic = node.broker.hosted.by_name["wide"]
        assert not any(partition.watchers for partition in topic.partitions.values())
        assert not node.broker._dispatch.sliced


def steps_per_turn(node, request, version, peer=None):
    """The answer, and how many instructions each turn took until it came."""
    sliced = node.broker._dispatch.sliced
    whole_turn, places = sliced._run_turn, []
    turns = [count_steps(lambda: places.append(node.send(request, version, peer)))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sliced, "_run_turn", lambda: turns.append(count_steps(whole_turn)))
        answer = node.answer(places[0])
    return answer, turns


@pytest.fixture(scope="module")
def wide():
    """A broker with a topic of very many partitions, one of which has a record."""
    node = Node()
    node.create("wide", VERY_MANY)
    node.produce("wide", b"here", partition=VERY_MANY - 1)
    return node


@pytest.mark.parametrize("version", [4, 10, 12])
@pytest.mark.parametrize("committed", [0, 1])
def test_no_turn_of_a_full_fetch_looks_at_all_partitions(wide, version, committed) -> None:
    asked = fetch_of(("wide", range(VERY_MANY)), max_wait_ms=10, isolation_level=committed)
    answer, turns = steps_per_turn(wide, asked, version)
    rows = {row.partition_index: row for topic in answer.responses for row in topic.partitions}
    assert [bool(rows[number].records) for number in range(VERY_MANY)] == [False] * (VERY_MANY - 1) + [True]
    assert max(turns) < TURN_STEPS, " ".join(map(str, turns))


def test_no_turn_of_a_session_looks_at_all_partitions(wide) -> None:
    peer = type(wide.peer)()
    asked = fetch_of(("wide", range(VERY_MANY - 1)), session_epoch=0, max_wait_ms=10)
    answer, turns = steps_per_turn(wide, asked, 12, peer)
    assert answer.session_id
    assert sum(len(topic.partitions) for topic in answer.responses) == VERY_MANY - 1
    assert max(turns) < TURN_STEPS, " ".join(map(str, turns))
    session = wide.broker._fetch.sessions.find_session(answer.session_id)
    session.dirty.update(dict.fromkeys(session.partitions.values()))
    for each in session.partitions.values():
        each.sent_high_watermark = -1
    small = fetch_of(session_id=answer.session_id, session_epoch=1)
    again, turns = steps_per_turn(wide, small, 12, peer)
    assert sum(len(topic.partitions) for topic in again.responses) == VERY_MANY - 1
    assert max(turns) < TURN_STEPS, " ".join(map(str, turns))


def test_the_end_of_a_transaction_with_many_positions_is_carried_out_in_later_turns() -> None:
    node = Node({"offsets.topic.num.partitions": "1"})
    node.create("__consumer_offsets")
    runner = node.broker._coordinators.groups.coordinator.find_shard(0)
    for number in range(VERY_MANY):
        runner.machine.apply(OffsetCommitted("g", "t", number, Position(number)), EntryOrigin(number, 7, 0))
    end = TransactionEnd(7, 0, True)
    node.process.post_turn(0, "marker", runner.end_transaction, end, runner.applied)
    node.pass_ms(0)
    offsets = runner.machine.offsets
    assert offsets.count < VERY_MANY
    assert offsets.get_offset("g", ("t", VERY_MANY - 1)) == Position(VERY_MANY - 1)
    turns = 0
    while offsets.is_ending:
        assert count_steps(node.timeline.run_next_event) < TURN_STEPS
        turns += 1
        assert turns < VERY_MANY
    assert offsets.count == VERY_MANY


def test_no_turn_shows_a_whole_page_of_topic_partitions(wide) -> None:
    asked = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=2_000)
    answer, turns = steps_per_turn(wide, asked, 0)
    (topic,) = answer.topics
    assert [row.partition_index for row in topic.partitions] == list(range(2_000))
    assert (topic.name, topic.error_code, len(topic.topic_id)) == ("wide", 0, 16)
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("wide", 2_000)
    assert max(turns) < TURN_STEPS / 4, " ".join(map(str, turns))


def test_no_turn_makes_many_logs() -> None:
    node = Node()
    topic = CreateTopicsRequest.CreatableTopic(name="wide", num_partitions=200, replication_factor=1)
    place = node.send(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 5)
    (directory,) = node.broker.logs.dirs
    counts = [0]
    while not place.answered:
        assert node.timeline.run_next_event()
        counts.append(len(directory.logs))
    assert counts[-1] == 200
    assert max(after - before for before, after in pairwise(counts)) <= MADE
