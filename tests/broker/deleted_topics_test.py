"""A topic that came and went leaves nothing in the broker's memory.

Zone: real. Looks at every container of the process, whichever module it belongs to.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator

import pytest
from tests.handnode import Node

from ottla.types import TopicPartition
from ottla.wire.messages import (
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
)

pytestmark = pytest.mark.slow

COUNT = 12
PREFIX = "came-and-went-"
TOPIC = 2
BOUNDED = {"DirectoryNames._deleted"}
"""At most `GHOSTS_KEPT` names: a new log of one of these has to be kept apart from the old one in the checkpoints."""


def use(node: Node, name: str, number: int) -> None:
    """Everything that clients do with a topic."""
    node.create(name)
    assert not node.produce(name, b"a", producer_id=1000 + number, producer_epoch=0, base_sequence=0).error_code
    node.fetch(name, 0)
    topics = [MetadataRequest.MetadataRequestTopic(name=name)]
    node.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 9)
    row = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    node.ask(ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=[row])]), 5)
    commit = OffsetCommitRequest
    offset = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    node.ask(commit(group_id="g", topics=[commit.OffsetCommitRequestTopic(name=name, partitions=[offset])]), 5)
    alter = IncrementalAlterConfigsRequest
    setting = alter.AlterableConfig(name="retention.ms", config_operation=0, value="77777")
    resource = alter.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[setting])
    assert not node.ask(alter(resources=[resource]), 1).responses[0].error_code
    described = DescribeConfigsRequest.DescribeConfigsResource(resource_type=TOPIC, resource_name=name)
    node.ask(DescribeConfigsRequest(resources=[described]), 1)


def delete(node: Node, name: str) -> None:
    topic = DeleteTopicsRequest.DeleteTopicState(name=name)
    assert not node.ask(DeleteTopicsRequest(topics=[topic], timeout_ms=1000), 6).responses[0].error_code


def names_topic(element: object) -> bool:
    name = element.topic if isinstance(element, TopicPartition) else element
    return isinstance(name, str) and name.startswith(PREFIX)


def owner_of(container: object) -> str:
    """Class and attribute of the first object that has the container; empty for one of the simulated disk."""
    for holder in gc.get_referrers(container):
        kind = type(holder)
        if kind.__module__.startswith("ottla.sim."):
            return ""
        names = vars(holder) if hasattr(holder, "__dict__") else {}
        slots = [slot for each in kind.__mro__ for slot in getattr(each, "__slots__", ())]
        for name in (*names, *slots):
            if kind.__module__.startswith("ottla.") and getattr(holder, name, None) is container:
                return f"{kind.__name__}.{name}"
    return f"a {type(container).__name__}"


def containers_with_topics() -> Iterator[str]:
    for container in gc.get_objects():
        if isinstance(container, dict | set | list | deque) and sum(map(names_topic, container)) >= COUNT // 2:
            yield owner_of(container)


def test_a_topic_that_came_and_went_leaves_nothing() -> None:
    node = Node()
    for number in range(COUNT):
        use(node, f"{PREFIX}{number}", number)
        delete(node, f"{PREFIX}{number}")
    node.pass_ms(200_000)  # the files of deleted logs are removed, and all checkpoints were written
    assert set(containers_with_topics()) - {""} <= BOUNDED
    points = node.read("recovery-point-offset-checkpoint")
    assert PREFIX.encode() not in points
