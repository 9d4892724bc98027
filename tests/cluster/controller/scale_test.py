"""Large clusters: the controller's work with thousands of partitions, counted in steps rather than seconds.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.cluster.controller.metrics import Counters, declare_metrics
from ottla.cluster.controller.partition_state_store import STEP
from ottla.cluster.topics import TopicSpec
from ottla.metrics import Registry
from ottla.types import TopicPartition

pytestmark = pytest.mark.slow


def test_a_controller_of_5100_replicas_is_replaced(house):
    """1,700 partitions of three replicas: all brokers know all leaders after milliseconds of simulated time."""
    controller = house.cluster(1, 2, 3)
    controller.create("t", partitions=1700, replication_factor=3)
    house.brokers[1].down(settle=False)  # the controller's own broker is the one that dies
    other = house.candidate(3)
    began = house.timeline.now_ns
    house.in_store(controller.link.session.close_session)
    controller.turn(controller.seat.on_session_lost)

    def at_work() -> bool:
        return other.seat.controller is None or not other.seat.controller.is_idle

    assert house.timeline.run_while(at_work, began + 5_000_000_000)
    assert house.timeline.now_ns - began < 1_000_000_000
    house.settle()
    assert all(house.state("t", partition).leader in (2, 3) for partition in range(0, 1700, 50))
    house.check_agreement(other)


def test_ten_thousand_partitions_are_created_moved_and_deleted_in_bounded_steps(house):
    controller = house.cluster(1, 2)
    controller.create("t", partitions=10_000, replication_factor=1)
    house.settle(10)
    multis = [each.ops for each in house.submissions if each.node == 1]
    assert max(map(len, multis)) <= 2 * STEP + 4
    house.check_agreement(controller)
    targets = {TopicPartition("t", each): (1, 2) for each in range(10_000)}
    outcome = controller.ask(lambda c, done: c.alter_reassignments(targets, True, done))
    assert set(outcome.values()) == {None}
    house.settle(10)
    assert max(sum(len(t.partition_states) for t in each.topic_states) for each in house.brokers[2].requests) <= 250
    assert controller.ask(lambda c, done: c.delete_topic("t", 600_000, done)) is None
    assert house.node("/brokers/topics/t") is None


def test_metrics_of_a_controller(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3), 1: (3, 2), 2: (2, 2 - 1)})
    house.brokers[2].down()
    registry = Registry()
    controller.seat.declare_metrics(registry)
    name = "kafka_controller_kafkacontroller_"
    assert registry.value_of(f"{name}activecontrollercount") == 1
    assert registry.value_of(f"{name}globaltopiccount") == 1
    assert registry.value_of(f"{name}globalpartitioncount") == 3
    assert registry.value_of(f"{name}preferredreplicaimbalancecount") == 2
    assert registry.value_of(f"{name}offlinepartitionscount") == 0
    assert registry.value_of(f"{name}activebrokercount") == 2
    house.brokers[3].down()
    assert registry.value_of(f"{name}offlinepartitionscount") == 2
    assert "leaderelectionrateandtimems_count" in registry.render_text()
    nobody = Registry()
    declare_metrics(nobody, Counters(), lambda: None)
    assert nobody.value_of(f"{name}activecontrollercount") == 0


def test_a_term_begins_with_few_round_trips(house):
    """1,700 topics of one partition: nodes are read together, so a slow connection to the store costs little."""
    controller = house.cluster(1, 2, 3)
    for start in range(0, 1700, 500):
        specs = [TopicSpec(f"t{number}", 1, 3) for number in range(start, min(start + 500, 1700))]
        for spec in specs:
            controller.begin(lambda c, done, spec=spec: c.create_topic(spec, False, 60_000, done))
        house.settle(10)
    assert len(controller.controller.image.topics) == 1700
    other = house.candidate(3)
    other.link.delay_ns = 10_000_000  # one way
    house.in_store(controller.link.session.close_session)
    controller.turn(controller.seat.on_session_lost)
    began = house.timeline.now_ns

    def at_work() -> bool:
        return other.seat.controller is None or not other.seat.controller.is_idle

    assert house.timeline.run_while(at_work, began + 5_000_000_000)
    assert house.timeline.now_ns - began < 1_500_000_000, "some 50 round trips of 20 ms"
    assert len(other.controller.image.topics) == 1700
