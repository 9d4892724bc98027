"""Requests for all that there is (null) are handled some at a time, in turns of their own.

Zone: real (it drives a broker by hand).
"""

from __future__ import annotations

import pytest

from ottla.cluster.controller.controller import Controller
from ottla.cluster.handlers import config_handlers
from ottla.wire.messages import (
    ElectLeadersRequest,
    ListConfigResourcesRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
)
from ottla.wire.slices import Joined

PARTITIONS = 300
MOST = 125


@pytest.fixture
def looked(node, monkeypatch):
    """How many partitions the controller looked at, each time that it was asked."""
    node.create("wide", PARTITIONS)
    for number in range(8):
        node.create(f"narrow-{number}", 1)
    sizes = []

    def noted(method):
        def call(self, *arguments, **more):
            named = next(each for each in arguments if isinstance(each, list))
            sizes.append(len(named))
            return method(self, *arguments, **more)

        return call

    monkeypatch.setattr(Controller, "elect_leaders", noted(Controller.elect_leaders))
    monkeypatch.setattr(Controller, "list_reassignments", noted(Controller.list_reassignments))
    return sizes


def test_an_election_everywhere_looks_at_some_partitions_at_a_time(node, looked) -> None:
    place = node.send(ElectLeadersRequest(topic_partitions=None), 2)
    other = node.send(MetadataRequest(topics=[]), 12, type(node.peer)())
    assert not place.answered
    assert other.answered
    answer = node.answer(place)
    assert answer.error_code == 0
    assert answer.replica_election_results == []  # none was needed
    assert sum(looked) == PARTITIONS + 8 + 1
    assert max(looked) <= MOST


def test_a_named_partition_is_answered_also_where_no_election_is_needed(node, looked) -> None:
    named = ElectLeadersRequest.TopicPartitions(topic="wide", partitions=list(range(PARTITIONS)))
    (result,) = node.ask(ElectLeadersRequest(topic_partitions=[named]), 2).replica_election_results
    assert [each.partition_id for each in result.partition_result] == list(range(PARTITIONS))
    assert max(looked) <= MOST


def test_moves_are_listed_some_at_a_time(node, looked) -> None:
    assert node.ask(ListPartitionReassignmentsRequest(topics=None), 0).topics == []
    assert max(looked) <= MOST


def test_resources_are_listed_in_pieces(node, monkeypatch) -> None:
    monkeypatch.setattr(config_handlers, "_PIECE", 5)
    for number in range(12):
        node.create(f"topic-{number}", 1)
    added = []
    add = Joined.add_response

    def noted(self, response):
        added.append(len(response.config_resources))
        add(self, response)

    monkeypatch.setattr(Joined, "add_response", noted)
    place = node.send(ListConfigResourcesRequest(resource_types=[]), 1)
    names = [each.resource_name for each in node.answer(place).config_resources]
    assert len(names) == 12 + 3
    assert added == [5, 5, 5]
