"""A full fetch that is answered at once has the answer that it has with a session.

Zone: real (it drives a broker by hand).
"""

from __future__ import annotations

import pytest
from tests.handnode import Node

from ottla.wire.messages import FetchRequest

PARTITIONS = 8


@pytest.fixture(scope="module")
def node() -> Node:
    node = Node()
    node.create("t", PARTITIONS)
    node.create("u", PARTITIONS)
    for topic in "tu":
        for partition in range(PARTITIONS - 2):
            for number in range(partition):
                node.produce(topic, b"v" * 100 * number, partition=partition)
    return node


def asked(offset: int, epoch: int, names=("t", "u"), max_bytes=1 << 20, most=1 << 20, **more) -> FetchRequest:
    part = FetchRequest.FetchPartition
    rows = [part(partition=number, fetch_offset=offset, partition_max_bytes=most) for number in range(PARTITIONS)]
    topics = [FetchRequest.FetchTopic(topic=name, partitions=rows) for name in names]
    wait = more.pop("max_wait_ms", 0)
    return FetchRequest(max_wait_ms=wait, min_bytes=1, max_bytes=max_bytes, session_epoch=epoch, topics=topics, **more)


def rows_of(answer):
    return [
        (topic.topic, row.partition_index, row.error_code, row.high_watermark, row.last_stable_offset,
         row.log_start_offset, row.aborted_transactions, bytes(row.records))
        for topic in answer.responses
        for row in topic.partitions
    ]  # fmt: skip


def objects_made(node, request, version):
    """The answer, and how many sessions were made for it."""
    made = []
    sessions = node.broker._fetch.sessions
    make = sessions.session_for
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "session_for", lambda *args: made.append(1) or make(*args))
        answer = node.ask(request, version)
    return answer, len(made)


@pytest.mark.parametrize("version", [10, 11, 12])
@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("sizes", [(1 << 20, 1 << 20), (700, 1 << 20), (1 << 20, 300), (1, 1)])
def test_the_answer_is_that_of_a_session(node, version, isolation, sizes) -> None:
    for offset in (0, 1, 2):
        bounds = {"max_bytes": sizes[0], "most": sizes[1], "isolation_level": isolation}
        plain, made = objects_made(node, asked(offset, -1, **bounds), version)
        with_session, _ = objects_made(node, asked(offset, 0, **bounds), version)
        assert rows_of(plain) == rows_of(with_session)
        if offset == 0:
            assert made == 0
            assert any(row.records for topic in plain.responses for row in topic.partitions)


@pytest.mark.parametrize("names", [("t", "none"), ("t", "t"), ("none",)])
def test_unusual_fetches_use_a_session(node, names) -> None:
    plain, made = objects_made(node, asked(0, -1, names), 12)
    with_session, _ = objects_made(node, asked(0, 0, names), 12)
    assert made == 1
    assert rows_of(plain) == rows_of(with_session)


def test_where_there_is_nothing_yet_it_waits(node) -> None:
    request = asked(0, -1, max_wait_ms=5_000)
    for topic in request.topics:
        topic.partitions = topic.partitions[:1] + topic.partitions[-2:]
    place = node.send(request, 12, type(node.peer)())
    assert not place.answered
    node.produce("u", b"late", partition=PARTITIONS - 1)
    assert place.answered


def test_its_bytes_count_once(node) -> None:
    partition = node.broker.hosted.by_name["t"].partitions[5]
    before = partition.bytes_out
    answer, _ = objects_made(node, asked(0, -1), 12)
    assert partition.bytes_out - before == len(bytes(answer.responses[0].partitions[5].records))
    before = partition.bytes_out
    objects_made(node, asked(0, -1, ("t", "none")), 12)
    assert partition.bytes_out - before == len(bytes(answer.responses[0].partitions[5].records))
