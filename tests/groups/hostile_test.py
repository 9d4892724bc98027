"""Requests about groups with flipped bytes: each is answered or its connection closed, and no shard is fenced."""

from __future__ import annotations

import random

import pytest
from tests.groups.requests_test import Hall
from tests.handnode import Asker, Place

from ottla.coordinator.shard_runtime import ShardState
from ottla.wire.apis import API_TABLE, ApiKey
from ottla.wire.codec import encode_bytes
from ottla.wire.header import encode_request_header
from ottla.wire.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)

CASES = 3000


def requests(member: str, topic_id: bytes) -> list[object]:
    """One request of each API, with a value in every field."""
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"m")
    part = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    row = OffsetFetchRequest.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0, 1])
    gone = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    return [
        JoinGroupRequest(
            group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=9, member_id=member, group_instance_id="i",
            protocol_type="consumer", protocols=[protocol], reason="why",
        ),
        SyncGroupRequest(
            group_id="g", generation_id=1, member_id=member, protocol_type="consumer", protocol_name="range",
            assignments=[SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=b"a")],
        ),
        HeartbeatRequest(group_id="g", generation_id=1, member_id=member),
        LeaveGroupRequest(group_id="g", members=[LeaveGroupRequest.MemberIdentity(member_id="x", reason="r")]),
        OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=1, member_id=member,
            topics=[OffsetCommitRequest.OffsetCommitRequestTopic(topic_id=topic_id, partitions=[part])],
        ),
        OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=[row])]),
        OffsetDeleteRequest(
            group_id="g", topics=[OffsetDeleteRequest.OffsetDeleteRequestTopic(name="t", partitions=[gone])]
        ),
        ListGroupsRequest(states_filter=["Stable"], types_filter=["classic"]),
        DescribeGroupsRequest(groups=["g", "h"], include_authorized_operations=True),
        DeleteGroupsRequest(groups_names=["g", "h"]),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_bytes_turned_over(seed: int):
    hall = Hall(group_min_session_timeout_ms="1")
    node, rng = hall.node, random.Random(seed)
    member = hall.joined().member_id
    hall.synced(member)
    ranges = node.broker._dispatch.version_ranges()
    kinds = requests(member, node.topic_id("t"))
    answered = closed = 0
    for _ in range(CASES):
        request = rng.choice(kinds)
        key = next(key for key, api in API_TABLE.items() if api.request is type(request))
        version = ranges[key][1]
        frame = bytearray(encode_request_header(key, version, 7, "hand") + encode_bytes(request, version))
        for _ in range(rng.randrange(4)):
            frame[rng.randrange(8, len(frame))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if rng.random() < 0.1:
            frame = frame[: rng.randrange(8, len(frame))]
        place, before = Place(Asker(), key, version), len(node.network.closed)

        def turn(place: Place = place, frame: bytearray = frame) -> None:
            node.broker.on_frame(place, memoryview(frame))

        node.process.post_turn(0, "frame", turn)
        node.pass_ms(rng.choice((0, 0, 0, 5)))
        answered += place.answered
        closed += len(node.network.closed) > before
    assert answered > CASES / 4
    assert closed > CASES / 10
    groups = node.broker._coordinators.groups.coordinator
    assert groups.count_shards(ShardState.FENCED) == 0
    assert groups.count_shards(ShardState.ACTIVE) == 4
    assert hall.commit(77, group_id="still there") == 0
    assert hall.fetch(9, "still there").committed_offset == 77
    assert ApiKey.HEARTBEAT in ranges
