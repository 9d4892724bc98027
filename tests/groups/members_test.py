"""Classic groups, case by case: joining, syncing, staying, leaving."""

from __future__ import annotations

import struct

import pytest
from tests.groups.hall import G, Hall, assigned, error, joined

from ottla.errors import ErrorCode
from ottla.groups.group import GroupState
from ottla.groups.rebalancing import NEW_MEMBER_MS
from ottla.record.internal.consumer_protocol import ConsumerProtocolSubscription
from ottla.wire.codec import encode_bytes

# -- joining -----------------------------------------------------------------------------------------------------------


def test_the_first_member_leads():
    hall = Hall()
    result = joined(hall.joins("a"))
    assert (result.member_id, result.leader, result.generation) == ("a-1", "a-1", 1)
    assert (result.protocol_type, result.protocol) == ("consumer", "range")
    assert result.members == [("a-1", None, b"meta")]
    assert hall.state == "CompletingRebalance"
    assert assigned(hall.syncs("a-1", {"a-1": b"all"})) == b"all"
    assert hall.state == "Stable"
    assert hall.beats("a-1") is ErrorCode.NONE


def test_a_new_member_joins_again_with_its_id():
    hall = Hall()
    first = hall.joins("a", known=True)
    assert error(first) == "MEMBER_ID_REQUIRED"
    assert first.value.member_id == "a-1"
    assert hall.state == "Empty"
    assert joined(hall.joins("a", "a-1", known=True)).member_id == "a-1"


def test_an_id_that_is_not_used_expires():
    hall = Hall()
    hall.joins("a", known=True, session_ms=6000)
    hall.pass_ms(6001)
    assert error(hall.joins("a", "a-1", known=True)) == "UNKNOWN_MEMBER_ID"


def test_a_rebalance_waits_for_an_id_that_was_given_out():
    hall = Hall()
    (leader,) = hall.stable("a")
    hall.joins("b", known=True)
    again = hall.joins("a", leader)
    assert not again.answered
    other = hall.joins("b", "b-2", known=True)
    assert {each[0] for each in joined(again).members} == {leader, "b-2"}
    assert joined(other).members == ()
    assert joined(other).leader == leader


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"group": ""}, "INVALID_GROUP_ID"),
        ({"session_ms": 5999}, "INVALID_SESSION_TIMEOUT"),
        ({"session_ms": 1_800_001}, "INVALID_SESSION_TIMEOUT"),
        ({"session_ms": -1}, "INVALID_SESSION_TIMEOUT"),
        ({"member": "nobody"}, "UNKNOWN_MEMBER_ID"),
        ({"protocols": ()}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"kind": ""}, "INCONSISTENT_GROUP_PROTOCOL"),
    ],
)
def test_invalid_joins(options: dict, code: str):
    hall = Hall()
    assert error(hall.joins(**options)) == code
    assert hall.shard.groups == {}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"kind": "connect"}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"protocols": (("sticky", b""),)}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"member": "nobody"}, "UNKNOWN_MEMBER_ID"),
        ({"member": "nobody", "instance": "i"}, "UNKNOWN_MEMBER_ID"),
    ],
)
def test_joins_that_the_group_refuses(options: dict, code: str):
    hall = Hall()
    hall.stable("a")
    assert error(hall.joins("b", **options)) == code
    assert hall.state == "Stable"


def test_all_members_share_the_protocol_that_most_prefer():
    hall = Hall()
    (leader,) = hall.stable("a", protocols=(("range", b""), ("sticky", b"")))
    others = [hall.joins(name, protocols=(("sticky", b""), ("range", b""))) for name in "bc"]
    result = joined(hall.joins("a", leader, protocols=(("range", b""), ("sticky", b""))))
    assert result.protocol == "sticky"
    assert [joined(each).protocol for each in others] == ["sticky", "sticky"]
    fourth = hall.joins("d", protocols=(("range", b""),))
    for name, waiting in zip("bc", others, strict=True):
        hall.joins(name, joined(waiting).member_id, protocols=(("sticky", b""), ("range", b"")))
    hall.joins("a", leader, protocols=(("range", b""), ("sticky", b"")))
    assert joined(fourth).protocol == "range", "one that all know"


def test_the_first_rebalance_waits_for_more_members():
    hall = Hall(group_initial_rebalance_delay_ms=3000)
    first = hall.joins("a", rebalance_ms=8000)
    hall.pass_ms(2000)
    second = hall.joins("b", rebalance_ms=8000)
    hall.pass_ms(1500)
    assert not first.answered, "somebody came, so it waits once more"
    hall.pass_ms(2000)
    assert not first.answered
    hall.pass_ms(1000)
    assert joined(first).generation == joined(second).generation == 1


def test_the_first_rebalance_does_not_wait_longer_than_the_rebalance_timeout():
    hall = Hall(group_initial_rebalance_delay_ms=3000)
    first = hall.joins("a", rebalance_ms=8000)
    for name in "bcdefghi":
        hall.pass_ms(999)
        hall.joins(name, rebalance_ms=8000)
    hall.pass_ms(100)
    assert len(joined(first).members) == 9


def test_a_join_after_all_left_the_first_rebalance_begins_it_again():
    hall = Hall(group_initial_rebalance_delay_ms=3000)
    first = hall.joins("a")
    assert hall.leaves(("a-1", None)) == ["NONE"]
    assert error(first) == "UNKNOWN_MEMBER_ID"
    assert hall.state == "PreparingRebalance"
    assert error(hall.joins("x", kind="")) == "INCONSISTENT_GROUP_PROTOCOL"
    second = hall.joins("b", kind="connect", protocols=(("sticky", b"meta"),))
    hall.pass_ms(6001)
    result = joined(second)
    assert (result.leader, result.protocol_type, result.protocol) == (result.member_id, "connect", "sticky")


def test_a_join_during_a_rebalance_that_waits_only_for_an_id_is_accepted():
    hall = Hall()
    (leader,) = hall.stable("a")
    hall.joins("b", known=True)
    hall.joins("a", leader)
    assert hall.leaves((leader, None)) == ["NONE"]
    assert hall.state == "PreparingRebalance", "an id was given out"
    third = hall.joins("c", protocols=(("sticky", b"meta"),))
    hall.pass_ms(60_001)
    assert joined(third).protocol == "sticky"


def test_a_group_that_became_empty_gets_the_initial_delay_again():
    hall = Hall(group_initial_rebalance_delay_ms=3000)
    first = hall.joins("a")
    hall.pass_ms(3001)
    hall.leaves((joined(first).member_id, None))
    assert hall.state == "Empty"
    second = hall.joins("b")
    assert not second.answered
    hall.pass_ms(3001)
    assert joined(second).generation == 3


def test_the_size_of_a_group_is_limited():
    hall = Hall(group_max_size=2)
    members = hall.stable("a", "b")
    assert error(hall.joins("c")) == "GROUP_MAX_SIZE_REACHED"
    assert hall.state == "Stable"
    assert hall.beats(members[1]) is ErrorCode.NONE


def test_a_rebalance_over_the_limit_accepts_the_first_members():
    hall = Hall(group_max_size=2, group_initial_rebalance_delay_ms=3000)
    first, second, third = (hall.joins(name) for name in "abc")
    assert error(third) == "GROUP_MAX_SIZE_REACHED"
    hall.pass_ms(6001)
    assert len(joined(first).members) == 2
    assert joined(second).generation == 1


def test_a_lowered_limit_removes_members():
    hall = Hall()
    members = hall.stable("a", "b", "c")
    hall.config, _ = type(hall.config).from_properties({"group.max.size": "2"})
    hall.leaves((members[2], None))
    hall.joins("a", members[0])
    joined(hall.joins("b", members[1]))
    assert len(hall.group.members) == 2


# -- a rebalance -------------------------------------------------------------------------------------------------------


def test_a_second_member_begins_a_rebalance():
    hall = Hall()
    (leader,) = hall.stable("a")
    other = hall.joins("b")
    assert hall.beats(leader) is ErrorCode.REBALANCE_IN_PROGRESS
    assert error(hall.syncs(leader)) == "REBALANCE_IN_PROGRESS"
    again = hall.joins("a", leader)
    assert joined(again).generation == joined(other).generation == 2
    waiting = hall.syncs(joined(other).member_id)
    assert not waiting.answered
    assert hall.beats(leader) is ErrorCode.NONE, "members may send heartbeats before they are assigned anything"
    assert assigned(hall.syncs(leader, {leader: b"1", joined(other).member_id: b"2"})) == b"1"
    assert assigned(waiting) == b"2"


def test_a_member_that_does_not_join_again_is_removed():
    hall = Hall()
    members = hall.stable("a", "b", rebalance_ms=5000, session_ms=20_000)
    hall.joins("c", rebalance_ms=5000, session_ms=20_000)
    again = hall.joins("a", members[0], rebalance_ms=5000, session_ms=20_000)
    hall.pass_ms(4999)
    assert not again.answered
    hall.pass_ms(2)
    assert len(joined(again).members) == 2
    assert hall.beats(members[1]) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_longest_rebalance_timeout_counts():
    hall = Hall()
    members = hall.stable("a", "b", rebalance_ms=5000, session_ms=30_000)
    hall.joins("c", rebalance_ms=12_000, session_ms=30_000)
    again = hall.joins("a", members[0], rebalance_ms=5000, session_ms=30_000)
    hall.pass_ms(11_999)
    assert not again.answered
    hall.pass_ms(2)
    assert joined(again)


def test_another_member_leads_when_the_leader_does_not_join_again():
    hall = Hall()
    members = hall.stable("a", "b", rebalance_ms=5000, session_ms=20_000)
    new = hall.joins("c", rebalance_ms=5000, session_ms=20_000)
    again = hall.joins("b", members[1], rebalance_ms=5000, session_ms=20_000)
    hall.pass_ms(5001)
    assert joined(again).leader == joined(new).leader != members[0]
    assert len(joined(again).members or joined(new).members) == 2


def test_a_leader_that_joins_again_begins_a_rebalance():
    hall = Hall()
    members = hall.stable("a", "b")
    again = hall.joins("a", members[0])
    assert hall.state == "PreparingRebalance"
    assert not again.answered


def test_a_follower_that_joins_again_without_changes_begins_none():
    hall = Hall()
    members = hall.stable("a", "b")
    result = joined(hall.joins("b", members[1]))
    assert (result.generation, result.leader, result.members) == (hall.group.generation, members[0], ())
    assert hall.state == "Stable"


def test_a_follower_with_other_metadata_begins_a_rebalance():
    hall = Hall()
    members = hall.stable("a", "b")
    hall.joins("b", members[1], protocols=(("range", b"other topics"),))
    assert hall.state == "PreparingRebalance"


def test_a_join_whose_response_was_lost_is_answered_again():
    hall = Hall()
    result = joined(hall.joins("a"))
    assert joined(hall.joins("a", result.member_id)) == result
    other = hall.joins("b")
    joined(hall.joins("a", result.member_id))
    hall.joins("b", joined(other).member_id, protocols=(("range", b"news"),))
    assert hall.state == "PreparingRebalance"


def test_a_second_request_of_a_member_refuses_the_first():
    hall = Hall()
    members = hall.stable("a", "b")
    first = hall.joins("a", members[0])
    second = hall.joins("a", members[0])
    assert error(first) == "REBALANCE_IN_PROGRESS"
    assert not second.answered


def test_a_new_rebalance_refuses_waiting_syncs():
    hall = Hall()
    (leader,) = hall.stable("a")
    other = hall.joins("b")
    hall.joins("a", leader)
    waiting = hall.syncs(joined(other).member_id)
    hall.joins("c")
    assert error(waiting) == "REBALANCE_IN_PROGRESS"
    assert all(member.assignment == b"" for member in hall.group.members.values())


def test_a_member_that_never_syncs_is_removed():
    hall = Hall()
    (leader,) = hall.stable("a", rebalance_ms=5000, session_ms=60_000)
    other = hall.joins("b", rebalance_ms=5000, session_ms=60_000)
    hall.joins("a", leader, rebalance_ms=5000, session_ms=60_000)
    hall.syncs(leader, {})
    assert hall.state == "Stable"
    hall.pass_ms(5001)
    assert joined(other).member_id not in hall.group.members
    assert hall.state == "PreparingRebalance"


def test_the_timeout_of_syncs_ends_with_the_last_one():
    hall = Hall()
    members = hall.stable("a", "b", rebalance_ms=5000, session_ms=60_000)
    hall.pass_ms(6000)
    assert list(hall.group.members) == members
    assert hall.state == "Stable"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"generation": 7}, "ILLEGAL_GENERATION"),
        ({"kind": "connect"}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"protocol": "sticky"}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"instance": "i"}, "UNKNOWN_MEMBER_ID"),
    ],
)
def test_syncs_that_the_group_refuses(options: dict, code: str):
    hall = Hall()
    (leader,) = hall.stable("a")
    assert error(hall.syncs(leader, **options)) == code
    assert error(hall.syncs("nobody")) == "UNKNOWN_MEMBER_ID"
    assert assigned(hall.syncs(leader, kind="consumer", protocol="range")) == leader.encode()


# -- staying and leaving -----------------------------------------------------------------------------------------------


def test_a_member_whose_session_expires_is_removed():
    hall = Hall()
    members = hall.stable("a", "b", session_ms=6000)
    for _ in range(3):
        hall.pass_ms(5000)
        code = hall.beats(members[0])
    assert code is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(hall.group.members) == [members[0]]


def test_heartbeats_keep_a_member():
    hall = Hall()
    (leader,) = hall.stable("a", session_ms=6000)
    for _ in range(50):
        hall.pass_ms(5999)
        assert hall.beats(leader) is ErrorCode.NONE


def test_a_commit_extends_the_session():
    hall = Hall()
    (leader,) = hall.stable("a", session_ms=6000)
    for at in range(5):
        hall.pass_ms(5000)
        assert hall.commits(at, member=leader, generation=1) == "NONE"


def test_a_waiting_request_keeps_a_member_alive():
    hall = Hall()
    members = hall.stable("a", "b", session_ms=6000, rebalance_ms=60_000)
    waiting = hall.joins("a", members[0], session_ms=6000, rebalance_ms=60_000)
    hall.pass_ms(5000)
    hall.beats(members[1])
    hall.pass_ms(3000)
    assert not waiting.answered
    hall.pass_ms(4000)
    assert list(hall.group.members) == [members[0]], "the other one expired"
    assert len(joined(waiting).members) == 1


def test_a_new_member_without_its_id_expires():
    hall = Hall()
    (leader,) = hall.stable("a", rebalance_ms=1_000_000, session_ms=1_000_000)
    lost = hall.joins("b", rebalance_ms=1_000_000)
    hall.pass_ms(NEW_MEMBER_MS + 1)
    assert error(lost) == "UNKNOWN_MEMBER_ID"
    assert joined(hall.joins("a", leader)).members == [(leader, None, b"meta")]


def test_leaving():
    hall = Hall()
    members = hall.stable("a", "b")
    assert hall.leaves((members[1], None), ("nobody", None)) == ["NONE", "UNKNOWN_MEMBER_ID"]
    assert hall.beats(members[0]) is ErrorCode.REBALANCE_IN_PROGRESS
    assert hall.beats(members[1]) is ErrorCode.UNKNOWN_MEMBER_ID
    assert hall.leaves((members[0], None)) == ["NONE"]
    assert hall.state == "Empty"
    assert hall.group.generation == 3
    assert hall.leaves((members[0], None)) == ["UNKNOWN_MEMBER_ID"]


def test_leaving_before_joining():
    hall = Hall()
    (leader,) = hall.stable("a")
    hall.joins("b", known=True)
    again = hall.joins("a", leader)
    assert not again.answered
    assert hall.leaves(("b-2", None)) == ["NONE"]
    assert joined(again)


def test_leaving_while_a_request_waits_answers_it():
    hall = Hall()
    members = hall.stable("a", "b")
    waiting = hall.joins("b", members[1], protocols=(("range", b"news"),))
    hall.leaves((members[1], None))
    assert error(waiting) == "UNKNOWN_MEMBER_ID"
    joined(hall.joins("a", members[0]))
    other = hall.joins("c")
    joined(hall.joins("a", members[0]))
    waiting = hall.syncs(joined(other).member_id)
    hall.leaves((joined(other).member_id, None))
    assert error(waiting) == "UNKNOWN_MEMBER_ID"


def test_heartbeats_that_the_group_refuses():
    hall = Hall()
    (leader,) = hall.stable("a")
    assert hall.beats(leader, 0) is ErrorCode.ILLEGAL_GENERATION
    assert hall.beats(leader, 2) is ErrorCode.ILLEGAL_GENERATION
    assert hall.beats("nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert hall.beats(leader, 1, group="other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert hall.beats(leader, 1, group="") is ErrorCode.INVALID_GROUP_ID
    hall.leaves((leader, None))
    assert hall.beats(leader, 1) is ErrorCode.UNKNOWN_MEMBER_ID


# -- metrics and views -------------------------------------------------------------------------------------------------


def test_rebalances_are_measured():
    hall = Hall(group_initial_rebalance_delay_ms=3000)
    hall.joins("a")
    hall.pass_ms(3001)
    assert hall.shard.rebalances == 1
    assert (hall.shard.rebalance_ms.count, hall.shard.rebalance_ms.total) == (1, 3000)


def test_describing():
    hall = Hall()
    assert hall.described() is None
    hall.stable("a")
    found = hall.described()
    assert found is not None
    assert found.state is GroupState.STABLE


def subscription(*topics: str) -> bytes:
    return struct.pack(">h", 0) + encode_bytes(ConsumerProtocolSubscription(topics=list(topics)), 0)


def test_what_a_group_consumes_is_read_from_its_members():
    hall = Hall()
    hall.stable("a", protocols=(("range", subscription("t", "u")),))
    assert hall.group.subscribed_topics() == {"t", "u"}


def test_bad_metadata_of_a_member_is_tolerated():
    hall = Hall()
    hall.stable("a", protocols=(("range", b"\xff\xff\xff"),))
    assert hall.group.subscribed_topics() is None
    assert G in hall.shard.groups


@pytest.mark.slow
def test_a_hundred_thousand_protocols():
    hall = Hall()
    many = tuple((f"p{at}", b"") for at in range(100_000))
    first = joined(hall.joins("a", protocols=many))
    assert first.protocol == "p0"
    assert error(hall.joins("b", protocols=(("q", b""),))) == "INCONSISTENT_GROUP_PROTOCOL"
