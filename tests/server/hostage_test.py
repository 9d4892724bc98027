"""Peers that hold request memory: the bytes charged to them, and when their connections are closed.

Zone: real. The decisions are tested on values in request_memory_test.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import tracemalloc

import pytest

from ottla.seams import Gate
from ottla.server.connections.connection_manager import TrafficLimits
from ottla.server.connections.connection_state import MEMORY
from ottla.server.connections.request_memory import LOOK_S, PATIENCE, PATIENCE_WAITING, PER_LOOK
from ottla.server.connections.request_reader import MUTED_MAX

OK = b"\0\0\0\2ok"


def complaints(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def half_open(server, count, size, came):
    """Peers that have sent `came` bytes of a frame of `size` bytes."""
    for _ in range(count):
        server.send(server.connect(), struct.pack(">i", size) + bytes(came))


@pytest.mark.parametrize("came", [1, 1_000, 70_000, 1_800_000])
def test_memory_is_charged_for_what_came_not_for_what_was_announced(server, came):
    half_open(server, 5, 100_000_000, came)
    server.steps()
    assert server.traffic.request_memory.used <= 5 * max(2 * came + 65_536, 64)


def test_a_very_large_frame_is_neither_copied_nor_filled_as_a_whole(server):
    """Copying or filling 100 MB takes tens of milliseconds, in one turn."""
    sock = server.connect()
    size = 20_000_000
    data = struct.pack(">i", size) + bytes(range(200)) * (size // 200)
    tracemalloc.start()
    try:
        server.send(sock, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert server.receive(sock, 6) == OK
    assert peak < 6_000_000
    assert server.broker.bytes == size
    assert server.traffic.request_memory.used == 0


def look_for_hostages(server, times):
    for _ in range(times):
        server.traffic.request_memory.close_hostages([each.reader for each in server.traffic.connections])
        server.steps(3)


def test_beside_hostages_small_requests_go_through_and_large_ones_when_those_are_closed(make_server, caplog):
    server = make_server(TrafficLimits(queued_max_bytes=4_000_000))
    half_open(server, 4, 1_500_000, 1_000_000)
    server.steps()
    assert server.traffic.request_memory.used > 4_000_000
    small = server.connect()
    data = struct.pack(">i", 50_000) + bytes(50_000)
    for part in (data[:3], data[3:100], data[100:30_000], data[30_000:]):
        server.send(small, part)
        server.steps(3)
    assert server.receive(small, 6) == OK
    victim = server.connect()
    data = struct.pack(">i", 300_000) + bytes(300_000)
    victim.send(data[:130_000])
    server.steps(10)
    rest = memoryview(data)[130_000:]
    with contextlib.suppress(BlockingIOError):
        rest = rest[victim.send(rest) :]
    assert server.traffic.request_memory.waiting_connections == 1
    look_for_hostages(server, 30)
    server.send(victim, rest)
    assert server.receive(victim, 6) == OK
    assert 1 <= len(complaints(caplog)) < 4
    assert "queued.max.request.bytes" in complaints(caplog)[0]


def test_requests_that_wait_behind_a_gate_are_hostages_too(make_server, framed):
    server = make_server(TrafficLimits(queued_max_bytes=1_000_000))
    server.traffic.on_frame = lambda slot, view: Gate.WAIT
    for _ in range(10):
        sock = server.connect()
        sock.send(framed(20) + framed(1_000) * 110)
    server.until(lambda: server.traffic.request_memory.used > 1_000_000)
    server.traffic.on_frame = server.broker.on_frame
    victims = [server.connect() for _ in range(2)]
    for victim in victims:
        server.send(victim, struct.pack(">i", 100_000) + bytes(50_000))
    server.steps()
    assert server.traffic.request_memory.waiting_connections == 1
    look_for_hostages(server, 7)
    server.send(victims[1], bytes(50_000))
    assert server.receive(victims[1], 6) == OK


def test_a_peer_that_we_keep_waiting_ourselves_is_no_hostage(make_server, framed):
    server = make_server(TrafficLimits(queued_max_bytes=100_000))
    muted = server.connect()
    server.send(muted, framed(20))
    (peer,) = server.traffic.connections
    server.broker.network.pause_reading(peer, 2**62)
    muted.send(framed(1_000) * 100)
    for _ in range(3):
        server.send(server.connect(), struct.pack(">i", 200_000) + bytes(70_000))
    look_for_hostages(server, 30)
    assert peer in server.traffic.connections


def looks_until_stale(connection) -> int:
    """The number of checks of an incomplete frame after which its connection is closed."""
    return next(count for count in range(1, 1_000) if connection.reader.grow_stale())


def only_connection(server):
    (connection,) = server.traffic.connections
    return connection


def test_a_peer_that_is_muted_with_requests_in_its_buffer_is_no_hostage(server, framed):
    """Its requests wait because the broker delays them."""
    server.traffic.on_frame = lambda slot, _view: server.broker.network.pause_reading(slot.peer, 2**62)
    server.connect().send(framed(1_000) * 100)
    server.until(lambda: server.traffic.request_memory.used > 0)
    connection = only_connection(server)
    assert connection.reader.is_collecting
    assert not any(connection.reader.grow_stale() for _ in range(50))


def test_a_muted_peer_does_not_keep_much_memory_while_others_wait(server, framed):
    """A throttle may last for minutes, and two such peers would use up the memory of all requests."""
    frames: list[int] = []

    def on_frame(slot, view):
        frames.append(len(view))
        if len(frames) == 2:
            server.broker.network.pause_reading(slot.peer, 2**62)
        server.broker.network.send_reply(slot, [])
        return Gate.NEXT

    server.traffic.on_frame = on_frame
    client = server.connect()
    server.send(client, framed(400_000))
    server.until(lambda: frames == [400_000])
    client.sendall(framed(1_000) * 390)
    server.until(lambda: server.traffic.request_memory.used > MUTED_MAX)
    connection = only_connection(server)
    assert len(frames) == 2
    assert any(connection.reader.grow_stale() for _ in range(PATIENCE + 1))


@pytest.mark.parametrize("came", [1_000, 2 * PER_LOOK + 5])
def test_what_has_come_of_a_frame_earns_its_peer_time(server, came):
    half_open(server, 1, 50_000_000, came)
    server.steps()
    assert looks_until_stale(only_connection(server)) == PATIENCE + 1 + came // PER_LOOK


def blocked(make_server):
    """A server without request memory, and a connection whose frame waits for it."""
    server = make_server(TrafficLimits(queued_max_bytes=100_000))
    half_open(server, 1, 1_500_000, 130_000)  # the senior: it may exceed the bound
    half_open(server, 1, 1_500_000, 1_000)
    server.steps()
    (connection,) = (each for each in server.traffic.connections if each.blocked & MEMORY)
    return server, connection


def test_a_peer_that_waits_for_memory_itself_has_more_time(make_server):
    _, connection = blocked(make_server)
    assert looks_until_stale(connection) == PATIENCE_WAITING + 1


def test_a_frame_that_gets_memory_has_time_to_go_on_but_not_all_of_it_again(make_server):
    _, connection = blocked(make_server)
    for _ in range(PATIENCE_WAITING):
        assert not connection.reader.grow_stale()
    connection.reader.memory_granted()
    assert looks_until_stale(connection) == 3


class Timers:
    """A loop whose checks for hostages the test calls; everything else is the real loop."""

    def __init__(self, loop) -> None:
        self.loop = loop
        self.planned: list = []

    def call_later(self, delay_s: float, callback):
        if callback.__name__ != "_check_hostages":
            return self.loop.call_later(delay_s, callback)
        self.planned.append((delay_s, callback))
        return None

    def __getattr__(self, name: str):
        return getattr(self.loop, name)


def test_while_a_connection_waits_for_memory_there_is_a_look_every_second(make_server, caplog):
    server = make_server(TrafficLimits(queued_max_bytes=100_000, idle_ms=-1))
    timers = server.traffic.loop = Timers(server.loop)
    half_open(server, 1, 1_500_000, 130_000)
    half_open(server, 1, 1_500_000, 1_000)
    server.steps()
    looks = 0
    while timers.planned:
        ((delay_s, look),) = timers.planned
        timers.planned.clear()
        assert delay_s == LOOK_S
        looks += 1
        look()
    assert looks == PATIENCE + 1, "until the one that holds memory is closed, and the other continues"
    assert "queued.max.request.bytes" in complaints(caplog)[0]
