"""Every API in every version is asked, and answers, with texts as long as its strings may be.

Zone: real.
"""

from __future__ import annotations

import pytest
from tests.handnode import Node, Place

from ottla.errors import ErrorCode
from ottla.wire.apis import API_TABLE, ApiKey
from ottla.wire.codec import encode_bytes
from ottla.wire.header import encode_request_header
from ottla.wire.limits import MAX_STRING
from ottla.wire.messages import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from ottla.wire.schema import struct_class

LONG = "x" * MAX_STRING
ACCENTED = "é" * (MAX_STRING // 2) + "x"
TOO_LONG = ("y" * (MAX_STRING + 1), "y" * 65_536)
KNOWN = {"group_id": LONG, "topic": "t", "transactional_id": LONG, "acks": 1}


@pytest.fixture(scope="module")
def node() -> Node:
    """A broker that has stored the longest texts of everything."""
    made = Node({"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"})
    made.create("t")
    for kind in (0, 1):  # the topics of both coordinators
        made.ask(FindCoordinatorRequest(coordinator_keys=["k"], key_type=kind), 4)
    made.pass_ms(2000)
    return made


def filled(cls, version: int, text: str, known: dict[str, object]):
    """A message with one element in each array, and the text in each string but those of known names."""
    out = cls()
    for field in cls.FIELDS:
        if not field.exists_in(version):
            continue
        kind = field.of if field.type == "array" else field.type
        if kind == "struct":
            value = filled(struct_class(cls, field), version, text, known)
        elif kind == "string":
            value = known.get(field.name, text)
        elif field.name in known and field.type != "array":
            value = known[field.name]
        else:
            continue
        setattr(out, field.name, [value] if field.type == "array" else value)
    return out


def send(node: Node, key: int, version: int, body: bytes, client: str = "hand") -> Place:
    frame = bytearray(encode_request_header(key, version, 7, client) + body)
    place = Place(node.peer, key, version)
    node.process.post_turn(0, "frame", lambda: node.broker.on_frame(place, memoryview(frame)))
    node.pass_ms(0)
    return place


def settled(node: Node, place: Place, closed: int) -> None:
    for _ in range(200):
        if place.answered or len(node.network.closed) > closed:
            return
        node.pass_ms(20)


def defects(node: Node) -> dict[str, int]:
    counts = node.broker._dispatch.containment.counts
    return {API_TABLE[key].name: count for key, count in counts.items()}


def asked_versions(node: Node) -> list[tuple[int, int]]:
    ranges = node.broker._dispatch.version_ranges()
    return [(key, version) for key, (low, high) in ranges.items() for version in range(low, high + 1)]


@pytest.mark.slow
@pytest.mark.parametrize("known", [{"acks": 1}, KNOWN], ids=["strangers", "known"])
@pytest.mark.parametrize("text", [LONG, ACCENTED], ids=["ascii", "accented"])
def test_every_version_answers_the_longest_texts(node: Node, text: str, known: dict[str, object]) -> None:
    unanswered = []
    for key, version in asked_versions(node):
        body = encode_bytes(filled(API_TABLE[key].request, version, text, known), version)
        closed = len(node.network.closed)
        place = send(node, key, version, body, text)
        settled(node, place, closed)
        if place.answered:
            node.answer(place)
        elif len(node.network.closed) == closed:
            unanswered.append((API_TABLE[key].name, version))
        assert not defects(node), (API_TABLE[key].name, version)
    assert {name for name, _ in unanswered} <= {"JoinGroup", "SyncGroup"}, "these wait for other members"


@pytest.mark.slow
@pytest.mark.parametrize("text", TOO_LONG, ids=["one more", "64 KiB"])
def test_a_text_that_is_too_long_closes_its_connection(node: Node, text: str) -> None:
    for key, version in asked_versions(node):
        api = API_TABLE[key]
        if version < api.flexible_from:
            continue
        message = filled(api.request, version, text, {"acks": 1})
        body = encode_bytes(message, version)
        if len(body) < len(text):
            continue  # it has no string
        closed = len(node.network.closed)
        send(node, key, version, body)
        node.pass_ms(10)  # a large request is read in a later turn
        assert len(node.network.closed) == closed + 1, (api.name, version)
    assert not defects(node)


@pytest.mark.parametrize("version", range(6))
def test_a_composed_member_id_fits_every_version_that_carries_it(node: Node, version: int) -> None:
    group = f"g{version}"
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name=LONG, metadata=b"m" * MAX_STRING)
    join = JoinGroupRequest(group_id=group, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocol_type=LONG)
    join.protocols = [protocol]
    place = send(node, ApiKey.JOIN_GROUP, version, encode_bytes(join, version), LONG)
    joined = node.answer(place)
    if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        join.member_id = joined.member_id
        joined = node.answer(send(node, ApiKey.JOIN_GROUP, version, encode_bytes(join, version), LONG))
    assert joined.error_code == 0
    assert len(joined.member_id) == MAX_STRING
    member = {"group_id": group, "member_id": joined.member_id, "generation_id": joined.generation_id}
    sync = SyncGroupRequest(**member)
    sync.assignments = [SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"a")]
    assert node.ask(sync, 0).error_code == 0
    assert node.ask(HeartbeatRequest(**member), 0).error_code == 0
    for described_in in range(6):
        (described,) = node.ask(DescribeGroupsRequest(groups=[group]), described_in).groups
        assert described.members[0].member_id == joined.member_id
        assert described.members[0].client_id == LONG
    assert not defects(node)


def test_an_old_version_returns_long_texts_of_a_flexible_one(node: Node) -> None:
    commit = OffsetCommitRequest(group_id=LONG, generation_id_or_member_epoch=-1)
    one = OffsetCommitRequest.OffsetCommitRequestPartition(committed_offset=1, committed_metadata="m" * 4096)
    commit.topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[one])]
    assert node.ask(commit, 9).topics[0].partitions[0].error_code == 0
    for version in range(1, 8):
        request = OffsetFetchRequest(group_id=LONG)
        request.topics = [OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        assert node.ask(request, version).topics[0].partitions[0].metadata == "m" * 4096
    for version in range(6):
        assert LONG in {each.group_id for each in node.ask(ListGroupsRequest(), version).groups}
    begun = node.ask(InitProducerIdRequest(transactional_id=LONG, transaction_timeout_ms=1000), 4)
    assert begun.error_code == 0
    assert not defects(node)
