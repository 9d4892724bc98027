"""One topic that is made, changed or deleted costs the same, however many others there are.

Zone: real. Steps are counted, not time.
"""

from __future__ import annotations

import tracemalloc

import pytest
from tests.handnode import Node
from tests.steps import count_steps

from ottla.wire.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
)

pytestmark = pytest.mark.slow

FEW, MANY = 10, 1_000
ROUNDS = (
    "log.flush.offset.checkpoint.interval.ms",
    "log.flush.start.offset.checkpoint.interval.ms",
    "replica.high.watermark.checkpoint.interval.ms",
    "log.retention.check.interval.ms",
    "log.initial.task.delay.ms",
    "log.cleaner.backoff.ms",
)
NEVER = dict.fromkeys(ROUNDS, "100000000")
"""What is done to all logs from time to time would be counted with the change, or not, as chance has it."""
TOPIC = 2
SLACK = 2_000
"""Steps: an answer that comes a look later, a table that grows. A walk takes at least five for each other topic."""


@pytest.fixture(scope="module")
def nodes() -> tuple[Node, Node]:
    few, many = Node(NEVER), Node(NEVER)
    fill(few, FEW)
    fill(many, MANY)
    return few, many


def fill(node: Node, count: int) -> None:
    for start in range(0, count, 250):
        topics = [
            CreateTopicsRequest.CreatableTopic(name=f"other-{each}", num_partitions=1, replication_factor=1)
            for each in range(start, min(count, start + 250))
        ]
        answer = node.ask(CreateTopicsRequest(topics=topics, timeout_ms=60_000), 5)
        assert not any(topic.error_code for topic in answer.topics)
    node.create("warm")  # what the first one of its kind costs
    grow(node, "warm")
    configure(node, "warm")
    delete(node, "warm")
    node.pass_ms(60_000)


def grow(node: Node, name: str) -> None:
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=2, assignments=None)
    assert not node.ask(CreatePartitionsRequest(topics=[topic], timeout_ms=1000), 2).results[0].error_code


def configure(node: Node, name: str) -> None:
    request = IncrementalAlterConfigsRequest
    setting = request.AlterableConfig(name="retention.ms", config_operation=0, value="77777")
    resource = request.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[setting])
    assert not node.ask(request(resources=[resource]), 1).responses[0].error_code


def delete(node: Node, name: str) -> None:
    topic = DeleteTopicsRequest.DeleteTopicState(name=name)
    assert not node.ask(DeleteTopicsRequest(topics=[topic], timeout_ms=1000), 6).responses[0].error_code


def settled(act, node: Node, name: str) -> int:
    def whole() -> None:
        act(node, name)
        node.pass_ms(300)

    return count_steps(whole)


def test_a_change_of_one_topic_costs_the_same_beside_many(nodes) -> None:
    few, many = nodes
    grown = {}
    for what, act in {"create": Node.create, "grow": grow, "configure": configure, "delete": delete}.items():
        costs = settled(act, few, "t"), settled(act, many, "t")
        grown[what] = costs
    assert all(many <= few + SLACK for few, many in grown.values()), grown


def copied_bytes(act, node: Node, name: str) -> int:
    """Bytes that a change of one topic needs at a time, beyond those that were in use."""
    act(node, name)
    node.pass_ms(300)
    tracemalloc.start()
    try:
        node.pass_ms(1)
        before, _ = tracemalloc.get_traced_memory()
        act(node, name + "-again")
        node.pass_ms(300)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def test_a_change_of_one_topic_copies_nothing_of_the_others(nodes) -> None:
    copied = {}
    for what, act in {"create": Node.create, "grow": grow, "configure": configure, "delete": delete}.items():
        few, many = (copied_bytes(act, node, "u") for node in nodes)
        copied[what] = many - few
    # The list of all topics' names, which the store gives for each change: a pointer each.
    assert all(more <= 16 * MANY for more in copied.values()), copied


def test_a_name_is_compared_with_those_that_it_could_be_mistaken_for_only(nodes) -> None:
    few, many = nodes
    for name in ("some.name_of-a.topic", "a_b"):
        costs = settled(Node.create, few, name), settled(Node.create, many, name)
        assert costs[1] <= costs[0] + SLACK, name


def test_in_sync_replicas_are_looked_at_only_where_a_partition_has_others(nodes) -> None:
    steps = [count_steps(lambda node=node: node.pass_ms(40_000)) for node in nodes]
    assert steps[1] <= steps[0] + SLACK


def test_asking_for_all_topics_while_a_broker_is_silent_looks_at_them_once(nodes) -> None:
    steps = []
    for node in nodes:
        cluster = node.broker.cluster
        cluster.on_broker_silent(99)
        assert not cluster.is_doubtful(None)
        steps.append(count_steps(lambda cluster=cluster: cluster.is_doubtful(None)))
        cluster.on_broker_silent(1)
        assert cluster.is_doubtful(None)
        cluster.on_broker_responding(1)
        assert not cluster.is_doubtful(None)
        cluster.on_broker_responding(99)
    assert steps[1] <= steps[0] + 50, steps
