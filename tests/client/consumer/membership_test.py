"""The state machine of a group member: its actions at certain times and after certain answers."""

from __future__ import annotations

from typing import TypeVar

import pytest

from ottla.client.consumer.actions import (
    NO_MEMBER,
    Action,
    Assign,
    Assigned,
    Failed,
    FindCoordinator,
    GroupSettings,
    Heartbeat,
    Join,
    Leave,
    Member,
    Prepare,
    Sync,
)
from ottla.client.consumer.assignment.assignors import Range, RoundRobin
from ottla.client.consumer.assignment.sticky import CooperativeSticky, Sticky
from ottla.client.consumer.membership import Membership, Phase
from ottla.client.consumer.protocol import Subscription, decode_subscription, encode_assignment, encode_subscription
from ottla.client.errors import MalformedReplyError
from ottla.errors import ErrorCode
from ottla.types import TopicPartition
from ottla.wire.messages import HeartbeatResponse, JoinGroupResponse, SyncGroupResponse

A = TypeVar("A")
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
EAGER = GroupSettings("g", [Range(), RoundRobin()])
COOPERATIVE = GroupSettings("g", [CooperativeSticky()])


def only(machine: Membership, kind: type[A]) -> A:
    """The only action."""
    (action,) = machine.take_actions()
    assert isinstance(action, kind), action
    return action


def begin(settings: GroupSettings) -> Membership:
    """A member that subscribed to t, knows the coordinator and has sent JoinGroup."""
    machine = Membership(settings)
    machine.subscribe_topics(0, ["t"])
    assert only(machine, Prepare) == Prepare((), lost=False)
    machine.on_prepared(0, ())
    only(machine, FindCoordinator)
    machine.on_coordinator(0)
    only(machine, Join)
    return machine


def join(machine: Membership, now: float, generation: int) -> None:
    """Answers JoinGroup; SyncGroup is unanswered then."""
    name = machine.settings.assignors[0].name
    machine.on_join(
        now, JoinGroupResponse(generation_id=generation, protocol_name=name, leader="other", member_id="me")
    )
    assert only(machine, Sync).request.generation_id == generation


def stable(settings: GroupSettings, *partitions: TopicPartition) -> Membership:
    """A member of generation 1."""
    machine = begin(settings)
    join(machine, 0, 1)
    machine.on_sync(0, SyncGroupResponse(assignment=encode_assignment(partitions)))
    assert only(machine, Assigned) == Assigned(partitions, ())
    assert (machine.phase, machine.member, machine.owned) == (Phase.STABLE, Member(1, "me"), partitions)
    return machine


def beat(machine: Membership, now: float, code: ErrorCode = ErrorCode.NONE) -> list[Action]:
    """Lets a heartbeat become due, and answers it."""
    machine.do_due_work(now)
    only(machine, Heartbeat)
    machine.on_heartbeat(now, HeartbeatResponse(error_code=code))
    return machine.take_actions()


def test_a_member_whose_id_is_required_joins_again_with_it() -> None:
    machine = begin(EAGER)
    machine.on_join(0, JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="new"))
    assert only(machine, Join).request.member_id == "new"


def test_the_join_offers_every_assignor_in_the_order_of_preference() -> None:
    machine = Membership(GroupSettings("g", [Sticky(), Range()], instance_id="i", rack="r", max_poll_interval=7))
    machine.subscribe_topics(0, ["b", "a"])
    machine.on_prepared(0, ())
    machine.on_coordinator(0)
    request = machine.take_actions()[-1].request  # type: ignore[union-attr]
    assert [each.name for each in request.protocols] == ["sticky", "range"]
    assert decode_subscription(request.protocols[1].metadata) == Subscription(("a", "b"), rack="r")
    assert (request.group_instance_id, request.rebalance_timeout_ms, request.session_timeout_ms) == ("i", 7000, 45000)


def test_the_leader_assigns_for_all_members() -> None:
    machine = begin(EAGER)
    rows = [
        JoinGroupResponse.JoinGroupResponseMember(member_id=name, metadata=encode_subscription(Subscription(("t",))))
        for name in ("me", "other")
    ]
    machine.on_join(
        0, JoinGroupResponse(generation_id=1, protocol_name="range", leader="me", member_id="me", members=rows)
    )
    todo = only(machine, Assign)
    machine.on_assigned(0, todo.assignor.assign_partitions({"t": [frozenset()] * 2}, todo.members))
    sent = only(machine, Sync).request
    assert {row.member_id: row.assignment for row in sent.assignments} == {
        "me": encode_assignment([T0]),
        "other": encode_assignment([T1]),
    }


def test_an_assignor_that_was_not_offered_is_a_malformed_response() -> None:
    machine = begin(EAGER)
    machine.on_join(0, JoinGroupResponse(generation_id=1, protocol_name="x", leader="me", member_id="me"))
    left, failed = machine.take_actions()
    assert isinstance(left, Leave)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, MalformedReplyError)
    assert (machine.failure, machine.member) == (failed.error, NO_MEMBER)


def test_a_leader_gives_nothing_to_a_member_that_it_cannot_read() -> None:
    machine = begin(EAGER)
    whole = encode_subscription(Subscription(("t",)))
    rows = [
        JoinGroupResponse.JoinGroupResponseMember(member_id=name, metadata=data)
        for name, data in (("me", whole), ("broken", b"\0\1\xff"))
    ]
    machine.on_join(
        0, JoinGroupResponse(generation_id=1, protocol_name="range", leader="me", member_id="me", members=rows)
    )
    assert list(only(machine, Assign).members) == ["me"]


def test_an_assignment_that_cannot_be_read_is_none_and_costs_no_rebalance() -> None:
    machine = begin(EAGER)
    join(machine, 0, 1)
    machine.on_sync(0, SyncGroupResponse(assignment=b"\0\0\xff"))
    failed, assigned = machine.take_actions()
    assert isinstance(failed, Failed)
    assert assigned == Assigned((), ())
    assert (machine.phase, machine.member, machine.failure) == (Phase.STABLE, Member(1, "me"), failed.error)
    machine.request_rejoin("the next rebalance")
    machine.on_prepared(1, ())
    machine.take_actions()
    join(machine, 1, 2)
    machine.on_sync(1, SyncGroupResponse(assignment=encode_assignment([T0])))
    assert machine.failure is None


def test_heartbeats_go_out_in_their_interval_one_at_a_time() -> None:
    machine = stable(EAGER, T0)
    assert machine.wakes_at() == 3
    machine.do_due_work(2.9)
    assert machine.take_actions() == []
    machine.do_due_work(3)
    only(machine, Heartbeat)
    machine.do_due_work(10)
    assert machine.take_actions() == []
    machine.on_heartbeat(10, HeartbeatResponse())
    assert beat(machine, 13) == []


def test_an_eager_member_gives_everything_up_for_a_rebalance() -> None:
    machine = stable(EAGER, T0, T1)
    assert beat(machine, 3, ErrorCode.REBALANCE_IN_PROGRESS) == [Prepare((T0, T1), lost=False)]
    assert beat(machine, 6, ErrorCode.REBALANCE_IN_PROGRESS) == []
    machine.on_prepared(7, ())
    request = only(machine, Join).request
    assert request.member_id == "me"
    assert decode_subscription(request.protocols[0].metadata).owned == ()


def test_a_cooperative_member_keeps_its_partitions_until_they_are_revoked() -> None:
    machine = stable(COOPERATIVE, T0, T1)
    assert beat(machine, 3, ErrorCode.REBALANCE_IN_PROGRESS) == [Prepare((), lost=False)]
    machine.on_prepared(3, (T0, T1))
    told = decode_subscription(only(machine, Join).request.protocols[0].metadata)
    assert (told.owned, told.generation) == ((T0, T1), 1)
    join(machine, 3, 2)
    machine.on_sync(3, SyncGroupResponse(assignment=encode_assignment([T0, T2])))
    # A second rebalance, which it starts, assigns its revoked partitions to another member.
    assert machine.take_actions() == [Assigned((T2,), (T1,)), Prepare((), lost=False)]
    machine.on_prepared(3, (T0, T2))
    only(machine, Join)


def test_a_cooperative_member_gives_up_topics_that_it_does_not_want_any_more() -> None:
    machine = stable(COOPERATIVE, T0)
    machine.subscribe_topics(1, ["u"])
    assert only(machine, Prepare) == Prepare((T0,), lost=False)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
@pytest.mark.parametrize("settings", [EAGER, COOPERATIVE])
def test_a_member_that_the_coordinator_forgot_has_lost_its_partitions(settings: GroupSettings, code: ErrorCode) -> None:
    machine = stable(settings, T0)
    assert beat(machine, 3, code) == [Prepare((T0,), lost=True)]
    assert machine.member == NO_MEMBER
    machine.on_prepared(3, ())
    assert only(machine, Join).request.member_id == ""


def test_a_coordinator_that_moved_is_looked_for_and_the_member_stays() -> None:
    machine = stable(EAGER, T0)
    assert beat(machine, 3, ErrorCode.NOT_COORDINATOR) == []
    machine.do_due_work(3.1)
    only(machine, FindCoordinator)
    machine.on_coordinator(3.1, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    machine.do_due_work(3.15)
    assert machine.take_actions() == []
    machine.do_due_work(machine.wakes_at())
    only(machine, FindCoordinator)
    machine.on_coordinator(4)
    only(machine, Heartbeat)
    assert machine.member == Member(1, "me")


def test_a_coordinator_without_an_answer_for_a_session_is_looked_for() -> None:
    machine = stable(EAGER, T0)
    machine.do_due_work(3)
    only(machine, Heartbeat)
    machine.do_due_work(45.1)
    assert machine.take_actions() == []
    machine.do_due_work(machine.wakes_at())
    only(machine, FindCoordinator)


@pytest.mark.parametrize("settings", [EAGER, COOPERATIVE])
def test_a_connection_that_breaks_during_the_join_is_no_loss(settings: GroupSettings) -> None:
    machine = begin(settings)
    machine.on_disconnect(1)
    machine.do_due_work(1.1)
    only(machine, FindCoordinator)
    machine.on_coordinator(2)
    only(machine, Join)


def test_a_sync_that_breaks_off_leads_to_another_join() -> None:
    machine = begin(EAGER)
    join(machine, 0, 1)
    machine.on_disconnect(1)
    only(machine, Prepare)
    machine.on_prepared(1, ())
    machine.do_due_work(1.1)
    only(machine, FindCoordinator)
    machine.on_coordinator(2)
    assert only(machine, Join).request.member_id == "me"


def test_a_rebalance_while_syncing_leads_to_another_join() -> None:
    machine = begin(EAGER)
    join(machine, 0, 1)
    machine.on_sync(0, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    only(machine, Prepare)
    machine.on_prepared(0, ())
    assert machine.take_actions() == []
    machine.do_due_work(0.1)
    only(machine, Join)


def test_an_application_that_does_not_poll_leaves_and_comes_back_when_it_polls() -> None:
    machine = stable(EAGER._replace(max_poll_interval=5), T0)
    assert beat(machine, 3) == []
    assert machine.wakes_at() == 5
    machine.do_due_work(5.1)
    leave, lost = machine.take_actions()
    assert isinstance(leave, Leave)
    assert leave.request.members[0].member_id == "me"
    assert lost == Prepare((T0,), lost=True)
    machine.do_due_work(100)
    assert machine.take_actions() == []
    machine.on_poll(101)
    machine.on_prepared(101, ())
    assert only(machine, Join).request.member_id == ""


def test_what_is_lost_while_it_is_being_given_up_is_lost() -> None:
    machine = stable(EAGER, T0)
    assert beat(machine, 3, ErrorCode.REBALANCE_IN_PROGRESS) == [Prepare((T0,), lost=False)]
    assert beat(machine, 6, ErrorCode.UNKNOWN_MEMBER_ID) == [Prepare((T0,), lost=True)]
    machine.on_prepared(7, ())
    assert only(machine, Join).request.member_id == ""


def test_a_static_member_never_leaves() -> None:
    machine = stable(EAGER._replace(instance_id="i"), T0)
    machine.end_subscription("closed")
    assert machine.take_actions() == []
    assert machine.phase is Phase.IDLE


def test_a_join_that_is_answered_after_the_end_is_taken_back() -> None:
    machine = begin(EAGER)
    machine.end_subscription("closed")
    assert machine.take_actions() == []
    machine.on_join(1, JoinGroupResponse(generation_id=1, protocol_name="range", leader="me", member_id="me"))
    assert only(machine, Leave).request.members[0].member_id == "me"


@pytest.mark.parametrize(
    "code", [ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.GROUP_MAX_SIZE_REACHED]
)
def test_an_error_without_retry_is_reported_and_partitions_are_lost(code: ErrorCode) -> None:
    machine = stable(EAGER, T0)
    lost, failed = beat(machine, 3, code)
    assert lost == Prepare((T0,), lost=True)
    assert isinstance(failed, Failed)
    assert machine.failure is failed.error
    assert machine.member == NO_MEMBER
    machine.on_prepared(3, ())
    machine.do_due_work(1000)
    assert machine.take_actions() == []
    machine.on_poll(1000)
    if code is ErrorCode.FENCED_INSTANCE_ID:  # joining again would fence its successor
        assert machine.take_actions() == []
        machine.on_match(1000, ["t", "u"])
        assert machine.take_actions() == []
        machine.subscribe_topics(1000, ["t"])
    only(machine, Prepare)
    machine.on_prepared(1000, ())
    only(machine, Join)
    assert (machine.failure is None) == (code is ErrorCode.FENCED_INSTANCE_ID)
    join(machine, 1000, 7)
    assert (machine.failure is None) == (code is ErrorCode.FENCED_INSTANCE_ID)
    machine.on_sync(1000, SyncGroupResponse(assignment=encode_assignment([T0])))
    assert machine.failure is None
    assert machine.committing_member == machine.member == Member(7, "me")


@pytest.mark.parametrize("step", ["coordinator", "join", "sync"])
def test_a_refusal_before_it_is_in_is_kept_until_a_poll_tries_again(step: str) -> None:
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    machine = begin(EAGER)
    if step == "coordinator":
        machine.on_disconnect(1)
        machine.do_due_work(10)
        only(machine, FindCoordinator)
        machine.on_coordinator(10, code)
    elif step == "join":
        machine.on_join(1, JoinGroupResponse(error_code=code))
    else:
        join(machine, 1, 1)
        machine.on_sync(2, SyncGroupResponse(error_code=code))
    failed = only(machine, Failed)
    assert machine.failure is failed.error
    assert machine.member == NO_MEMBER
    machine.do_due_work(1000)
    assert machine.take_actions() == []
    machine.on_poll(1000)
    assert machine.take_actions()[0] == Prepare((), lost=False)
    machine.on_coordinator(1000)
    machine.on_prepared(1000, ())
    only(machine, Join)
    join(machine, 1000, 7)
    assert machine.failure is failed.error, "until it has its assignment"
    assert machine.committing_member == NO_MEMBER


def test_a_refused_commit_of_an_earlier_generation_is_ignored() -> None:
    machine = stable(EAGER, T0)
    for code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
        machine.on_commit_refused(0, Member(0, "me"), code)
        assert (machine.take_actions(), machine.member) == ([], Member(1, "me"))
    machine.on_commit_refused(0, Member(1, "me"), ErrorCode.UNKNOWN_MEMBER_ID)
    assert only(machine, Prepare) == Prepare((T0,), lost=True)


def test_topics_that_change_during_a_join_lead_to_one_more() -> None:
    machine = begin(EAGER)
    machine.subscribe_topics(0, ["t", "u"])
    assert machine.take_actions() == []
    join(machine, 0, 1)
    machine.on_sync(0, SyncGroupResponse(assignment=encode_assignment([T0])))
    assert machine.take_actions() == [Assigned((T0,), ()), Prepare((T0,), lost=False)]
    machine.on_prepared(0, ())
    offered = only(machine, Join).request.protocols[0].metadata
    assert decode_subscription(offered).topics == ("t", "u")
