"""One connection: versions, order, and a peer that breaks the protocol."""

from __future__ import annotations

import random
import socket
import subprocess
import sys

import pytest

from ottla.client import (
    Cluster,
    ConnectionLostError,
    Deadline,
    MalformedReplyError,
    RequestTimeoutError,
    UnreachableError,
    UnsupportedVersionError,
    UsageError,
)
from ottla.client.connections.address import Address
from ottla.client.connections.connection import Connection, wait_readable
from ottla.client.metadata import cluster_view
from ottla.wire.apis import ApiKey
from ottla.wire.codec import encode_bytes
from ottla.wire.messages import (
    ApiVersionsResponse,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
)


@pytest.fixture
def connection(broker, config):
    made = Connection(Address("127.0.0.1", broker.port), config())
    yield made
    made.close_connection()


def soon() -> Deadline:
    return Deadline.after_ms(180_000)


def ask(connection: Connection, *names: str):
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return connection.send_request(MetadataRequest(topics=topics), 12, MetadataResponse)


def test_the_broker_and_the_client_negotiate_versions(broker, connection) -> None:
    broker.versions = {ApiKey.METADATA: (2, 5), ApiKey.PRODUCE: (90, 99)}
    connection.open_connection(soon())
    assert connection.choose_version(ApiKey.METADATA) == 5
    assert connection.choose_version(ApiKey.METADATA, at_most=3) == 3
    with pytest.raises(UnsupportedVersionError, match="needs version 6 to 13"):
        connection.choose_version(ApiKey.METADATA, at_least=6)
    with pytest.raises(UnsupportedVersionError, match="serves versions 90 to 99"):
        connection.choose_version(ApiKey.PRODUCE)
    with pytest.raises(UnsupportedVersionError, match="does not serve it"):
        connection.choose_version(ApiKey.FETCH)
    assert connection.is_open


def test_error_35_of_an_older_broker_is_followed_by_a_lower_version(broker, connection) -> None:
    def send_response(request):
        if request.version > 2:
            keys = [ApiVersionsResponse.ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=2)]
            return request._replace(version=0).reply(ApiVersionsResponse(error_code=35, api_keys=keys))
        return broker.api_versions(request)

    broker.on[ApiKey.API_VERSIONS] = send_response
    connection.open_connection(soon())
    assert [request.version for request in broker.requests][1:] == [2]
    assert connection.choose_version(ApiKey.METADATA) == 13


def test_an_error_35_without_a_version_falls_back_to_0(broker, connection) -> None:
    def send_response(request):
        if request.version:
            return request._replace(version=0).reply(ApiVersionsResponse(error_code=35))
        return broker.api_versions(request)

    broker.on[ApiKey.API_VERSIONS] = send_response
    connection.open_connection(soon())
    assert [request.version for request in broker.requests][1:] == [0]


def test_version_0_is_tried_after_a_closed_connection(broker, connection) -> None:
    broker.on[ApiKey.API_VERSIONS] = lambda request: broker.api_versions(request) if request.version == 0 else None
    connection.open_connection(soon())
    assert broker.connections == 2
    assert connection.choose_version(ApiKey.METADATA) == 13


def test_a_broker_that_refuses_every_version_is_named(broker, connection) -> None:
    broker.on[ApiKey.API_VERSIONS] = lambda request: request._replace(version=0).reply(
        ApiVersionsResponse(error_code=35)
    )
    with pytest.raises(MalformedReplyError, match="refuses every version"):
        connection.open_connection(soon())
    assert not connection.is_open


def test_answers_come_in_order_of_requests_not_of_callers(broker, connection) -> None:
    broker.topics = {"a": 1, "b": 2}
    connection.open_connection(soon())
    first, second = ask(connection, "a"), ask(connection, "b")
    assert connection.wait_for_response(second, soon()).topics[0].name == "b"
    assert connection.has_answer(first)
    assert connection.wait_for_response(first, soon()).topics[0].name == "a"
    with pytest.raises(ConnectionLostError):
        connection.wait_for_response(first, soon())


@pytest.mark.parametrize(
    ("sent", "error", "says"),
    [
        (b"\x00\x00\x00\x00", MalformedReplyError, "0 bytes"),
        (b"\x00\x00\x00\x03abc", MalformedReplyError, "3 bytes"),
        (b"\xff\xff\xff\xff", MalformedReplyError, "-1 bytes"),
        (b"\x7f\xff\xff\xff", MalformedReplyError, "2147483647 bytes"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", MalformedReplyError, "web server"),
        (b"\x15\x03\x03\x00\x02\x02\x16", MalformedReplyError, "speaks TLS"),
        (b"\x00\x00\x00\x04\x00\x00\x00\x63", MalformedReplyError, "answered request 99"),
    ],
)
def test_frames_that_no_broker_may_send(broker, connection, sent: bytes, error, says: str) -> None:
    connection.open_connection(soon())
    broker.on[ApiKey.METADATA] = lambda request: sent
    with pytest.raises(error, match=says):
        connection.wait_for_response(ask(connection), soon())
    assert not connection.is_open


def test_an_answer_cut_at_any_byte_is_an_error_and_no_traceback_of_ours(broker, connection, config) -> None:
    broker.topics = {"topic": 2}
    whole = None

    def send_response(request):
        nonlocal whole
        whole = request.reply(broker.metadata_of(["topic"]))
        body = whole[4 : 4 + keep]
        return len(body).to_bytes(4, "big") + body

    broker.on[ApiKey.METADATA] = send_response
    keep = 4
    while whole is None or keep < len(whole) - 4:
        fresh = Connection(connection.address, config())
        fresh.open_connection(soon())
        with pytest.raises(MalformedReplyError, match="malformed Metadata v12 response"):
            fresh.wait_for_response(ask(fresh, "topic"), soon())
        assert not fresh.is_open
        keep += 1


def test_a_connection_closed_before_the_answer_is_an_error(broker, connection) -> None:
    connection.open_connection(soon())
    broker.on[ApiKey.METADATA] = lambda request: None
    with pytest.raises(ConnectionLostError, match="broke") as caught:
        connection.wait_for_response(ask(connection), soon())
    assert caught.value.retriable
    assert "see its log, and check security.protocol" in caught.value.next_step
    with pytest.raises(UsageError, match="is closed"):
        ask(connection)


def test_a_hang_up_in_the_middle_of_an_answer(broker, connection) -> None:
    connection.open_connection(soon())
    broker.on[ApiKey.METADATA] = lambda request: b"\x00\x00\x01\x00abc" if not request.body_pos else None
    with pytest.raises(ConnectionLostError):
        connection.wait_for_response(ask(connection), soon())


def test_a_broker_that_never_answers_is_given_up_after_request_timeout_ms(broker, config, connection) -> None:
    connection.open_connection(soon())
    broker.on[ApiKey.METADATA] = lambda request: b""
    call = ask(connection)
    assert 0 < call.sent.remaining_ms() <= config().request_timeout_ms
    with pytest.raises(RequestTimeoutError, match=r"did not answer in time.*request\.timeout\.ms"):
        connection.wait_for_response(call._replace(sent=Deadline.after_ms(30)), soon())
    assert not connection.is_open, "a late answer would be taken for another one"


def test_a_listener_that_accepts_and_never_answers(config) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = Connection(Address("127.0.0.1", listener.getsockname()[1]), config(request_timeout_ms=30))
        with pytest.raises(RequestTimeoutError):
            connection.open_connection(soon())


def test_a_dead_idle_connection_is_noticed_before_it_is_used(broker, connection) -> None:
    connection.open_connection(soon())
    assert not connection.went_stale()
    broker.on[ApiKey.METADATA] = lambda request: request.reply(broker.metadata_of([])) + b"and then some"
    connection.wait_for_response(ask(connection), soon())
    assert wait_readable([connection], soon()) == ([connection], False)
    assert connection.went_stale()


def test_nothing_listens(config) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(
        UnreachableError, match=rf"cannot connect to 127\.0\.0\.1:{port} .*refused.*Is a broker running"
    ):
        Connection(Address("127.0.0.1", port), config()).open_connection(soon())


def test_an_unresolved_name_is_reported_with_its_origin(config) -> None:
    with pytest.raises(
        UnreachableError, match=r"advertised\.listeners points at nowhere\.invalid:9092, which does not"
    ):
        Connection(Address("nowhere.invalid", 9092, advertised=True), config()).open_connection(soon())
    with pytest.raises(UnreachableError, match=r"Check the host name in bootstrap\.servers"):
        Connection(Address("nowhere.invalid", 9092), config()).open_connection(soon())


def test_every_address_of_a_name_is_tried(broker, config, monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = listener.getsockname()[1]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in (closed, broker.port)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)
    connection = Connection(Address("two.addresses", 9092), config())
    connection.open_connection(soon())
    assert connection.is_open
    connection.close_connection()


@pytest.mark.parametrize("name", ["x" * 40_000, "\ud800"])
def test_a_value_that_does_not_fit_the_protocol_is_the_callers_error(broker, connection, name: str) -> None:
    connection.open_connection(soon())
    with pytest.raises(UsageError, match="does not fit the protocol"):
        connection.send_request(
            MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)]), 5, MetadataResponse
        )
    assert connection.is_open, "nothing was sent"
    assert connection.wait_for_response(ask(connection), soon()).cluster_id == "scripted"


def test_the_client_names_itself(broker, connection) -> None:
    connection.open_connection(soon())
    request = broker.requests[0].message()
    assert request.client_software_name == "ottla"
    assert encode_bytes(request, broker.requests[0].version)


def test_an_abandoned_answer_takes_no_memory(broker, connection) -> None:
    broker.topics = {"a": 1}
    connection.open_connection(soon())
    nobody, early, wanted = ask(connection, "a"), ask(connection, "a"), ask(connection, "a")
    connection.abandon_call(nobody)
    connection.wait_for_response(wanted, soon())
    assert not connection.has_answer(nobody)
    assert connection.has_answer(early)
    connection.abandon_call(early)
    assert not connection.has_answer(early)


def test_an_interrupt_in_the_middle_of_a_frame_closes_the_connection(broker, connection, monkeypatch) -> None:
    """Otherwise the rest of the frame would be read as the next answer."""
    connection.open_connection(soon())
    call = ask(connection)

    def interrupted(*words: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("ottla.client.connections.connection._receive_into", interrupted)
        with pytest.raises(KeyboardInterrupt):
            connection.wait_for_response(call, soon())
    assert not connection.is_open


def test_damaged_answers_are_read_or_refused_and_nothing_else(broker, config) -> None:
    """Changes any byte of an answer: the result is an answer or a ClientError."""
    broker.topics = {"topic": 2}
    chance = random.Random(7)

    def damaged(request):
        answer = bytearray(request.reply(broker.metadata_of(["topic"])))
        for _ in range(chance.randint(1, 3)):
            answer[chance.randrange(8, len(answer))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        return bytes(answer)

    with Cluster(config()) as cluster:
        cluster.refresh()
        broker.on[ApiKey.METADATA] = damaged
        outcomes = {"read": 0, "refused": 0}
        for _ in range(150):
            connection = Connection(Address("127.0.0.1", broker.port), config())
            connection.open_connection(soon())
            try:
                answer = connection.wait_for_response(ask(connection, "topic"), soon())
                cluster_view(answer, "it")
                outcomes["read"] += 1
            except MalformedReplyError:
                outcomes["refused"] += 1
            connection.close_connection()
    assert min(outcomes.values()) > 10


@pytest.mark.slow
def test_importing_the_client_loads_nothing_of_the_broker_and_nothing_heavy() -> None:
    """`import ottla.client` may take 120 ms, so it must not import heavy modules."""
    code = "import sys; from ottla.client import Admin, Cluster, Consumer, Fetcher; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    rooms = {name.split(".")[1] for name in done.stdout.split() if name.startswith("ottla.")}
    assert rooms == {
        "client",
        "config",
        "errors",
        "lazy_imports",
        "record",
        "renamed",
        "seams",
        "types",
        "utf8",
        "wire",
    }
    assert {name for name in done.stdout.split() if name.startswith("ottla.config.")} == {
        "ottla.config.jaas",
        "ottla.config.options",
    }
    assert not {"asyncio", "numpy", "pyarrow", "ssl", "logging", "click"} & set(done.stdout.split())


def test_an_answer_reuses_the_memory_of_an_earlier_one_without_views(broker, connection) -> None:
    contents = (bytes([letter]) * size for letter, size in ((97, 100_000), (98, 100_000), (99, 100_032), (100, 99_000)))

    def send_response(request):
        part = FetchResponse.PartitionData(partition_index=0, records=next(contents))
        return request.reply(FetchResponse(responses=[FetchResponse.FetchableTopicResponse(partitions=[part])]))

    def records() -> memoryview:
        found = connection.wait_for_response(connection.send_request(FetchRequest(), 12, FetchResponse), soon())
        return found.responses[0].partitions[0].records

    broker.on[ApiKey.FETCH] = send_response
    connection.open_connection(soon())
    first, second = records(), records()
    assert (bytes(first), bytes(second)) == (b"a" * 100_000, b"b" * 100_000)
    memory = second.obj
    del second
    third = records()  # a few bytes more than before: full answers differ by some bytes
    assert third == b"c" * 100_032
    assert third.obj is memory
    memory = first.obj
    del first
    assert records().obj is memory, "a reader that always holds one has two in turn"
