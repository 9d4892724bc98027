"""Offsets of groups: commits, fetches, expiry, and offsets in transactions."""

from __future__ import annotations

import struct

import pytest
from tests.groups.hall import START_MS, G, Hall, joined

from ottla.cluster.coordinators import partition_for
from ottla.coordinator.shard import EntryOrigin
from ottla.groups.expiration import LOOKED_AT, TOMBSTONES
from ottla.groups.records import GroupCodec, GroupSaved, OffsetCommitted, Position
from ottla.record.internal.consumer_protocol import ConsumerProtocolSubscription
from ottla.record.internal.groups import GROUP_RECORDS, OffsetCommitValue
from ottla.record.internal.parsing import parse_record
from ottla.wire.codec import encode_bytes

MINUTE = 60_000
T0 = ("t", 0)


def subscription(*topics: str) -> bytes:
    return struct.pack(">h", 0) + encode_bytes(ConsumerProtocolSubscription(topics=list(topics)), 0)


def test_group_partition():
    assert partition_for("console-consumer-90277", 50) == 26
    assert partition_for("console-consumer-49366", 50) == 19


# -- committing --------------------------------------------------------------------------------------------------------


def test_an_empty_group_accepts_commits_without_a_member():
    hall = Hall()
    assert hall.commits(7, leader_epoch=3, metadata="m") == "NONE"
    assert hall.fetches(T0) == {T0: 7}
    assert hall.fetches() == {T0: 7}
    assert hall.fetches(("t", 1)) == {("t", 1): None}
    assert hall.fetches(T0, group="other") == {T0: None}
    assert hall.state == "Empty"
    assert hall.shard.offsets.get_offset(G, T0) == Position(7, 3, "m", START_MS + 1000)


def test_a_group_with_members_takes_commits_of_members_only():
    hall = Hall()
    members = hall.stable("a", "b")
    assert hall.commits(1) == "UNKNOWN_MEMBER_ID"
    assert hall.commits(1, member="nobody", generation=2) == "UNKNOWN_MEMBER_ID"
    assert hall.commits(1, member=members[1], generation=1) == "ILLEGAL_GENERATION"
    assert hall.commits(1, member=members[1], generation=-1) == "ILLEGAL_GENERATION"
    assert hall.commits(1, member=members[1], generation=2, instance="i") == "UNKNOWN_MEMBER_ID"
    assert hall.fetches() == {}
    assert hall.commits(1, member=members[1], generation=2) == "NONE"


def test_a_generation_without_a_group():
    hall = Hall()
    assert hall.commits(1, member="m", generation=1) == "GROUP_ID_NOT_FOUND"
    assert hall.shard.groups == {}


def test_during_a_rebalance_the_old_generation_may_finish_its_work():
    hall = Hall()
    (leader,) = hall.stable("a")
    other = hall.joins("b")
    assert hall.commits(1, member=leader, generation=1) == "NONE"
    joined(hall.joins("a", leader))
    assert hall.commits(2, member=leader, generation=2) == "REBALANCE_IN_PROGRESS"
    assert hall.commits(2, member=leader, generation=1) == "ILLEGAL_GENERATION"
    assert hall.fetches() == {T0: 1}
    assert joined(other)


def test_metadata_has_a_limit():
    hall = Hall(offset_metadata_max_bytes=4)
    assert hall.commits(1, metadata="12345") == "OFFSET_METADATA_TOO_LARGE"
    assert hall.commits(2, metadata="1234") == "NONE"
    assert hall.fetches() == {T0: 2}


def test_commits_survive_the_coordinator():
    hall = Hall()
    for at in range(5):
        hall.commits(at, partition=at % 2, metadata=f"m{at}", leader_epoch=at)
    before = list(hall.shard.offsets.of_group(G))
    hall.reload()
    assert list(hall.shard.offsets.of_group(G)) == before
    assert hall.shard.offsets.count == 2


# -- deleting ----------------------------------------------------------------------------------------------------------


def test_offsets_of_an_empty_group_can_be_dropped():
    hall = Hall()
    assert hall.drops(T0) == "GROUP_ID_NOT_FOUND"
    hall.commits(1)
    hall.commits(1, topic="u")
    assert hall.drops(T0, ("t", 5)) == ["NONE", "NONE"]
    assert hall.fetches() == {("u", 0): 1}
    hall.reload()
    assert hall.fetches() == {("u", 0): 1}


def test_offsets_that_members_consume_cannot_be_dropped():
    hall = Hall()
    hall.commits(1)
    hall.commits(1, topic="u")
    hall.stable("a", protocols=(("range", subscription("t")),))
    assert hall.drops(T0, ("u", 0)) == ["GROUP_SUBSCRIBED_TO_TOPIC", "NONE"]
    assert hall.fetches() == {T0: 1}


def test_offsets_of_other_protocol_types_cannot_be_dropped():
    hall = Hall()
    hall.stable("a", kind="connect")
    assert hall.drops(T0) == "NON_EMPTY_GROUP"


@pytest.mark.slow
def test_a_big_group_is_deleted_in_steps():
    hall = Hall()
    for at in range(TOMBSTONES + 10):
        hall.shard.apply(OffsetCommitted(G, "t", at, Position(at)), EntryOrigin(at))
    assert hall.deletes() is None
    assert hall.shard.offsets.count == 10
    assert hall.deletes() == "NONE"
    assert hall.shard.offsets.count == 0
    assert hall.shard.groups == {}


def test_deleting_a_topic_drops_its_offsets():
    hall = Hall()
    for group in ("g1", "g2"):
        for topic in ("t", "u"):
            hall.commits(1, group=group, topic=topic)
    assert hall.forgets("t", "x") == []
    assert hall.fetches(group="g1") == hall.fetches(group="g2") == {("u", 0): 1}


def test_a_step_of_topic_deletion_writes_a_bounded_number_of_tombstones():
    hall = Hall()
    for group in ("g1", "g2"):
        for at in range(TOMBSTONES - 10):
            hall.shard.apply(OffsetCommitted(group, "t", at, Position(at)), EntryOrigin(at))
    left = hall.forgets("t")
    assert left == ["g2"]
    assert hall.shard.offsets.count == TOMBSTONES - 20
    assert hall.forgets("t", groups=left) == []
    assert hall.shard.offsets.count == 0


def test_a_step_of_topic_deletion_searches_a_bounded_number_of_offsets():
    hall = Hall()
    for group in ("g1", "g2"):
        for at in range(LOOKED_AT):
            hall.shard.apply(OffsetCommitted(group, "u", at, Position(at)), EntryOrigin(at))
    hall.commits(1, group="g3")
    left = hall.forgets("t")
    assert left == ["g2", "g3"]
    left = hall.forgets("t", groups=left)
    assert left == ["g3"]
    assert hall.forgets("t", groups=left) == []
    assert hall.shard.offsets.count == 2 * LOOKED_AT


# -- expiry ------------------------------------------------------------------------------------------------------------

SETTINGS = {"offsets_retention_minutes": 10, "offsets_retention_check_interval_ms": MINUTE}


def test_offsets_of_a_group_without_members_expire_after_the_commit():
    hall = Hall(**SETTINGS)
    hall.commits(1)
    hall.pass_ms(5 * MINUTE)
    hall.commits(2, topic="u")
    hall.pass_ms(4 * MINUTE)
    assert hall.fetches() == {T0: 1, ("u", 0): 2}
    hall.pass_ms(2 * MINUTE)
    assert hall.fetches() == {("u", 0): 2}
    hall.pass_ms(5 * MINUTE)
    assert hall.fetches() == {}
    assert hall.shard.groups == {}, "an empty group without positions goes"
    hall.reload()
    assert hall.fetches() == {}


def test_offsets_of_a_group_expire_after_its_last_member_has_left():
    hall = Hall(**SETTINGS)
    (leader,) = hall.stable("a", session_ms=1_800_000)
    hall.commits(1, member=leader, generation=1)
    hall.pass_ms(20 * MINUTE)
    assert hall.fetches() == {T0: 1}
    hall.leaves((leader, None))
    hall.pass_ms(9 * MINUTE)
    assert hall.fetches() == {T0: 1}
    hall.pass_ms(2 * MINUTE)
    assert hall.fetches() == {}
    assert hall.shard.groups == {}
    hall.reload()
    assert hall.shard.groups == {}


def test_offsets_of_unsubscribed_topics_expire_in_a_stable_group():
    hall = Hall(**SETTINGS)
    hall.commits(1)
    hall.commits(2, topic="u")
    hall.stable("a", protocols=(("range", subscription("t")),), session_ms=1_800_000)
    hall.pass_ms(12 * MINUTE)
    assert hall.fetches() == {T0: 1}


def test_nothing_expires_in_a_group_with_unreadable_subscriptions():
    hall = Hall(**SETTINGS)
    hall.commits(1)
    hall.stable("a", kind="connect", session_ms=1_800_000)
    hall.pass_ms(12 * MINUTE)
    assert hall.fetches() == {T0: 1}


def test_an_offset_with_a_retention_time_of_its_own():
    hall = Hall(**SETTINGS)
    hall.commits(1, expire_ms=START_MS + 2 * MINUTE)
    hall.commits(2, topic="u", expire_ms=START_MS + 30 * MINUTE)
    hall.pass_ms(4 * MINUTE)
    assert hall.fetches() == {("u", 0): 2}
    hall.pass_ms(20 * MINUTE)
    assert hall.fetches() == {("u", 0): 2}


@pytest.mark.slow
def test_many_expired_offsets_are_removed_in_steps():
    hall = Hall(**SETTINGS)
    for at in range(2 * TOMBSTONES + 10):
        hall.shard.apply(OffsetCommitted(G, "t", at, Position(at, commit_ms=START_MS)), EntryOrigin(at))
    hall.pass_ms(12 * MINUTE)
    assert hall.shard.offsets.count == 0


# -- transactions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_transactional_offset_waits_for_the_end_of_its_transaction(commit: bool):
    hall = Hall()
    hall.commits(1)
    assert hall.commits(5, producer=7) == "NONE"
    assert hall.commits(6, topic="u", producer=7) == "NONE"
    for _ in range(2):
        assert hall.fetches() == {T0: 1}
        assert hall.fetches(stable=True) == {T0: "UNSTABLE_OFFSET_COMMIT", ("u", 0): "UNSTABLE_OFFSET_COMMIT"}
        assert hall.fetches(("t", 1), stable=True) == {("t", 1): None}
        hall.reload()
    hall.end_transaction(7, commit)
    for _ in range(2):
        assert hall.fetches(stable=True) == ({T0: 5, ("u", 0): 6} if commit else {T0: 1})
        hall.reload()


def test_of_two_commits_the_later_one_in_the_journal_is_valid():
    hall = Hall()
    hall.commits(5, producer=7)
    hall.commits(9)
    hall.end_transaction(7)
    assert hall.fetches() == {T0: 9}


def test_an_open_transaction_keeps_its_group():
    hall = Hall(**SETTINGS)
    hall.commits(5, producer=7)
    hall.pass_ms(15 * MINUTE)
    assert hall.state == "Empty"
    hall.end_transaction(7)
    assert hall.fetches() == {T0: 5}


def test_deleting_a_group_drops_pending_offsets():
    hall = Hall()
    hall.commits(5, producer=7)
    assert hall.deletes() == "NONE"
    hall.end_transaction(7)
    assert hall.fetches() == {}
    assert hall.fetches(stable=True) == {}


def test_a_transactional_commit_checks_its_member_if_it_names_one():
    """KIP-447: a zombie of an older generation cannot commit in a transaction either."""
    hall = Hall()
    (leader,) = hall.stable("a")
    assert hall.commits(1, producer=7) == "NONE"
    assert hall.commits(1, producer=7, member=leader, generation=1) == "NONE"
    assert hall.commits(1, producer=7, member=leader, generation=0) == "ILLEGAL_GENERATION"
    assert hall.commits(1, producer=7, member="nobody", generation=1) == "UNKNOWN_MEMBER_ID"
    assert hall.commits(1, producer=7, member=leader, generation=1, instance="i") == "UNKNOWN_MEMBER_ID"


# -- records -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "position", [Position(5), Position(2**63 - 1, 7, "méta", START_MS), Position(1, -1, "m", 2, 3), Position(-1)]
)
def test_offsets_are_written_as_the_declared_messages_are(position: Position):
    codec = GroupCodec()
    entry = OffsetCommitted("grüppe", "topic", 7, position)
    key, value = codec.encode(entry)
    record = parse_record(GROUP_RECORDS, key, value)
    assert struct.pack(">h", record.type) + encode_bytes(record.key, 0) == key
    assert record.value == OffsetCommitValue(
        offset=position.offset,
        leader_epoch=position.leader_epoch,
        metadata=position.metadata,
        commit_timestamp=position.commit_ms,
        expire_timestamp=position.expire_ms,
    )
    assert codec.decode(key, value) == entry
    assert codec.decode(*codec.encode(entry._replace(position=None))) == entry._replace(position=None)


@pytest.mark.parametrize("version", range(5))
def test_offsets_of_all_versions_are_read(version: int):
    value = OffsetCommitValue(offset=5, metadata="m", commit_timestamp=6)
    key, _ = GroupCodec().encode(OffsetCommitted("g", "t", 1, None))
    data = struct.pack(">h", version) + encode_bytes(value, version)
    assert GroupCodec().decode(key, data) == OffsetCommitted("g", "t", 1, Position(5, -1, "m", 6))


def test_records_of_future_types_are_skipped():
    assert GroupCodec().decode(b"\0\x63", b"\0\0") is None
    assert GroupCodec().decode(b"\0\3\0\1g", b"\0\0\0\0\0\1\0") is None, "groups of another protocol are not served yet"
    assert GroupCodec().decode(*GroupCodec().encode(GroupSaved("g", None))) == GroupSaved("g", None)
