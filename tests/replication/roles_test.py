"""The leader's and the follower's part of a replica: what is left of them when it is deleted."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from tests.replication.members import TP, Cluster
from tests.replication.members import refusal as code_of

from ottla.errors import ErrorCode
from ottla.replication.partition.leader_role import LeaderRole
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.replica_state import IsrOutcome


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Only reference counts free objects, as old ones of a broker."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def count_alive() -> int:
    return sum(type(each) in (Partition, LeaderRole) for each in gc.get_objects())


@pytest.mark.usefixtures("without_collector")
def test_a_deleted_replica_is_freed_without_the_garbage_collector() -> None:
    before = count_alive()
    cluster = Cluster(1)
    (member,) = cluster.members.values()
    member.partition.go_offline(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    member.logs.delete_log(TP)
    assert count_alive() == before + 2
    member.checked.clear()
    del member.partition
    assert count_alive() == before


def test_what_comes_after_the_deletion_of_a_replica_is_refused() -> None:
    cluster = Cluster(3)
    leader, follower = cluster.members[1], cluster.members[2]
    cluster.elect(1)
    leader.produce(b"a")
    follower.fetch(2)
    leader.produce(b"b")
    cluster.pass_seconds(40)
    leader.partition.leader_role.shrink_if_lagging(leader.clock.now())
    ((role, proposal),) = cluster.proposals
    before = leader.partition.isr
    leader.partition.go_offline(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    checked = len(leader.checked)
    role.on_alter_partition_response(IsrOutcome(proposal, ErrorCode.NONE, proposal.isr, proposal.leader_epoch, 99))
    assert (leader.partition.isr, len(leader.checked)) == (before, checked)
    assert code_of(role.is_settled, 1, -1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert follower.ask(leader).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
