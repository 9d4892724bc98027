"""The age of the last answer of ZooKeeper: it counts from the request, not from the answer.

Zone: real.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import pytest

from ottla.server.zookeeper.wire import ZooKeeperConnection


def message(*words: int, size: int = 0) -> bytes:
    body = b"".join(struct.pack(">i", word) for word in words)
    body += bytes(max(0, size - len(body)))
    return struct.pack(">i", len(body)) + body


CONNECT = message(0, 0, 2000, size=44)
CONNECTED = message(0, 1600, 0, 1, size=37)


class Server:
    """The other end of the connection."""

    def __init__(self, wire: ZooKeeperConnection, sock: socket.socket) -> None:
        self.wire = wire
        self.sock = sock

    def answer(self, data: bytes, pieces: int = 0) -> None:
        """Send, and receive it by the wire as kazoo does: the length, then the rest, optionally in pieces."""
        self.sock.sendall(data)
        left = len(data)
        while left:
            left -= len(self.wire.recv(min(left, pieces or left)))


@pytest.fixture
def server() -> Iterator[Server]:
    """A wire, and the server that answers it."""
    ours, theirs = socket.socketpair()
    yield Server(ZooKeeperConnection(ours), theirs)
    ours.close()
    theirs.close()


def test_nothing_is_heard_before_the_first_answer(server):
    assert (server.wire.heard_ns, server.wire.timeout_ms) == (0, 0)
    server.wire.send(memoryview(CONNECT))
    assert server.wire.heard_ns == 0


@pytest.mark.parametrize("pieces", [0, 1, 3, 7])
def test_an_answer_counts_from_the_time_of_its_question(server, pieces):
    wire = server.wire
    before = time.monotonic_ns()
    wire.send(memoryview(CONNECT))
    after = time.monotonic_ns()
    server.answer(CONNECTED, pieces)
    assert before <= wire.heard_ns <= after
    assert wire.timeout_ms == 1600
    sent = []
    for xid in (1, 2, -2):
        wire.send(memoryview(message(xid, 11)))
        sent.append(time.monotonic_ns())
    for index, xid in enumerate((1, 2, -2)):
        server.answer(message(xid, 0, 9, 0, size=200), pieces)
        assert wire.heard_ns <= sent[index]
        assert index == 0 or wire.heard_ns >= sent[index - 1]


def test_a_watch_answers_nothing(server):
    wire = server.wire
    wire.send(memoryview(CONNECT))
    server.answer(CONNECTED)
    heard = wire.heard_ns
    wire.send(memoryview(message(1, 4)))
    server.answer(message(-1, 0, 0, 0, 3, 3, 2, size=40))
    assert wire.heard_ns == heard
    server.answer(message(1, 0, 5, 0))
    assert wire.heard_ns > heard


def test_a_message_that_goes_in_parts_is_one_question(server):
    wire = server.wire
    wire.setblocking(False)
    wire.send(memoryview(CONNECT))
    server.sock.recv(1000)
    server.answer(CONNECTED)
    data = memoryview(message(1, 5, size=4_000_000))
    sent = wire.send(data)
    assert sent < len(data), "the socket took it all"
    while sent < len(data):
        server.sock.recv(1 << 20)
        sent += wire.send(data[sent:])
    server.answer(message(1, 0, 5, 0))
    first = wire.heard_ns
    server.answer(message(-2, 0, 5, 0))
    assert wire.heard_ns == first, "there was no second request"


def test_a_cut_is_noticed_by_whoever_reads(server):
    server.wire.cut_connection()
    assert server.wire.recv(4) == b""
    server.wire.close()
    server.wire.cut_connection()
