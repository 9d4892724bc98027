"""The leaders after brokers return with lost records, unnoticed or with other disks.

Zone: real.
"""

from __future__ import annotations

import pytest
from tests.cluster.controller.brokers_test import grow_isr, leaders

from ottla.cluster.store.layout import StateNode
from ottla.sim.mutants.ablation import without_safeguard
from ottla.types import TopicPartition


def without_controller(house, controller, act):
    """Run an action while there is no controller, then start the next one."""
    house.in_store(controller.link.session.close_session)
    controller.turn(controller.seat.on_session_lost)
    house.settle()
    act()
    return house.candidate(90)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_leader_that_restarted_without_a_controller_is_replaced(house, guarded):
    """Its registration is younger than the state in which it leads, so it may have lost records."""
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3), 1: (3, 2), 2: (2, 1)})
    controller.create("alone", {0: (2,)})
    house.in_store(controller.link.session.close_session)
    controller.turn(controller.seat.on_session_lost)
    house.settle()
    house.brokers[2].bounce()
    with without_safeguard(None if guarded else "controller.bounced_brokers"):
        other = house.candidate(90)
    if guarded:
        assert house.state("t", 0) == StateNode(3, 1, (3,), 2)
        assert house.state("t", 1) == StateNode(3, 1, (3,), 2), "a follower that may have lost its log is not in sync"
        assert house.state("alone") == StateNode(2, 1, (2,), 2), "no other replica exists: it leads, in a new epoch"
        house.check_agreement(other)
    else:
        assert house.state("t", 0) == StateNode(2, 0, (2, 3), 1)


def test_a_broker_with_once_new_directories_keeps_isrs_that_it_joined_since(house):
    """All brokers of a new cluster register with empty directories; the next controller still reads that mark in the
    registrations of those that stayed."""
    for node in (1, 2, 3):
        house.broker(node, is_blank=True)
    controller = house.candidate(1)
    controller.create("t", {0: (2, 3), 1: (3, 2)})

    def restart() -> None:
        house.brokers[2].registration["is_blank"] = False
        house.brokers[2].bounce()

    other = without_controller(house, controller, restart)
    assert house.state("t", 0) == StateNode(3, 1, (3,), 2)
    assert house.state("t", 1) == StateNode(3, 1, (3,), 2)
    house.check_agreement(other)


def test_a_broker_with_empty_directories_leaves_the_isr_under_the_next_controller(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3), 1: (3, 2)})

    def exchange() -> None:
        house.brokers[2].registration["is_blank"] = True
        house.brokers[2].bounce()

    other = without_controller(house, controller, exchange)
    assert [house.state("t", each).isr for each in (0, 1)] == [(3,), (3,)]
    house.check_agreement(other)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_broker_that_lost_records_of_a_partition_does_not_lead_it(house, guarded):
    """All brokers were down; the first to return has lost records of one of its logs."""
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3), 1: (2, 3)})
    controller.create("alone", {0: (2,)})

    def come_back() -> None:
        house.brokers[3].down()
        house.brokers[2].registration["incomplete"] = (TopicPartition("t", 0), TopicPartition("alone", 0))
        house.brokers[2].bounce()

    house.in_store(controller.link.session.close_session)
    controller.turn(controller.seat.on_session_lost)
    house.settle()
    come_back()
    with without_safeguard(None if guarded else "controller.blank_brokers"):
        other = house.candidate(90)
    assert house.state("t", 0).leader == (-1 if guarded else 2), (
        "the broker with all records is down, and the partition waits for it"
    )
    assert house.state("t", 1).leader == 2
    assert house.state("alone").leader == 2, "no replica has more"
    house.brokers[3].up()
    house.settle()
    if guarded:
        assert house.state("t", 0).leader == 3
        assert house.state("t", 0).isr == (3,)
        grow_isr(house, other, "t", 0, [3, 2])
        house.brokers[3].down()
        assert house.state("t", 0).leader == 2, "it has fetched what it lacked"


def test_a_broker_that_returns_with_lost_records_leaves_the_isr(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3), 1: (2, 3)})
    house.brokers[3].down(settle=False)
    house.brokers[2].down()
    in_sync = house.state("t", 0).isr
    back = in_sync[0]
    house.brokers[back].registration["incomplete"] = (TopicPartition("t", 0),)
    house.brokers[back].up()
    house.settle()
    assert house.state("t", 0).isr == (tuple(each for each in in_sync if each != back) or (back,))
    assert house.state("t", 1).leader == back
    house.check_agreement(controller)


def test_a_restart_of_all_brokers_keeps_leaders_and_isrs(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3, 1), 1: (3, 1, 2)})

    def restart() -> None:
        for broker in house.brokers.values():
            broker.bounce()

    other = without_controller(house, controller, restart)
    assert leaders(house) == [2, 3]
    assert house.state("t", 0).isr == (2, 3, 1)
    house.check_agreement(other)
