"""The selector under the loop: asyncio's own descriptors together with connections.

Zone: real.
"""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from ottla.server.loop.poller import CROWD, FEW, LoopWatch, new_loop, steady_ns

LONG_NS = 20_000_000


@pytest.fixture(params=["own", "asyncio"])
def world(request):
    """A loop, its watch and a pair of sockets; for both kinds of watch."""
    loop, watch = new_loop() if request.param == "own" else _plain()
    here, there = socket.socketpair()
    for sock in (here, there):
        sock.setblocking(False)
    yield loop, watch, here, there
    watch.unwatch_read(here.fileno())
    watch.unwatch_write(here.fileno())
    here.close()
    there.close()
    loop.close()


def _plain():
    loop = asyncio.new_event_loop()
    return loop, LoopWatch(loop)


def rounds(loop, count=3):
    for _ in range(count):
        loop.call_soon(loop.stop)
        loop.run_forever()


def test_reading_until_told_otherwise(world):
    loop, watch, here, there = world
    calls = []
    watch.watch_read(here.fileno(), lambda: calls.append(here.recv(1)))
    rounds(loop)
    assert calls == []
    there.send(b"ab")
    rounds(loop)
    assert calls == [b"a", b"b"]
    watch.unwatch_read(here.fileno())
    watch.unwatch_read(here.fileno())
    there.send(b"c")
    rounds(loop)
    assert calls == [b"a", b"b"]


def test_reading_and_writing_are_independent(world):
    loop, watch, here, there = world
    calls = []
    watch.watch_read(here.fileno(), lambda: calls.append("read") or here.recv(1))
    watch.watch_write(here.fileno(), lambda: calls.append("write"))
    rounds(loop, 2)
    assert set(calls) == {"write"}
    there.send(b"a")
    rounds(loop)
    assert "read" in calls
    watch.unwatch_write(here.fileno())
    calls.clear()
    there.send(b"b")
    rounds(loop)
    assert calls == ["read"]


def test_the_end_of_the_peer_is_something_to_read(world):
    loop, watch, here, there = world
    calls = []
    watch.watch_read(here.fileno(), lambda: calls.append(here.recv(1)) or watch.unwatch_read(here.fileno()))
    there.close()
    rounds(loop)
    assert calls == [b""]


def test_in_a_crowd_what_comes_meanwhile_is_served_at_once_but_not_for_ever():
    loop, watch = new_loop()
    pairs = [socket.socketpair() for _ in range(CROWD)]
    served = []

    def reader(at):
        def read():
            pairs[at][0].recv(1)
            served.append(at)
            pairs[(at + 1) % CROWD][1].send(b"x")

        return read

    try:
        for at, (here, _) in enumerate(pairs):
            watch.watch_read(here.fileno(), reader(at))
        pairs[0][1].send(b"x")
        watch.select(0)
        assert served == list(range(FEW)), "each call triggers the next; then the rest of the loop gets its turn"
        watch.unwatch_read(pairs[-1][0].fileno())
        watch.select(0)
        assert served == list(range(FEW + 1)), "too few connections"
    finally:
        for here, there in pairs:
            watch.unwatch_read(here.fileno())
            here.close()
            there.close()
        loop.close()


def test_the_end_of_a_round_is_told_where_something_waits_for_it(world):
    loop, watch, here, there = world
    other, far = socket.socketpair()
    other.setblocking(False)
    waiting, ends = [], []
    watch.on_served(waiting, lambda: ends.append(waiting.copy()) or waiting.clear())
    watch.watch_read(here.fileno(), lambda: waiting.append(here.recv(1)))
    watch.watch_read(other.fileno(), lambda: waiting.append(other.recv(1)))
    there.send(b"a")
    far.send(b"b")
    rounds(loop)
    assert ends == ([[b"a"], [b"b"]] if isinstance(watch, LoopWatch) else [[b"a", b"b"]])
    watch.watch_read(other.fileno(), lambda: other.recv(1))
    far.send(b"c")
    rounds(loop)
    assert len(ends) == 1 + isinstance(watch, LoopWatch), "nothing waited"
    watch.unwatch_read(other.fileno())
    other.close()
    far.close()


def test_the_end_of_a_round_is_told_where_a_callback_fails(world):
    loop, watch, here, there = world
    loop.set_exception_handler(lambda *_: None)
    other, far = socket.socketpair()
    other.setblocking(False)
    waiting = []
    watch.on_served(waiting, waiting.clear)

    def fail():
        other.recv(1)
        raise ValueError

    watch.watch_read(here.fileno(), lambda: waiting.append(here.recv(1)))
    watch.watch_read(other.fileno(), fail)
    there.send(b"a")
    far.send(b"b")
    rounds(loop)
    assert not waiting
    watch.unwatch_read(other.fileno())
    other.close()
    far.close()


def test_a_connection_closed_by_an_earlier_callback_is_not_called(world):
    loop, watch, here, there = world
    other, far = socket.socketpair()
    calls = []

    def close_both():
        calls.append(1)
        for sock in (here, other):
            watch.unwatch_read(sock.fileno())

    watch.watch_read(here.fileno(), close_both)
    watch.watch_read(other.fileno(), close_both)
    there.send(b"a")
    far.send(b"a")
    rounds(loop)
    assert calls == [1] or isinstance(watch, LoopWatch)
    other.close()
    far.close()


def test_what_escapes_a_callback_goes_to_the_loops_handler(world):
    loop, watch, here, there = world
    errors = []
    loop.set_exception_handler(lambda _loop, context: errors.append(context["exception"]))
    watch.watch_read(here.fileno(), lambda: here.recv(1) and 1 // 0)
    there.send(b"a")
    rounds(loop)
    assert [type(error) for error in errors] == [ZeroDivisionError]


def test_the_rest_of_asyncio_works_beside_it(world):
    """Timers, threads, subprocess-like pipes, tasks and real transports, over the same selector."""
    loop, _watch, _here, _there = world
    readable, writable = os.pipe()
    seen = []
    came = asyncio.Event()

    def take():
        seen.append(os.read(readable, 10))
        came.set()

    loop.add_reader(readable, take)
    loop.call_later(0.002, os.write, writable, b"late")

    async def story():
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        assert await loop.run_in_executor(None, sum, [1, 2]) == 3
        await asyncio.wait_for(came.wait(), 180)

    loop.run_until_complete(story())
    loop.run_until_complete(loop.shutdown_default_executor())
    assert seen == [b"late"]
    loop.remove_reader(readable)
    os.close(readable)
    os.close(writable)


def test_who_stood_still_hears_of_it_before_any_connection():
    loop, watch = new_loop()
    here, there = socket.socketpair()
    seen = []

    def hang():
        watch.on_standstill(LONG_NS, lambda: seen.append("stood still"))
        watch.watch_read(here.fileno(), read)
        there.send(b"x")
        deadline = steady_ns() + LONG_NS
        while steady_ns() < deadline:
            pass

    def read():
        here.recv(1 << 20)
        seen.append("read")

    try:
        loop.call_soon(hang)
        rounds(loop, 1)
        rounds(loop, 3)
        assert seen[:2] == ["stood still", "read"]
        assert seen.count("stood still") == 1
    finally:
        watch.unwatch_read(here.fileno())
        here.close()
        there.close()
        loop.close()


def test_a_connection_that_takes_long_is_a_standstill_for_the_next_one():
    loop, watch = new_loop()
    pairs = [socket.socketpair() for _ in range(2)]
    seen = []

    def reader(here):
        def read():
            here.recv(1)
            seen.append("read")
            deadline = steady_ns() + LONG_NS
            while steady_ns() < deadline:
                pass

        return read

    try:
        watch.on_standstill(LONG_NS, lambda: seen.append("stood still"))
        for here, there in pairs:
            watch.watch_read(here.fileno(), reader(here))
            there.send(b"x")
        rounds(loop, 1)
        assert seen[-3:] == ["read", "stood still", "read"]
    finally:
        for here, there in pairs:
            watch.unwatch_read(here.fileno())
            here.close()
            there.close()
        loop.close()
