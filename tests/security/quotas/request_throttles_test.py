"""Quotas of a whole broker: what is recorded, the throttle time in responses, and the pauses of connections.

Zone: real. Time is simulated. The expected times follow from Kafka's formula: with the rate O over the window W (10 s
at the start) and the limit T a client waits (O - T) / T * W.
"""

from __future__ import annotations

import pytest
from tests.handnode import Asker, Node, Place, records

from ottla.errors import ErrorCode
from ottla.security.quotas.client_quotas import Limit
from ottla.security.quotas.throttling import RATES_MAX, SHOWN_MAX
from ottla.sim.world import MS
from ottla.wire.apis import ApiKey
from ottla.wire.codec import encode_bytes
from ottla.wire.header import encode_request_header
from ottla.wire.messages import (
    AlterClientQuotasRequest,
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    HeartbeatRequest,
    MetadataRequest,
)


class Client(Asker):
    """A connection of its own."""

    def __init__(self, user: str = "ann", listener: str = "PLAINTEXT") -> None:
        self.principal = f"User:{user}"
        self.listener = listener


@pytest.fixture
def node() -> Node:
    made = Node()
    made.create("t", 2)
    return made


def set_quota(node, entity: dict, **quotas: float | None) -> None:
    entry = AlterClientQuotasRequest.EntryData(
        entity=[
            AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()
        ],
        ops=[
            AlterClientQuotasRequest.OpData(key=name, value=0.0 if value is None else value, remove=value is None)
            for name, value in quotas.items()
        ],
    )
    request = AlterClientQuotasRequest(entries=[entry])
    assert node.answer(node.send(request, 1, Client("admin"))).entries[0].error_code == 0
    node.network.paused.clear()


def pause_ms(node, peer) -> list[int]:
    """How long the connection is not read from now on, by pause."""
    now_ns = node.process.clock.now().mono_ns
    return [(until_ns - now_ns) // MS for who, until_ns in node.network.paused if who is peer]


def produce(node, peer, size: int = 10_000, version: int = 9, acks: int = 1):
    place = node.send(node.produce_request("t", bytes(size), acks=acks), version, peer)
    return node.answer(place) if acks else place


def fetch(node, peer, version: int = 12, offset: int = 0, **more):
    return node.answer(node.send(node.fetch_request("t", offset, **more), version, peer))


@pytest.mark.parametrize("version", range(3, 13))
def test_produce_waits_for_the_excess(node, version):
    peer = Client()
    set_quota(node, {"user": "ann"}, producer_byte_rate=1000)
    assert produce(node, peer, 9_000, version=version).throttle_time_ms == 0
    assert not node.network.paused
    second = produce(node, peer, 9_000, version=version)
    assert second.responses[0].partition_responses[0].error_code == 0
    # 18,000 bytes and two headers in 10 s are 1.8 times the limit: 8 s.
    assert 8_000 < second.throttle_time_ms < 8_500
    assert second.throttle_time_ms in pause_ms(node, peer)


def test_without_quotas_nothing_is_noted(node):
    throttles = node.broker._frames._throttles
    peer = Client()
    produce(node, peer)
    assert node.broker._frames.on_frame == node.broker._dispatch.on_frame
    assert throttles._network.send_reply == node.network.send_reply
    set_quota(node, {"user": "ann"}, producer_byte_rate=1)
    assert produce(node, peer).throttle_time_ms > 0
    set_quota(node, {"user": "ann"}, producer_byte_rate=None)
    assert produce(node, peer).throttle_time_ms == 0
    assert not throttles._clients
    assert node.broker._frames.on_frame == node.broker._dispatch.on_frame


def test_acks_0_pauses_without_a_response(node):
    peer = Client()
    set_quota(node, {"user": "ann"}, producer_byte_rate=100)
    place = produce(node, peer, acks=0)
    assert place.parts == []
    assert pause_ms(node, peer)[0] > 60_000


def test_acks_all_contains_the_throttle_time(node):
    peer = Client()
    set_quota(node, {"user": "ann"}, producer_byte_rate=100)
    assert produce(node, peer, acks=-1).throttle_time_ms == pause_ms(node, peer)[0]


def test_a_refused_produce_contains_it_beside_texts_and_leaders(node):
    peer = Client()
    set_quota(node, {"user": "ann"}, producer_byte_rate=100)
    response = node.answer(node.send(node.produce_request("nope", bytes(10_000), acks=1), 11, peer))
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert response.throttle_time_ms > 60_000


def test_the_rate_falls_with_time(node):
    peer = Client()
    set_quota(node, {"user": "ann"}, producer_byte_rate=1000)
    wait_ms = produce(node, peer, 15_000).throttle_time_ms
    assert 5_000 < wait_ms < 5_500
    # As in Kafka: until all windows have passed, the bytes count for ten seconds.
    node.pass_ms(wait_ms)
    assert 5_000 < produce(node, peer, 10).throttle_time_ms < 5_500
    node.pass_ms(11_000)
    assert produce(node, peer, 10).throttle_time_ms == 0


@pytest.mark.parametrize(
    "entity",
    [
        {"user": "ann", "client-id": "hand"},
        {"user": "ann", "client-id": None},
        {"user": "ann"},
        {"user": None},
        {"client-id": "hand"},
        {"client-id": None},
        {"user": None, "client-id": None},
    ],
)
def test_connections_of_a_client_share_its_rate(node, entity):
    set_quota(node, entity, producer_byte_rate=1000)
    one, other = Client(), Client()
    assert produce(node, one, 15_000).throttle_time_ms
    assert produce(node, other, 10).throttle_time_ms, "the same user and client id, on another connection"


def test_users_do_not_share_the_default_of_all_users(node):
    set_quota(node, {"user": None}, producer_byte_rate=1000)
    assert produce(node, Client("ann"), 15_000).throttle_time_ms
    assert not produce(node, Client("bob"), 10).throttle_time_ms
    set_quota(node, {"client-id": "hand"}, producer_byte_rate=1)
    assert not produce(node, Client("bob"), 10).throttle_time_ms, "a quota of users precedes one of client ids"


def test_a_changed_quota_applies_to_open_connections(node):
    peer = Client()
    set_quota(node, {"user": "ann"}, producer_byte_rate=1e9)
    assert produce(node, peer).throttle_time_ms == 0
    set_quota(node, {"user": "ann", "client-id": "hand"}, producer_byte_rate=1)
    assert produce(node, peer).throttle_time_ms > 0


@pytest.mark.parametrize("version", range(4, 13))
def test_a_fetch_that_must_wait_is_empty_and_read_again(node, version):
    peer = Client()
    for _ in range(2):
        produce(node, Client("bob"), 9_000)
    set_quota(node, {"user": "ann"}, consumer_byte_rate=1000)
    options = {"partition_max_bytes": 9_200, "max_bytes": 9_200}
    first = fetch(node, peer, version, **options)
    assert first.throttle_time_ms == 0
    assert len(records(first.responses[0].partitions[0].records)) == 1
    second = fetch(node, peer, version, offset=1, **options)
    assert second.responses == []
    assert 7_000 < second.throttle_time_ms < 9_000
    assert pause_ms(node, peer) == [second.throttle_time_ms]
    node.pass_ms(second.throttle_time_ms + 3_000)
    third = fetch(node, peer, version, offset=1, **options)
    assert third.throttle_time_ms == 0, "the bytes of the empty response did not count"
    assert len(records(third.responses[0].partitions[0].records)) == 1


def test_a_session_survives_an_empty_response(node):
    peer = Client()
    for _ in range(3):
        produce(node, Client("bob"), 9_000)
    options = {"partition_max_bytes": 9_200, "max_bytes": 9_200, "session_epoch": 0}
    session = fetch(node, peer, 12, **options).session_id
    assert session
    set_quota(node, {"user": "ann"}, consumer_byte_rate=1000)
    fetched, epoch, waited = [], 1, 0
    while len(fetched) < 2:
        more = options | {"session_id": session, "session_epoch": epoch}
        response = fetch(node, peer, 12, offset=1 + len(fetched), **more)
        epoch += 1
        assert response.error_code == 0
        assert response.session_id == session
        if response.throttle_time_ms:
            assert response.responses == []
            waited += response.throttle_time_ms
            node.pass_ms(response.throttle_time_ms + 1000)
        else:
            fetched += [records(each.records) for topic in response.responses for each in topic.partitions]
    assert waited > 7_000


def test_a_new_session_is_not_begun_by_an_empty_response(node):
    peer = Client()
    produce(node, Client("bob"), 9_000)
    set_quota(node, {"user": "ann"}, consumer_byte_rate=1000)
    fetch(node, peer, 12)
    before = len(node.broker._fetch.sessions)
    response = fetch(node, peer, 12, session_epoch=0)
    assert response.throttle_time_ms
    assert response.session_id == 0
    assert len(node.broker._fetch.sessions) == before


def test_a_response_is_not_larger_than_the_quota_of_all_windows(node):
    """A larger one would have to wait again and again."""
    peer = Client()
    for _ in range(5):
        produce(node, Client("bob"), 9_000)
    set_quota(node, {"user": "ann"}, consumer_byte_rate=1000)
    response = fetch(node, peer, 12)
    assert response.throttle_time_ms == 0
    assert len(records(response.responses[0].partitions[0].records)) == 1


def test_a_batch_that_is_larger_than_that_is_delivered_at_last(node):
    peer = Client()
    produce(node, Client("bob"), 30_000)
    set_quota(node, {"user": "ann"}, consumer_byte_rate=1000)
    fetch(node, peer, 12)
    waits = []
    while not (response := fetch(node, peer, 12)).responses:
        waits.append(response.throttle_time_ms)
        node.pass_ms(response.throttle_time_ms)
        assert len(waits) < 20
    assert len(records(response.responses[0].partitions[0].records)) == 1


def test_many_partitions_without_a_session_are_limited(node):
    node.create("wide", 20)
    peer = Client()
    request = node.fetch_request("wide", 0, max_wait_ms=0)
    request.topics[0].partitions = [type(request.topics[0].partitions[0])(
        partition=number, fetch_offset=0, partition_max_bytes=1 << 20, current_leader_epoch=-1) for number in range(20)
    ]  # fmt: skip
    for number in range(20):
        node.ask(node.produce_request("wide", bytes(1_000), partition=number, acks=1), 9)
    request.session_epoch = -1
    set_quota(node, {"user": "ann"}, consumer_byte_rate=1000)
    assert node.answer(node.send(request, 12, peer)).throttle_time_ms == 0
    assert node.answer(node.send(request, 12, peer)).throttle_time_ms > 0


def test_request_percentage_throttles_every_kind_of_request(node):
    peer = Client()
    assert node.network.report_turn is None
    set_quota(node, {"user": "ann"}, request_percentage=1)
    report = node.network.report_turn
    assert node.answer(node.send(MetadataRequest(topics=None), 12, peer)).throttle_time_ms == 0
    report(peer, 500 * MS)  # 5 % of 10 s
    requests = [
        (MetadataRequest(topics=None), 12), (ApiVersionsRequest(), 2), (ApiVersionsRequest(), 4),
        (HeartbeatRequest(group_id="g"), 3), (HeartbeatRequest(group_id="g"), 4), (node.fetch_request("t", 0), 12),
    ]  # fmt: skip
    for request, version in requests:
        node.network.paused.clear()
        response = node.answer(node.send(request, version, peer))
        assert response.throttle_time_ms == 1000, "at most one window"
        assert pause_ms(node, peer) == [1000]
    assert produce(node, peer, 10).throttle_time_ms == 1000
    other = Client("bob")
    assert node.answer(node.send(MetadataRequest(topics=None), 12, other)).throttle_time_ms == 0
    node.pass_ms(60_000)
    assert node.answer(node.send(MetadataRequest(topics=None), 12, peer)).throttle_time_ms == 0
    set_quota(node, {"user": "ann"}, request_percentage=None)
    assert node.network.report_turn is None


def creation(*names: str, partitions: int = 4, validate_only: bool = False) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic
    topics = [topic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    return CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=validate_only)


def codes(elements) -> list[int]:
    return [each.error_code for each in elements]


def test_creations_beyond_the_mutation_rate_are_refused(node):
    peer = Client()
    set_quota(node, {"user": "ann"}, controller_mutation_rate=1)
    # The bucket of 11 allows any request while it is not negative.
    response = node.answer(node.send(creation("a", "b", "c", "d"), 6, peer))
    assert codes(response.topics) == [0, 0, 0, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert response.throttle_time_ms == 1000
    assert pause_ms(node, peer)[-1] <= 1000
    assert codes(node.answer(node.send(creation("a", "e", validate_only=True), 6, peer)).topics) == [
        ErrorCode.TOPIC_ALREADY_EXISTS, 0,
    ]  # fmt: skip
    node.pass_ms(1500)
    assert codes(node.answer(node.send(creation("d"), 6, peer)).topics) == [0]


def test_older_creations_are_made_and_then_wait(node):
    peer = Client()
    set_quota(node, {"user": "ann"}, controller_mutation_rate=1)
    response = node.answer(node.send(creation("a", "b", "c", "d"), 5, peer))
    assert codes(response.topics) == [0, 0, 0, 0]
    assert response.throttle_time_ms == 5_000


def test_deletions_and_new_partitions_count(node):
    peer = Client()
    node.create("big", 20)
    set_quota(node, {"user": "ann"}, controller_mutation_rate=1)
    more = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=15, assignments=None)
    grow = CreatePartitionsRequest(topics=[more], timeout_ms=1000)
    assert codes(node.answer(node.send(grow, 3, peer)).results) == [0]
    more.count = 16
    assert codes(node.answer(node.send(grow, 3, peer)).results) == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    delete = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="big")], timeout_ms=1000)
    response = node.answer(node.send(delete, 6, peer))
    assert codes(response.responses) == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert response.throttle_time_ms > 0
    old = DeleteTopicsRequest(topic_names=["big"], timeout_ms=1000)
    response = node.answer(node.send(old, 4, peer))
    assert codes(response.responses) == [0]
    assert response.throttle_time_ms > 20_000


def test_brokers_are_exempt(node):
    set_quota(node, {"user": None}, producer_byte_rate=1, consumer_byte_rate=1, request_percentage=0.01)
    own = Client(listener="")
    assert produce(node, own).throttle_time_ms == 0
    throttles = node.broker._frames._throttles
    assert own not in throttles._clients
    assert node.broker._frames._is_for_brokers(ApiKey.LEADER_AND_ISR, 5)


def test_connections_that_end_are_forgotten(node):
    set_quota(node, {"user": None}, producer_byte_rate=1, consumer_byte_rate=1)
    throttles = node.broker._frames._throttles
    peer = Client()
    produce(node, peer)
    waiting = node.send(node.fetch_request("t", 1, max_wait_ms=10_000), 12, peer)
    assert not waiting.answered
    assert throttles._clients[peer].slots.keys() == {waiting}
    node.process.post_turn(0, "gone", node.broker.on_gone, peer)
    node.pass_ms(1)
    assert peer not in throttles._clients
    node.pass_ms(20_000)
    assert peer not in throttles._clients


def test_long_client_ids_are_kept_in_part(node):
    set_quota(node, {"user": "ann", "client-id": None}, producer_byte_rate=1)
    peer = Client()
    frame = encode_request_header(ApiKey.METADATA, 8, 1, "c" * 30_000) + encode_bytes(MetadataRequest(topics=None), 8)
    place = Place(peer, ApiKey.METADATA, 8)
    node.process.post_turn(0, "frame", node.broker.on_frame, place, memoryview(bytearray(frame)))
    node.pass_ms(10)
    assert place.answered
    assert len(node.broker._frames._throttles._clients[peer].client_id) == 1_000


def metric(node, name: str) -> dict[tuple[str, str], float]:
    """A metric by (user, client id)."""
    found = next(each for each in node.broker.metrics if each.name == name)
    return {(each.labels["user"], each.labels["client_id"]): each.value for each in found.samples()}


def test_metrics_of_clients(node):
    peer = Client()
    set_quota(node, {"user": "ann"}, producer_byte_rate=1000, consumer_byte_rate=1000, request_percentage=50)
    set_quota(node, {"client-id": "hand"}, controller_mutation_rate=1)
    wait_ms = produce(node, peer, 19_900).throttle_time_ms
    fetch(node, peer, max_bytes=100, offset=1)
    node.network.report_turn(peer, 100 * MS)
    assert 1_900 < metric(node, "kafka_server_produce_byte_rate")["ann", ""] < 2_100
    assert metric(node, "kafka_server_produce_throttle_time")["ann", ""] == pytest.approx(wait_ms)
    assert metric(node, "kafka_server_fetch_byte_rate") == {("ann", ""): 0}
    assert metric(node, "kafka_server_request_request_time") == {("ann", ""): pytest.approx(1.0)}
    node.answer(node.send(creation("big", partitions=100), 5, peer))
    assert metric(node, "kafka_server_controllermutation_throttle_time")["", "hand"] == pytest.approx(89_000)
    node.pass_ms(60_000)
    assert metric(node, "kafka_server_produce_byte_rate") == {("ann", ""): 0}
    assert metric(node, "kafka_server_produce_throttle_time") == {("ann", ""): 0}


def test_few_clients_are_shown(node):
    set_quota(node, {"client-id": None}, producer_byte_rate=1e9)
    rates = node.broker._frames._throttles.produced
    now_ms = node.process.clock.now().mono_ns // MS
    for number in range(11_000):
        rates.record_use(Limit(("", f"c{number}"), 1e9), 1, now_ms)
    shown = metric(node, "kafka_server_produce_byte_rate")
    assert len(shown) == SHOWN_MAX
    assert ("", "c10999") in shown
    assert len(rates._rates._rates) == RATES_MAX
