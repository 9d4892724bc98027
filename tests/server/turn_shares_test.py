"""A turn of a connection is bounded; between two turns of connections with a backlog all others are served.

Zone: real. Requests are counted, not time: the share in time is an hour here, or nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import struct

import pytest

from ottla.seams import Gate
from ottla.server.connections.connection import SHARE
from ottla.server.connections.connection_manager import TurnShares

OK = b"\0\0\0\2ok"


class Order:
    """A broker that answers, and records the connection of each request."""

    def __init__(self, server) -> None:
        self.server = server
        self.peers: list = []
        server.traffic.on_frame = self.on_frame

    def on_frame(self, slot, frame):
        self.server.broker.frames += 1
        if self.server.broker.asks_time:
            self.server.turns.clock.now()
        self.peers.append(slot.peer)
        self.server.broker.network.send_reply(slot, [b"ok"])
        return Gate.NEXT


@pytest.fixture
def order(server):
    return Order(server)


def drain(server, sock, size):
    data = server.receive(sock, size)
    assert data == OK * (size // 6)


def test_a_turn_takes_a_share_of_what_came_and_the_rest_follows(server, framed):
    sock = server.connect()
    server.send(sock, framed(20))
    drain(server, sock, 6)
    (connection,) = server.traffic.connections
    sock.send(framed(20) * (3 * SHARE + 5))
    server.broker.frames = 0
    connection.on_readable()
    seen = [server.broker.frames]
    while seen[-1] < 3 * SHARE + 5:
        server.step()
        seen.append(server.broker.frames)
    assert [now - before for before, now in zip([0, *seen], seen, strict=False) if now > before] == [SHARE] * 3 + [5]
    drain(server, sock, 6 * (3 * SHARE + 5))
    assert server.traffic.request_memory.used == 0


@pytest.mark.parametrize("asks_time", [True, False])
def test_when_the_time_is_over_each_request_is_a_turn(server, framed, order, asks_time):
    server.broker.asks_time = asks_time
    server.traffic.shares.share_ns = 0
    sock = server.connect()
    server.send(sock, framed(20))
    server.until(lambda: server.broker.frames == 1)
    sock.send(framed(20) * 50)
    seen = [1]
    while seen[-1] < 51:
        server.step()
        seen.append(server.broker.frames)
    assert max(now - before for before, now in itertools.pairwise(seen)) <= 2, "one when it is read, then one"
    drain(server, sock, 6 * 51)


def test_a_first_request_that_did_not_ask_for_the_time_is_a_turn_of_its_own(server, framed):
    """Its duration is not known, because the clock is not read for every request."""
    server.broker.asks_time = False
    sock = server.connect()
    server.send(sock, framed(20))
    drain(server, sock, 6)
    (connection,) = server.traffic.connections
    sock.send(framed(20) * 10)
    server.broker.frames = 0
    connection.on_readable()
    assert server.broker.frames == 1
    server.until(lambda: server.broker.frames == 10)
    drain(server, sock, 60)


@pytest.mark.parametrize("flooders", [1, 40])
@pytest.mark.parametrize("asks_time", [True, False])
def test_a_request_beside_backlogs_waits_for_a_turn_or_two_however_many_there_are(
    server, framed, order, flooders, asks_time
):
    server.broker.asks_time = asks_time
    victim = server.connect()
    server.send(victim, framed(20))
    drain(server, victim, 6)
    (peer,) = server.traffic.connections
    server.traffic.shares.share_ns = 0
    for _ in range(flooders):
        server.connect().send(framed(20) * 1_000)
    server.until(lambda: len(order.peers) > 2 * flooders)
    for _ in range(20):
        order.peers.clear()
        victim.send(framed(20))
        server.until(lambda: peer in order.peers)
        drain(server, victim, 6)
        assert order.peers.index(peer) <= 4, "a connection that waited, and one with a backlog, per pass"


def test_backlogs_take_turns(server, framed, order):
    server.traffic.shares.share_ns = 0
    for _ in range(10):
        server.connect().send(framed(20) * 300)
    server.until(lambda: len(order.peers) > 100)
    order.peers.clear()
    server.until(lambda: len(order.peers) > 200)
    counts = [order.peers.count(peer) for peer in server.traffic.connections]
    assert max(counts) <= min(counts) + 2


def test_what_waits_is_not_copied_for_every_turn(server, framed):
    """A backlog of 100 KB in turns of one request: the number of copied bytes stays in proportion."""
    taken = []
    take_buffer = server.traffic.pool.take_buffer
    server.traffic.shares.share_ns = 0

    class Pool:
        give_buffer = server.traffic.pool.give_buffer

        @staticmethod
        def take_buffer(size):
            taken.append(size)
            return take_buffer(size)

    server.traffic.pool = Pool
    sock = server.connect()
    server.send(sock, framed(96) * 1_000)
    drain(server, sock, 6_000)
    assert sum(taken) < 4 * 100_000
    assert server.traffic.request_memory.used == 0


def test_frames_of_all_sizes_in_turns_of_one_request(server):
    """After the request that ended the turn come complete frames, a part of a frame, or a part of a length."""
    server.traffic.shares.share_ns = 0
    sizes = [8, 20, 70_000, 9, 131_068, 10, 11, 65_536, 300_000, 12, 8, 8, 3_000_000, 8, 40_000, 40_000, 40_000, 8]
    seen = []

    def on_frame(slot, view):
        seen.append((len(view), bytes(view[:1]), bytes(view[-1:])))
        server.broker.network.send_reply(slot, [b"ok"])
        return Gate.NEXT

    server.traffic.on_frame = on_frame
    sock = server.connect()
    data = b"".join(struct.pack(">i", n) + bytes([i + 1]) * n for i, n in enumerate(sizes))
    server.send(sock, data)
    drain(server, sock, 6 * len(sizes))
    assert seen == [(n, bytes([i + 1]), bytes([i + 1])) for i, n in enumerate(sizes)]
    assert server.traffic.request_memory.used == 0


def test_a_peer_that_leaves_with_a_backlog_gives_everything_back(server, framed, order):
    server.traffic.shares.share_ns = 0
    sock = server.connect()
    sock.send(framed(20) * 1_000)
    server.until(lambda: len(order.peers) > 5)
    sock.close()
    server.until(lambda: not server.traffic.connections)
    assert len(order.peers) <= 1_000
    assert server.traffic.request_memory.used == 0


def test_held_frames_in_turns_of_one_request(server):
    """The broker keeps the buffer in which more requests wait."""
    server.traffic.shares.share_ns = 0
    held = []

    def on_frame(slot, view):
        held.append((slot, server.broker.network.hold_frame(slot, view)))
        return Gate.NEXT

    server.traffic.on_frame = on_frame
    sock = server.connect()
    sizes = [90_000, 20, 100_000, 30, 200_000, 8]
    server.send(sock, b"".join(struct.pack(">i", n) + bytes([n % 251]) * n for n in sizes))
    server.until(lambda: len(held) == len(sizes))
    assert [(len(view), view[0], view[-1]) for _, view in held] == [(n, n % 251, n % 251) for n in sizes]
    for slot, _ in held:
        server.broker.network.send_reply(slot, [b"ok"])
    drain(server, sock, 6 * len(sizes))
    assert server.traffic.request_memory.used == 0
    with contextlib.suppress(BlockingIOError):
        assert not sock.recv(1)


class Loop:
    """A loop whose calls the test runs."""

    def __init__(self) -> None:
        self.planned: list = []

    def call_soon(self, callback) -> None:
        self.planned.append(callback)

    def run_pass(self) -> None:
        (callback,) = self.planned
        self.planned.clear()
        callback()


class Backlog:
    """A connection that records when it is resumed."""

    def __init__(self, name: str, passes: list[str]) -> None:
        self.name = name
        self.passes = passes

    def run_backlog(self, _until: int) -> None:
        self.passes.append(self.name)


def passes_of(share_ns: int, soon: str, late: str) -> list[str]:
    """The connections that are resumed in each pass, by their letters."""
    loop, passes, went = Loop(), [], []
    shares = TurnShares(loop, lambda: (passes.append("".join(went)), went.clear()))
    shares.share_ns = share_ns
    for name in late:
        shares.resume_later(Backlog(name, went), late=True)
    for name in soon:
        shares.resume_later(Backlog(name, went), late=False)
    while loop.planned:
        loop.run_pass()
    return passes


HOUR_NS = 3_600_000_000_000


def test_in_a_pass_all_that_had_to_wait_go_on_and_one_that_has_used_up_its_share():
    assert passes_of(HOUR_NS, soon="abc", late="xyz") == ["abcx", "y", "z"]


def test_a_pass_ends_when_its_share_of_time_is_used_up():
    """The sockets are polled before the next one is resumed."""
    assert passes_of(0, soon="abc", late="xy") == ["ax", "by", "c"]
