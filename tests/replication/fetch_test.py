"""Fetch, over the wire, against a broker on simulated disk and time."""

from __future__ import annotations

import pytest

from ottla.errors import ErrorCode
from ottla.seams import Gate
from ottla.sim.machines.machine import Death
from ottla.wire.messages import DeleteTopicsRequest, FetchRequest


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_brings_the_same_bytes(node, version: int, records_in) -> None:
    node.produce("t", b"a", b"b")
    seen = node.fetch("t", 0, version, topic_id=node.topic_id("t"))
    assert [record.value for record in records_in(seen.records)] == [b"a", b"b"]
    assert (seen.error_code, seen.high_watermark, seen.last_stable_offset) == (0, 2, 2)


def test_nothing_to_read_waits_until_something_is_there(node) -> None:
    waiting = node.send(node.fetch_request("t", 0, max_wait_ms=500), 12)
    assert waiting.gate is Gate.WAIT
    node.pass_ms(499)
    assert not waiting.answered
    produced = node.send(node.produce_request("t", b"a"), 9)
    assert produced.answered
    assert waiting.answered, "a produce wakes the reader in the same turn"
    assert node.answer(waiting).responses[0].partitions[0].records


def test_the_wait_ends_with_its_time_and_an_empty_field(node) -> None:
    waiting = node.send(node.fetch_request("t", 0, max_wait_ms=500), 12)
    node.pass_ms(505)
    assert waiting.answered
    row = node.answer(waiting).responses[0].partitions[0]
    assert (row.error_code, row.high_watermark) == (0, 0)
    assert bytes(row.records) == b"", "librdkafka takes null for a parse error"


def test_min_bytes_waits_for_enough(node, records_in) -> None:
    waiting = node.send(node.fetch_request("t", 0, max_wait_ms=5000, min_bytes=200), 12)
    for value in (b"a" * 60, b"b" * 60):
        assert not waiting.answered
        node.produce("t", value)
    assert waiting.answered
    rows = node.answer(waiting).responses[0].partitions[0]
    assert [record.value for record in records_in(rows.records)] == [b"a" * 60, b"b" * 60]


def test_the_end_of_a_segment_is_not_waited_for(node) -> None:
    node.create("small", segment_bytes="300")
    for _ in range(5):
        node.produce("small", b"x" * 100)
    first = node.send(node.fetch_request("small", 0, max_wait_ms=5000, min_bytes=100_000), 12)
    assert first.answered, "what follows is in the next segment: more will never come to this one"
    last = node.send(node.fetch_request("small", 4, max_wait_ms=5000, min_bytes=100_000), 12)
    assert not last.answered


def test_a_reader_that_is_gone_is_forgotten(node) -> None:
    waiting = node.send(node.fetch_request("t", 0, max_wait_ms=2**31 - 1), 12)
    node.process.run_turn(node.broker.on_gone, node.peer)
    assert not node.broker.hosted.find_partition("t", 0).watchers
    node.produce("t", b"a")
    assert not waiting.answered


def test_the_first_batch_comes_whole_however_small_the_wish(node, records_in) -> None:
    node.produce("t", b"a" * 1000)
    node.produce("t", b"b" * 1000)
    for limits in ({"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0}):
        seen = records_in(node.fetch("t", 0, **limits).records)
        assert [record.value for record in seen] == [b"a" * 1000]


def test_max_bytes_bounds_the_whole_answer(node) -> None:
    node.create("other", partitions=3)
    request = node.fetch_request("other", 0, max_bytes=1500)
    for partition in (1, 2):
        request.topics[0].partitions += node.fetch_request("other", 0, partition=partition).topics[0].partitions
    for partition in range(3):
        node.produce("other", b"x" * 1000, partition=partition)
    answer = node.ask(request, 12)
    sizes = [len(row.records) for topic in answer.responses for row in topic.partitions]
    assert sizes[0] > 1000
    assert sizes[2] == 0
    assert sum(sizes) <= 1500 + sizes[0]


def test_out_of_range_unknown_and_fenced_have_their_errors(node) -> None:
    node.produce("t", b"a")
    assert node.fetch("t", 2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert node.fetch("t", -1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert node.fetch("nowhere", 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert node.fetch("t", 0, partition=5).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert node.fetch("t", 0, 13, topic_id=b"\1" * 16).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    epoch = node.broker.hosted.find_partition("t", 0).leader_epoch
    assert node.fetch("t", 0, leader_epoch=epoch + 1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    node.restart()
    assert node.fetch("t", 0, leader_epoch=epoch).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_client_with_a_replica_id_is_refused(node) -> None:
    node.produce("t", b"a")
    assert node.fetch("t", 0, replica_id=2).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_deleted_topic_wakes_waiting_fetches(node) -> None:
    waiting = node.send(node.fetch_request("t", 0, max_wait_ms=60_000), 12, peer=type(node.peer)())
    node.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 4)
    row = node.answer(waiting).responses[0].partitions[0]
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_cold_bytes_are_warmed_and_sent_even_without_max_wait(node) -> None:
    node.produce("t", b"a", b"b")
    node.process.post_turn(0, "stop", node.broker.stop_broker, lambda _: None)
    node.pass_ms(5000)
    node.restart(Death.STOP)
    assert node.values("t", max_wait_ms=0) == [b"a", b"b"]


class Session:
    """A reader with an incremental fetch session over partitions 0…n-1 of a topic."""

    def __init__(self, node, name: str, partitions: int) -> None:
        self.node = node
        self.name = name
        self.epoch = 0
        self.session_id = 0
        first = node.fetch_request(name, 0, topic_id=node.topic_id(name))
        for partition in range(1, partitions):
            first.topics[0].partitions += node.fetch_request(name, 0, partition=partition).topics[0].partitions
        self.first = self.fetch(first)

    def fetch(self, request: FetchRequest | None = None):
        """{partition: row} of one round."""
        request = request or FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[])
        request.session_id, request.session_epoch = self.session_id, self.epoch
        answer = self.node.ask(request, 13)
        assert answer.error_code == 0
        self.session_id = answer.session_id
        self.epoch += 1
        return {row.partition_index: row for topic in answer.responses for row in topic.partitions}

    def move(self, partition: int, offset: int) -> FetchRequest:
        """The reader has read up to `offset`."""
        return self.node.fetch_request(self.name, offset, partition=partition, topic_id=self.node.topic_id(self.name))


def test_a_session_sends_only_news(node, records_in) -> None:
    node.create("wide", partitions=3)
    session = Session(node, "wide", 3)
    assert sorted(session.first) == [0, 1, 2]
    assert session.fetch() == {}
    node.produce("wide", b"a", partition=1)
    news = session.fetch()
    assert [record.value for record in records_in(news[1].records)] == [b"a"]
    assert list(news) == [1]
    again = session.fetch()
    assert list(again) == [1], "what was not taken is sent again"
    assert session.fetch(session.move(1, 1)) == {}
    node.produce("wide", b"b", partition=1)
    assert list(session.fetch()) == [1]


def test_an_idle_session_costs_an_append_nothing(node) -> None:
    node.create("wide", partitions=2)
    session = Session(node, "wide", 2)
    partition = node.broker.hosted.find_partition("wide", 0)
    assert len(partition.watchers) == 1
    node.produce("wide", b"a")
    assert not partition.watchers, "woken once, and not again before the reader comes back"
    node.produce("wide", b"b")
    assert len(records(session.fetch()[0])) == 2


def records(row):
    from ottla.record.batch import batches_of

    return list(batches_of(memoryview(bytes(row.records))))


def test_a_session_turns_so_that_no_partition_starves(node) -> None:
    node.create("wide", partitions=2)
    session = Session(node, "wide", 2)
    for partition in (0, 1):
        node.produce("wide", b"x" * 1000, partition=partition)
    seen = []
    for _ in range(4):
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1, topics=[])
        seen += [row.partition_index for row in session.fetch(request).values() if row.records]
    assert seen == [0, 1, 0, 1]


def test_a_session_may_be_closed_while_its_request_waits(node) -> None:
    session = Session(node, "t", 1)
    node.produce("t", b"a")
    request = FetchRequest(max_wait_ms=1000, min_bytes=100_000, max_bytes=1 << 20, topics=[])
    request.session_id, request.session_epoch = session.session_id, session.epoch
    waiting = node.send(request, 13)
    assert not waiting.answered
    closing = node.fetch_request("t", 0, topic_id=node.topic_id("t"))
    closing.session_id, closing.session_epoch = session.session_id, 0
    node.send(closing, 13, peer=type(node.peer)())
    node.pass_ms(1100)
    assert waiting.answered
