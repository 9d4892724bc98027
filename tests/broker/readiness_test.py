"""When a broker is ready: it leads what the controller assigned."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.handnode import Node

from ottla.broker.readiness import Readiness
from ottla.broker.ready_check import READY_AT_MOST_MS, READY_MS
from ottla.cluster.image import NO_LEADER, BrokerImage, ClusterImage, PartitionImage, TopicImage
from ottla.config.topic import TopicConfig
from ottla.immutable_map import ImmutableMap
from ottla.sim.machines.machine import Death
from ottla.sim.world import MS
from ottla.types import TopicPartition

ME = BrokerImage(1, (), None, 5)
LED = PartitionImage(0, 1, 0, (1,), (1,))
UNTOLD = PartitionImage(0, NO_LEADER, 0, (), ())
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def image(*partitions: PartitionImage) -> ClusterImage:
    placed = tuple(each._replace(partition=index) for index, each in enumerate(partitions))
    topics = {"t": TopicImage("t", bytes(16), placed, {}, TopicConfig())} if placed else {}
    return ClusterImage(brokers={1: ME}, topics=ImmutableMap(topics))


def is_ready(image: ClusterImage, *told: TopicPartition, expected: tuple[str, ...] = ()) -> bool:
    readiness = Readiness(1)
    readiness.mark_applied(told)
    return readiness.is_complete(image, expected)


def test_nothing_is_missing_where_there_is_nothing() -> None:
    assert is_ready(image())
    assert not is_ready(replace(image(), brokers={}))
    assert not is_ready(image(), expected=("t",))


@pytest.mark.parametrize(
    ("partition", "ready"),
    [
        (LED, True),
        (LED._replace(leader=2, replicas=(1, 2), isr=(1, 2)), True),
        (LED._replace(leader=NO_LEADER), False),
        (LED._replace(leader=NO_LEADER, offline=(1,)), True),
        (LED._replace(leader=NO_LEADER, replicas=(1, 2), isr=(2,)), True),
    ],
    ids=["led here", "led elsewhere", "election is not over", "directory is offline", "waits for another broker"],
)
def test_a_partition_whose_order_was_carried_out(partition: PartitionImage, ready: bool) -> None:
    assert is_ready(image(partition), T0) is ready
    assert not is_ready(image(partition))


def test_a_topic_that_arrives_in_pieces() -> None:
    assert not is_ready(image(UNTOLD, LED), T1), "the first one comes later"
    assert not is_ready(image(LED), T0, T1), "the second one has its order, and is not shown yet"
    assert is_ready(image(LED, LED), T0, T1)


def test_a_topic_that_was_deleted_meanwhile_is_not_waited_for() -> None:
    readiness = Readiness(1)
    readiness.mark_applied([T0, T1])
    assert not readiness.is_complete(image(), ())
    readiness.forget_topics(["t"])
    assert readiness.is_complete(image(), ())


# -- a whole broker ----------------------------------------------------------------------------------------------------


def test_a_broker_with_a_slow_controller_is_ready_when_it_leads_its_partitions() -> None:
    node = Node()
    node.create("t", 3)
    node.machine.end_process(Death.KILL)
    node.faults.sync_mean_ns = 2 * READY_MS * MS
    node.start()
    waited = 0
    while not node.broker.ready:
        node.pass_ms(20)
        waited += 20
        assert waited < 2 * READY_AT_MOST_MS
    leaders = [each.leader for each in node.broker.cluster.image.topics["t"].partitions]
    assert (leaders, [each.is_leader for each in node.broker.hosted]) == ([1] * 3, [True] * 3)
    assert node.broker._metadata.seat.is_settled
    assert waited > READY_MS


def test_a_topic_that_is_gone_is_forgotten_with_its_orders() -> None:
    readiness = Readiness(1)
    readiness.mark_applied([T0, TopicPartition("u", 0)])
    assert not readiness.is_complete(image(LED), ()), "u is not shown"
    readiness.forget_topics(["u"])
    assert readiness.is_complete(image(LED), ())
    readiness.forget_topics(["t"])
    assert not readiness.is_complete(image(LED), ()), "a topic that takes its name needs an order of its own"
