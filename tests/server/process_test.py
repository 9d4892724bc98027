"""The parts of a broker process: lock, log lines, worker, listener limits.

Zone: real.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import pickle
import resource
import socket
import struct
import subprocess
import sys
import time

import pytest

from ottla.config.broker import BrokerConfig
from ottla.seams import Failure, Kind
from ottla.server import logs
from ottla.server.connections.buffers import BufferPool
from ottla.server.connections.listener import ConnectionLimits, Listener, Quotas, is_loopback
from ottla.server.disks.data_dir_lock import DirectoryLock
from ottla.server.limits import raise_descriptor_limit
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.loop.workers import JobLimits, RealWorkers
from ottla.server.shell import _connection_limits
from ottla.types import Endpoint

HOLD = """
import sys
from ottla.server.disks.data_dir_lock import DirectoryLock
lock = DirectoryLock(sys.argv[1])
print("locked", flush=True)
sys.stdin.read()
"""


# -- the lock --------------------------------------------------------------------------------------------------------


def test_a_second_broker_of_this_process_is_refused(tmp_path):
    lock = DirectoryLock(str(tmp_path))
    assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
    with pytest.raises(Failure) as refused:
        DirectoryLock(str(tmp_path))
    assert refused.value.kind is Kind.CONFLICT
    assert f"process {os.getpid()}" in refused.value.message
    lock.release_lock()
    DirectoryLock(str(tmp_path)).release_lock()


def test_a_second_process_is_refused_until_the_first_has_died(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises(Failure, match=f"process {holder.pid}"):
        DirectoryLock(str(tmp_path))
    holder.kill()
    holder.communicate()
    DirectoryLock(str(tmp_path)).release_lock()


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(Failure, match="missing"):
        DirectoryLock(str(tmp_path / "missing"))


# -- log lines -------------------------------------------------------------------------------------------------------


@pytest.fixture
def lines():
    logger = logging.getLogger("ottla")
    before = (list(logger.handlers), logger.propagate, logger.level)
    yield io.StringIO()
    logger.handlers[:], logger.propagate = before[0], before[1]
    logger.setLevel(before[2])


def test_lines_look_like_kafkas(lines):
    logs.configure_logging("INFO", stream=lines)
    log = logging.getLogger("ottla.server.test")
    log.warning("disk %s is slow", "a")
    log.debug("unseen")
    stamp, _, rest = lines.getvalue().partition("] ")
    assert rest == "WARN disk a is slow (ottla.server.test)\n"
    time.strptime(stamp[1:].partition(",")[0], "%Y-%m-%d %H:%M:%S")


def test_lines_as_json_are_one_object_each(lines):
    logs.configure_logging("TRACE", "json", lines)
    log = logging.getLogger("ottla.server.test")
    log.debug('with "quotes"\nand lines')
    try:
        raise ValueError("cause")
    except ValueError:
        log.exception("failed")
    first, second = map(json.loads, lines.getvalue().splitlines())
    assert (first["level"], first["logger"]) == ("DEBUG", "ottla.server.test")
    assert first["message"] == 'with "quotes"\nand lines'
    assert "ValueError: cause" in second["exception"]


# -- the worker ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_worker_that_dies_over_a_job_is_replaced():
    loop = asyncio.new_event_loop()
    turns = CompletionQueue(loop)
    workers = RealWorkers(turns)
    done = []
    for n in range(5):
        workers.run_job("os:_exit", (3,), done.append)
        workers.run_job("operator:concat", (bytes(300_000), b"%d" % n), done.append)
    end = time.monotonic() + 180
    while len(done) < 10 and time.monotonic() < end:
        loop.call_soon(loop.stop)
        loop.run_forever()
    assert [outcome.kind for outcome in done[::2]] == [Kind.UNKNOWN] * 5
    assert [outcome[-1:] for outcome in done[1::2]] == [b"0", b"1", b"2", b"3", b"4"]
    workers.stop_processes()
    turns.stop_threads()
    loop.close()


@pytest.mark.slow
def test_what_a_job_prints_does_not_disturb_its_answer():
    loop = asyncio.new_event_loop()
    turns = CompletionQueue(loop)
    workers = RealWorkers(turns)
    done = []
    workers.run_job("builtins:print", ("hello",), done.append)
    end = time.monotonic() + 180
    while not done and time.monotonic() < end:
        loop.call_soon(loop.stop)
        loop.run_forever()
    assert done == [None]
    workers.stop_processes()
    turns.stop_threads()
    loop.close()


@pytest.mark.slow
@pytest.mark.parametrize("midst", [True, False], ids=["in the midst of a job", "before the answer"])
def test_a_worker_whose_broker_was_killed_ends_without_a_word(midst):
    worker = subprocess.Popen(
        [sys.executable, "-m", "ottla.server.loop.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    job = pickle.dumps(("operator:concat", (bytes(300_000), b"")))
    framed_job = struct.pack(">Q", len(job)) + job
    worker.stdout.close()
    worker.stdin.write(framed_job[:-1] if midst else framed_job)
    _, told = worker.communicate(timeout=180)
    assert told == b""


# -- listeners -------------------------------------------------------------------------------------------------------

RESERVE = ConnectionLimits().loopback_reserve


def far(**limits) -> ConnectionLimits:
    """Limits that treat peers of this machine as remote ones."""
    return ConnectionLimits(loopback_reserve=0, **limits)


def test_connections_beyond_max_connections_are_closed_until_there_is_room(make_server, framed, caplog):
    server = make_server(connection_limits=far(total=2))
    first, _second, third = (server.connect() for _ in range(3))
    server.until(lambda: server.closed(third))
    assert len(server.traffic.connections) == 2
    assert any("max.connections=2 is reached" in record.getMessage() for record in caplog.records)
    first.close()
    server.until(lambda: len(server.traffic.connections) == 1)
    server.send(server.connect(), framed(20))
    server.until(lambda: server.broker.frames == 1)


def test_a_higher_max_connections_counts_from_then_on(make_server, framed):
    server = make_server(connection_limits=far(total=0))
    first = server.connect()
    server.until(lambda: server.closed(first))
    server.quotas.set_limits(far(total=1))
    server.send(server.connect(), framed(20))
    server.until(lambda: server.broker.frames == 1)


@pytest.mark.parametrize("limits", [ConnectionLimits(total=0), ConnectionLimits(per_address=0)])
def test_ten_connections_of_this_machine_are_admitted_beyond_every_limit(make_server, framed, limits):
    """Otherwise a limit that was set too low could never be changed again."""
    server = make_server(connection_limits=limits)
    operators = [server.connect() for _ in range(RESERVE)]
    eleventh = server.connect()
    server.until(lambda: server.closed(eleventh))
    assert len(server.traffic.connections) == RESERVE
    operators.pop().close()
    server.until(lambda: len(server.traffic.connections) == RESERVE - 1)
    server.send(server.connect(), framed(20))
    server.until(lambda: server.broker.frames == 1)


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.1", False),
     ("::ffff:10.0.0.1", False), ("fe80::1%eth0", False)],
)  # fmt: skip
def test_which_peers_are_of_this_machine(address, expected):
    assert is_loopback(address) is expected


def test_the_listener_between_brokers_is_not_held_by_max_connections(make_server):
    server = make_server(connection_limits=ConnectionLimits(total=1, protected="INTERNAL"))
    assert server.quotas.admit_connection("INTERNAL", "10.0.0.1") is None
    assert server.quotas.admit_connection("INTERNAL", "10.0.0.2") is None
    assert server.quotas.admit_connection("PLAINTEXT", "10.0.0.3") == "max.connections=1"


def test_connections_beyond_max_connections_per_ip_are_closed(make_server, framed, caplog):
    server = make_server(connection_limits=far(per_address=1))
    server.connect()
    server.steps()
    second = server.connect()
    server.until(lambda: server.closed(second))
    assert any("max.connections.per.ip" in record.getMessage() for record in caplog.records)


def test_an_override_per_address_wins(make_server, framed):
    server = make_server(connection_limits=far(per_address=1, exceptions={"127.0.0.1": 3}))
    for _ in range(3):
        server.connect()
    fourth = server.connect()
    server.until(lambda: server.closed(fourth))
    assert len(server.traffic.connections) == 3


def test_a_process_without_descriptors_accepts_again_later(server, framed, caplog):
    sock = server.connect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    lowest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(used, lowest) + 1, hard))
        try:
            while True:
                fillers.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        server.send(sock, framed(20))
        server.steps()
        assert not server.traffic.connections
        assert any("ulimit -n" in record.getMessage() for record in caplog.records)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fillers:
            os.close(fd)
    server.until(lambda: server.broker.frames == 1)


def test_a_port_that_is_taken_is_named(server):
    with pytest.raises(Failure, match=f"PLAINTEXT://127.0.0.1:{server.port}"):
        Listener(
            server.traffic, Quotas(server.traffic, ConnectionLimits()), Endpoint("PLAINTEXT", "127.0.0.1", server.port)
        )


def test_an_empty_host_is_every_interface(server, framed):
    listener = Listener(server.traffic, Quotas(server.traffic, ConnectionLimits()), Endpoint("PLAINTEXT", "", 0))
    listener.start_accepting()
    sock = socket.create_connection(("127.0.0.1", listener.endpoint.port))
    server.clients.append(sock)
    sock.setblocking(False)
    server.send(sock, framed(20))
    server.until(lambda: server.broker.frames == 1)
    listener.stop_accepting()


@pytest.mark.parametrize(
    ("given", "send", "receive"),
    [
        ({}, 102_400, -1),
        ({"socket.send.buffer.bytes": "20000", "socket.receive.buffer.bytes": "30000"}, 20_000, 30_000),
    ],
)
def test_sockets_have_the_buffers_that_the_settings_say(make_server, given, send, receive):
    config = BrokerConfig.from_properties(given)[0]
    server = make_server(connection_limits=_connection_limits(config))
    server.connect()
    server.until(lambda: bool(server.traffic.connections))
    sock = next(iter(server.traffic.connections))._sock
    # Linux doubles the given size, for its own bookkeeping.
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) in (send, 2 * send)
    received = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    assert received in (receive, 2 * receive) or (receive < 0 and received not in (102_400, 204_800))


def test_minus_one_leaves_the_buffers_to_the_system(make_server):
    server = make_server(connection_limits=ConnectionLimits())
    server.connect()
    server.until(lambda: bool(server.traffic.connections))
    sock = next(iter(server.traffic.connections))._sock
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) not in (102_400, 204_800)


# -- memory and limits -----------------------------------------------------------------------------------------------


def test_the_pool_keeps_a_few_big_buffers():
    pool = BufferPool(limit=300_000)
    first = pool.take_buffer(100_000)
    assert len(first) >= 100_000
    pool.give_buffer(first)
    assert pool.take_buffer(90_000) is first
    pool.give_buffer(first)
    assert pool.take_buffer(10_000) is not first
    assert pool.take_buffer(1_000_000) is not first
    pool.give_buffer(bytearray(200_000))
    assert len(pool.take_buffer(150_000)) != 200_000


def test_the_descriptor_limit_is_raised_as_far_as_allowed():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1_000), hard))
        assert raise_descriptor_limit() == min(hard, 1_048_576)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- workers: bounds and turns ---------------------------------------------------------------------------------------


@pytest.fixture
def crews():
    """`crews(limits…)`: workers, and a function that waits until a number of jobs have ended."""
    loop = asyncio.new_event_loop()
    turns = CompletionQueue(loop)
    made = []

    def make(*limits):
        made.append(RealWorkers(turns, *limits))
        return made[-1]

    def wait(done, count):
        end = time.monotonic() + 180
        while len(done) < count and time.monotonic() < end:
            loop.call_soon(loop.stop)
            loop.run_forever()
        assert len(done) == count

    yield make, wait
    for workers in made:
        workers.stop_processes()
    turns.stop_threads()
    loop.close()


@pytest.mark.slow
def test_a_job_that_takes_too_long_fails_and_the_next_one_runs(crews):
    make, wait = crews
    workers = make(JobLimits(4.0, 1 << 30, 1))
    done = []
    workers.run_job("time:sleep", (600,), done.append, "a")
    workers.run_job("operator:add", (1, 2), done.append, "a")
    wait(done, 2)
    assert isinstance(done[0], Failure)
    assert (done[0].kind, done[1]) == (Kind.TIMEOUT, 3)
    assert "time:sleep took longer than 4 s" in done[0].message


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the address space is bounded on Linux only")
def test_a_job_that_needs_too_much_memory_fails_and_the_next_one_runs(crews):
    make, wait = crews
    workers = make(JobLimits(60, 1 << 28, 1))
    done = []
    workers.run_job("operator:mul", (b"x", 1 << 30), done.append, "a")
    workers.run_job("operator:add", (1, 2), done.append, "a")
    wait(done, 2)
    assert isinstance(done[0], Failure)
    assert (done[0].kind, done[1]) == (Kind.FULL, 3)


@pytest.mark.slow
def test_a_request_waits_neither_for_compaction_nor_for_another_connection(crews):
    make, wait = crews
    workers = make(JobLimits(60, 1 << 30, 2), JobLimits(60, 1 << 30, 1))
    held, done = [], []
    workers.run_job("time:sleep", (600,), held.append)
    for _ in range(5):
        workers.run_job("time:sleep", (600,), held.append, "hostile")
    for n in range(3):
        workers.run_job("operator:add", (n, 0), done.append, "victim")
    wait(done, 3)
    assert (done, held) == ([0, 1, 2], [])


@pytest.mark.slow
def test_owners_take_turns(crews):
    make, wait = crews
    workers = make(JobLimits(60, 1 << 30, 1))
    done = []
    for n in range(4):
        workers.run_job("operator:add", (n, 0), done.append, "first")
    for n in range(2):
        workers.run_job("operator:add", (n, 100), done.append, "second")
    wait(done, 6)
    assert done == [0, 100, 1, 101, 2, 3]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the address space is bounded on Linux only")
def test_after_a_job_that_needs_too_much_memory_there_is_a_fresh_process(crews):
    make, wait = crews
    workers = make(JobLimits(60, 1 << 28, 1))
    done = []
    for job, arguments in (("os:getpid", ()), ("os:getpid", ()), ("operator:mul", (b"x", 1 << 30)), ("os:getpid", ())):
        workers.run_job(job, arguments, done.append, "a")
    wait(done, 4)
    assert done[0] == done[1] != done[3]
    assert done[2].kind is Kind.FULL
