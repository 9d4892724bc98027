"""Elections: at most one controller at a time, for all failures of sessions, answers and nodes.

Zone: real.
"""

from __future__ import annotations

import json

import pytest

from ottla.cluster.store.layout import CONTROLLER, CONTROLLER_EPOCH, StateNode, state_path
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Failure, Kind, Op
from ottla.sim.mutants.ablation import without_safeguard


def test_the_first_broker_is_controller_and_the_others_know(house):
    for node in (1, 2, 3):
        house.broker(node)
    first, second, third = (house.candidate(node) for node in (2, 1, 3))
    assert first.seat.controller is not None
    assert second.seat.controller is third.seat.controller is None
    assert [each.seat.controller_id for each in house.candidates] == [2, 2, 2]
    assert json.loads(house.data(CONTROLLER))["brokerid"] == 2
    assert house.data(CONTROLLER_EPOCH) == b"1"
    assert house.node(CONTROLLER_EPOCH).version == 1, "as Kafka: made with 0, then taken"


def test_another_broker_takes_over_when_the_controllers_session_ends(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2, 3)})
    other = house.candidate(2)
    house.in_store(controller.link.session.close_session)
    house.settle()
    controller.turn(controller.seat.on_session_lost)
    house.settle()
    assert controller.seat.controller is None
    assert controller.seat.controller_id == -1
    assert other.seat.controller is not None
    assert other.controller.epoch == 2
    assert other.seat.controller_id == 2
    house.check_agreement(other)
    assert house.brokers[3].controller_epoch == 2


def test_a_broker_comes_back_with_a_new_session(house):
    controller = house.cluster(1)
    house.in_store(controller.link.session.close_session)
    controller.turn(controller.seat.on_session_lost)
    house.settle()
    controller.open_session()
    controller.seat._store = controller.store
    controller.start(epoch=2)
    assert controller.controller.epoch == 2


def test_deleting_the_controller_node_forces_an_election(house):
    """Deleting /controller is how an operator forces an election."""
    controller = house.cluster(1, 2)
    other = house.candidate(2)
    house.write(Op("delete", CONTROLLER))
    house.settle()
    seated = [each for each in (controller, other) if each.seat.controller is not None]
    assert len(seated) == 1
    assert seated[0].controller.epoch == 2
    assert controller.seat.controller_id == other.seat.controller_id == seated[0].node


def test_a_foreign_write_of_the_epoch_forces_an_election(house):
    """Another writer changes /controller_epoch: the controller's term ends, and it takes the next epoch."""
    controller = house.cluster(1, 2)
    house.write(Op("put", CONTROLLER_EPOCH, b"40"))
    with pytest.raises(ApiError) as error:
        controller.create("t", {0: (1, 2)})
    assert error.value.code is ErrorCode.NOT_CONTROLLER
    assert house.node("/brokers/topics/t") is None
    assert controller.controller.epoch == 41
    controller.create("t", {0: (1, 2)})


def test_an_invalid_epoch_node_prevents_elections(house):
    house.write(Op("create", CONTROLLER_EPOCH, b"many"))
    house.broker(1)
    seat = house.candidate(1).seat
    assert seat.controller is None
    house.write(Op("put", CONTROLLER_EPOCH, b"6"), Op("create", CONTROLLER, b"nonsense"))
    house.settle()
    assert seat.controller.epoch == 7


BROKEN = (b"", b"nonsense", b"[1]", b"{}", b'{"brokerid":-1}', b'{"brokerid":null}', b'{"brokerid":1e999}', b"[" * 9999)


@pytest.mark.parametrize("content", BROKEN)
def test_a_controller_node_that_names_no_broker_is_replaced_by_an_election(house, caplog, content):
    controller = house.cluster(1, 2)
    other = house.candidate(2)
    house.write(Op("delete", CONTROLLER), Op("create", CONTROLLER, content))
    house.settle()
    seated = [each for each in (controller, other) if each.seat.controller is not None]
    assert [each.controller.epoch for each in seated] == [2]
    assert controller.seat.controller_id == other.seat.controller_id == seated[0].node
    assert json.loads(house.data(CONTROLLER))["brokerid"] == seated[0].node
    assert "electing a controller" in caplog.text


def test_a_controller_node_that_names_no_broker_is_replaced_at_the_start(house):
    house.write(Op("create", CONTROLLER, b'{"brokerid":-1}'))
    house.broker(1)
    assert house.candidate(1).seat.controller.epoch == 1


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_answer_to_the_election_is_resolved(house, lost):
    """UNKNOWN does not mean refused: the broker compares the nodes with what it wrote."""
    first = house.cluster(1)
    other = house.candidate(3)
    other.link.lose_answers = lost
    house.in_store(first.link.session.close_session)
    first.turn(first.seat.on_session_lost)
    house.settle()
    assert other.controller.epoch == 2
    assert house.data(CONTROLLER_EPOCH) == b"2"


def test_an_election_with_an_unknown_outcome_is_repeated(house):
    """The answer is lost, and the store is unreachable. When it is back, the node is ours and its term is unknown."""
    first = house.cluster(1)
    other = house.candidate(3)
    other.link.lose_answers = 1
    house.in_store(first.link.session.close_session)
    house.timeline.run_while(lambda: house.data(CONTROLLER_EPOCH) == b"1", house.timeline.now_ns + 10**9)
    other.link.cut = Kind.NOT_DONE
    house.settle()
    assert other.seat.controller is None
    assert house.node(CONTROLLER) is not None
    other.link.cut = None
    house.settle()
    assert other.controller.epoch == 3


def test_a_request_that_the_store_does_not_answer_is_repeated(house):
    house.broker(1)
    candidate = house.candidate(1)
    house.in_store(candidate.link.session.close_session)
    other = house.candidate(2)
    other.link.cut = Kind.NOT_DONE
    candidate.turn(candidate.seat.on_session_lost)
    house.settle()
    other.turn(lambda: other.seat.start_competing(1))
    house.settle()
    other.link.cut = None
    house.settle()
    assert other.seat.controller is not None


def test_an_interrupted_session_reads_everything_again(house):
    """Watches are lost with a connection; at the next OPEN everything watched is read again."""
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3)})
    controller.store.forget_watches()
    house.brokers[2].down()
    house.write(Op("create", "/admin/delete_topics/t"))
    house.settle()
    assert house.state("t").leader == 2, "no change was reported"
    controller.start(epoch=1)
    assert house.node(state_path("t", 0)).data is not None
    assert controller.controller.image.topics == {}
    assert list(controller.controller.image.brokers) == [1, 3]


# -- a controller that was asleep ------------------------------------------------------------------------------------


def test_a_zombie_changes_no_node(house):
    """Every multi of a controller fails once another one has the next epoch."""
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2, 3), 1: (2, 3, 1)})
    other = house.candidate(2)
    # It is paused: no watch reaches it, while another broker takes the next epoch.
    controller.store.forget_watches()
    office = controller.controller
    house.write(Op("delete", CONTROLLER))
    house.settle()
    assert other.controller.epoch == 2
    before = {path: (node.data, node.version) for path, node in house.engine.tree.nodes.items()}
    since = len(house.submissions)
    boxes = [
        controller.begin(lambda _, done: office.controlled_shutdown(3, None, done)),
        controller.begin(lambda _, done: office.delete_topic("t", 1000, done)),
    ]
    house.settle()
    assert any(each.node == 1 for each in house.submissions[since:]), "it tried"
    after = {path: (node.data, node.version) for path, node in house.engine.tree.nodes.items()}
    assert after == before
    assert [box[0].code for box in boxes] == [ErrorCode.NOT_CONTROLLER] * 2
    assert controller.seat.controller is None
    assert controller.seat.controller_id == 2
    house.check_agreement(other)


@without_safeguard("controller.controller_epoch_check")
def test_without_the_epoch_check_a_zombie_writes(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2, 3)})
    other = house.candidate(2)
    controller.store.forget_watches()
    house.write(Op("delete", CONTROLLER))
    house.settle()
    assert other.controller.epoch == 2
    controller.begin(lambda office, done: office.controlled_shutdown(1, None, done))
    house.settle()
    assert house.state("t").controller_epoch == 1, "an old epoch over a newer one"


def test_brokers_refuse_a_zombie_and_it_learns(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2, 3)})
    other = house.candidate(2)
    controller.store.forget_watches()
    house.write(Op("delete", CONTROLLER))
    house.settle()
    controller.turn(lambda: controller.controller._core.channels.send_brokers(first=True))
    house.settle()
    assert controller.seat.controller is None
    assert other.seat.controller is not None


def test_every_multi_of_a_controller_begins_with_the_epoch_check(house):
    controller = house.cluster(1, 2, 3, properties={"unclean.leader.election.enable": "true"})
    controller.create("t", {0: (1, 2, 3), 1: (2, 3, 1)})
    controller.ask(lambda c, done: c.add_partitions("t", 3, None, False, 1000, done))
    house.brokers[2].down()
    house.write(Op("create", "/brokers/topics/hand", b'{"version":1,"partitions":{"0":[1,3]}}'))
    house.write(Op("create", "/admin/preferred_replica_election", b'{"version":1,"partitions":[]}'))
    plan = b'{"version":1,"partitions":[{"topic":"hand","partition":0,"replicas":[3]}]}'
    house.write(Op("create", "/admin/reassign_partitions", plan))
    house.write(Op("sequential", "/log_dir_event_notification/log_dir_event_", b'{"version":1,"broker":3,"event":1}'))
    house.broker(2)
    controller.ask(lambda c, done: c.controlled_shutdown(3, None, done))
    controller.ask(lambda c, done: c.allocate_producer_ids(1, house.brokers[1].epoch, done))
    controller.ask(lambda c, done: c.delete_topic("t", 1000, done))
    house.settle()
    multis = [each.ops for each in house.submissions if each.node == 1]
    claims = [ops for ops in multis if any(op.path == CONTROLLER for op in ops)]
    assert len(claims) == 1, "the claim itself takes the epoch"
    others = [ops for ops in multis if ops not in claims]
    assert len(others) > 15
    for ops in others:
        assert (ops[0].verb, ops[0].path, ops[0].version) == ("check", CONTROLLER_EPOCH, 1), ops


# -- answers that get lost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [1, 2, 3, 5])
def test_a_topic_is_created_once_though_answers_are_lost(house, lost):
    controller = house.cluster(1, 2)
    controller.link.lose_answers = lost
    made = controller.create("t", {0: (1, 2)})
    assert house.topic("t").topic_id == made.topic_id
    house.check_agreement(controller)


def test_an_election_whose_answer_is_lost_is_not_held_twice(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3, 1)})
    controller.link.lose_answers = 1
    house.brokers[2].down()
    assert house.state("t") == StateNode(3, 1, (3, 1), 1)
    house.check_agreement(controller)


def test_a_store_out_of_reach_is_waited_for(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3, 1)})
    controller.link.cut = Kind.NOT_DONE
    house.brokers[2].down()
    box = controller.begin(lambda c, done: c.controlled_shutdown(3, None, done))
    house.settle()
    assert not box
    controller.link.cut = None
    house.settle()
    assert house.state("t").leader == 1
    assert box == [[]]


def test_whoever_waits_is_told_when_the_office_is_lost(house):
    controller = house.cluster(1, 2)
    house.brokers[2].silent = True
    wanted = [
        controller.begin(lambda c, done: c.list_reassignments(None, done)),
        controller.begin(lambda c, done: c.controlled_shutdown(1, None, done)),
    ]
    controller.turn(controller.seat.on_session_lost)
    house.settle()
    for box in wanted:
        assert len(box) == 1
        assert isinstance(box[0], (list, dict)) or box[0].code is ErrorCode.NOT_CONTROLLER


def test_an_expired_session_ends_the_work_quietly(house):
    controller = house.cluster(1, 2)
    controller.link.cut = Kind.EXPIRED
    box = controller.begin(lambda c, done: c.controlled_shutdown(2, None, done))
    create = controller.begin(lambda c, done: c.delete_topic("t", 1000, done))
    house.settle()
    assert all(len(each) == 1 for each in (box, create))
    assert not isinstance(box[0], Failure)
