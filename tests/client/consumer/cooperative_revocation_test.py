"""Partitions that stay unassigned until their owner revokes them, and an owner that has forgotten them."""

from __future__ import annotations

from tests.client.consumer.membership_test import COOPERATIVE, EAGER, T0, T1, T2, begin, only

from ottla.client.consumer.actions import Assign, Assigned, GroupSettings, Join, Prepare, Sync
from ottla.client.consumer.membership import Membership, Phase
from ottla.client.consumer.protocol import Subscription, encode_assignment, encode_subscription
from ottla.types import TopicPartition
from ottla.wire.messages import JoinGroupResponse, SyncGroupResponse

WAIT = COOPERATIVE.max_poll_interval


def lead(
    machine: Membership, had: dict[str, list[TopicPartition]], mine: list[TopicPartition], *, back: bool = False
) -> list[str]:
    """Generation 7: members claim `had`, the leader gets `mine`; returns the members of the assignment."""
    members = [
        JoinGroupResponse.JoinGroupResponseMember(
            member_id=name, metadata=encode_subscription(Subscription(("t",), owned=tuple(owned)))
        )
        for name, owned in had.items()
    ]
    name = machine.settings.assignors[0].name
    answer = JoinGroupResponse(generation_id=7, protocol_name=name, leader="me", member_id="me", members=members)
    answer.skip_assignment = back
    machine.on_join(10, answer)
    todo = only(machine, Assign)
    machine.on_assigned(10, todo.assignor.assign_partitions({"t": [frozenset()] * 3}, todo.members))
    rows = only(machine, Sync).request.assignments
    machine.on_sync(10, SyncGroupResponse(assignment=encode_assignment(mine)))
    only(machine, Assigned)
    assert machine.phase is Phase.STABLE
    return sorted(row.member_id for row in rows)


def quiet_until(machine: Membership, end: float) -> bool:
    """Whether it does not ask for a rebalance until `end`, at every tick."""
    for now in range(11, int(end)):
        machine.on_poll(now)
        machine._last_answer = now
    return machine.phase is Phase.STABLE


def test_the_leader_asks_for_a_rebalance_when_partitions_stay_unassigned() -> None:
    machine = begin(COOPERATIVE)
    assert lead(machine, {"me": [], "other": [T0, T1, T2]}, []) == ["me", "other"]
    assert quiet_until(machine, 10 + WAIT)
    machine.take_actions()
    machine.on_poll(10 + WAIT)
    assert only(machine, Prepare) == Prepare((), lost=False)
    machine.on_prepared(10 + WAIT, ())
    assert "still unassigned" in (only(machine, Join).request.reason or "")


def test_it_does_not_when_everything_has_an_owner() -> None:
    machine = begin(COOPERATIVE)
    lead(machine, {"me": [T0], "other": [T1, T2]}, [T0])
    assert quiet_until(machine, 10 + 3 * WAIT)


def test_a_rebalance_in_between_ends_the_wait() -> None:
    machine = begin(COOPERATIVE)
    lead(machine, {"me": [], "other": [T0, T1, T2]}, [])
    machine.request_rejoin("somebody has given up something")
    machine.on_prepared(20, ())
    machine.take_actions()
    machine.do_due_work(20)
    lead(machine, {"me": [], "other": [T1, T2]}, [T0])
    assert quiet_until(machine, 10 + 3 * WAIT)


def test_a_restarted_leader_assigns_nothing_and_expects_unassigned_partitions() -> None:
    machine = begin(COOPERATIVE._replace(instance_id="i"))
    assert lead(machine, {"me": [], "other": [T2]}, [T0], back=True) == []
    assert quiet_until(machine, 10 + WAIT)
    machine.on_poll(10 + WAIT)
    assert machine.phase is Phase.PREPARING


def test_a_restarted_leader_leaves_a_fully_assigned_group_alone() -> None:
    machine = begin(COOPERATIVE._replace(instance_id="i"))
    assert lead(machine, {"me": [], "other": [T2, T1]}, [T0], back=True) == []
    assert quiet_until(machine, 10 + 3 * WAIT)


def test_the_eager_protocol_leaves_no_partition_unassigned() -> None:
    settings: GroupSettings = EAGER._replace(instance_id="i")
    machine = begin(settings)
    assert lead(machine, {"me": [], "other": []}, [T0], back=True) == []
    assert quiet_until(machine, 10 + 3 * WAIT)
