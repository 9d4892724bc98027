"""Partitions whose offsets end: each is its own trouble, whatever writes to it."""

from __future__ import annotations

import pytest
from tests.replication.members import led, refusal

from ottla.errors import ErrorCode
from ottla.int64 import INT64_MAX
from ottla.record.control import Marker


def restart_at(partition, offset: int) -> None:
    """Let a partition continue at `offset`."""
    partition.log.restart_at(offset)
    partition.high_watermark = partition.log.high_watermark = offset


@pytest.mark.parametrize("version", [3, 9, 12])
def test_a_producer_is_refused_and_other_partitions_are_served(node, version: int) -> None:
    node.create("u")
    restart_at(node.partition("t"), INT64_MAX - 1)
    assert node.produce("t", b"v", version=version).error_code == 0
    for values in ([b"v"], [b"v", b"v"]):
        row = node.produce("t", *values, version=version)
        assert row.error_code == ErrorCode.RECORD_LIST_TOO_LARGE
    assert node.produce("u", b"v", version=version).error_code == 0
    assert node.values("t", INT64_MAX - 1) == [b"v"]


def test_a_topic_of_an_older_format_is_also_refused(node) -> None:
    node.create("old", message_format_version="0.10.2")
    restart_at(node.partition("old"), INT64_MAX - 1)
    assert node.produce("old", b"v").error_code == 0
    assert node.produce("old", b"v").error_code == ErrorCode.RECORD_LIST_TOO_LARGE


def test_a_marker_is_refused() -> None:
    leader = led(1, isr=(1,)).members[1]
    restart_at(leader.partition, INT64_MAX)
    code = refusal(leader.partition.leader_role.append_marker, 7, 0, Marker(True, 1), False, leader.clock.now())
    assert code is ErrorCode.RECORD_LIST_TOO_LARGE


def test_a_follower_takes_the_last_offset_and_asks_for_no_more() -> None:
    leader, follower = led().members.values()
    for member in (leader, follower):
        restart_at(member.partition, INT64_MAX - 1)
    leader.produce(b"v")
    for _ in range(3):
        follower.fetch()
    assert follower.log.end_offset == leader.partition.high_watermark == INT64_MAX
