"""The ledger: the changes that it reads in the store, and the losses that it excuses.

Zone: real.
"""

from __future__ import annotations

import json

import pytest

from ottla.sim.cluster.history import ClusterHistory
from ottla.sim.cluster.ledger import Ledger
from ottla.types import uuid_to_text
from ottla.znodes.tree import Change, Verb

TOPIC_ID = bytes(range(16))
LOG = f"t-0@{uuid_to_text(TOPIC_ID)}"


class Store:
    """Writes nodes as brokers do."""

    def __init__(self) -> None:
        self.history = ClusterHistory()
        self.ledger = Ledger(self.history)
        self.put("/brokers/topics/t", {"topic_id": uuid_to_text(TOPIC_ID), "partitions": {"0": [1, 2, 3]}})
        self.controller(1, 1)
        for broker in (1, 2, 3):
            self.register(broker)

    def put(self, path, value):
        self.ledger.follow_changes([Change(Verb.PUT, path, json.dumps(value).encode())])

    def delete(self, path):
        self.ledger.follow_changes([Change(Verb.DELETE, path)])

    def register(self, broker):
        self.put(f"/brokers/ids/{broker}", {})

    def controller(self, broker, epoch):
        self.put("/controller", {"brokerid": broker})
        self.put("/controller_epoch", epoch)

    def state(self, leader, epoch, isr):
        self.put("/brokers/topics/t/partitions/0/state", {"leader": leader, "leader_epoch": epoch, "isr": isr})


@pytest.fixture
def store() -> Store:
    store = Store()
    store.state(1, 0, [1, 2])
    return store


def test_it_counts_changes_of_leaders_and_knows_the_controller(store):
    store.state(1, 0, [1])
    store.state(-1, 1, [1])
    store.state(2, 2, [2])
    assert store.ledger.elections == 1
    assert store.ledger.replicas["t", 0] == (1, 2, 3)
    assert store.ledger.log_of_route(("t", 0)) == LOG
    store.delete("/controller")
    assert store.ledger.controller == -1
    store.controller(3, 2)
    assert (store.ledger.controller, store.ledger.controllers) == (3, 2)


def test_what_is_no_json_is_left(store):
    store.ledger.follow_changes([Change(Verb.PUT, "/brokers/topics/t/partitions/0/state", b"{")])
    assert store.ledger.partitions["t", 0].leader == -1


def test_one_of_two_in_sync_replicas_may_lose_data_without_an_excuse(store):
    store.ledger.on_data_loss(1, {LOG: 5})
    assert store.history.excused == {}
    store.state(2, 1, [2])
    store.register(1)
    store.state(2, 1, [2, 1])
    store.ledger.on_data_loss(2, {LOG: 9})
    assert store.history.excused == {}


def test_all_in_sync_replicas_that_lose_data_excuse_the_tail(store):
    store.ledger.on_data_loss(1, {LOG: 5})
    store.ledger.on_data_loss(2, {LOG: 9})
    assert store.history.excused == {LOG: 5}


def test_what_was_durable_is_no_loss(store):
    store.ledger.on_data_loss(1, {})
    store.ledger.on_data_loss(2, {})
    assert store.history.excused == {}


def test_the_last_in_sync_replica_excuses_by_itself(store):
    store.ledger.on_data_loss(1, {LOG: 5})
    store.state(1, 1, [1])
    assert store.history.excused == {LOG: 5}


def test_a_broker_that_came_back_with_less_has_to_leave_the_isr(store):
    store.ledger.on_data_loss(1, {LOG: 5})
    store.register(1)
    store.state(1, 1, [1])
    assert store.history.excused == {}, "the controller had time to throw it out when it registered"


def test_another_controller_cannot_know_who_came_back_with_less(store):
    store.ledger.on_data_loss(1, {LOG: 5})
    store.register(1)
    store.controller(3, 2)
    store.state(1, 1, [1])
    assert store.history.excused == {LOG: 5}


def test_it_says_beforehand_what_a_cluster_cannot_stand(store):
    assert not store.ledger.would_be_lost(1)
    store.delete("/brokers/ids/2")
    assert store.ledger.would_be_lost(1)
    store.register(2)
    store.ledger.on_data_loss(2, {LOG: 1})
    assert store.ledger.would_be_lost(1)
    assert not store.ledger.would_be_lost(3)


def test_a_new_controller_may_not_take_one_who_came_back_while_there_is_one_who_stayed(store):
    store.ledger.on_data_loss(1, {LOG: 5})
    store.delete("/controller")
    store.register(1)
    store.controller(3, 2)
    store.state(1, 1, [1, 2])
    assert store.history.excused == {}, "broker 2 stayed"


def test_a_new_controller_cannot_choose_among_those_who_all_came_back(store):
    store.ledger.on_data_loss(1, {LOG: 5})
    store.delete("/controller")
    store.register(1)
    store.register(2)
    store.controller(3, 2)
    store.state(1, 1, [1, 2])
    assert store.history.excused == {LOG: 5}


def test_a_broker_that_is_taken_in_after_it_lost_data_is_known_to_have_less(store):
    """The change of the ISR was under way when it lost power; then all others die, and it comes back first."""
    store.ledger.on_data_loss(3, {LOG: 7})
    store.state(1, 0, [1, 3])
    store.delete("/brokers/ids/3")
    store.register(3)
    store.delete("/brokers/ids/1")
    store.controller(3, 2)
    store.state(3, 1, [3])
    assert store.history.excused == {LOG: 7}


def test_one_who_lost_data_before_it_registered_joins_with_what_it_has_fetched_since(store):
    store.ledger.on_data_loss(3, {LOG: 7})
    store.register(3)
    store.state(1, 0, [1, 2, 3])
    store.ledger.on_data_loss(1, {LOG: 9})
    store.ledger.on_data_loss(2, {LOG: 9})
    assert store.history.excused == {}


def test_where_acknowledged_means_durable_only_other_disks_excuse_a_loss(store):
    store.history.flushed[LOG] = None
    for broker in (1, 2):
        store.ledger.on_undurable_loss(broker, {LOG: 5})
    assert store.history.excused == {}
    for broker in (1, 2):
        store.ledger.on_data_loss(broker, {LOG: 0})
    assert store.history.excused == {LOG: 0}


def test_whoever_of_the_in_sync_replicas_comes_first_leads_when_nobody_is_left(store):
    for broker in (1, 2, 3):
        store.delete(f"/brokers/ids/{broker}")
    store.ledger.on_data_loss(1, {LOG: 0})
    store.state(-1, 1, [1, 2])
    store.register(1)
    store.state(1, 2, [1])
    assert store.history.excused == {LOG: 0}
