"""Moves of replicas, end to end: all steps, cancelled, redirected, and written by an operator.

Zone: real.
"""

from __future__ import annotations

import pytest
from tests.cluster.controller.proposals_test import alter, request

from ottla.cluster.controller.controller import OngoingReassignment
from ottla.cluster.store import layout
from ottla.cluster.store.layout import REASSIGN_PARTITIONS, StateNode
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Op
from ottla.sim.mutants.ablation import without_safeguard
from ottla.types import TopicPartition

TP = TopicPartition("t", 0)


def move(controller, *target, tp=TP, factor_change=True):
    targets = {tp: tuple(target) or None}
    return controller.ask(lambda c, done: c.alter_reassignments(targets, factor_change, done))[tp]


def moves(controller):
    return controller.ask(lambda c, done: c.list_reassignments(None, done))


def in_sync(house, controller, isr, partition=0):
    """Have the leader add these to its ISR."""
    leader = house.state("t", partition).leader
    response = alter(controller, request(house, controller, leader, partition, isr))
    house.settle()
    return response.topics[0].partitions[0].error_code


def test_the_steps_of_a_move(house):
    """{1,2,3} → {4,5,6}, the example of Kafka's description: replicas, leader and ISR after each step."""
    controller = house.cluster(1, 2, 3, 4, 5, 6)
    controller.create("t", {0: (1, 2, 3)})
    assert move(controller, 4, 5, 6) is None
    node = house.topic("t")
    assert (node.assignment[0], node.adding[0], node.removing[0]) == ((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))
    assert house.state("t") == StateNode(1, 1, (1, 2, 3), 1), "the leader's epoch grows: it learns the new replicas"
    assert house.brokers[4].partitions[TP].is_new
    assert not house.brokers[2].partitions[TP].is_new
    assert moves(controller) == {TP: OngoingReassignment((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))}
    house.check_agreement(controller)

    assert in_sync(house, controller, (1, 2, 3, 4, 5)) == 0
    assert house.topic("t").adding, "not before all of them are in sync"
    assert in_sync(house, controller, (1, 2, 3, 4, 5, 6)) == 0
    assert house.state("t") == StateNode(4, 2, (4, 5, 6), 1)
    assert house.topic("t") == layout.TopicNode(node.topic_id, {0: (4, 5, 6)}, {}, {})
    assert [house.brokers[each].deleted for each in (1, 2, 3)] == [[TP]] * 3
    assert list(house.brokers[5].partitions[TP].replicas) == [4, 5, 6]
    assert moves(controller) == {}
    house.check_agreement(controller)


def test_a_leader_that_stays_stays(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2)})
    move(controller, 3, 1)
    in_sync(house, controller, (1, 2, 3))
    assert house.state("t") == StateNode(1, 2, (1, 3), 1)
    assert house.brokers[2].deleted == [TP]
    house.check_agreement(controller)


def test_the_replication_factor_grows_and_shrinks(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1,)})
    move(controller, 1, 2, 3)
    in_sync(house, controller, (1, 2, 3))
    assert house.topic("t").assignment[0] == (1, 2, 3)
    move(controller, 2)
    assert house.topic("t").assignment[0] == (2,)
    assert house.state("t").leader == 2
    assert house.brokers[1].deleted == house.brokers[3].deleted == [TP]
    house.check_agreement(controller)


def test_a_move_may_change_only_the_order(house):
    controller = house.cluster(1, 2)
    controller.create("t", {0: (1, 2)})
    move(controller, 2, 1)
    assert house.topic("t").assignment[0] == (2, 1)
    assert house.state("t").leader == 1
    assert moves(controller) == {}
    house.check_agreement(controller)


def test_a_move_is_cancelled(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2)})
    move(controller, 3, 2)
    in_sync(house, controller, (1, 2))
    assert move(controller) is None
    node = house.topic("t")
    assert (sorted(node.assignment[0]), node.adding, node.removing) == ([1, 2], {}, {})
    assert house.brokers[3].deleted == [TP]
    assert house.state("t").isr == (1, 2)
    assert move(controller).code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    house.check_agreement(controller)


def test_a_move_is_not_cancelled_when_only_its_new_replicas_are_in_sync(house):
    """The origin lags: without the new replica, later records would be lost."""
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2)})
    move(controller, 3, 2)
    in_sync(house, controller, (1, 3))
    house.brokers[1].down()
    assert house.state("t") == StateNode(3, 2, (3,), 1)
    assert move(controller).code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert house.brokers[3].deleted == []
    in_sync(house, controller, (3, 2))
    assert house.topic("t").assignment[0] == (3, 2)


def test_a_move_is_redirected_while_it_is_under_way(house):
    controller = house.cluster(1, 2, 3, 4)
    controller.create("t", {0: (1, 2)})
    move(controller, 3, 1)
    in_sync(house, controller, (1, 2))
    move(controller, 4, 1)
    node = house.topic("t")
    assert (node.assignment[0], node.adding[0], node.removing[0]) == ((4, 1, 2), (4,), (2,))
    assert house.brokers[3].deleted == [TP]
    in_sync(house, controller, (1, 2, 4))
    assert house.topic("t").assignment[0] == (4, 1)
    house.check_agreement(controller)


def test_a_removed_replica_does_not_join_the_isr_again(house):
    """Between the second and the third step the leader must not add it again."""
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2)})
    house.brokers[2].silent = True
    controller.begin(lambda c, done: c.alter_reassignments({TP: (1,)}, True, done))
    house.settle()
    assert house.state("t").isr == (1,)
    assert house.topic("t").removing == {0: (2,)}, "not forgotten before it has confirmed"
    asked = request(house, controller, 1, 0, (1, 2))
    assert alter(controller, asked).topics[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST
    house.brokers[2].down()
    house.settle()
    assert house.topic("t").removing == {}


def test_a_move_waits_for_a_broker_and_continues(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2)})
    move(controller, 1, 3)
    house.brokers[3].down()
    house.brokers[3].up()
    house.settle()
    assert house.brokers[3].partitions[TP].is_new
    in_sync(house, controller, (1, 2, 3))
    assert house.topic("t").assignment[0] == (1, 3)


def test_a_move_without_an_eligible_leader_waits(house):
    """All target replicas are in sync and down: the old ones keep the partition until a target returns."""
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2)})
    move(controller, 3)
    house.brokers[3].down(settle=False)
    in_sync(house, controller, (1, 2))
    assert house.state("t").leader == 1
    house.brokers[3].up()
    house.settle()
    in_sync(house, controller, (1, 2, 3))
    assert house.state("t").leader == 3


@pytest.mark.parametrize("moment", ["adding", "removing"])
def test_the_next_controller_continues_a_move(house, moment):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2)})
    move(controller, 3, 2)
    if moment == "removing":
        house.brokers[1].silent = True
        in_sync(house, controller, (1, 2, 3))
        assert house.state("t").isr == (2, 3)
        assert house.topic("t").removing == {0: (1,)}
    other = house.candidate(2)
    house.in_store(controller.link.session.close_session)
    controller.turn(controller.seat.on_session_lost)
    house.brokers[1].silent = False
    house.settle()
    if moment == "adding":
        in_sync(house, other, (1, 2, 3))
    assert house.topic("t") == layout.TopicNode(house.topic("t").topic_id, {0: (3, 2)}, {}, {})
    assert house.brokers[1].deleted == [TP]
    house.check_agreement(other)


@pytest.mark.parametrize(
    ("target", "factor_change", "code"),
    [
        ((9,), True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 1), True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 2, 3), False, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_invalid_moves_are_refused(house, target, factor_change, code):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2)})
    assert move(controller, *target, factor_change=factor_change).code is code
    assert move(controller, 1, tp=TopicPartition("t", 5)).code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert house.topic("t").assignment[0] == (1, 2)


def test_hundreds_of_moves_are_one_write_per_topic(house):
    controller = house.cluster(1, 2)
    controller.create("t", dict.fromkeys(range(200), (1,)))
    since = len(house.submissions)
    targets = {TopicPartition("t", each): (1, 2) for each in range(200)}
    assert set(controller.ask(lambda c, done: c.alter_reassignments(targets, True, done)).values()) == {None}
    multis = [each for each in house.submissions[since:] if each.node == 1]
    assert len(multis) == 2, "the assignment, and the states"
    house.check_agreement(controller)


# -- by hand ---------------------------------------------------------------------------------------------------------


def plan(*entries) -> bytes:
    return layout.encode_reassignment({TopicPartition(topic, number): replicas for topic, number, replicas in entries})


def test_a_move_that_an_operator_wrote(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1,), 1: (1,)})
    house.write(
        Op("create", REASSIGN_PARTITIONS, plan(("t", 0, (2,)), ("t", 1, (3,)), ("none", 0, (1,)), ("t", 7, ())))
    )
    house.settle()
    left = layout.decode_reassignment("", house.data(REASSIGN_PARTITIONS))
    assert left == {TopicPartition("t", 0): (2,), TopicPartition("t", 1): (3,)}, "what cannot be is taken off"
    in_sync(house, controller, (1, 2), 0)
    left = layout.decode_reassignment("", house.data(REASSIGN_PARTITIONS))
    assert left == {TopicPartition("t", 1): (3,)}
    in_sync(house, controller, (1, 3), 1)
    assert house.node(REASSIGN_PARTITIONS) is None
    assert house.topic("t").assignment == {0: (2,), 1: (3,)}
    house.write(Op("create", REASSIGN_PARTITIONS, plan(("t", 0, (2,)))))
    house.settle()
    assert house.node(REASSIGN_PARTITIONS) is None, "there already"
    house.check_agreement(controller)


def test_a_request_replaces_a_move_that_an_operator_wrote(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1,)})
    house.write(Op("create", REASSIGN_PARTITIONS, plan(("t", 0, (2,)))))
    house.settle()
    move(controller, 3)
    assert house.node(REASSIGN_PARTITIONS) is None
    assert house.topic("t").adding == {0: (3,)}


def test_an_invalid_plan_is_logged_and_ignored(house, caplog):
    controller = house.cluster(1, 2)
    controller.create("t", {0: (1,)})
    for content in (b"nonsense", b'{"partitions":[{"topic":"t"}]}', b'{"partitions":[{"topic":"t","partition":0}]}'):
        house.write(Op("create", REASSIGN_PARTITIONS, content))
        house.settle()
        assert house.data(REASSIGN_PARTITIONS) == content
        assert "ignoring the requested moves" in caplog.text
        house.write(Op("delete", REASSIGN_PARTITIONS))
    house.write(Op("create", REASSIGN_PARTITIONS, plan(("t", 0, (1, 2)))))
    house.settle()
    in_sync(house, controller, (1, 2))
    assert house.topic("t").assignment[0] == (1, 2)


def test_the_next_controller_finds_a_move_that_an_operator_wrote(house):
    house.broker(1)
    house.broker(2)
    house.write(Op("create", "/brokers/topics/t", b'{"version":1,"partitions":{"0":[1]}}'))
    house.write(Op("create", REASSIGN_PARTITIONS, plan(("t", 0, (2,)))))
    controller = house.candidate(1)
    assert house.topic("t").adding == {0: (2,)}
    in_sync(house, controller, (1, 2))
    assert house.node(REASSIGN_PARTITIONS) is None


# -- safeguards ------------------------------------------------------------------------------------------------------


@without_safeguard("controller.reassigned_when_in_sync")
def test_without_waiting_for_the_isr_a_move_loses_its_leader(house):
    """Ablation: only replicas without records would be left."""
    controller = house.cluster(1, 2)
    controller.create("t", {0: (1,), 1: (1,)})
    targets = {TP: (1, 2), TopicPartition("t", 1): (2, 1)}
    controller.ask(lambda c, done: c.alter_reassignments(targets, True, done))
    assert house.topic("t").adding == {}, "it counts as done though 2 is not in sync"


def test_the_same_move_with_the_safeguard_waits(house):
    controller = house.cluster(1, 2)
    controller.create("t", {0: (1,), 1: (1,)})
    targets = {TP: (1, 2), TopicPartition("t", 1): (2, 1)}
    controller.ask(lambda c, done: c.alter_reassignments(targets, True, done))
    assert house.topic("t").adding == {0: (2,), 1: (2,)}


def test_cancelling_a_move_of_an_unknown_partition_is_refused(house):
    controller = house.cluster(1)
    controller.create("t", {0: (1,)})
    outcome = controller.ask(lambda c, done: c.alter_reassignments({TopicPartition("x", 0): None}, True, done))
    assert isinstance(outcome[TopicPartition("x", 0)], ApiError)
