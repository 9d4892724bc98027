"""Calls to another broker over a real connection, whose other end is the test.

Zone: real. Calls of a broker to itself are in tests/contract.
"""

from __future__ import annotations

import socket
import struct
import time

import pytest

from ottla.seams import Failure, Kind
from ottla.server.connections.broker_connection import AT_ONCE, ConnectionContext
from ottla.server.connections.buffers import BufferPool
from ottla.server.connections.inter_broker_client import InterBrokerClient
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.loop.poller import new_loop

OTHER = 2
NEVER = 1 << 62


class World:
    """A caller on its loop, and a listening socket in place of broker 2."""

    def __init__(self) -> None:
        self.loop, watch = new_loop()
        self.turns = CompletionQueue(self.loop)
        self.pool = BufferPool()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.setblocking(False)
        self.address = self.server.getsockname()
        wiring = ConnectionContext(self.loop, watch, self.turns, self.pool, memoryview(bytearray(1024)))
        self.calls = InterBrokerClient(self.loop, self.turns, 1, wiring)
        self.calls.set_address(OTHER, *self.address)
        self.done: list = []
        self.peers: list[socket.socket] = []

    def call(self, frame: bytes, deadline_ns: int = NEVER) -> None:
        self.calls.call_broker(OTHER, frame, deadline_ns, self.note)

    def note(self, outcome) -> None:
        self.done.append(bytes(outcome) if isinstance(outcome, memoryview) else outcome)

    def until(self, holds) -> None:
        end = time.monotonic() + 180
        while not holds():
            assert time.monotonic() < end, "timed out"
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def accept(self) -> socket.socket:
        def came():
            try:
                peer, _ = self.server.accept()
            except BlockingIOError:
                return False
            peer.setblocking(False)
            self.peers.append(peer)
            return True

        self.until(came)
        return self.peers[-1]

    def read(self, peer: socket.socket, size: int) -> bytes:
        data = bytearray()

        def enough():
            try:
                data.extend(peer.recv(size - len(data)))
            except BlockingIOError:
                return False
            return len(data) == size

        self.until(enough)
        return bytes(data)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


@pytest.fixture
def world():
    made = World()
    yield made
    made.calls.close_all()
    made.until(lambda: True)
    for sock in [made.server, *made.peers]:
        sock.close()
    for _ in range(5):
        made.loop.call_soon(made.loop.stop)
        made.loop.run_forever()
    made.turns.stop_threads()
    made.loop.close()


def test_calls_arrive_and_are_answered_in_order(world):
    for n in range(3):
        world.call(b"ask%d" % n)
    assert world.done == []
    peer = world.accept()
    assert world.read(peer, 24) == framed(b"ask0") + framed(b"ask1") + framed(b"ask2")
    answers = framed(b"") + framed(b"answer one") + framed(b"2")
    for byte in answers:
        peer.send(bytes([byte]))
    world.until(lambda: len(world.done) == 3)
    assert world.done == [b"", b"answer one", b"2"]
    world.call(b"more")
    assert world.read(peer, 8) == framed(b"more")


def write(world: World, peer: socket.socket, data: bytes, step: int = 1 << 30) -> None:
    """Send all of it; small steps are received one by one."""
    left = memoryview(data)

    def all_gone():
        nonlocal left
        try:
            left = left[peer.send(left[:step]) :]
        except BlockingIOError:
            return False
        return not left

    world.until(all_gone)


SIZES = [0, 1, 3, 1019, 1020, 1021, 1023, 1024, 5000, 70_000, 300_000]


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1000, 1024, 1 << 20])
def test_answers_of_all_sizes_arrive_whole_however_they_are_cut(world, step):
    sizes = SIZES[:8] if step < 10 else SIZES
    answers = [(b"%06d" % n * (size // 6 + 1))[:size] for n, size in enumerate(sizes)]
    for _ in answers:
        world.call(b"ask")
    peer = world.accept()
    world.read(peer, 7 * len(answers))
    write(world, peer, b"".join(map(framed, answers)), step)
    world.until(lambda: len(world.done) == len(answers))
    assert world.done == answers


def test_an_answer_beyond_its_first_memory_grows_with_what_comes(world):
    whole = bytes(range(256)) * ((AT_ONCE + 3_000_000) // 256)
    world.call(b"ask")
    peer = world.accept()
    world.read(peer, 7)
    write(world, peer, framed(whole))
    world.until(lambda: bool(world.done))
    assert world.done == [whole]


def test_the_memory_of_a_large_answer_is_used_again(world):
    seen = []
    for _ in range(3):
        world.calls.call_broker(OTHER, b"ask", NEVER, lambda answer: seen.append((answer.obj, bytes(answer[:1]))))
    peer = world.accept()
    world.read(peer, 21)
    for letter in (b"a", b"b", b"c"):
        write(world, peer, framed(letter * 200_000))
    world.until(lambda: len(seen) == 3)
    assert [first for _, first in seen] == [b"a", b"b", b"c"]
    assert seen[0][0] is seen[1][0] is seen[2][0]


def test_more_requests_than_the_socket_takes_leave_in_order(world):
    for n in range(60):
        world.call(b"%02d" % n * 50_000)
    peer = world.accept()
    data = world.read(peer, 60 * 100_004)
    assert data == b"".join(framed(b"%02d" % n * 50_000) for n in range(60))


def test_a_broker_that_moved_is_called_where_it_is(world):
    world.call(b"old")
    old = world.accept()
    world.read(old, 7)
    world.calls.set_address(OTHER, "localhost", world.address[1])
    world.until(lambda: bool(world.done))
    assert world.done[0].kind is Kind.UNKNOWN
    world.call(b"new")
    assert world.read(world.accept(), 7) == framed(b"new")


def test_a_line_that_is_given_up_while_it_opens_opens_no_more(world):
    world.call(b"one")
    world.calls.close_all()
    world.until(lambda: bool(world.done))
    assert world.done[0].kind is Kind.NOT_DONE
    world.call(b"two")
    assert world.read(world.accept(), 7) == framed(b"two")


def test_a_call_may_end_the_line_that_answers_it(world):
    world.calls.call_broker(OTHER, b"ask", NEVER, lambda _: world.calls.set_address(OTHER, "127.0.0.1", 1))
    world.call(b"behind")
    peer = world.accept()
    world.read(peer, 17)
    write(world, peer, framed(b"one") + framed(b"two"))
    world.until(lambda: bool(world.done))
    assert world.done[0].kind is Kind.UNKNOWN


def test_a_late_answer_is_a_timeout_and_those_behind_it_are_unknown(world):
    world.call(b"warm")
    peer = world.accept()
    peer.send(framed(b"up"))
    world.until(lambda: len(world.done) == 1)
    # The connection is open, so both are sent at once, however late the deadline is checked.
    world.call(b"slow", time.monotonic_ns() + 5_000_000)
    world.call(b"next")
    world.until(lambda: len(world.done) == 3)
    assert [failure.kind for failure in world.done[1:]] == [Kind.TIMEOUT, Kind.UNKNOWN]
    world.call(b"anew")
    again = world.accept()
    assert world.read(again, 8) == framed(b"anew")
    again.send(framed(b"ok"))
    world.until(lambda: len(world.done) == 4)
    assert world.done[3] == b"ok"


def test_what_was_sent_before_a_connection_broke_is_unknown(world):
    world.call(b"sent")
    peer = world.accept()
    world.read(peer, 8)
    peer.close()
    world.until(lambda: len(world.done) == 1)
    assert world.done[0].kind is Kind.UNKNOWN


def test_a_broker_that_cannot_be_reached(world):
    world.server.close()
    world.call(b"nobody")
    world.until(lambda: len(world.done) == 1)
    assert world.done[0].kind is Kind.NOT_DONE
    assert "broker 2" in world.done[0].message


def test_a_broker_that_is_not_known(world):
    world.calls.call_broker(9, b"who", NEVER, world.note)
    assert world.done == []
    world.until(lambda: len(world.done) == 1)
    assert isinstance(world.done[0], Failure)
    assert world.done[0].kind is Kind.NOT_DONE


def test_an_answer_that_nobody_asked_for_ends_the_connection(world):
    world.call(b"one")
    peer = world.accept()
    world.read(peer, 7)
    peer.send(framed(b"first") + framed(b"too much"))
    world.until(lambda: len(world.done) == 1)
    assert world.done == [b"first"]
    world.call(b"two")
    again = world.accept()
    assert world.read(again, 7) == framed(b"two")


def test_a_negative_answer_length_ends_the_connection(world):
    world.call(b"one")
    peer = world.accept()
    world.read(peer, 7)
    peer.send(struct.pack(">i", -5) + b"xxxx")
    world.until(lambda: len(world.done) == 1)
    assert world.done[0].kind is Kind.UNKNOWN


def test_stopping_fails_what_is_on_its_way(world):
    world.call(b"sent")
    peer = world.accept()
    world.read(peer, 8)
    world.calls.close_all()
    world.until(lambda: len(world.done) == 1)
    assert world.done[0].kind is Kind.UNKNOWN
