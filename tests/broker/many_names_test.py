"""A Metadata request that names very many topics that are missing, while topics are created when they are asked for.

Zone: real. `EXPLORE=1` takes 100,000 names, CI 10,000.
"""

from __future__ import annotations

import os

import pytest
from tests.handnode import Node

from ottla.cluster.topic_requests import MAX_BEGUN
from ottla.errors import ErrorCode
from ottla.wire.messages import CreateTopicsRequest, DeleteTopicsRequest, MetadataRequest

pytestmark = pytest.mark.slow

Asked = MetadataRequest.MetadataRequestTopic


def test_the_answer_does_not_wait_for_the_topics() -> None:
    count = 100_000 if "EXPLORE" in os.environ else 10_000
    node = Node({})
    topics = node.broker._metadata.topics
    request = MetadataRequest(topics=[Asked(name=f"missing-{each}") for each in range(count)])
    place = node.send(request, 12)
    most = turns = 0
    while not place.answered:
        node.pass_ms(1)
        most = max(most, len(topics._bulk_creations))
        assert len(topics._bulk_creations) <= MAX_BEGUN
        turns += 1
        assert turns < count / 50, "it waits for what it creates"
    assert most == MAX_BEGUN
    codes = {topic.error_code for topic in node.answer(place).topics}
    assert codes == {ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(node.answer(place).topics) == count
    node.pass_ms(30_000)
    assert not topics._bulk_creations
    assert not topics._waiting_callers
    assert 0 < len(node.broker.cluster.image.topics) < count / 4
    found = node.ask(MetadataRequest(topics=[Asked(name="missing-0")], allow_auto_topic_creation=False), 12)
    assert not found.topics[0].error_code


def test_other_requests_are_served_meanwhile() -> None:
    node = Node({})
    large = node.send(MetadataRequest(topics=[Asked(name=f"missing-{each}") for each in range(10_000)]), 12)
    assert not large.answered
    other = node.send(MetadataRequest(topics=[]), 12, type(node.peer)())
    assert other.answered


def test_names_that_differ_in_their_last_letter_are_different_topics() -> None:
    node = Node({})
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._"
    names = ["x" * 248 + letter for letter in letters]
    new = CreateTopicsRequest.CreatableTopic
    created = node.ask(
        CreateTopicsRequest(
            topics=[new(name=name, num_partitions=1, replication_factor=1) for name in names], timeout_ms=60_000
        ),
        5,
    )
    refused = {topic.name for topic in created.topics if topic.error_code}
    assert len(refused) == 1, "with . and _ in the same place one of them"
    assert refused <= {names[-1], names[-2]}
    there = [name for name in names if name not in refused]
    answer = node.ask(MetadataRequest(topics=[Asked(name=name) for name in names], allow_auto_topic_creation=False), 12)
    assert {topic.name for topic in answer.topics if not topic.error_code} == set(there)
    assert len({topic.topic_id for topic in answer.topics if not topic.error_code}) == len(there)
    gone = node.ask(
        DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=there[0])], timeout_ms=1000), 6
    )
    assert not gone.responses[0].error_code
    assert set(node.broker.cluster.image.topics) == set(there[1:])
