"""A scripted broker, whose answers the test chooses, and librdkafka's mock cluster as an independent peer.

Zone: real.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from ottla.client import ClientConfig, Cluster
from ottla.wire.apis import API_TABLE, ApiKey
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.header import decode_request_header, response_header
from ottla.wire.messages import ApiVersionsResponse, MetadataRequest, MetadataResponse
from ottla.wire.schema import Message


class Request(NamedTuple):
    """A request that the scripted broker received."""

    api_key: int
    version: int
    correlation_id: int
    frame: bytes
    body_pos: int

    def message(self) -> Message:
        """The decoded body."""
        return decode(API_TABLE[self.api_key].request, self.version, memoryview(self.frame), self.body_pos)[0]

    def reply(self, message: Message) -> bytes:
        """The frame of an answer with this message."""
        header = response_header(self.api_key, self.version, self.correlation_id)
        return framed(header + encode_bytes(message, self.version))


Answer = Callable[[Request], bytes | None]
"""Returns bytes to send; None closes the connection; b"" sends no answer."""


def framed(body: bytes) -> bytes:
    """The frame of a body: adds the length prefix."""
    return len(body).to_bytes(4, "big") + body


class ScriptedBroker:
    """One broker with node id 0. `on[ApiKey.X]` answers X; ApiVersions and Metadata are set already."""

    def __init__(self) -> None:
        self.on: dict[int, Answer] = {ApiKey.API_VERSIONS: self.api_versions, ApiKey.METADATA: self.metadata}
        self.versions = {key: (api.min_version, api.max_version) for key, api in API_TABLE.items()}
        self.topics: dict[str, int] = {}
        """Partitions per topic."""
        self.advertised: tuple[str, int] | None = None
        self.requests: list[Request] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def asked(self, key: ApiKey) -> list[Request]:
        """The requests of one kind so far."""
        return [request for request in self.requests if request.api_key == key]

    def api_versions(self, request: Request) -> bytes | None:
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in self.versions.items()
        ]
        return request.reply(ApiVersionsResponse(api_keys=keys))

    def metadata(self, request: Request) -> bytes | None:
        message = request.message()
        assert isinstance(message, MetadataRequest)
        wanted = list(self.topics) if message.topics is None else [topic.name or "" for topic in message.topics]
        return request.reply(self.metadata_of(wanted))

    def metadata_of(self, names: list[str], leader: int = 0, error: int = 0) -> MetadataResponse:
        """Metadata with this broker as leader of all partitions; unknown topics get error 3."""
        host, port = self.advertised or ("127.0.0.1", self.port)
        return MetadataResponse(
            brokers=[MetadataResponse.MetadataResponseBroker(node_id=0, host=host, port=port)],
            cluster_id="scripted",
            controller_id=0,
            topics=[
                MetadataResponse.MetadataResponseTopic(
                    name=name,
                    topic_id=name.encode().ljust(16, b"\1")[:16],
                    error_code=error if name in self.topics else 3,
                    partitions=[
                        MetadataResponse.MetadataResponsePartition(
                            partition_index=number,
                            leader_id=leader,
                            leader_epoch=0,
                            error_code=0 if leader >= 0 else 5,
                            replica_nodes=[0],
                            isr_nodes=[0],
                        )
                        for number in range(self.topics.get(name, 0) if not error else 0)
                    ],
                )
                for name in names
            ],
        )

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a test may have closed it
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._sockets.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        # Always closed here, because `close` does not see a socket that is accepted at the same moment.
        with sock, contextlib.suppress(OSError):
            while (frame := _read_frame(sock)) is not None:
                header = decode_request_header(memoryview(frame))
                request = Request(header.api_key, header.api_version, header.correlation_id, frame, header.body_pos)
                self.requests.append(request)
                answer = self.on[request.api_key](request)
                if answer is None:
                    break
                sock.sendall(answer)
            sock.shutdown(socket.SHUT_RDWR)


def _read_frame(sock: socket.socket) -> bytes | None:
    prefix = _read(sock, 4)
    return None if prefix is None else _read(sock, int.from_bytes(prefix, "big"))


def _read(sock: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            return None
        data += chunk
    return data


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """A scripted broker."""
    scripted = ScriptedBroker()
    yield scripted
    scripted.close()


@pytest.fixture
def config(broker: ScriptedBroker) -> Callable[..., ClientConfig]:
    """Makes a configuration for the scripted broker with short backoffs; keyword arguments are fields."""

    def make(**fields: object) -> ClientConfig:
        values: dict[str, object] = {
            "bootstrap_servers": broker.bootstrap,
            "retry_backoff_ms": 1,
            "retry_backoff_max_ms": 2,
            "reconnect_backoff_ms": 1,
            "reconnect_backoff_max_ms": 2,
            "request_timeout_ms": 20_000,
            "default_api_timeout_ms": 20_000,
            "delivery_timeout_ms": 20_000,
        }
        return ClientConfig(**(values | fields))  # type: ignore[arg-type]

    return make


@pytest.fixture
def cluster(config: Callable[..., ClientConfig]) -> Iterator[Cluster]:
    """A client of the scripted broker."""
    with Cluster(config()) as made:
        yield made


@pytest.fixture(scope="session")
def mock_cluster() -> Iterator[str]:
    """The addresses of librdkafka's mock cluster: three brokers, which create topics of four partitions on demand."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": "ignored", "test.mock.num.brokers": 3, "log_level": 0})
    brokers = producer.list_topics(timeout=180).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    del producer
