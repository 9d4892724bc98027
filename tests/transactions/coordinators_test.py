"""The coordinator of a transactional id: finding it, and the errors of brokers that are not or not yet it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.transactions.hand import Hand, X

from ottla.errors import ErrorCode
from ottla.wire.messages import (
    FindCoordinatorRequest,
)


@pytest.fixture
def hand() -> Hand:
    return Hand().started()


# -- FindCoordinator ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 7))
def test_finding_the_coordinator_makes_the_topic(version: int) -> None:
    hand = Hand()
    more: dict[str, Any] = {"coordinator_keys": [X, "y"]} if version >= 4 else {"key": X}
    answer = hand.ask(FindCoordinatorRequest(key_type=1, **more), version)
    found = answer.coordinators if version >= 4 else [answer]
    assert [(each.error_code, each.node_id) for each in found] == [(0, 1)] * len(found)
    topic = hand.node.broker.cluster.image.topics["__transaction_state"]
    assert len(topic.partitions) == 4
    assert dict(topic.overrides) == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }


def test_kafkas_number_of_partitions() -> None:
    hand = Hand(transaction_state_log_num_partitions="50")
    hand.find()
    assert len(hand.node.broker.cluster.image.topics["__transaction_state"].partitions) == 50


# -- not the coordinator -----------------------------------------------------------------------------------------------


def test_a_broker_that_coordinates_nothing() -> None:
    hand = Hand()
    hand.producer_id, hand.epoch = 0, 0
    lost = ErrorCode.NOT_COORDINATOR
    assert hand.commit_offset(1) == lost
    assert hand.init().error_code == lost
    assert hand.add() == {("t", 0): lost}
    assert hand.add_offsets() == lost
    assert hand.end().error_code == lost
    assert hand.describe()[0].error_code == lost


def test_a_coordinator_that_is_loading(hand: Hand) -> None:
    transactions = hand.node.broker._coordinators.transactions
    runner = transactions.coordinator.find_shard(transactions._around.index_of(X))
    runner.state = type(runner.state).LOADING
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert hand.init().error_code == loading
    assert hand.add() == {("t", 0): loading}
    assert hand.add_offsets() == loading
    assert hand.end().error_code == loading
    assert hand.describe()[0].error_code == loading
    listed = hand.list()
    assert (listed.error_code, list(listed.transaction_states)) == (loading, [])


def test_a_coordinator_whose_log_refuses_appends(hand: Hand) -> None:
    topic = "__transaction_state"
    config = hand.node.broker.cluster.topic_config(topic)
    for index in range(4):
        partition = hand.node.broker.hosted.find_partition(topic, index)
        partition.replicas = (1, 2)  # of which one is in sync
        partition.apply_config(config.with_overrides({"min.insync.replicas": "2"}))
    away = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert hand.init().error_code == away
    assert hand.add() == {("t", 0): away}
    assert hand.add_offsets() == away
