"""A broker that starts says of no topic that it does not exist before it has heard of all.

Zone: real.
"""

from __future__ import annotations

import pytest
from tests.handcluster import HandCluster, Member

from ottla.broker.ready_check import READY_AT_MOST_MS, READY_MS
from ottla.errors import ErrorCode
from ottla.wire.messages import MetadataRequest

LATE_MS = 2 * READY_MS


@pytest.fixture
def three() -> HandCluster:
    return HandCluster()


def a_broker_without_topics(cluster: HandCluster) -> Member:
    """A broker that has just started: it knows the live brokers, and the controller reaches it no more."""
    cluster.create("orders", (1, 2, 3))
    starting = next(member for member in cluster if not member.is_controller)
    starting.kill()
    cluster.until(lambda: len(cluster.controller.broker.cluster.image.brokers) == 2, "the controller has seen it")
    starting.start()
    while not starting.broker.cluster.image.brokers:
        cluster.timeline.run_until(cluster.timeline.now_ns + 10_000)
    starting.network.cut.update({1, 2, 3})
    assert not starting.broker.cluster.image.topics
    return starting


def code_of(member: Member, name: str) -> ErrorCode:
    topics = [MetadataRequest.MetadataRequestTopic(name=name)]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    return ErrorCode(member.ask(request, 8).topics[0].error_code)


def test_it_is_not_ready_before_it_knows_the_topics_that_exist(three: HandCluster) -> None:
    starting = a_broker_without_topics(three)
    three.pass_ms(LATE_MS)
    assert not starting.broker.ready
    starting.network.cut.clear()
    three.until(lambda: starting.up, "the controller's next requests arrive")
    assert code_of(starting, "orders") is ErrorCode.NONE


def test_at_last_it_says_that_such_a_topic_has_no_leader(three: HandCluster) -> None:
    starting = a_broker_without_topics(three)
    three.pass_ms(READY_AT_MOST_MS + READY_MS)
    assert starting.broker.ready
    assert code_of(starting, "orders") is ErrorCode.LEADER_NOT_AVAILABLE


def test_it_does_not_wait_for_a_topic_that_was_deleted_meanwhile(three: HandCluster) -> None:
    starting = a_broker_without_topics(three)
    three.delete("orders")
    three.pass_ms(LATE_MS)
    assert starting.broker.ready
    assert code_of(starting, "orders") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
