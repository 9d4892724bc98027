"""Static members of classic groups (KIP-345): a member that restarts keeps its place."""

from __future__ import annotations

from tests.groups.hall import Hall, assigned, error, joined

from ottla.errors import ErrorCode


def test_a_static_member_that_restarts_keeps_its_assignment_without_a_rebalance():
    hall = Hall()
    first = joined(hall.joins("a", instance="i"))
    other = hall.joins("b", instance="j")
    joined(hall.joins("a", first.member_id, "i"))
    hall.syncs(first.member_id, {first.member_id: b"A", joined(other).member_id: b"B"})
    back = joined(hall.joins("b", instance="j"))
    assert hall.state == "Stable"
    assert back.member_id != joined(other).member_id
    assert (back.generation, back.leader, back.skip_assignment) == (2, first.member_id, False)
    assert assigned(hall.syncs(back.member_id, instance="j")) == b"B"
    assert hall.beats(joined(other).member_id, instance="j") is ErrorCode.FENCED_INSTANCE_ID
    assert error(hall.syncs(joined(other).member_id, instance="j")) == "FENCED_INSTANCE_ID"
    assert hall.commits(1, member=joined(other).member_id, generation=2, instance="j") == "FENCED_INSTANCE_ID"
    assert error(hall.joins("b", joined(other).member_id, "j")) == "FENCED_INSTANCE_ID"
    hall.reload()
    assert assigned(hall.syncs(back.member_id, instance="j")) == b"B", "the new member id is in the journal"


def test_a_static_leader_that_restarts_skips_the_assignment():
    hall = Hall()
    first = joined(hall.joins("a", instance="i"))
    hall.syncs(first.member_id, {first.member_id: b"A"})
    back = joined(hall.joins("a", instance="i"))
    assert back.skip_assignment
    assert back.leader == back.member_id
    assert back.members == [(back.member_id, "i", b"meta")]
    old_client = joined(hall.joins("a", instance="i", skip=False))
    assert not old_client.skip_assignment
    assert old_client.leader == back.member_id != old_client.member_id, "so that it does not assign"
    assert old_client.members == ()


def test_a_static_member_with_another_protocol_begins_a_rebalance():
    hall = Hall()
    first = joined(hall.joins("a", instance="i", protocols=(("range", b""),)))
    hall.syncs(first.member_id, {first.member_id: b"A"})
    back = joined(hall.joins("a", instance="i", protocols=(("sticky", b""), ("range", b""))))
    assert back.generation == 2
    assert back.protocol == "sticky"


def test_the_waiting_request_of_a_replaced_static_member_is_fenced():
    hall = Hall()
    members = hall.stable("x", "y")
    waiting = hall.joins("a", instance="i")
    assert not waiting.answered
    hall.joins("a", instance="i")
    assert error(waiting) == "FENCED_INSTANCE_ID"
    hall.joins("y", members[1])
    joined(hall.joins("x", members[0]))
    assert len([member for member in hall.group.members.values() if member.instance_id == "i"]) == 1


def test_a_static_member_that_restarts_during_a_rebalance_begins_it_again():
    hall = Hall()
    first = joined(hall.joins("a", instance="i"))
    waiting_for_sync = hall.state
    back = joined(hall.joins("a", instance="i"))
    assert waiting_for_sync == "CompletingRebalance"
    assert back.generation == first.generation + 1
    assert error(hall.syncs(first.member_id, generation=2, instance="i")) == "FENCED_INSTANCE_ID"


def test_static_members_that_are_away_stay_until_their_session_ends():
    hall = Hall()
    first = joined(hall.joins("a", instance="i", session_ms=30_000, rebalance_ms=5000))
    other = hall.joins("b", instance="j", session_ms=30_000, rebalance_ms=5000)
    hall.joins("a", first.member_id, "i", session_ms=30_000, rebalance_ms=5000)
    hall.syncs(joined(other).member_id)
    hall.syncs(first.member_id, {first.member_id: b"A", joined(other).member_id: b"B"})
    new = hall.joins("c", session_ms=30_000, rebalance_ms=5000)
    hall.joins("a", first.member_id, "i", session_ms=30_000, rebalance_ms=5000)
    hall.pass_ms(5001)
    assert joined(new).generation == 3
    assert set(hall.group.statics) == {"i", "j"}, "the one that is away is not out"


def test_a_group_of_static_members_that_are_all_away_waits():
    hall = Hall()
    first = joined(hall.joins("a", instance="i", session_ms=30_000, rebalance_ms=5000))
    other = hall.joins("b", instance="j", session_ms=30_000, rebalance_ms=5000)
    hall.joins("a", first.member_id, "i", session_ms=30_000, rebalance_ms=5000)
    hall.syncs(joined(other).member_id)
    hall.syncs(first.member_id, {})
    gone = hall.leaves(("", "i"))
    assert gone == ["NONE"]
    hall.pass_ms(20_000)
    assert hall.state == "PreparingRebalance", "nobody is there to lead"
    assert list(hall.group.statics) == ["j"]
    hall.pass_ms(10_001)
    assert hall.state == "Empty"


def test_a_static_member_leaves_by_its_instance():
    hall = Hall()
    first = joined(hall.joins("a", instance="i"))
    assert hall.leaves(("", "other"), ("wrong", "i"), ("", "i")) == ["UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", "NONE"]
    assert first.member_id not in hall.group.members
    assert hall.group.statics == {}
