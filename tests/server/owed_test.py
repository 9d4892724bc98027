"""Answers that a peer does not read are bounded, for each shape of answer and for all peers together.

Zone: real.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import struct

import pytest

from ottla.seams import Gate, Region
from ottla.server.connections import connection, response_queue
from ottla.server.connections.connection_manager import TrafficLimits
from ottla.server.disks.disk import RealDisk

MIB = 1024 * 1024
SIZE = 20_000
REQUESTS = 4_000
OK = b"\0\0\0\2ok"


@pytest.fixture
def file(server, tmp_path):
    file = RealDisk(str(tmp_path), server.turns).open("a.log", True)
    file.append([bytes(SIZE)])
    yield file
    server.traffic.close_all()
    assert not file.busy
    file.close()


SHAPES = ("one piece", "head and body", "not bytes", "many pieces", "large", "small region", "regions", "large end")


def shapes(file):
    """Answers of the same size in each shape that handlers make."""
    return {
        "one piece": [bytes(SIZE)],
        "head and body": [bytes(10), bytes(SIZE - 10)],
        "not bytes": [bytearray(SIZE)],
        "many pieces": [bytes(100)] * (SIZE // 100),
        "large": [bytes(10), bytes(5 * SIZE)],
        "small region": [bytes(10), Region(file, 0, SIZE - 20, file.generation), bytes(10)],
        "regions": [part for _ in range(20) for part in (bytes(10), Region(file, 0, SIZE // 20, file.generation))],
        "large end": [bytes(10), Region(file, 0, SIZE, file.generation), bytes(3 * SIZE)],
    }


def flood(server, framed, count=REQUESTS):
    """A peer that sends requests and reads nothing; returns when no bytes are sent for a while."""
    sock = server.connect()
    data = memoryview(framed(14) * count)
    still = 0
    while still < 30:
        before = server.broker.frames
        with contextlib.suppress(BlockingIOError):
            data = data[sock.send(data) :]
        server.step()
        still = 0 if server.broker.frames > before else still + 1
    return sock


def kept(server):
    """Bytes that are kept for peers: owed, or ready to be sent."""
    memory = server.traffic.reply_memory.used
    return memory + sum(each._ready for each in server.traffic.connections)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_peer_that_does_not_read_is_owed_little_whatever_the_answers_are_made_of(server, framed, file, shape):
    server.broker.answer = shapes(file)[shape]
    flood(server, framed)
    assert 0 < kept(server) < MIB // 2
    assert server.broker.frames < REQUESTS // 4
    (peer,) = server.traffic.connections
    peer.close_connection()
    assert server.traffic.reply_memory.used == 0


@pytest.mark.parametrize("shape", ["one piece", "head and body", "regions"])
def test_answers_that_wait_for_an_earlier_one_count(server, framed, file, shape):
    first = []
    answer = shapes(file)[shape]

    def on_frame(slot, _):
        server.broker.frames += 1
        if first:
            server.broker.network.send_reply(slot, answer)
        else:
            first.append(slot)
        return Gate.NEXT

    server.traffic.on_frame = on_frame
    sock = flood(server, framed)
    assert server.broker.frames < 1_000
    assert kept(server) <= response_queue.MAX_OWED + 2 * SIZE
    server.broker.network.send_reply(first[0], [b"ok"])
    size = sum(part.size if isinstance(part, Region) else len(part) for part in answer)
    assert server.receive(sock, 6) == OK
    for _ in range(200):
        assert server.receive(sock, 4 + size)[:4] == struct.pack(">i", size)
    assert server.broker.frames > 200


def test_a_turn_keeps_little_until_its_end(server, framed):
    """Many answers of one turn are sent when there are too many, not only when the turn ends."""
    most = []

    def on_frame(slot, _):
        server.broker.network.send_reply(slot, [bytes(10), bytes(SIZE)])
        most.append(kept(server))
        return Gate.NEXT

    server.traffic.on_frame = on_frame
    sock = server.connect()
    sock.send(framed(14) * 100)
    server.until(lambda: len(most) > 10)
    server.steps(20)
    assert max(most) <= response_queue.MAX_READY + SIZE + 1_000


def test_peers_that_do_not_read_together_are_owed_no_more_than_the_limit(make_server, framed):
    server = make_server(TrafficLimits(unread_max_bytes=MIB))
    server.broker.answer = [bytes(100), bytes(120_000)]
    socks = [flood(server, framed, 100) for _ in range(12)]
    memory = server.traffic.reply_memory
    assert memory.used <= MIB + MIB // 4 + 300_000
    reader = socks[-1]
    server.until(lambda: bool(read_some(reader)))
    server.until(lambda: not memory.is_exhausted or not read_some(reader))
    for sock in socks:
        sock.close()
    server.until(lambda: len(server.traffic.connections) == 0)
    assert memory.used == 0


@pytest.mark.slow
def test_a_reader_is_served_beside_any_number_of_peers_that_do_not_read(make_server, framed, caplog):
    server = make_server(TrafficLimits(unread_max_bytes=MIB))
    server.broker.answer = [bytes(100), bytes(120_000)]
    for _ in range(12):
        flood(server, framed, 100)
    reader = server.connect()
    server.broker.answer = [b"ok"]
    server.send(reader, framed(20))
    assert server.receive(reader, 6) == OK
    assert any("has not read" in record.getMessage() for record in caplog.records)


def read_some(sock):
    with contextlib.suppress(BlockingIOError):
        return sock.recv(1 << 20)
    return b""


def test_a_peer_that_waited_for_the_budget_goes_on_when_another_has_read(make_server, framed):
    server = make_server(TrafficLimits(unread_max_bytes=100_000))
    parked = []

    def on_frame(slot, frame):
        server.broker.frames += 1
        if bytes(frame[:1]) == b"p":
            parked.append(slot)
        else:
            server.broker.network.send_reply(slot, [bytes(60_000)])
        return Gate.NEXT

    server.traffic.on_frame = on_frame
    socks = [server.connect() for _ in range(2)]
    for number, sock in enumerate(socks, 1):
        sock.send(framed(14, b"p") + framed(14, b"q"))
        server.until(lambda number=number: server.broker.frames == 2 * number)
    socks[1].send(framed(14, b"q"))
    server.steps(20)
    assert server.broker.frames == 4, "the second peer owes, and the budget is used up"
    server.broker.network.send_reply(parked[0], [b"ok"])
    assert server.receive(socks[0], 6 + 60_004)[:6] == OK
    server.until(lambda: server.broker.frames == 5)
    server.broker.network.send_reply(parked[1], [b"ok"])
    assert server.receive(socks[1], 6 + 2 * 60_004)[:6] == OK
    assert server.traffic.reply_memory.used == 0


def test_only_one_method_counts_what_is_owed():
    """A second place that changes the figure could forget to check the bound."""
    writers = set()
    for module in (response_queue, connection):
        for function in ast.walk(ast.parse(inspect.getsource(module))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                if stored and node.attr in ("_owed", "_held"):
                    writers.add(function.name)
    assert writers == {"__init__", "_count_owed"}
