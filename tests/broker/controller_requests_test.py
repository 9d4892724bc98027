"""What brokers ask of the controller and of the store: leaving, producer ids, failed directories; over whole brokers.

Zone: real.
"""

from __future__ import annotations

import pytest
from tests.handcluster import HandCluster

from ottla.errors import ErrorCode
from ottla.sim.world import SECOND
from ottla.wire.messages import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    ControlledShutdownRequest,
    DescribeTopicPartitionsRequest,
    InitProducerIdRequest,
    MetadataRequest,
)

Asked = MetadataRequest.MetadataRequestTopic


@pytest.fixture
def two():
    return HandCluster(
        {"controlled.shutdown.max.retries": "2", "controlled.shutdown.retry.backoff.ms": "100"}, brokers=2
    )


def other(cluster):
    return next(member for member in cluster if not member.is_controller)


def test_only_the_controller_is_asked(two) -> None:
    member = other(two)
    for request, version in (
        (ControlledShutdownRequest(broker_id=1), 3),
        (AllocateProducerIdsRequest(broker_id=1), 0),
        (AlterPartitionRequest(broker_id=1), 3),
    ):
        assert member.ask(request, version).error_code == ErrorCode.NOT_CONTROLLER


def test_an_earlier_life_of_a_broker_does_not_take_leaderships_from_the_present_one(two) -> None:
    member = other(two)
    epoch = member.broker._fence.broker_epoch
    request = ControlledShutdownRequest(broker_id=member.node_id, broker_epoch=epoch - 1)
    assert two.controller.ask(request, 3).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_a_stop_without_a_controller_asks_a_few_times_and_stops_all_the_same(two, caplog) -> None:
    controller, member = two.controller, other(two)
    two.create("t", (member.node_id, controller.node_id))
    controller.network.cut.add(member.node_id)
    began = two.timeline.now_ns
    assert member.stop() == [None]
    assert caplog.text.count("not all leaderships are moved") == 3
    assert "stopping nevertheless" in caplog.text
    assert two.timeline.now_ns - began < 2 * SECOND


def test_producer_ids_come_in_blocks_and_never_twice(two) -> None:
    controller, member = two.controller, other(two)
    first = member.ask(InitProducerIdRequest(transactional_id=None), 4)
    assert first.error_code == 0
    epoch = member.broker._fence.broker_epoch
    block = controller.ask(AllocateProducerIdsRequest(broker_id=member.node_id, broker_epoch=epoch), 0)
    assert (block.error_code, block.producer_id_len) == (0, 1000)
    second = controller.ask(InitProducerIdRequest(transactional_id=None), 4)
    ids = (first.producer_id, block.producer_id_start, second.producer_id)
    assert len({each // 1000 for each in ids}) == 3


def test_idempotence_survives_the_death_of_the_leader_and_its_producer_ids(two) -> None:
    two.create("t", (1, 2), min_insync_replicas="1")
    producer_id = two[1].ask(InitProducerIdRequest(transactional_id=None), 4).producer_id
    batch = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
    assert two[1].produce("t", b"a", **batch).base_offset == 0
    two[1].kill()
    leader = two.leader("t", other_than=1)
    again = leader.produce("t", b"a", **batch)
    assert (again.error_code, again.base_offset) == (0, 0), "the same batch once more is the same batch"
    assert leader.values("t") == [b"a"]


def test_the_controller_elects_another_leader_after_a_reported_directory_failure(two) -> None:
    leader, follower = (other(two), two.controller)
    two.create("t", (leader.node_id, follower.node_id), min_insync_replicas="1")
    two.in_sync("t", 1, 2)
    leader.faults.broken = True
    leader.produce("t", b"lost", acks=1)
    two.until(lambda: follower.partition("t").is_leader, "the other one leads")
    two.until(lambda: follower.broker.cluster.image.topics["t"].partitions[0].offline, "it is known as offline")
    shown = follower.broker.cluster.image.topics["t"].partitions[0]
    assert shown.offline == (leader.node_id,)
    (topic,) = follower.ask(MetadataRequest(topics=[Asked(name="t")]), 12).topics
    assert topic.partitions[0].offline_replicas == [leader.node_id]


def test_partitions_without_a_leader_and_dead_brokers_are_in_the_image(two) -> None:
    controller, member = two.controller, other(two)
    two.create("alone", (member.node_id,), min_insync_replicas="1")
    two.create("both", (controller.node_id, member.node_id), min_insync_replicas="1")
    member.kill()
    two.until(lambda: len(controller.broker.cluster.image.brokers) == 1, "it is known to be dead")
    two.until(lambda: controller.broker.cluster.image.topics["alone"].partitions[0].leader == -1, "it has no leader")
    topics = {topic.name: topic for topic in controller.ask(MetadataRequest(topics=None), 12).topics}
    alone, both = topics["alone"].partitions[0], topics["both"].partitions[0]
    assert (alone.error_code, alone.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert alone.offline_replicas == [member.node_id]
    assert (both.error_code, both.leader_id, both.offline_replicas) == (0, controller.node_id, [member.node_id])
    oldest = {topic.name: topic for topic in controller.ask(MetadataRequest(topics=[]), 0).topics}
    assert oldest["both"].partitions[0].error_code == ErrorCode.REPLICA_NOT_AVAILABLE
    assert oldest["both"].partitions[0].replica_nodes == [controller.node_id]
    described = controller.ask(
        DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsRequest.TopicRequest(name="alone")]), 0
    )
    partition = described.topics[0].partitions[0]
    assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert partition.offline_replicas == [member.node_id]
