"""Frames over real sockets: a peer sends wrong bytes, is slow, or sends and asks too much.

Zone: real. tests/contract has what every network must do.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import socket
import struct
import sys
import tracemalloc

import pytest

from ottla.seams import Gate, Region
from ottla.server.connections.connection import Connection
from ottla.server.connections.connection_manager import TrafficLimits
from ottla.server.connections.request_reader import RequestReader
from ottla.server.connections.response_queue import RequestSlot, ResponseQueue
from ottla.server.disks.disk import RealDisk

LOGGER = "ottla.server.connections.connection_manager"
OK = b"\0\0\0\2ok"


def complaints(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, -1, -(2**31), 2**31 - 1, 1001])
def test_a_size_that_cannot_be_closes_with_one_line(make_server, caplog, size):
    server = make_server(TrafficLimits(request_max_bytes=1000))
    sock = server.connect()
    server.send(sock, struct.pack(">i", size) + b"rest")
    server.until(lambda: server.closed(sock))
    server.until(lambda: server.broker.gone == 1)
    assert server.broker.frames == 0
    assert len(complaints(caplog)) == 1
    assert "127.0.0.1" in complaints(caplog)[0]
    if size > 1000:
        assert "socket.request.max.bytes=1000" in complaints(caplog)[0]


def test_a_bad_size_behind_a_good_request_still_lets_that_one_be_answered(server, framed):
    sock = server.connect()
    server.send(sock, framed(20) + b"\0\0\0\0")
    server.until(lambda: server.broker.frames == 1 and server.broker.gone == 1)


def test_the_largest_request_is_served(make_server, framed):
    server = make_server(TrafficLimits(request_max_bytes=300_000))
    sock = server.connect()
    server.send(sock, framed(300_000))
    assert server.receive(sock, 6) == OK
    assert server.broker.bytes == 300_000


def test_strangers_are_told_what_they_are(server, caplog):
    hello = bytes.fromhex("16030100f8010000f40303") + bytes(100)
    for data, word in (
        (hello, "TLS"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (b"POST /x HTTP/1.1\r\n", "HTTP"),
    ):
        caplog.clear()
        sock = server.connect()
        server.send(sock, data)
        server.until(lambda sock=sock: server.closed(sock))
        assert len(complaints(caplog)) == 1
        assert word in complaints(caplog)[0]
        assert "PLAINTEXT" in complaints(caplog)[0]


def test_a_flood_of_bad_peers_is_not_a_flood_of_lines(server, caplog):
    for _ in range(60):
        sock = server.connect()
        server.send(sock, b"\0\0\0\0")
        server.until(lambda sock=sock: server.closed(sock))
    assert len(complaints(caplog)) <= 40


def test_one_byte_at_a_time(server, framed):
    sock = server.connect()
    for byte in framed(40) + framed(9):
        server.send(sock, bytes([byte]))
    assert server.receive(sock, 12) == OK * 2
    assert server.broker.bytes == 49


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 24, 25, 27, 28, 29])
def test_two_frames_cut_anywhere(server, framed, cut):
    sock = server.connect()
    data = framed(20, b"a") + framed(30, b"b")
    server.send(sock, data[:cut])
    server.steps()
    server.send(sock, data[cut:])
    assert server.receive(sock, 12) == OK * 2
    assert server.broker.bytes == 50


def test_frames_of_all_sizes_in_a_row(server):
    sizes = [8, 70_000, 70_000, 20, 300_000, 299_990, 300_100, 9, 131_068, 131_072, 131_076, 65_536, 65_537, 8]
    seen = []

    def on_frame(slot, view):
        seen.append((len(view), bytes(view[:1]), bytes(view[-1:])))
        server.broker.network.send_reply(slot, [b"ok"])
        return Gate.NEXT

    server.traffic.on_frame = on_frame
    sock = server.connect()
    data = b"".join(struct.pack(">i", n) + bytes([i + 1]) * n for i, n in enumerate(sizes))
    server.send(sock, data)
    assert server.receive(sock, 6 * len(sizes)) == OK * len(sizes)
    assert seen == [(n, bytes([i + 1]), bytes([i + 1])) for i, n in enumerate(sizes)]
    assert server.traffic.request_memory.used == 0


def test_memory_for_a_frame_grows_with_what_has_come_of_it(server):
    sock = server.connect()
    size = 50_000_000
    server.send(sock, struct.pack(">i", size))
    sent = 4
    for part in (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000):
        server.send(sock, bytes(part))
        server.steps(3)
        sent += part
        assert server.traffic.request_memory.used <= 16 * sent + 65_536


@pytest.mark.slow
def test_half_open_length_prefixes_cost_next_to_nothing(server):
    count = 1_000
    tracemalloc.start()
    try:
        for _ in range(count):
            sock = server.connect()
            sock.send(struct.pack(">i", 100_000_000))
            server.step()
        server.until(lambda: sum(connection.reader.is_collecting for connection in server.traffic.connections) == count)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert server.traffic.request_memory.used <= 16 * 4 * count
    # Includes Python's objects per connection, of the server and, in this process, of the client.
    assert peak <= 8_192 * count
    assert server.broker.frames == 0


def test_a_thousand_requests_from_a_peer_that_does_not_read(server, framed):
    """Back-pressure: the broker stops serving it long before the last request, and continues when the peer reads."""
    answer = b"x" * 60_000
    server.broker.answer = [answer]
    sock = server.connect()
    server.send(sock, framed(20) * 1_000)
    server.steps(50)
    assert server.broker.frames < 500
    answered = 0
    while answered < 1_000:
        assert server.receive(sock, 60_004) == b"\0\0\xea\x60" + answer
        answered += 1
    assert server.broker.frames == 1_000


def test_requests_that_are_not_answered_are_not_read_without_end(server, framed):
    server.broker.answer = []
    sock = server.connect()
    with pytest.raises(AssertionError, match="does not read"):
        _flood(server, sock, framed(1_000))
    assert server.broker.frames == 1_000
    while server.broker.slots:
        server.broker.network.send_reply(server.broker.slots.pop(0), [b"ok"])
    server.until(lambda: server.broker.frames > 1_000)


def _flood(server, sock, data):
    """Send until the socket takes no more for a while."""
    stuck = 0
    while stuck < 50:
        try:
            sock.send(data)
            stuck = 0
        except BlockingIOError:
            stuck += 1
        server.step()
    raise AssertionError("the server does not read")


def test_a_peer_whose_held_requests_are_large_waits(server):
    held = []

    def on_frame(slot, view):
        held.append((slot, server.broker.network.hold_frame(slot, view)))
        return Gate.NEXT

    server.traffic.on_frame = on_frame
    sock = server.connect()
    with pytest.raises(AssertionError, match="does not read"):
        _flood(server, sock, struct.pack(">i", 1_000_000) + bytes(1_000_000))
    assert len(held) == 5
    assert server.traffic.request_memory.used < 7_000_000
    for slot, view in held:
        assert len(view) == 1_000_000
        server.broker.network.send_reply(slot, [b"ok"])
    server.until(lambda: len(held) > 5)


def test_over_the_memory_bound_one_frame_after_the_other_is_finished(make_server):
    server = make_server(TrafficLimits(request_max_bytes=1_000_000, queued_max_bytes=1_500_000))
    socks = [server.connect() for _ in range(8)]
    data = struct.pack(">i", 900_000) + bytes(900_000)
    rest = {sock: memoryview(data) for sock in socks}
    most = 0
    for _ in range(20_000):
        for sock, view in rest.items():
            if view:
                with contextlib.suppress(BlockingIOError):
                    rest[sock] = view[sock.send(view[:100_000]) :]
        server.step()
        most = max(most, server.traffic.request_memory.used)
        if server.broker.frames == 8:
            break
    assert server.broker.frames == 8
    assert most <= 1_500_000 + 2_000_000
    assert server.traffic.request_memory.used == 0


def test_a_reset_in_the_middle_of_a_frame(server, framed):
    sock = server.connect()
    server.send(sock, framed(20) + struct.pack(">i", 1000) + b"part")
    server.until(lambda: server.broker.frames == 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    server.until(lambda: server.broker.gone == 1)
    assert server.traffic.request_memory.used == 0
    assert not server.traffic.connections


def test_a_peer_that_has_closed_its_sending_side_is_gone(server, framed):
    sock = server.connect()
    server.send(sock, framed(20))
    sock.shutdown(socket.SHUT_WR)
    server.until(lambda: server.broker.gone == 1)


def test_a_peer_that_leaves_while_its_request_waits_behind_a_gate(server, framed):
    server.traffic.on_frame = lambda slot, view: Gate.WAIT
    sock = server.connect()
    server.send(sock, framed(20))
    server.steps()
    sock.close()
    server.until(lambda: server.broker.gone == 1)


def test_a_zero_window_reader_of_a_large_region(server, framed, tmp_path):
    """The bytes stay in the file, not in memory, and no other peer waits for them."""
    disk = RealDisk(str(tmp_path), server.turns)
    file = disk.open("a.log", True)
    size = 30_000_000
    file.append([bytes(range(250)) * (size // 250)])
    server.broker.answer = [b"head", Region(file, 0, size, file.generation)]
    slow = server.connect()
    server.send(slow, framed(20))
    server.steps(30)
    server.broker.answer = [b"ok"]
    server.send(slow, framed(20) * 2)
    server.steps(30)
    assert server.broker.frames == 1
    quick = server.connect()
    server.send(quick, framed(20))
    assert server.receive(quick, 6) == OK
    got = server.receive(slow, 4 + 4 + size + 12)
    assert got[:8] == struct.pack(">i", size + 4) + b"head"
    assert got[8 : 8 + size] == bytes(range(250)) * (size // 250)
    assert got[-12:] == OK * 2
    file.close()


@pytest.mark.parametrize("size", [40_000, 20_000_000], ids=["at once", "a full socket"])
def test_a_large_region_leaves_between_its_head_and_its_end_in_the_order_of_requests(server, framed, tmp_path, size):
    disk = RealDisk(str(tmp_path), server.turns)
    file = disk.open("a.log", True)
    content = bytes(range(256)) * (size // 256)
    file.append([content])
    server.broker.answer = [b"he", b"ad", Region(file, 0, len(content), file.generation), b"end"]
    sock = server.connect()
    server.send(sock, framed(20) * 3)
    whole = b"head" + content + b"end"
    assert server.receive(sock, 3 * (4 + len(whole))) == (len(whole).to_bytes(4, "big") + whole) * 3
    assert not file.busy
    file.close()


def test_a_large_region_whose_bytes_were_cut_off_ends_the_connection(server, framed, tmp_path):
    disk = RealDisk(str(tmp_path), server.turns)
    file = disk.open("a.log", True)
    file.append([bytes(100_000)])
    old = Region(file, 0, 100_000, file.generation)
    file.truncate(50_000)
    server.broker.answer = [b"head", old]
    server.send(server.connect(), framed(20))
    server.until(lambda: server.broker.gone == 1)
    assert not file.busy
    file.close()


def put_on_a_broken_device(file):
    """Make each read of its first byte fail with EIO: nothing is mapped there."""
    broken = os.open("/proc/self/mem", os.O_RDONLY)
    os.dup2(broken, file.fileno())
    os.close(broken)


def sendfile_of_a_broken_device(*_):
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("sizes", [[100], [100, 90_000], [90_000]], ids=["small", "small and large", "large"])
def test_a_region_that_the_device_does_not_give_ends_the_connection_with_one_line(
    server, framed, tmp_path, caplog, monkeypatch, sizes
):
    disk = RealDisk(str(tmp_path), server.turns)
    file = disk.open("a.log", True)
    file.append([bytes(100_000)])
    put_on_a_broken_device(file)
    monkeypatch.setattr(os, "sendfile", sendfile_of_a_broken_device)
    server.broker.answer = [b"head", *(Region(file, 0, size, file.generation) for size in sizes)]
    sock = server.connect()
    server.send(sock, framed(20))
    server.until(lambda: server.broker.gone == 1)
    server.until(lambda: server.closed(sock))
    assert len(complaints(caplog)) == 1
    assert not file.busy
    server.broker.answer = [b"ok"]
    other = server.connect()
    server.send(other, framed(20))
    assert server.receive(other, 6) == OK


def test_a_peer_that_leaves_while_a_region_waits_lets_the_file_go(server, framed, tmp_path):
    disk = RealDisk(str(tmp_path), server.turns)
    file = disk.open("a.log", True)
    file.append([bytes(30_000_000)])
    server.broker.answer = [Region(file, 0, 30_000_000, file.generation)]
    sock = server.connect()
    server.send(sock, framed(20))
    server.steps(10)
    assert file.busy
    sock.close()
    server.until(lambda: server.broker.gone == 1)
    assert not file.busy
    file.close()
    assert len(disk.descriptors) == 0


def test_silence_ends_a_connection(make_server, framed):
    server = make_server(TrafficLimits(idle_ms=60_000))
    sock = server.connect()
    server.send(sock, framed(20))
    server.until(lambda: server.broker.frames == 1)
    (connection,) = server.traffic.connections
    for _quarter in range(4):
        connection.grow_older()
    assert server.traffic.connections
    server.send(sock, framed(20))
    server.until(lambda: server.broker.frames == 2)
    for _quarter in range(5):
        assert server.traffic.connections
        connection.grow_older()
    server.until(lambda: server.closed(sock))


def test_silence_is_counted_by_itself(make_server):
    server = make_server(TrafficLimits(idle_ms=20))
    sock = server.connect()
    server.until(lambda: server.closed(sock))


def test_a_parked_request_is_no_silence(server, framed):
    server.broker.answer = []
    sock = server.connect()
    server.send(sock, framed(20))
    server.until(lambda: server.broker.frames == 1)
    (connection,) = server.traffic.connections
    for _quarter in range(10):
        connection.grow_older()
    assert server.traffic.connections


def test_python_calls_of_the_shell_per_request(server, framed):
    """The hot path stays short: one more call here is one more for every request of every client."""
    count = 50
    server.broker.asks_time = False
    sock = server.connect()
    server.send(sock, framed(200))
    server.receive(sock, 6)
    (connection,) = server.traffic.connections
    calls = []

    def profile(caught, event, _argument):
        if event == "call":
            calls.append(caught.f_code.co_name)

    for _ in range(count):
        sock.setblocking(True)
        sock.sendall(framed(200))
        sys.setprofile(profile)
        connection.reader.on_readable()
        server.traffic.send_answers()
        sys.setprofile(None)
        assert sock.recv(100) == OK
    assert len(calls) / count <= 7, calls[:10]


def test_pipelined_requests_are_answered_with_one_send(server, framed):
    sock = server.connect()
    server.send(sock, framed(20))
    server.receive(sock, 6)
    (connection,) = server.traffic.connections
    sock.setblocking(True)
    sock.sendall(framed(20) * 100)
    calls = []

    def profile(caught, event, _argument):
        if event == "call" and caught.f_code.co_name == "flush":
            calls.append(1)

    sys.setprofile(profile)
    while server.broker.frames < 101:
        connection.reader.on_readable()
        server.traffic.send_answers()
    sys.setprofile(None)
    assert len(calls) <= 2
    assert server.receive(sock, 600) == OK * 100


def test_bytes_that_come_between_the_answer_and_the_parked_request_do_not_end_the_connection(server, framed):
    waiting = []

    def wait_for_the_first(slot, view):
        if not waiting:
            waiting.append(slot)
            return Gate.WAIT
        server.broker.network.send_reply(slot, [bytes(view[:8])])
        return Gate.NEXT

    server.traffic.on_frame = wait_for_the_first
    sock = server.connect()
    server.send(sock, framed(20, b"1") + framed(20, b"2"))
    server.until(lambda: bool(waiting))
    sock.send(framed(20, b"3"))
    server.broker.network.send_reply(waiting[0], [b"11111111"])  # the gate is open: the second request may start soon
    (connection,) = server.traffic.connections
    connection.reader.on_readable()  # the poller called it before the test did
    server.traffic.send_answers()
    assert server.receive(sock, 36) == b"".join(b"\0\0\0\x08" + digit * 8 for digit in (b"1", b"2", b"3"))


def connection_objects() -> list[object]:
    return [each for each in gc.get_objects() if type(each) in (Connection, RequestReader, ResponseQueue, RequestSlot)]


def test_nothing_of_a_closed_connection_waits_for_the_collector_of_cycles(server, framed):
    """Objects that survived a collection are frozen: in a cycle they would stay for ever."""
    server.broker.answer = []
    gc.collect()
    others = set(map(id, connection_objects()))  # of servers that other tests keep
    gc.disable()
    try:
        sock = server.connect()
        server.send(sock, framed(20) + framed(100_000)[:50_000])
        server.until(lambda: len(server.broker.slots) == 1)
        sock.close()
        server.until(lambda: server.broker.gone == 1)
        server.broker.network.send_reply(server.broker.slots.pop(), [b"late"])
        left = [each for each in connection_objects() if id(each) not in others]
    finally:
        gc.enable()
    assert left == []
