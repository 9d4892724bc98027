"""Names, numbers and lists of every size over the wire: each request gets its error, and leaves no state."""

from __future__ import annotations

from typing import Any

import pytest
from tests.groups.hall import Hall as Machine
from tests.groups.requests_test import Hall
from tests.handnode import Asker, Place

from ottla.errors import ErrorCode
from ottla.groups import joining
from ottla.groups.handlers.member_handlers import MAX_PROTOCOLS
from ottla.wire.apis import ApiKey
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

INT32 = (-(2**31), -1, 0, 2**31 - 1)
INT64 = (-(2**63), -1, 0, 2**63 - 1)
NO_TEXT = (b"\xff\xfe\xfd\xfc", b"\xc3\x28ab", b"\xed\xa0\x80\x80", b"\xf8\x88\x80\x80")
"""Four bytes that are not UTF-8: no start byte, a cut sequence, half a surrogate, an invalid length."""


@pytest.fixture
def hall() -> Hall:
    return Hall()


def groups_of(hall: Hall) -> dict[str, Any]:
    """All groups in memory."""
    return {
        name: group for shard in hall.node.broker._coordinators.groups.shards() for name, group in shard.groups.items()
    }


@pytest.mark.parametrize("raw", NO_TEXT)
@pytest.mark.parametrize(
    ("key", "version", "request_"),
    [
        (ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id="abcd", generation_id=1, member_id="m")),
        (ApiKey.HEARTBEAT, 0, HeartbeatRequest(group_id="g", generation_id=1, member_id="abcd")),
        (ApiKey.HEARTBEAT, 3, HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id="abcd")),
        (ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=["abcd"])),
        (ApiKey.OFFSET_FETCH, 7, OffsetFetchRequest(group_id="abcd", topics=None)),
    ],
)
def test_names_that_are_not_utf8_are_accepted(
    hall: Hall, key: ApiKey, version: int, request_: object, raw: bytes
) -> None:
    frame = encode_request_header(key, version, 7, "hand") + encode_bytes(request_, version)
    assert frame.count(b"abcd") == 1
    place = Place(Asker(), key, version)
    spoiled = memoryview(bytearray(frame.replace(b"abcd", raw)))
    hall.node.process.post_turn(0, "frame", lambda: hall.node.broker.on_frame(place, spoiled))
    hall.node.pass_ms(10)
    assert place.answered
    assert hall.node.network.closed == []
    assert groups_of(hall) == {}


@pytest.mark.parametrize("timeout_ms", INT32)
def test_session_timeouts_of_every_size(hall: Hall, timeout_ms: int) -> None:
    for version in (0, 3, 9):
        answer = hall.node.answer(hall.join(version, session_timeout_ms=timeout_ms))
        assert answer.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert groups_of(hall) == {}


@pytest.mark.parametrize("number", INT64)
def test_offsets_and_times_of_every_size(hall: Hall, number: int) -> None:
    assert hall.commit(number, 9) == 0
    assert hall.fetch().committed_offset == number
    assert hall.commit(5, 1, group_id="times", commit_timestamp=number) == 0
    assert hall.commit(5, 2, group_id="kept", retention_time_ms=number) == 0
    hall.node.pass_ms(1000)
    hall.node.restart()
    assert hall.fetch().committed_offset == number
    assert hall.fetch(9, "times").committed_offset == 5


@pytest.mark.parametrize("number", INT32)
def test_generations_and_partitions_of_every_size(hall: Hall, number: int) -> None:
    member = hall.joined().member_id
    hall.synced(member)
    beat = HeartbeatRequest(group_id="g", generation_id=number, member_id=member)
    assert hall.ask(beat, 4).error_code == ErrorCode.ILLEGAL_GENERATION
    assert hall.synced(member, number).error_code == ErrorCode.ILLEGAL_GENERATION
    whose = {"generation_id_or_member_epoch": number, "member_id": member}
    assert hall.commit(1, **whose) == ErrorCode.ILLEGAL_GENERATION
    code = hall.commit(1, group_id="other", partition=number)
    assert code == (0 if number == 0 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_a_member_names_five_hundred_protocols_at_most(hall: Hall) -> None:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol
    many = [protocol(name=f"p{at}", metadata=b"m") for at in range(MAX_PROTOCOLS + 1)]
    assert hall.node.answer(hall.join(3, protocols=many)).error_code == ErrorCode.INVALID_REQUEST
    answer = hall.node.answer(hall.join(3, protocols=many[:-1]))
    assert (answer.error_code, answer.protocol_name) == (0, "p0")
    assert hall.synced(answer.member_id).error_code == 0
    other = hall.join(3, protocols=[protocol(name="q", metadata=b"")])
    assert hall.node.answer(other).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_subscription_too_large_for_a_record(hall: Hall) -> None:
    """It is kept in memory until the generation is journaled; that fails for this group only."""
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"x" * 2_000_000)
    member = hall.joined(protocols=[protocol]).member_id
    assert hall.synced(member).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert hall.commit(7, group_id="other") == 0
    leave = LeaveGroupRequest(group_id="g", members=[LeaveGroupRequest.MemberIdentity(member_id=member)])
    assert hall.ask(leave, 4).members[0].error_code == 0
    assert [len(group.members) for group in groups_of(hall).values()] == [0, 0]


def test_a_thousand_assignments_for_unknown_members(hall: Hall) -> None:
    member = hall.joined().member_id
    share = SyncGroupRequest.SyncGroupRequestAssignment
    shares = [share(member_id=f"nobody{at}", assignment=b"x" * 1000) for at in range(1000)]
    answer = hall.synced(member, assignments=shares)
    assert (answer.error_code, bytes(answer.assignment)) == (0, b"")
    (group,) = groups_of(hall).values()
    assert sum(len(each.assignment) for each in group.members.values()) == 0


def test_refused_requests_leave_no_state(hall: Hall) -> None:
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    for at in range(200):
        name = f"g{at}"
        assert hall.node.answer(hall.join(member="nobody", group_id=name)).error_code == unknown
        assert hall.ask(HeartbeatRequest(group_id=name, generation_id=0, member_id="m"), 4).error_code == unknown
        assert hall.synced("nobody", group_id=name).error_code == unknown
        who = [LeaveGroupRequest.MemberIdentity(member_id="nobody")]
        assert hall.ask(LeaveGroupRequest(group_id=name, members=who), 4).error_code in (0, unknown)
        assert hall.commit(1, 9, group_id=name, partition=9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert hall.fetch(9, name).committed_offset == -1
    gone = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    drop = OffsetDeleteRequest(
        group_id="g0", topics=[OffsetDeleteRequest.OffsetDeleteRequestTopic(name="t", partitions=[gone])]
    )
    assert hall.ask(drop, 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    (deleted,) = hall.ask(DeleteGroupsRequest(groups_names=["g0"]), 2).results
    assert deleted.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert hall.ask(ListGroupsRequest(), 5).groups == []
    assert groups_of(hall) == {}
    assert all(len(shard._calendar) <= 1 for shard in hall.node.broker._coordinators.groups.shards())


def test_an_empty_commit_and_ten_thousand_unknown_partitions(hall: Hall) -> None:
    assert hall.ask(OffsetCommitRequest(group_id="g", topics=[]), 9).topics == []
    part = OffsetCommitRequest.OffsetCommitRequestPartition
    parts = [part(partition_index=at, committed_offset=1) for at in range(10_000)]
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=parts)
    answer = hall.ask(OffsetCommitRequest(group_id="g", topics=[topic]), 9)
    codes = [each.error_code for each in answer.topics[0].partitions]
    assert codes == [0, 0] + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 9998


# -- member ids that are never used ------------------------------------------------------------------------------------


def test_pending_member_ids_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MAX_PENDING", 3)
    hall = Machine()
    given = [hall.joins(f"c{at}", known=True).value.member_id for at in range(10)]
    assert list(hall.group.pending) == given[-3:]
    assert hall.joins("c0", given[0]).value.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert hall.state == "Empty"
    newcomer = hall.joins("c9", given[9])
    hall.pass_ms(10_000)
    assert newcomer.value.code is ErrorCode.NONE, "the others never came back"


def test_pending_member_ids_begin_no_rebalance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MAX_PENDING", 2)
    hall = Machine()
    (member,) = hall.stable("a")
    for at in range(20):
        hall.joins(f"c{at}", known=True)
    assert hall.state == "Stable"
    assert hall.beats(member) is ErrorCode.NONE


def test_removed_deadlines_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MAX_PENDING", 10)
    hall = Machine()
    for at in range(2000):
        hall.joins(f"c{at}", known=True, session_ms=1_800_000)
    calendar = hall.shard._calendar
    assert len(calendar) == 11, "ten members and the search for expired offsets"
    assert len(calendar._heap) < 100
    hall.pass_ms(1_800_000)
    assert len(calendar) == 1
