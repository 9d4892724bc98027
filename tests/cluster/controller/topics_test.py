"""Topics that are created, grown and deleted: by request, by an operator, and across a controller's death.

Zone: real.
"""

from __future__ import annotations

import json

import pytest

from ottla.cluster.store import layout
from ottla.cluster.topics import TopicSpec
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Op
from ottla.types import TopicPartition
from ottla.wire.messages import StopReplicaRequest

MARK = "/admin/delete_topics"


def refused(controller, ask) -> ErrorCode:
    with pytest.raises(ApiError) as error:
        controller.ask(ask)
    return error.value.code


def tp(partition: int = 0, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, partition)


# -- by request ------------------------------------------------------------------------------------------------------


def test_all_brokers_receive_a_created_topic(house):
    controller = house.cluster(1, 2, 3)
    made = controller.create("t", {0: (1, 2), 1: (2, 3)})
    assert house.state("t", 0) == layout.StateNode(1, 0, (1, 2), 1)
    assert house.topic("t").topic_id == made.topic_id
    house.check_agreement(controller)
    assert house.brokers[1].partitions[tp()].is_new
    assert house.brokers[3].live == [1, 2, 3]
    assert tp() not in house.brokers[3].partitions, "only replicas create logs"


def test_creation_is_one_multi(house):
    controller = house.cluster(1, 2, 3)
    since = len(house.submissions)
    controller.create("t", partitions=100, replication_factor=3)
    assert len([each for each in house.submissions[since:] if each.node == 1]) == 1


def test_the_answer_waits_for_the_leaders(house):
    controller = house.cluster(1, 2)
    house.brokers[2].silent = True
    spec = TopicSpec("t", assignments={0: (2, 1)})
    box = controller.begin(lambda c, done: c.create_topic(spec, False, 8000, done))
    house.settle(7)
    assert not box
    house.settle(2)
    assert box[0].code is ErrorCode.REQUEST_TIMED_OUT
    assert house.state("t").leader == 2, "the topic exists nevertheless"
    house.settle(60)
    assert len(box) == 1


def test_validate_only_writes_nothing(house):
    controller = house.cluster(1, 2, 3)
    since = len(house.submissions)
    spec = TopicSpec("t", 3, 2)
    topic = controller.ask(lambda c, done: c.create_topic(spec, True, 1000, done))
    assert len(topic.partitions) == 3
    assert len(house.submissions) == since


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (TopicSpec("there", 1, 1), ErrorCode.TOPIC_ALREADY_EXISTS),
        (TopicSpec("the_re.", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicSpec("..", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicSpec("t", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicSpec("t", 0, 1), ErrorCode.INVALID_PARTITIONS),
        (TopicSpec("t", 10_001, 1), ErrorCode.POLICY_VIOLATION),
        (TopicSpec("t", assignments={0: (9,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("t", 1, 1, configs={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_creations_are_refused(house, spec, code):
    controller = house.cluster(1, 2, 3)
    controller.create("there", {0: (1,)})
    controller.create("the.re_", {0: (1,)})
    assert refused(controller, lambda c, done: c.create_topic(spec, False, 1000, done)) is code
    assert len(house.engine.tree.get_children(layout.TOPICS)) == 2


def test_concurrent_creations_of_one_name_make_one_topic(house):
    controller = house.cluster(1)
    spec = TopicSpec("t", 1, 1)
    boxes = [controller.begin(lambda c, done: c.create_topic(spec, False, 1000, done)) for _ in range(3)]
    house.settle()
    codes = [getattr(box[0], "code", None) for box in boxes]
    assert codes == [None, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.TOPIC_ALREADY_EXISTS]


def test_partitions_are_added(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3)})
    grown = controller.ask(lambda c, done: c.add_partitions("t", 3, None, False, 1000, done))
    assert [each.replicas[0] for each in grown.partitions] == [2, 3, 1], (
        "the placement continues from the first replica of partition 0"
    )
    controller.ask(lambda c, done: c.add_partitions("t", 4, [[3, 1]], False, 1000, done))
    assert house.topic("t").assignment[3] == (3, 1)
    assert house.state("t", 3) == layout.StateNode(3, 0, (3, 1), 1)
    house.check_agreement(controller)


@pytest.mark.parametrize(
    ("name", "count", "code"),
    [
        ("none", 3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 1, ErrorCode.INVALID_PARTITIONS),
        ("t", 0, ErrorCode.INVALID_PARTITIONS),
        ("moving", 2, ErrorCode.REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_invalid_growth_is_refused(house, name, count, code):
    controller = house.cluster(1, 2)
    controller.create("t", {0: (1,)})
    controller.create("moving", {0: (1,)})
    controller.ask(lambda c, done: c.alter_reassignments({tp(topic="moving"): (2,)}, True, done))
    assert refused(controller, lambda c, done: c.add_partitions(name, count, None, False, 1000, done)) is code


def test_producer_ids_are_allocated_once(house):
    controller = house.cluster(1, 2)
    asked = [
        controller.begin(lambda c, done, node=node: c.allocate_producer_ids(node, house.brokers[node].epoch, done))
        for node in (1, 2, 1)
    ]
    house.settle()
    assert [box[0] for box in asked] == [(0, 1000), (1000, 1000), (2000, 1000)]
    assert json.loads(house.data(layout.PRODUCER_ID_BLOCK)) == {
        "version": 1,
        "broker": 1,
        "block_start": "2000",
        "block_end": "2999",
    }
    assert refused(controller, lambda c, d: c.allocate_producer_ids(9, 1, d)) is ErrorCode.BROKER_ID_NOT_REGISTERED
    assert refused(controller, lambda c, d: c.allocate_producer_ids(1, 1, d)) is ErrorCode.STALE_BROKER_EPOCH


# -- by hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parent", [False, True])
def test_a_topic_that_an_operator_wrote(house, parent):
    controller = house.cluster(1, 2, 3)
    ops = [Op("create", "/brokers/topics/t", b'{"version":1,"partitions":{"1":[2,9],"0":[3,1]}}')]
    house.write(*ops, *([Op("create", "/brokers/topics/t/partitions")] if parent else []))
    house.settle()
    assert house.topic("t").topic_id != bytes(16), "it gets an id"
    assert house.state("t", 0) == layout.StateNode(3, 0, (3, 1), 1)
    assert house.state("t", 1) == layout.StateNode(2, 0, (2,), 1), "only live replicas are in sync"
    assert house.brokers[1].partitions[tp()].is_new
    house.check_agreement(controller)


def test_a_topic_of_an_operator_without_a_live_replica_waits(house):
    controller = house.cluster(1)
    house.write(Op("create", "/brokers/topics/t", b'{"version":1,"partitions":{"0":[2]}}'))
    house.settle()
    assert house.node(layout.state_path("t", 0)) is None
    house.broker(2)
    house.settle()
    assert house.state("t") == layout.StateNode(2, 0, (2,), 1)
    assert house.brokers[2].partitions[tp()].is_new
    house.check_agreement(controller)


def test_an_invalid_topic_of_an_operator_is_logged_and_ignored(house, caplog):
    controller = house.cluster(1)
    bad = [b"", b"[]", b'{"partitions":{"0":[]}}', b'{"partitions":{"1":[1]}}', b'{"partitions":{"0":[1,1]}}']
    for index, content in enumerate(bad):
        house.write(Op("create", f"/brokers/topics/bad{index}", content))
    house.settle()
    for index, content in enumerate(bad):
        assert house.data(f"/brokers/topics/bad{index}") == content
        assert f"ignoring topic bad{index}" in caplog.text
    controller.create("t", {0: (1,)})
    house.write(Op("put", "/brokers/topics/bad0", b'{"version":1,"partitions":{"0":[1]}}'))
    house.settle()
    assert house.state("bad0").leader == 1, "put right by hand"


def test_partitions_that_an_operator_added(house):
    controller = house.cluster(1, 2)
    controller.create("t", {0: (1, 2)})
    node = house.topic("t")
    content = layout.encode_topic(node._replace(assignment={**node.assignment, 1: (2, 1)}))
    house.write(Op("put", "/brokers/topics/t", content))
    house.settle()
    assert house.state("t", 1) == layout.StateNode(2, 0, (2, 1), 1)
    house.check_agreement(controller)


def test_a_topic_that_an_operator_removed_is_forgotten(house):
    controller = house.cluster(1)
    controller.create("t", {0: (1,)})
    paths = [layout.state_path("t", 0), layout.partition_path("t", 0), layout.partitions_path("t"), "/brokers/topics/t"]
    house.write(*(Op("delete", path) for path in paths))
    house.settle()
    assert controller.controller.image.topics == {}
    assert house.brokers[1].known == {}


def test_an_invalid_state_is_not_changed(house, caplog):
    controller = house.cluster(1, 2)
    controller.create("t", {0: (2, 1), 1: (2, 1)})
    house.write(Op("put", layout.state_path("t", 0), b"nonsense"))
    house.brokers[2].down()
    assert house.data(layout.state_path("t", 0)) == b"nonsense"
    assert "not changing partition t-0" in caplog.text
    assert house.state("t", 1).leader == 1, "the others are elected"


def test_a_state_that_an_operator_deleted_is_written_again(house):
    controller = house.cluster(1, 2)
    controller.create("t", {0: (2, 1)})
    house.write(Op("delete", layout.state_path("t", 0)))
    house.brokers[2].down()
    assert house.state("t") == layout.StateNode(1, 1, (1,), 1)
    house.check_agreement(controller)


# -- deletion --------------------------------------------------------------------------------------------------------


def gone(house, name="t") -> bool:
    paths = [f"/brokers/topics/{name}", f"/config/topics/{name}", f"{MARK}/{name}"]
    return all(house.node(path) is None for path in paths)


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_deletion_removes_all_nodes_and_replicas(house, by_hand):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2), 1: (2, 3)})
    controller.create("stays", {0: (1,)})
    if by_hand:
        house.write(Op("create", f"{MARK}/t"))
        house.settle()
    else:
        assert controller.ask(lambda c, done: c.delete_topic("t", 5000, done)) is None
    assert gone(house)
    assert sorted(house.brokers[2].deleted) == [tp(0), tp(1)]
    assert list(house.brokers[3].known) == [tp(topic="stays")]
    assert list(controller.controller.image.topics) == ["stays"]
    stop = [each for each in house.brokers[1].requests if isinstance(each, StopReplicaRequest)][-1]
    assert stop.topic_states[0].partition_states[0].leader_epoch == -2, "outdates every epoch"
    controller.create("t", {0: (3,)})
    house.check_agreement(controller)


def test_a_deletion_waits_for_a_replica_that_is_down(house):
    controller = house.cluster(1, 2)
    controller.create("t", {0: (1, 2), 1: (2, 1)})
    house.brokers[2].down()
    assert controller.ask(lambda c, done: c.delete_topic("t", 5000, done)) is None, "all live brokers know"
    assert sorted(house.brokers[1].deleted) == [tp(0), tp(1)]
    assert house.brokers[1].known == {}
    assert not gone(house)
    spec = TopicSpec("t", 1, 1)
    name_taken = refused(controller, lambda c, done: c.create_topic(spec, False, 1000, done))
    assert name_taken is ErrorCode.TOPIC_ALREADY_EXISTS
    unknown = refused(controller, lambda c, done: c.delete_topic("t", 1000, done))
    assert unknown is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    house.brokers[2].up()
    house.settle()
    assert gone(house)
    assert sorted(house.brokers[2].deleted) == [tp(0), tp(1)]


def test_the_next_controller_continues_a_deletion(house):
    controller = house.cluster(1, 2)
    controller.create("t", {0: (1, 2)})
    house.brokers[2].silent = True
    controller.begin(lambda c, done: c.delete_topic("t", 60_000, done))
    house.settle()
    assert not gone(house)
    other = house.candidate(3)
    house.in_store(controller.link.session.close_session)
    controller.turn(controller.seat.on_session_lost)
    house.brokers[2].silent = False
    house.settle()
    assert other.controller.epoch == 2
    assert gone(house)


def test_a_broker_that_dies_during_a_deletion(house):
    controller = house.cluster(1, 2)
    controller.create("t", {0: (1, 2)})
    house.brokers[2].silent = True
    box = controller.begin(lambda c, done: c.delete_topic("t", 60_000, done))
    house.settle()
    assert not box
    house.brokers[2].down()
    assert box == [None]
    house.brokers[2].silent = False
    house.brokers[2].up()
    house.settle()
    assert gone(house)


def test_a_failed_deletion_of_a_replica_is_repeated_after_a_restart(house, caplog):
    controller = house.cluster(1, 2)
    controller.create("t", {0: (1, 2)})
    house.brokers[2].bad_replicas[tp()] = ErrorCode.KAFKA_STORAGE_ERROR
    assert controller.ask(lambda c, done: c.delete_topic("t", 5000, done)) is None
    assert "broker 2 could not delete" in caplog.text
    assert not gone(house)
    del house.brokers[2].bad_replicas[tp()]
    house.brokers[2].down()
    house.brokers[2].up()
    house.settle()
    assert gone(house)


def test_deletion_marks_for_missing_topics_are_removed(house):
    house.cluster(1)
    house.write(Op("create", f"{MARK}/nothing"))
    house.settle()
    assert house.engine.tree.get_children(MARK) == []


def test_deletion_can_be_disabled(house):
    controller = house.cluster(1, properties={"delete.topic.enable": "false"})
    controller.create("t", {0: (1,)})
    house.write(Op("create", f"{MARK}/t"))
    house.settle()
    assert house.engine.tree.get_children(MARK) == []
    assert house.state("t").leader == 1


def test_a_deletion_does_not_wait_for_a_move(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2)})
    controller.ask(lambda c, done: c.alter_reassignments({tp(): (3, 2)}, True, done))
    assert controller.ask(lambda c, done: c.delete_topic("t", 5000, done)) is None
    assert gone(house)
    assert [house.brokers[node].deleted for node in (1, 2, 3)] == [[tp()]] * 3
    assert controller.ask(lambda c, done: c.list_reassignments(None, done)) == {}


def test_a_broker_that_returns_does_not_revive_a_deleted_topic(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3)})
    house.brokers[3].silent = True
    controller.begin(lambda c, done: c.delete_topic("t", 60_000, done))
    house.settle()
    house.brokers[2].down()
    house.brokers[2].up()
    house.settle()
    assert house.brokers[2].partitions == {}
    assert house.brokers[2].known == {}


# -- failover --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(1, 7))
def test_a_controller_dies_while_it_creates_a_large_topic(house, steps):
    """Wherever the controller stops, the next one completes what was decided, and nothing else."""
    controller = house.cluster(1, 2)
    spec = TopicSpec("t", 600, 2)
    controller.begin(lambda c, done: c.create_topic(spec, False, 1000, done))
    since = len(house.submissions)
    house.timeline.run_while(lambda: len(house.submissions) < since + steps, house.timeline.now_ns + 10**10)
    house.in_store(controller.link.session.close_session)
    controller.turn(controller.seat.on_session_lost)
    other = house.candidate(2)
    house.settle()
    if "t" in other.controller.image.topics:
        assert len(house.engine.tree.get_children(layout.partitions_path("t"))) == 600
        house.check_agreement(other)
    else:
        other.create("t", partitions=600, replication_factor=2)


def test_the_next_controller_reads_everything(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2), 1: (2, 1)})
    controller.ask(lambda c, done: c.alter_reassignments({tp(1): (3, 1)}, True, done))
    house.brokers[2].down()
    before = controller.controller.image
    other = house.candidate(3)
    house.write(Op("sequential", "/isr_change_notification/isr_change_", b"{}"))
    house.in_store(controller.link.session.close_session)
    controller.turn(controller.seat.on_session_lost)
    house.settle()
    after = other.controller.image
    assert after.topics["t"].topic_id == before.topics["t"].topic_id
    assert [each.replicas for each in after.topics["t"].partitions] == [(1, 2), (3, 1, 2)]
    assert list(after.brokers) == [1, 3]
    assert house.engine.tree.get_children("/isr_change_notification") == []
    house.check_agreement(other)
    assert house.brokers[1].controller_epoch == 2
