"""A broker whose metadata store is in another process: its shell and `zookeeper.connect`.

Zone: real.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from ottla.config.broker import BrokerConfig
from ottla.metrics import Registry
from ottla.seams import Failure, Op, Session
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.loop.poller import new_loop
from ottla.server.service import Service
from ottla.server.zookeeper.outside_store import outside_store
from ottla.server.zookeeper.znode_server import ZnodeServer


class Staged:
    """A broker that becomes ready when it has written to its store."""

    def __init__(self, _config, world, _listener) -> None:
        self.world = world
        self.told = []
        self.ready = self.listening = False
        self.failed = None
        self.metrics = Registry()

    def find_address_limit(self, _address):
        return None

    def start_broker(self, _endpoints):
        self.told.append("start")

    def on_session(self, state, session_id):
        self.told.append(state)
        if state is Session.OPEN:
            self.world.store.submit_ops("me", [Op("ephemeral", "/me", b"%d" % session_id)], self.written)

    def on_standstill(self):
        self.told.append("stood still")

    def written(self, outcome):
        self.told.append(outcome)
        self.ready = self.listening = True

    def on_frame(self, _slot, _frame):
        raise AssertionError("this broker gets no requests")

    def on_gone(self, _peer):
        raise AssertionError("this broker has no connections")

    def end_turn(self):
        """Do nothing."""

    def run_background(self, _budget_ns):
        return False

    def hand_over_leaderships(self, done, hand_over=True):
        done()

    def stop_broker(self, done):
        self.told.append("stop")
        self.world.disks[0].replace_file("marker", b"clean", done)


@pytest.fixture
def served(tmp_path) -> Iterator[ZnodeServer]:
    """A store on a thread of its own."""
    loop = asyncio.new_event_loop()
    (tmp_path / "store").mkdir()
    server = ZnodeServer(loop, str(tmp_path / "store"))
    server.load_store()
    loop.run_until_complete(server.start_listening("127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield server
    asyncio.run_coroutine_threadsafe(server.stop_serving(), loop).result(180)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def configured(tmp_path, connect: str) -> BrokerConfig:
    keys = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path / "data"),
        "zookeeper.connect": connect,
        "zookeeper.session.timeout.ms": "4000",
    }
    return BrokerConfig.from_properties(keys)[0]


def test_the_broker_gets_the_store_and_its_session(tmp_path, served):
    made = []

    def make(config, world, listener):
        made.append(Staged(config, world, listener))
        return made[0]

    service = Service(configured(tmp_path, f"127.0.0.1:{served.port}"), make)
    assert service.run_until_stopped(service.ask_to_stop)
    assert made[0].told == ["start", Session.OPEN, [("/me", 0)], "stop"]
    assert served.tree.get_node("/me") is None, "the session ended with the broker"


@pytest.mark.slow
def test_a_standstill_is_told_although_the_watchdog_has_seen_the_end_of_the_session_first(tmp_path, served):
    told = []
    loop, watch = new_loop()
    store = outside_store(configured(tmp_path, f"127.0.0.1:{served.port}"), loop, CompletionQueue(loop))
    one, other = socket.socketpair()

    class Broker:
        def on_session(self, state, _session_id):
            told.append(state)
            if state is Session.OPEN:
                one.send(b"x")

        def on_standstill(self):
            told.append("stood still")

        def end_turn(self):
            """Do nothing."""

    def stand_still():
        """Stop all threads for longer than the session, in a connection's turn: timers run before the clock check."""
        watch.unwatch_read(other.fileno())
        ctypes.PyDLL(None).usleep(4_300_000)
        loop.call_later(0, time.sleep, 0.5)  # after the watchdog: the next session is already connected
        loop.call_later(0.1, loop.stop)

    watch.watch_read(other.fileno(), stand_still)
    watch.on_standstill(store.standstill_ns, store.on_standstill)
    store.open_session(Broker())
    loop.run_forever()
    store.close_session()
    loop.close()
    one.close()
    other.close()
    assert told[:3] == [Session.OPEN, Session.EXPIRED, "stood still"]


def test_a_path_that_is_missing_ends_the_start(tmp_path, served):
    service = Service(configured(tmp_path, f"127.0.0.1:{served.port}/nowhere"), Staged)
    with pytest.raises(Failure, match="the path /nowhere does not exist"):
        service.run_until_stopped(service.ask_to_stop)


def test_a_client_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kazoo", None)
    for name in ("ottla.server.zookeeper.store", "ottla.server.zookeeper.session"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    loop, _ = new_loop()
    with pytest.raises(Failure, match=r"the package kazoo: pip install 'ottla\[cluster\]'"):
        outside_store(configured(tmp_path, "localhost"), loop, CompletionQueue(loop))
    assert outside_store(BrokerConfig(), loop, CompletionQueue(loop)) is None
    loop.close()
