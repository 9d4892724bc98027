"""Classic groups whose coordinator died: the state that the next one loads, and the state that is lost."""

from __future__ import annotations

from tests.groups.hall import Hall, assigned, joined

from ottla.errors import ErrorCode


def test_a_stable_group_survives_its_coordinator():
    hall = Hall()
    members = hall.stable("a", "b")
    generation = hall.group.generation
    hall.reload()
    assert hall.state == "Stable"
    assert (hall.group.generation, hall.group.leader, hall.group.protocol) == (generation, members[0], "range")
    assert hall.beats(members[1]) is ErrorCode.NONE
    assert assigned(hall.syncs(members[1])) == members[1].encode()
    hall.pass_ms(10_001)
    assert hall.group.members == {}, "sessions count anew"


def test_an_unfinished_rebalance_is_lost_with_its_coordinator():
    hall = Hall()
    (leader,) = hall.stable("a")
    hall.joins("b")
    joined(hall.joins("a", leader))
    hall.reload()
    assert (hall.state, hall.group.generation) == ("Stable", 1)
    assert hall.beats(leader, 2) is ErrorCode.ILLEGAL_GENERATION
    joined(hall.joins("a", leader))
    assert hall.group.generation == 2


def test_an_empty_group_survives_its_coordinator():
    hall = Hall()
    (leader,) = hall.stable("a")
    hall.leaves((leader, None))
    hall.reload()
    assert (hall.state, hall.group.generation, hall.group.protocol_type) == ("Empty", 2, "consumer")


def test_a_deleted_group_stays_deleted():
    hall = Hall()
    hall.stable("a")
    assert hall.deletes() == "NON_EMPTY_GROUP"
    hall.leaves((next(iter(hall.group.members)), None))
    hall.commits(5)
    assert hall.deletes() == "NONE"
    assert hall.deletes() == "GROUP_ID_NOT_FOUND"
    hall.reload()
    assert hall.shard.groups == {}
    assert hall.fetches(("t", 0)) == {("t", 0): None}


def test_waiting_lists_every_request():
    hall = Hall()
    members = hall.stable("a", "b")
    hall.joins("b", members[1], protocols=(("range", b"x"),))
    hall.joins("c")
    assert len(hall.shard.waiting_tickets()) == 2
    joined(hall.joins("a", members[0]))
    hall.syncs(members[1])
    assert len(hall.shard.waiting_tickets()) == 1
