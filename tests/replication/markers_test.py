"""Markers in a partition: which ones its leader accepts, and what they change. Also without the safeguards."""

from __future__ import annotations

import pytest
from tests.replication.leading_test import TWO, led, refusal
from tests.replication.members import Cluster, Member

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode
from ottla.record.batch import Record, encode_batch, header_at
from ottla.record.control import Marker
from ottla.sim.machines.machine import Death
from ottla.sim.mutants.ablation import without_safeguard

COMMIT, ABORT = Marker(True, 5), Marker(False, 5)


def write(member: Member, epoch: int = 0, sequence: int = 0, producer_id: int = 7) -> int:
    """One record in a transaction."""
    records = [Record(0, 1_700_000_000_000, None, b"v", ())]
    batch = encode_batch(
        records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )
    return member.partition.leader_role.append(memoryview(batch), 1, member.clock.now())[0]


def mark(member: Member, epoch: int = 1, marker: Marker = COMMIT, bumped: bool = True, producer_id: int = 7) -> int:
    return member.partition.leader_role.append_marker(producer_id, epoch, marker, bumped, member.clock.now())


def settled(cluster: Cluster) -> None:
    """Everything is committed."""
    cluster.members[2].fetch(2)


def test_a_transaction_ends_when_its_marker_is_committed() -> None:
    cluster = led()
    leader = cluster.members[1]
    write(leader)
    settled(cluster)
    assert (leader.hw, leader.partition.last_stable_offset) == (1, 0)
    required = mark(leader)
    assert required == 2
    assert not leader.partition.leader_role.is_settled(required, -1)
    assert leader.partition.last_stable_offset == 0
    leader.checked.clear()
    woken: list[int] = []
    leader.partition.watchers[Waking(woken)] = None
    settled(cluster)
    assert leader.partition.last_stable_offset == 2
    assert woken == [2], "a reader of committed records is woken, and sees it"
    assert leader.partition.leader_role.is_settled(required, -1)
    assert cluster.members[2].partition.last_stable_offset == 2


class Waking:
    def __init__(self, woken: list[int]) -> None:
        self.woken = woken

    def wake(self) -> None:
        self.woken.append(2)


def test_the_coordinators_of_this_broker_get_each_marker_once() -> None:
    cluster = led(1, isr=(1,))
    leader = cluster.members[1]
    told: list[tuple] = []
    leader.shared.on_marker = lambda *said: told.append(said)
    write(leader)
    mark(leader)
    assert mark(leader) == 2, "it is here already"
    assert (leader.leo, told) == (2, [(leader.partition, 7, 1, True, 1)])


def test_log_append_time_also_applies_to_markers() -> None:
    cluster = led(1, isr=(1,), config=TopicConfig(message_timestamp_type="LogAppendTime", max_message_bytes=100))
    leader = cluster.members[1]
    cluster.pass_seconds(1)
    mark(leader)
    region = leader.partition.read(0, 1000, 1, True, warmed=True)
    content = bytearray(region.size)
    region.file.read_now(region.pos, memoryview(content))
    header = header_at(content)
    assert header.is_append_time
    assert header.max_timestamp == leader.clock.now().wall_ms


def test_too_few_in_sync_and_not_the_leader() -> None:
    cluster = led(isr=(1,), config=TWO)
    assert refusal(mark, cluster.members[1]) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert refusal(mark, cluster.members[2]) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert cluster.members[1].leo == 0


@pytest.mark.parametrize("restarted", [False, True])
def test_a_new_leader_knows_whom_to_fence(restarted: bool) -> None:
    cluster = led()
    leader, other = cluster.members.values()
    write(leader, epoch=3)
    mark(leader, epoch=4)
    write(leader, epoch=4)
    settled(cluster)
    if restarted:
        other.save()
        other.die(Death.KILL)
        other = cluster.restart(2)
    cluster.elect(2, isr=(2,))
    assert refusal(mark, other, 5, Marker(False, 4)) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert refusal(mark, other, 4) is ErrorCode.INVALID_PRODUCER_EPOCH, "written again, it would end the next one"
    assert other.partition.last_stable_offset == 2
    mark(other, 5)
    assert other.partition.last_stable_offset == other.leo == 4


@without_safeguard("replication.marker_epoch")
def test_without_the_rule_a_late_marker_ends_a_later_transaction() -> None:
    leader = led(1, isr=(1,)).members[1]
    write(leader)
    mark(leader, 1)
    write(leader, epoch=1)
    mark(leader, 1)
    assert leader.partition.last_stable_offset == leader.leo == 4, "and no coordinator has decided that"


def test_without_the_fence_a_coordinator_that_was_replaced_ends_transactions() -> None:
    leader = led(1, isr=(1,)).members[1]
    write(leader)
    mark(leader, 0, COMMIT, bumped=False)
    write(leader, sequence=1)
    with without_safeguard("replication.marker_coordinator_epoch"):
        mark(leader, 0, Marker(False, 4), bumped=False)
    assert leader.partition.last_stable_offset == leader.leo == 4
    fenced = led(1, isr=(1,)).members[1]
    write(fenced)
    mark(fenced, 0, COMMIT, bumped=False)
    write(fenced, sequence=1)
    assert refusal(mark, fenced, 0, Marker(False, 4), False) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
