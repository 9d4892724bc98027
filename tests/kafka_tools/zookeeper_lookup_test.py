"""The lookup of brokers in ZooKeeper: a server with scripted answers, and addresses of other programs."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from testbench.ports import HOST, free_port

from ottla.kafka_tools import zookeeper_lookup
from ottla.kafka_tools.main import load_tool, main, run_tool
from ottla.kafka_tools.options import ToolError
from ottla.kafka_tools.zookeeper_lookup import find_brokers

CONNECTED = struct.pack(">iiqi16x", 0, 6_000, 1, 16)
GET_DATA, GET_CHILDREN, CLOSE = 4, 8, -11
NO_NODE, NO_AUTH = -101, -102


def string(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def names(*children: str) -> bytes:
    return struct.pack(">i", len(children)) + b"".join(string(child.encode()) for child in children)


class Server:
    """Answers a session from a table of paths; an int is an error."""

    def __init__(
        self,
        nodes: Mapping[str, bytes | int],
        greeting: bytes = string(CONNECTED),
        greet: Callable[[socket.socket], object] | None = None,
    ) -> None:
        """greet: sends the greeting in its own way."""
        self.nodes = nodes
        self.greet = greet or (lambda wire: wire.sendall(greeting))
        self.asked: list[tuple[int, str]] = []
        self.listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self.listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with (
            contextlib.suppress(OSError),
            self.listener,
            self.listener.accept()[0] as wire,
            wire.makefile("rb") as source,
        ):
            self._message(source)
            self.greet(wire)
            while len(request := self._message(source)) >= 8:
                number, operation = struct.unpack_from(">ii", request)
                path = request[12:-1].decode()
                self.asked.append((operation, path))
                if operation == CLOSE:
                    return
                answer = self.nodes.get(path, NO_NODE)
                error, body = (answer, b"") if isinstance(answer, int) else (0, answer)
                wire.sendall(string(struct.pack(">iqi", number, 7, error) + body))

    @staticmethod
    def _message(source) -> bytes:
        size = source.read(4)
        return source.read(int.from_bytes(size, "big")) if size else b""

    def stop_server(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def make(nodes: Mapping[str, bytes | int], **more: Any) -> Server:
        servers.append(Server(nodes, **more))
        return servers[-1]

    yield make
    for server in servers:
        server.stop_server()


def registration(number: int) -> bytes:
    """As a broker of Kafka 1.0 writes it."""
    node = {
        "listener_security_protocol_map": {"INSIDE": "PLAINTEXT", "OUTSIDE": "SASL_SSL"},
        "endpoints": [f"INSIDE://host-{number}:9092", f"OUTSIDE://[::{number}]:9093"],
        "jmx_port": -1,
        "host": None,
        "port": -1,
        "version": 4,
        "timestamp": "1598086054093",
    }
    return string(json.dumps(node).encode())


CLUSTER = {
    "/myKafka/brokers/ids": names("10", "2", "1", "seqid", "30"),
    **{f"/myKafka/brokers/ids/{number}": registration(number) for number in (1, 2, 10, 30)},
}


def test_the_first_brokers_are_found_below_the_path(serve) -> None:
    server = serve(CLUSTER)
    assert find_brokers(f"{server.address}/myKafka") == "host-1:9092,host-2:9092,host-10:9092"
    server.stop_server()
    assert server.asked == [
        (GET_CHILDREN, "/myKafka/brokers/ids"),
        *((GET_DATA, f"/myKafka/brokers/ids/{number}") for number in (1, 2, 10)),
        (CLOSE, ""),
    ]


def test_listeners_have_the_protocol_of_the_client(serve) -> None:
    assert find_brokers(f"{serve(CLUSTER).address}/myKafka", "sasl_ssl") == "[::1]:9093,[::2]:9093,[::10]:9093"
    with pytest.raises(ToolError, match="no listener with the protocol SSL, only PLAINTEXT, SASL_SSL: set security"):
        find_brokers(f"{serve(CLUSTER).address}/myKafka", "SSL")


def test_a_registration_of_the_first_version(serve) -> None:
    content = string(b'{"jmx_port":-1,"timestamp":"1","host":"old","version":1,"port":9092}')
    server = serve({"/brokers/ids": names("0"), "/brokers/ids/0": content})
    assert find_brokers(server.address) == "old:9092"


def test_the_next_server_is_asked_when_one_is_not_there(serve) -> None:
    assert find_brokers(f"{HOST}:{free_port()},{serve(CLUSTER).address}/myKafka").startswith("host-1:")


def padded_ids(size: int) -> bytes:
    """The ids of the cluster's brokers and one more name, in an answer of `size` bytes with its 16 bytes of header."""
    ids = names("10", "2", "1", "30", "")
    return ids[:-4] + string(bytes(size - 16 - len(ids)))


def test_an_answer_of_4_mib_is_read_and_a_larger_one_is_not(serve) -> None:
    folder = "/myKafka/brokers/ids"
    assert find_brokers(f"{serve(CLUSTER | {folder: padded_ids(4 << 20)}).address}/myKafka").startswith("host-1:")
    with pytest.raises(ToolError, match="an answer of 4194305 bytes: this is not a ZooKeeper server"):
        find_brokers(f"{serve(CLUSTER | {folder: padded_ids((4 << 20) + 1)}).address}/myKafka")


def test_a_server_without_an_answer_leaves_time_for_the_next(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(zookeeper_lookup, "time", clock)

    def greet(wire: socket.socket) -> None:
        """11 of the 30 seconds pass, and all of them where the client does not close the connection then."""
        for now in (11.0, 31.0):
            clock.now = now
            wire.sendall(b"\0")
            wire.settimeout(15)
            with contextlib.suppress(TimeoutError):
                assert wire.recv(1) == b""
                return

    first, second = serve({}, greet=greet), serve(CLUSTER)
    assert find_brokers(f"{first.address},{second.address}/myKafka").startswith("host-1:")


def test_an_answer_byte_by_byte_does_not_lengthen_the_time(serve) -> None:
    def greet(wire: socket.socket) -> None:
        for number in string(CONNECTED):
            wire.sendall(bytes([number]))
            time.sleep(0.02)

    with pytest.raises(ToolError, match=r"timed out|no answer in time"):
        find_brokers(serve({}, greet=greet).address, wait_s=0.1)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({}, "/brokers/ids in ZooKeeper cannot be read: it does not exist. Check the path"),
        ({"/brokers/ids": NO_AUTH}, "ZooKeeper wants credentials for it"),
        ({"/brokers/ids": -4}, "answers with its error -4"),
        ({"/brokers/ids": names()}, "No broker is registered in ZooKeeper at /brokers/ids: start the brokers"),
        ({"/brokers/ids": names("1"), "/brokers/ids/1": string(b"{")}, "/brokers/ids/1 in ZooKeeper is not the regist"),
        ({"/brokers/ids": names("1"), "/brokers/ids/1": string(b"[" * 9_000)}, "is not the registration"),
        ({"/brokers/ids": names("1"), "/brokers/ids/1": string(b'"text"')}, "is not the registration"),
        ({"/brokers/ids": struct.pack(">i", 2**31 - 1)}, "an answer ends too early"),
        ({"/brokers/ids": struct.pack(">ii", 1, 2**31 - 1)}, "an answer ends too early"),
    ],
)
def test_nodes_that_cannot_be_used(serve, nodes: Mapping[str, bytes | int], message: str) -> None:
    with pytest.raises(ToolError, match=message) as caught:
        find_brokers(serve(nodes).address)
    assert "use --bootstrap-server HOST:PORT" in caught.value.message


@pytest.mark.parametrize(
    ("greeting", "message", "wait_s"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an answer of 1213486160 bytes: this is not a ZooKeeper server", 30),
        (b"", "timed out|no answer in time", 0.05),
        (b"\0\0", "timed out|no answer in time", 0.05),
    ],
)
def test_other_programs(serve, greeting: bytes, message: str, wait_s: float) -> None:
    with pytest.raises(ToolError, match=message) as caught:
        find_brokers(serve({}, greeting=greeting).address, wait_s=wait_s)
    assert caught.value.java_class == "org.I0Itec.zkclient.exception.ZkTimeoutException"


def test_an_address_that_is_none() -> None:
    with pytest.raises(ToolError, match="--zookeeper has the form host:port,host:port/path"):
        find_brokers("host:port:2181/x")


def test_tools_name_the_failure(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--zookeeper", f"{HOST}:{free_port()}/myKafka"]
    for name, more in (
        ("kafka-topics", ["--list"]),
        ("kafka-configs", ["--describe", "--entity-type", "topics"]),
        ("kafka-reassign-partitions", ["--list"]),
    ):
        assert run_tool(load_tool(name), [*words, *more]) == 1
        shown = capsys.readouterr()
        assert "Unable to connect to zookeeper server" in shown.out + shown.err
    words = ["--authorizer-properties", f"zookeeper.connect={HOST}:{free_port()}", "--list"]
    assert run_tool(load_tool("kafka-acls"), words) == 1
    assert "Unable to connect to zookeeper server" in capsys.readouterr().out


def test_one_address_of_the_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--zookeeper", "a:1", "--bootstrap-server", "b:2", "--list"]
    assert run_tool(load_tool("kafka-topics"), words) == 1
    assert "Only one of --bootstrap-server or --zookeeper must be specified" in capsys.readouterr().err


def test_a_setting_that_old_tools_deleted_is_not_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--zookeeper", "localhost:1", "--alter", "--topic", "t", "--partitions", "2", "--delete-config", "k")
    with pytest.raises(SystemExit) as caught:
        main(("kafka-topics", *words))
    assert caught.value.code == 1
    printed = capsys.readouterr()
    assert "--delete-config is not supported: kafka-configs --alter does it" in printed.out + printed.err
