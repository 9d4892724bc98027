"""Peers that hold memory of requests: what they are charged for, and when they have to let go.

Zone: real. The decisions are tested on values in request_memory_test.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import tracemalloc

import pytest

from ottla.seams import Gate
from ottla.server.traffic import Limits

OK = b"\0\0\0\2ok"


def complaints(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def half_open(server, count, size, came):
    """Peers with a frame of `size` bytes of which `came` have come."""
    for _ in range(count):
        server.send(server.connect(), struct.pack(">i", size) + bytes(came))


@pytest.mark.parametrize("came", [1, 1_000, 70_000, 1_800_000])
def test_memory_is_charged_for_what_came_not_for_what_was_announced(server, came):
    half_open(server, 5, 100_000_000, came)
    server.steps()
    assert server.traffic.request_memory.used <= 5 * max(2 * came + 65_536, 64)


def test_a_very_large_frame_is_neither_copied_nor_filled_as_a_whole(server):
    """Each takes tens of milliseconds for 100 MB, in one turn."""
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
        server.traffic.request_memory.close_hostages(list(server.traffic.connections))
        server.steps(3)


def test_beside_hostages_small_requests_go_through_and_large_ones_when_those_are_closed(make_server, caplog):
    server = make_server(Limits(queued_max_bytes=4_000_000))
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
    assert server.traffic.request_memory.waiting == 1
    look_for_hostages(server, 30)
    server.send(victim, rest)
    assert server.receive(victim, 6) == OK
    assert 1 <= len(complaints(caplog)) < 4
    assert "queued.max.request.bytes" in complaints(caplog)[0]


def test_requests_that_wait_behind_a_gate_are_hostages_too(make_server, framed):
    server = make_server(Limits(queued_max_bytes=1_000_000))
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
    assert server.traffic.request_memory.waiting == 1
    look_for_hostages(server, 7)
    server.send(victims[1], bytes(50_000))
    assert server.receive(victims[1], 6) == OK


def test_a_peer_that_we_keep_waiting_ourselves_is_no_hostage(make_server, framed):
    server = make_server(Limits(queued_max_bytes=100_000))
    muted = server.connect()
    server.send(muted, framed(20))
    (peer,) = server.traffic.connections
    server.broker.network.mute(peer, 2**62)
    muted.send(framed(1_000) * 100)
    for _ in range(3):
        server.send(server.connect(), struct.pack(">i", 200_000) + bytes(70_000))
    look_for_hostages(server, 30)
    assert peer in server.traffic.connections
