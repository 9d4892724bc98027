"""Connections to other brokers whose logins end (KIP-368): replaced before their end, between two calls.

Zone: real.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.server.connections import broker_connection
from ottla.server.connections.broker_connection import BrokerConnection, ConnectionContext
from ottla.server.connections.broker_handshake import BrokerCredential
from ottla.server.connections.buffers import BufferPool
from ottla.server.connections.inter_broker_client import InterBrokerClient
from ottla.server.embedded import EmbeddedBroker
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.loop.poller import new_loop
from ottla.wire.codec import encode_bytes
from ottla.wire.header import encode_request_header
from ottla.wire.messages import MetadataRequest

OTHER, NEVER = 2, 1 << 62
FRAME = encode_request_header(3, 8, 7, "broker") + encode_bytes(MetadataRequest(topics=[]), 8)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    users = tmp_path / "users.properties"
    users.write_text("broker=broker-word\n")
    users.chmod(0o600)
    config = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "ottla.sasl.users.file": str(users),
        "connections.max.reauth.ms": "600000",
    }
    with EmbeddedBroker(config=config) as started:
        yield started


def ports_of_calls(broker: EmbeddedBroker, calls: int, at_once: int = 1) -> list[int]:
    """The ports of this end after each call. All calls have to be answered."""
    loop, watch = new_loop()
    turns = CompletionQueue(loop)
    credential = BrokerCredential("PLAIN", "broker", "broker-word")
    context = ConnectionContext(loop, watch, turns, BufferPool(), memoryview(bytearray(1024)), credential)
    made: list[BrokerConnection] = []

    def connect(*given: object) -> BrokerConnection:
        made.append(BrokerConnection(*given))
        return made[-1]

    client = InterBrokerClient(loop, turns, 1, context, connect)
    host, _, port = broker.bootstrap.rpartition(":")
    client.set_address(OTHER, host, int(port))
    answers: list[object] = []
    ports = []
    try:
        for _ in range(calls):
            answers.clear()
            for _ in range(at_once):
                client.call_broker(OTHER, FRAME, NEVER, answers.append)
            end = time.monotonic() + 180
            while len(answers) < at_once:
                assert time.monotonic() < end, "timed out"
                loop.call_soon(loop.stop)
                loop.run_forever()
            assert all(isinstance(each, memoryview) for each in answers), answers
            ports.append(made[0]._sock.getsockname()[1])
    finally:
        client.close_all()
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()
    return ports


def test_a_young_connection_serves_all_calls(broker: EmbeddedBroker) -> None:
    assert len(set(ports_of_calls(broker, 3))) == 1


@pytest.mark.parametrize("at_once", [1, 3])
def test_one_near_its_end_is_replaced_when_no_answer_is_outstanding(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(broker_connection, "RENEWED_AT", 0.0)
    assert len(set(ports_of_calls(broker, 3, at_once))) == 3
