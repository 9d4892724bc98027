"""A broken internal topic: the partition is named and its coordinator fenced; the broker lives, and the others serve.

Zone: real.
"""

from __future__ import annotations

import logging
import struct
from typing import Any

import pytest
from tests.handnode import Node
from tests.transactions.hand import SETTINGS

from ottla.cluster.coordinators import partition_for
from ottla.coordinator.shard_runtime import ShardState
from ottla.errors import ErrorCode
from ottla.int64 import INT64_MAX
from ottla.record.batch import Record, encode_batch
from ottla.sim.machines.machine import Death
from ottla.wire.messages import (
    DescribeGroupsRequest,
    DescribeTransactionsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    ListTransactionsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)

NAMES = ("a", "b", "c", "d")
"""One for each partition."""
AWAY = ErrorCode.COORDINATOR_NOT_AVAILABLE


class House:
    """A broker with groups and transactional ids in every partition of their topics."""

    def __init__(self) -> None:
        assert sorted(partition_for(name, 4) for name in NAMES) == [0, 1, 2, 3]
        self.node = Node(SETTINGS)
        self.node.create("t")
        for kind in (0, 1):
            self.node.ask(FindCoordinatorRequest(coordinator_keys=["a"], key_type=kind), 4)
        self.node.pass_ms(200)
        assert [self.commit(name) for name in NAMES] == [0] * 4
        assert [self.init(name) for name in NAMES] == [0] * 4

    def commit(self, group: str) -> int:
        part = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[part])
        answer = self.node.ask(OffsetCommitRequest(group_id=group, topics=[topic]), 9)
        return answer.topics[0].partitions[0].error_code

    def committed(self, group: str) -> tuple[int, int]:
        """The code of the group, and what it has committed."""
        request = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
        (answer,) = self.node.ask(OffsetFetchRequest(groups=[request]), 9).groups
        return answer.error_code, answer.topics[0].partitions[0].committed_offset if answer.topics else -1

    def init(self, name: str) -> int:
        return self.node.ask(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000), 4).error_code

    def append(self, topic: str, name: str, key: bytes, value: bytes) -> None:
        """A record as no coordinator writes it, in good order for the log."""
        partition = self.node.broker.hosted.find_partition(topic, partition_for(name, 4))
        batch = memoryview(encode_batch([Record(0, 1, key, value, ())]))
        now = self.node.process.clock.now
        self.node.process.post_turn(0, "write", lambda: partition.leader_role.append_own(batch, now()))
        self.node.pass_ms(10)

    def begin_again(self, death: Death = Death.KILL) -> None:
        self.node.restart(death)
        self.node.pass_ms(2000)

    def state(self, kind: str, name: str) -> ShardState:
        return getattr(self.node.broker._coordinators, kind).coordinator.find_shard(partition_for(name, 4)).state

    def joined(self, group: str) -> Any:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
        return self.node.ask(
            JoinGroupRequest(group_id=group, session_timeout_ms=10_000, protocol_type="c", protocols=[protocol]), 3
        )


@pytest.fixture
def house() -> House:
    return House()


def offset_key(group: str) -> bytes:
    return struct.pack(">hh", 1, len(group)) + group.encode() + struct.pack(">h", 1) + b"t" + struct.pack(">i", 0)


def named_key(version: int, name: str) -> bytes:
    return struct.pack(">hh", version, len(name)) + name.encode()


BROKEN = [
    (offset_key("b"), b"\x00\x03short"),
    (offset_key("b"), b"\x7f\xff" + bytes(100)),
    (named_key(2, "b"), b"\x00\x03\xff\xff"),
    (named_key(2, "b")[:3], b"\x00"),
    (b"\x00", b"x"),
]


@pytest.mark.parametrize(("key", "value"), BROKEN)
def test_a_record_of_groups_that_cannot_be_read(
    house: House, key: bytes, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    house.append("__consumer_offsets", "b", key, value)
    with caplog.at_level(logging.ERROR):
        house.begin_again()
    assert f"__consumer_offsets-{partition_for('b', 4)} is fenced" in caplog.text
    assert house.state("groups", "b") is ShardState.FENCED
    assert house.committed("b") == (AWAY, -1)
    assert house.commit("b") == AWAY
    assert house.joined("b").error_code == AWAY
    assert house.node.ask(HeartbeatRequest(group_id="b", generation_id=1, member_id="m"), 4).error_code == AWAY
    assert house.node.ask(DescribeGroupsRequest(groups=["b"]), 5).groups[0].error_code == AWAY
    assert [house.committed(name) for name in "acd"] == [(0, 7)] * 3
    assert house.joined("a").error_code == 0
    listed = [each.group_id for each in house.node.ask(ListGroupsRequest(), 4).groups]
    assert sorted(listed) == ["a", "c", "d"]
    assert [house.init(name) for name in NAMES] == [0] * 4, "the other topic has nothing to do with it"


@pytest.mark.parametrize("value", [b"\x00\x00short", b"\x7f\xff" + bytes(60), b""])
def test_a_record_of_transactions_that_cannot_be_read(
    house: House, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    house.append("__transaction_state", "b", named_key(0, "b"), value)
    with caplog.at_level(logging.ERROR):
        house.begin_again()
    assert f"__transaction_state-{partition_for('b', 4)} is fenced" in caplog.text
    assert house.state("transactions", "b") is ShardState.FENCED
    assert house.init("b") == AWAY
    asked = house.node.ask(DescribeTransactionsRequest(transactional_ids=["a", "b"]), 0).transaction_states
    assert [each.error_code for each in asked] == [0, AWAY]
    assert [house.init(name) for name in "acd"] == [0] * 3
    listed = house.node.ask(ListTransactionsRequest(), 1)
    assert sorted(each.transactional_id for each in listed.transaction_states) == ["a", "c", "d"]
    assert [house.committed(name) for name in NAMES] == [(0, 7)] * 4


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_bytes_that_have_changed_on_the_disk(house: House, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """After a clean stop no log is read through at the start; who loads its records sees what has become of them."""
    stopped: list[object] = []
    house.node.process.post_turn(0, "stop", house.node.broker.stop_broker, stopped.append)
    house.node.pass_ms(10_000)
    assert stopped
    place = f"{topic}-{partition_for('b', 4)}/"
    (inode,) = [inode for path, inode in house.node.drive.walk_files() if place in path and path.endswith(".log")]
    inode.data[-1] ^= 1
    with caplog.at_level(logging.ERROR):
        house.begin_again(Death.STOP)
    assert f"{place[:-1]} is fenced" in caplog.text
    assert "checksum" in caplog.text
    groups, ids = [house.committed(name) for name in NAMES], [house.init(name) for name in NAMES]
    if topic == "__consumer_offsets":
        assert (groups, ids) == ([(0, 7), (AWAY, -1), (0, 7), (0, 7)], [0] * 4)
    else:
        assert (groups, ids) == ([(0, 7)] * 4, [0, AWAY, 0, 0])


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_a_partition_whose_offsets_end_costs_its_own_groups_and_ids_only(house: House, topic: str) -> None:
    log = house.node.broker.hosted.find_partition(topic, partition_for("b", 4)).log
    # No record can follow this offset. Only a prepared directory reaches it.
    house.node.process.post_turn(0, "jump", lambda: setattr(log, "end_offset", INT64_MAX))
    house.node.pass_ms(10)
    ask = house.commit if topic == "__consumer_offsets" else house.init
    for _ in range(2):
        assert [ask(name) != 0 for name in NAMES] == [False, True, False, False]
        house.node.pass_ms(100)
