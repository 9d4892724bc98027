"""AlterPartition: the decision as a table, and whole requests through a controller.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.cluster.controller.proposals import Proposal, judge_proposal
from ottla.cluster.image import PartitionImage
from ottla.cluster.store.layout import ISR_CHANGES, StateNode, encode_state, state_path
from ottla.errors import ErrorCode
from ottla.seams import Op
from ottla.sim.mutants.ablation import without_safeguard
from ottla.types import TopicPartition
from ottla.wire.messages import AlterPartitionRequest

ELIGIBLE = {1: 101, 2: 102, 3: 103}
PARTITION = PartitionImage(0, 1, 7, (1, 2, 3), (1, 2), 11)
OK = ErrorCode.NONE


def proposal(isr, leader_epoch=7, partition_epoch=11, leader=1, epochs=None, recovery=0):
    return Proposal(leader, leader_epoch, partition_epoch, tuple(isr), epochs or {}, recovery)


TABLE = [
    (proposal((1, 2, 3)), OK),
    (proposal((1,)), OK),
    (proposal((1, 2, 3), epochs={1: 101, 2: 102, 3: 103}), OK),
    (proposal((1, 2, 3), epochs={3: -1}), OK),
    (proposal((1, 2, 3), leader_epoch=8), ErrorCode.NOT_CONTROLLER),
    (proposal((1, 2, 3), partition_epoch=12), ErrorCode.NOT_CONTROLLER),
    (proposal((1, 2, 3), leader_epoch=6), ErrorCode.FENCED_LEADER_EPOCH),
    (proposal((1, 2, 3), leader=2), ErrorCode.FENCED_LEADER_EPOCH),
    (proposal((1, 2, 3), partition_epoch=10), ErrorCode.INVALID_UPDATE_VERSION),
    (proposal((2, 1), partition_epoch=10), OK),  # the present ISR: the request is repeated because the answer was lost
    (proposal((2, 3)), ErrorCode.INVALID_REQUEST),  # without the leader
    (proposal((1, 1, 2, 3)), ErrorCode.INVALID_REQUEST),
    (proposal((1, 4)), ErrorCode.INVALID_REQUEST),  # not a replica
    (proposal((1, 2, 3), recovery=1), ErrorCode.INVALID_REQUEST),
    (proposal((1, 2, 3), epochs={3: 99}), ErrorCode.INELIGIBLE_REPLICA),  # it has restarted since
]


@pytest.mark.parametrize(("asked", "expected"), TABLE)
def test_judged(asked, expected):
    outcome = judge_proposal(PARTITION, asked, ELIGIBLE)
    if expected is not OK:
        assert outcome is expected
    elif sorted(asked.isr) == [1, 2]:
        assert outcome is PARTITION
    else:
        assert outcome == PARTITION._replace(isr=asked.isr)


def test_a_replica_that_is_down_or_stopping_does_not_join():
    assert judge_proposal(PARTITION, proposal((1, 2, 3)), {1: 101, 2: 102}) is ErrorCode.INELIGIBLE_REPLICA


@pytest.mark.parametrize(
    ("safeguard", "asked", "eligible"),
    [
        ("controller.leader_epoch_check", proposal((1, 2, 3), leader_epoch=6), ELIGIBLE),
        ("controller.partition_epoch_check", proposal((1, 2, 3), partition_epoch=10), ELIGIBLE),
        ("controller.broker_epoch_in_isr", proposal((1, 2, 3), epochs={3: 99}), ELIGIBLE),
        ("controller.live_replicas_in_isr", proposal((1, 2, 3)), {1: 101, 2: 102}),
    ],
)
def test_each_safeguard_refuses_a_proposal(safeguard, asked, eligible):
    assert isinstance(judge_proposal(PARTITION, asked, eligible), ErrorCode)
    with without_safeguard(safeguard):
        assert judge_proposal(PARTITION, asked, eligible) == PARTITION._replace(isr=(1, 2, 3))


# -- whole requests --------------------------------------------------------------------------------------------------


def request(house, controller, leader, partition, isr, version=3, name="t", **changes):
    image = controller.controller.image.topics[name]
    state = image.partitions[partition]
    data = AlterPartitionRequest.PartitionData(
        partition_index=partition,
        leader_epoch=changes.get("leader_epoch", state.leader_epoch),
        partition_epoch=changes.get("partition_epoch", state.state_version),
    )
    if version >= 3:
        epochs = changes.get("epochs", {})
        broker = AlterPartitionRequest.BrokerState
        data.new_isr_with_epochs = [
            broker(broker_id=each, broker_epoch=epochs.get(each, house.brokers[each].epoch)) for each in isr
        ]
    else:
        data.new_isr = list(isr)
    topic = AlterPartitionRequest.TopicData(topic_name=name, topic_id=image.topic_id, partitions=[data])
    epoch = changes.get("broker_epoch", house.brokers[leader].epoch)
    return AlterPartitionRequest(broker_id=leader, broker_epoch=epoch, topics=[topic])


def alter(controller, asked, version=3):
    return controller.ask(lambda c, done: c.alter_partition(asked, version, done))


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_an_isr_is_stored_answered_and_sent_to_brokers(house, version):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2, 3)})
    response = alter(controller, request(house, controller, 1, 0, (1, 3), version), version)
    answer = response.topics[0].partitions[0]
    assert (answer.error_code, answer.leader_id, answer.leader_epoch, answer.isr) == (0, 1, 0, [1, 3])
    assert answer.partition_epoch == 1
    assert house.state("t") == StateNode(1, 0, (1, 3), 1)
    assert house.brokers[2].known[TopicPartition("t", 0)].isr == [1, 3]
    assert house.brokers[2].partitions[TopicPartition("t", 0)].isr == [1, 2, 3], "only the leader receives the answer"


def test_a_repeated_proposal_has_the_same_answer(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2, 3)})
    asked = request(house, controller, 1, 0, (1, 3))
    first, second = alter(controller, asked), alter(controller, asked)
    assert first.topics[0].partitions[0].isr == second.topics[0].partitions[0].isr == [1, 3]
    assert second.topics[0].partitions[0].partition_epoch == 1


def test_a_stale_broker_is_refused_as_a_whole(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2, 3)})
    stale = request(house, controller, 1, 0, (1,), broker_epoch=house.brokers[1].epoch - 1)
    assert alter(controller, stale).error_code == ErrorCode.STALE_BROKER_EPOCH
    unknown = request(house, controller, 1, 0, (1,))
    unknown.broker_id = 9
    assert alter(controller, unknown).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert house.state("t").isr == (1, 2, 3)


def test_a_bounced_replica_does_not_join_with_its_old_epoch(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2, 3)})
    old = house.brokers[3].epoch
    house.brokers[3].down()
    house.brokers[3].up()
    house.settle()
    assert house.state("t").isr == (1, 2)
    asked = request(house, controller, 1, 0, (1, 2, 3), epochs={3: old})
    assert alter(controller, asked).topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA
    asked = request(house, controller, 1, 0, (1, 2, 3))
    assert alter(controller, asked).topics[0].partitions[0].error_code == 0


def test_old_versions_receive_an_error_that_they_know(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2, 3)})
    house.brokers[3].down()
    asked = request(house, controller, 1, 0, (1, 2, 3), version=1)
    assert alter(controller, asked, 1).topics[0].partitions[0].error_code == ErrorCode.OPERATION_NOT_ATTEMPTED


def test_proposals_for_missing_topics_are_refused(house):
    controller = house.cluster(1)
    controller.create("t", {0: (1,)})
    asked = request(house, controller, 1, 0, (1,))
    asked.topics[0].topic_id = b"x" * 16
    assert alter(controller, asked).topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    asked = request(house, controller, 1, 0, (1,))
    asked.topics[0].partitions[0].partition_index = 5
    assert alter(controller, asked).topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_state_of_another_writer_is_not_overwritten(house):
    """A leader must not continue with a version that differs from the store's."""
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2, 3)})
    asked = request(house, controller, 1, 0, (1, 2))
    path = state_path("t", 0)
    house.write(Op("put", path, encode_state(StateNode(1, 0, (1, 3), 1))))
    answer = alter(controller, asked).topics[0].partitions[0]
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert house.state("t").isr == (1, 3)


def test_an_isr_notification_of_an_older_leader_is_applied(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2, 3)})
    note = b'{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"gone","partition":9}]}'
    house.write(
        Op("put", state_path("t", 0), encode_state(StateNode(1, 0, (1, 2), 1))),
        Op("sequential", f"{ISR_CHANGES}/isr_change_", note),
        Op("sequential", f"{ISR_CHANGES}/isr_change_", b"nonsense"),
    )
    house.settle()
    assert house.brokers[2].known[TopicPartition("t", 0)].isr == [1, 2]
    assert controller.controller.image.topics["t"].partitions[0].isr == (1, 2)
    assert house.engine.tree.get_children(ISR_CHANGES) == []
    house.check_agreement(controller)
