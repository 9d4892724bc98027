"""How much memory one request takes: at most 16 bytes per byte of it, and a mebibyte, its answer included.

Zone: real. Each array of each request is filled with as many elements as fit in `FRAME` bytes: with the name of one
wide topic, and with names that differ. `EXPLORE=1` takes every version, CI the first and the last, and of requests
between brokers the last.

There is no exception by API: what is measured is the peak of all that is allocated from the frame's arrival to its
answer, the encoded answer included. Where a few bytes ask for all that is stored (null: all topics, all partitions, all
groups, all log directories), the answer's bytes are as many as the stored state makes them, and they are counted by the
budget of replies (`server/connections/response_memory`). For those requests twice the bytes of the encoded answer come
on top: no object per element exists for the whole answer at once.
"""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Iterator
from typing import Any, Final

import pytest
from bench.filled_requests import WIDE, Case, cases_of, filled_request, largest_request
from tests.handnode import Node, Place

from ottla.wire.apis import API_TABLE, Api
from ottla.wire.codec import encode_bytes
from ottla.wire.header import encode_request_header
from ottla.wire.messages import (
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    ListConfigResourcesRequest,
    ListGroupsRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)

pytestmark = pytest.mark.slow

KIB: Final = 1024
FRAME: Final = 128 * KIB
"""Bytes of a request."""
PER_BYTE: Final = 16
FIXED: Final = 1024 * KIB
GROUP: Final = "group" * 12
PARTITIONS: Final = 500
ALL: Final = 3_000
"""Groups, and partitions of other topics, where all is asked for."""


def frame_of(message: Any, version: int) -> bytearray:
    return bytearray(encode_request_header(int(message.API_KEY), version, 7, "hand") + encode_bytes(message, version))


def largest_frame(case: Case, node: Node) -> bytearray:
    """Return the frame of a request of about `FRAME` bytes."""
    return frame_of(largest_request(case, FRAME, node.topic_id), case.version)


def cases(api: Api, node: Node) -> Iterator[Case]:
    first, last = node.broker._dispatch.version_ranges().get(int(api.key), (0, -1))
    versions, explores = range(first, last + 1), "EXPLORE" in os.environ
    if not explores:
        first = last if api.request.BETWEEN_BROKERS else first
        versions = sorted({first, last} & set(versions))
    for version in versions:
        yield from (case for case in cases_of(api, version) if not case.is_same or version == last or explores)


def everything() -> dict[str, tuple[Any, int]]:
    """Requests of a few bytes whose answers are about all that is stored; with their versions."""
    return {
        "log directories": (DescribeLogDirsRequest(topics=None), 4),
        "elections": (ElectLeadersRequest(topic_partitions=None), 2),
        "groups": (ListGroupsRequest(), 5),
        "moves": (ListPartitionReassignmentsRequest(topics=None), 0),
        "resources": (ListConfigResourcesRequest(), 1),
        "topics": (MetadataRequest(topics=None), 8),
    }


def peak_of(node: Node, key: int, version: int, frame: bytearray) -> int:
    """The most bytes that the broker has at once for this request."""
    return measured(node, key, version, frame)[0]


def measured(node: Node, key: int, version: int, frame: bytearray) -> tuple[int, int]:
    """The same, and the bytes of the answer."""
    place = Place(node.peer, key, version)
    closed = len(node.network.closed)
    node.process.post_turn(0, "frame", lambda: node.broker.on_frame(place, memoryview(frame)))
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(200):
            node.pass_ms(10)
            if place.answered or len(node.network.closed) > closed:
                break
        return tracemalloc.get_traced_memory()[1] - before, sum(map(len, place.parts or ()))
    finally:
        tracemalloc.stop()


@pytest.fixture
def node() -> Node:
    """A broker with one wide topic, and a group that has committed in all of it."""
    few = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
    made = Node({**few, "auto.create.topics.enable": "false"})
    made.create(WIDE, PARTITIONS)
    topic, partition = OffsetCommitRequest.OffsetCommitRequestTopic, OffsetCommitRequest.OffsetCommitRequestPartition
    made.create("__consumer_offsets")
    commits = [
        partition(partition_index=number, committed_offset=1, committed_metadata="m" * 100)
        for number in range(PARTITIONS)
    ]
    commit = OffsetCommitRequest(group_id=GROUP, topics=[topic(name=WIDE, partitions=commits)])
    commit.generation_id_or_member_epoch = -1
    assert made.ask(commit, 5).topics[0].partitions[0].error_code == 0
    return made


@pytest.mark.parametrize("api", API_TABLE.values(), ids=lambda api: api.name)
def test_a_request_takes_no_more_memory_than_its_size_allows(node: Node, api: Api) -> None:
    over = []
    for case in cases(api, node):
        frame = largest_frame(case, node)
        small = frame_of(filled_request(case, 1, node.topic_id), case.version)
        peak_of(node, int(api.key), case.version, small)  # compiles
        peak = peak_of(node, int(api.key), case.version, frame)
        if peak > PER_BYTE * len(frame) + FIXED:
            over.append(f"{case}: {(peak - FIXED) / len(frame):.1f} bytes per byte")
    assert not over, over


def fill(node: Node) -> None:
    """Thousands of groups, and of partitions."""
    commit = OffsetCommitRequest(generation_id_or_member_epoch=-1)
    row, topic = OffsetCommitRequest.OffsetCommitRequestPartition, OffsetCommitRequest.OffsetCommitRequestTopic
    for number in range(ALL):
        commit.group_id = f"group-{number}"
        commit.topics = [topic(name=WIDE, partitions=[row(partition_index=0, committed_offset=1)])]
        assert node.ask(commit, 5).topics[0].partitions[0].error_code == 0
    for number in range(ALL // 1_000):
        node.create(f"wide-{number}", 1_000)


def test_an_answer_about_all_takes_no_more_than_its_bytes_allow(node: Node) -> None:
    fill(node)
    over = []
    for what, (message, version) in everything().items():
        frame = frame_of(message, version)
        peak_of(node, int(message.API_KEY), version, frame)  # compiles
        peak, answer = measured(node, int(message.API_KEY), version, frame)
        assert not node.network.closed
        if peak > PER_BYTE * len(frame) + 2 * answer + FIXED:
            over.append(f"{what}: {peak // KIB} KiB, {answer} bytes of answer")
    assert not over, over


def repeating() -> dict[str, tuple[Any, int]]:
    """Requests whose answers repeat what is large, once for each time that it is named; with their versions."""
    describe, fetch, metadata = DescribeConfigsRequest, OffsetFetchRequest, MetadataRequest
    broker = describe.DescribeConfigsResource(resource_type=4, resource_name="1")
    everything = fetch.OffsetFetchRequestGroup(group_id=GROUP, topics=None)
    topic = metadata.MetadataRequestTopic(name=WIDE)
    settings = describe(resources=[broker] * 400, include_synonyms=True, include_documentation=True)
    return {
        "the broker's settings": (settings, 3),
        "all positions of a group": (fetch(groups=[everything] * 2_000), 8),
        "a wide topic": (metadata(topics=[topic] * 1_000, allow_auto_topic_creation=False), 8),
        "all topics": (metadata(topics=None), 8),
    }


@pytest.mark.parametrize("what", sorted(repeating()))
def test_a_large_element_that_is_named_often_is_answered_once(node: Node, what: str) -> None:
    message, version = repeating()[what]
    key = int(message.API_KEY)
    frame = frame_of(message, version)
    assert not node.network.closed
    peak = peak_of(node, key, version, frame)
    assert not node.network.closed, "the request itself is fine"
    assert peak <= PER_BYTE * len(frame) + FIXED, f"{peak // KIB} KiB for {len(frame)} bytes"
