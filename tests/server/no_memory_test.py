"""If the system has no memory for the bytes of a connection, that connection is closed, and no other.

Zone: real.
"""

from __future__ import annotations

import logging
import struct

import pytest

from ottla.server.connections import request_reader as module
from ottla.server.connections.buffers import BufferPool
from ottla.server.connections.connection_manager import TrafficLimits

OK = b"\0\0\0\2ok"
HEAD = struct.pack(">i", 3_000_000)


class Poor(BufferPool):
    """A buffer pool in a process that cannot allocate more than `most` bytes at once."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def take_buffer(self, size: int) -> bytearray:
        if size > self.most:
            raise MemoryError
        return super().take_buffer(size)


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def assert_others_are_served(server, sock, other, framed, caplog) -> None:
    """`sock` is closed with one line, its memory is given back, and `other` is answered."""
    server.until(lambda: server.closed(sock))
    server.send(other, framed(20))
    assert server.receive(other, 6) == OK
    assert server.traffic.request_memory.used == 0
    (line,) = lines(caplog)
    assert line.startswith("127.0.0.1: connection closed: the broker has no memory for its ")


@pytest.mark.parametrize("most", [0, 100, 10_000, 200_000])
def test_a_frame_that_there_is_no_memory_for_costs_its_connection(server, framed, caplog, most) -> None:
    other, sock = server.connect(), server.connect()
    server.traffic.pool = Poor(most)
    server.send(sock, HEAD)
    for _ in range(40):
        if server.closed(sock):
            break
        server.send(sock, bytes(10_000))
    assert_others_are_served(server, sock, other, framed, caplog)


def test_no_memory_for_the_next_of_a_row_of_big_frames_costs_their_connection(server, framed, caplog) -> None:
    other, sock = server.connect(), server.connect()
    server.send(sock, framed(70_000))
    assert server.receive(sock, 6) == OK
    server.traffic.pool = Poor(100)
    server.send(sock, framed(70_000)[:50_000])
    assert_others_are_served(server, sock, other, framed, caplog)


def test_no_room_for_a_very_large_frame_costs_its_connection(make_server, framed, caplog, monkeypatch) -> None:
    def refuse(_size: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    server = make_server(TrafficLimits())
    other, sock = server.connect(), server.connect()
    monkeypatch.setattr(module, "reserve_room", refuse)
    server.send(sock, struct.pack(">i", 50_000_000))
    for _ in range(400):
        if server.closed(sock):
            break
        server.send(sock, bytes(10_000))
    assert_others_are_served(server, sock, other, framed, caplog)


def test_no_memory_for_answers_costs_their_connection(server, framed, caplog) -> None:
    def send(_data: bytes) -> int:
        raise MemoryError

    other, sock = server.connect(), server.connect()
    server.steps(3)
    connections = {each._sock.getpeername(): each for each in server.traffic.connections}
    connections[sock.getsockname()].responses._send = send
    server.send(sock, framed(20))
    assert_others_are_served(server, sock, other, framed, caplog)


def test_no_memory_for_a_large_answer_costs_its_connection(server, framed, caplog) -> None:
    class Full:
        """A buffer whose slices need memory that is not there."""

        def __getitem__(self, _part: slice) -> memoryview:
            raise MemoryError

        def __setitem__(self, _part: slice, _content: bytes) -> None:
            raise MemoryError

    other, sock = server.connect(), server.connect()
    view, server.traffic.scratch.view = server.traffic.scratch.view, Full()
    server.broker.answer = [b"x" * 40_000]
    server.send(sock, framed(20))
    server.until(lambda: server.closed(sock))
    server.traffic.scratch.view, server.broker.answer = view, [b"ok"]
    assert_others_are_served(server, sock, other, framed, caplog)
