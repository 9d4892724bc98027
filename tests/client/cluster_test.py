"""Bootstrap, metadata, and the choice of the broker."""

from __future__ import annotations

import socket

import pytest

from ottla.client import (
    Cluster,
    DeadlineError,
    MalformedReplyError,
    RefusedError,
    TopicPartition,
    UnreachableError,
    UsageError,
)
from ottla.errors import ErrorCode
from ottla.wire.apis import ApiKey
from ottla.wire.messages import MetadataResponse


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_the_first_address_that_works_is_enough(broker, config) -> None:
    broker.topics = {"orders": 3}
    with Cluster(config(bootstrap_servers=f"127.0.0.1:{free_port()},{broker.bootstrap}")) as cluster:
        assert list(cluster.topic("orders").partitions) == [0, 1, 2]
        assert cluster.leader(TopicPartition("orders", 2)) == 0


def test_no_address_works_and_each_is_named(config) -> None:
    ports = [free_port(), free_port()]
    with Cluster(config(bootstrap_servers=",".join(f"127.0.0.1:{port}" for port in ports))) as cluster:
        with pytest.raises(UnreachableError) as caught:
            cluster.refresh()
        assert all(str(port) in str(caught.value) for port in ports)


def test_metadata_is_requested_once(broker, cluster) -> None:
    broker.topics = {"orders": 1}
    for _ in range(3):
        cluster.topic("orders")
    assert len(broker.asked(ApiKey.METADATA)) == 1
    cluster.forget_topics(["orders"])
    cluster.topic("orders")
    assert len(broker.asked(ApiKey.METADATA)) == 2


def test_metadata_older_than_its_maximum_age_is_requested_again(broker, config) -> None:
    broker.topics = {"orders": 1}
    with Cluster(config(metadata_max_age_ms=0)) as cluster:
        cluster.topic("orders")
        cluster.topic("orders")
    assert len(broker.asked(ApiKey.METADATA)) == 2


def test_a_missing_topic_is_an_error_at_once(broker, cluster) -> None:
    with pytest.raises(RefusedError, match="topic nope: UNKNOWN_TOPIC_OR_PARTITION") as caught:
        cluster.topic("nope")
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(broker.asked(ApiKey.METADATA)) == 1


def test_a_missing_topic_that_may_be_created_is_waited_for(broker, cluster) -> None:
    def send_response(request):
        if len(broker.asked(ApiKey.METADATA)) == 3:
            broker.topics["new"] = 1
        assert request.message().allow_auto_topic_creation
        return broker.metadata(request)

    broker.on[ApiKey.METADATA] = send_response
    assert list(cluster.topic("new", create=True).partitions) == [0]


def test_a_missing_partition_is_an_error(broker, cluster) -> None:
    broker.topics = {"orders": 1}
    with pytest.raises(RefusedError, match="partition 1 of orders"):
        cluster.leader(TopicPartition("orders", 1))


def test_a_topic_without_leader_is_retriable(broker, cluster) -> None:
    broker.topics = {"orders": 1}
    broker.on[ApiKey.METADATA] = lambda request: request.reply(broker.metadata_of(["orders"], leader=-1))
    with pytest.raises(RefusedError) as caught:
        cluster.leader(TopicPartition("orders", 0))
    assert caught.value.code is ErrorCode.LEADER_NOT_AVAILABLE
    assert caught.value.retriable


def test_an_advertised_listener_that_does_not_resolve_is_explained(broker, cluster) -> None:
    broker.topics = {"orders": 1}
    broker.advertised = ("kafka.invalid", 9092)
    node = cluster.leader(TopicPartition("orders", 0))
    with pytest.raises(UnreachableError, match=r"advertised\.listeners points at kafka\.invalid:9092") as caught:
        cluster.connection(node, cluster.deadline())
    assert "advertise a name or address" in caught.value.next_step


@pytest.mark.parametrize("port", [0, -1, 65_536])
def test_impossible_metadata_is_refused(broker, cluster, port: int) -> None:
    bad = MetadataResponse(brokers=[MetadataResponse.MetadataResponseBroker(node_id=1, host="h", port=port)])
    broker.on[ApiKey.METADATA] = lambda request: request.reply(bad)
    with pytest.raises(MalformedReplyError, match="impossible broker"):
        cluster.refresh()


def test_a_request_is_repeated_after_a_lost_connection(broker, cluster) -> None:
    cluster.refresh()
    answers = iter([None, None])
    broker.on[ApiKey.METADATA] = lambda request: next(answers, broker.metadata(request))
    cluster.refresh()
    assert broker.connections == 3


@pytest.mark.slow  # waits for the whole timeout, which is long enough for a busy machine
def test_an_unreachable_broker_is_retried_until_the_deadline(broker, config) -> None:
    with Cluster(config(default_api_timeout_ms=1_000)) as cluster:
        cluster.refresh()
        broker.close()
        with pytest.raises(DeadlineError, match=r"gave up: Metadata request, after \d+ attempts") as caught:
            cluster.refresh()
        assert isinstance(caught.value.last, UnreachableError)


def test_an_idle_connection_that_broke_is_replaced_without_an_error(broker, cluster) -> None:
    def answer_and_hang_up(request):
        broker.on[ApiKey.METADATA] = broker.metadata
        broker.on[ApiKey.API_VERSIONS] = broker.api_versions
        return broker.metadata(request)

    broker.on[ApiKey.METADATA] = answer_and_hang_up
    cluster.refresh()
    for sock in broker._sockets:
        sock.shutdown(socket.SHUT_RDWR)
    cluster.refresh()
    assert broker.connections == 2
    assert len(broker.asked(ApiKey.METADATA)) == 2, "the request was sent once on the new connection"


def test_a_closed_client_raises_usage_error(broker, cluster) -> None:
    cluster.close()
    with pytest.raises(UsageError, match="closed"):
        cluster.refresh()


def test_metadata_of_all_topics_replaces_the_cache(broker, cluster) -> None:
    broker.topics = {"a": 1, "b": 1}
    assert sorted(cluster.refresh(None).topics) == ["a", "b"]
    del broker.topics["a"]
    assert sorted(cluster.refresh(None).topics) == ["b"]


def test_a_topic_that_never_appears_is_not_awaited_until_the_deadline(broker, config) -> None:
    refused = pytest.raises(RefusedError, match="topic nope: UNKNOWN_TOPIC_OR_PARTITION")
    with Cluster(config(), new_topic_ms=500) as cluster, refused:
        cluster.topic("nope", create=True)
    assert len(broker.asked(ApiKey.METADATA)) > 1
