"""What a client of ZooKeeper meets besides the laws: kazoo's traps, servers that stop, processes that stand still.

Zone: real.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from testbench.ports import HOST
from testbench.process import stand_still
from testbench.zookeeper import ZooKeeper
from tests.contract.stores import LONG_MS, PATIENCE_S, TIMEOUT_MS, RealRig, ServedRig, ZooKeeperRig

from ottla.seams import Failure, Kind, Op, Session
from ottla.server.loop.poller import new_loop
from ottla.server.zookeeper.session import ZooKeeperSession

OPEN, SUSPENDED, EXPIRED = Session.OPEN, Session.SUSPENDED, Session.EXPIRED
PROCESS = """
import asyncio, sys
from ottla.seams import Failure, Op
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.zookeeper.store import ZooKeeperStore
from ottla.server.zookeeper.settings import ZooKeeperSettings

class Broker:
    asked = 0
    def on_session(self, state, session_id):
        print(state.name, session_id, flush=True)
        if state.name == "OPEN":
            store.submit_ops("me", [Op("ephemeral", "/me")], lambda outcome: print("registered", outcome, flush=True))
    def on_standstill(self): print("STOOD STILL", flush=True)
    def on_node(self, path): pass
    def end_turn(self): pass

def put():
    number = broker.asked = broker.asked + 1
    store.submit_ops("puts", [Op("put", "/a", b"%d" % number)], lambda outcome: told(number, outcome))
    loop.call_later(0.01, put)

def told(number, outcome):
    print("lost" if isinstance(outcome, Failure) else "put", number, flush=True)

loop = asyncio.new_event_loop()
queue = CompletionQueue(loop)
broker = Broker()
store = ZooKeeperStore(loop, queue, ZooKeeperSettings(sys.argv[1], sys.argv[2], 1500))
store.open_session(broker)
loop.call_soon(put)
loop.run_forever()
"""


@pytest.fixture
def rig(zookeeper: ZooKeeper) -> Iterator[ZooKeeperRig]:
    """A real server."""
    made = ZooKeeperRig(zookeeper)
    yield made
    made.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedRig]:
    """The supervisor's server."""
    made = ServedRig(tmp_path)
    yield made
    made.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of kazoo, in order."""
    calls: list[str] = []

    def noted(name: str):
        real = getattr(ZooKeeperSession, name)

        def ask(self, *arguments):
            calls.append(name)
            return real(self, *arguments)

        return ask

    for name in ("send_multi", "get_node", "get_children", "check_exists", "sync_server"):
        monkeypatch.setattr(ZooKeeperSession, name, noted(name))
    return calls


def spectator(rig: RealRig, **options) -> KazooClient:
    """kazoo, as people use it, without the chroot."""
    client = KazooClient("{}:{}".format(*rig.server), **options)
    client.start(PATIENCE_S)
    rig.stops += [client.stop, client.close]
    return client


# -- at the start ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_store_that_is_away_at_the_start_is_waited_for_and_named(served, caplog):
    one = served.start(timeout_ms=600, away=True)
    served.until(lambda: "still trying" in caplog.text)
    assert served.proxies[one].address in caplog.text
    assert one.told == []
    waiting = one.begin("get_node", "/", False)
    served.proxies[one].refuse(False)
    one.until(OPEN)
    served.until(lambda: bool(waiting))


@pytest.mark.slow
def test_an_address_where_nobody_listens_is_named_with_the_reason(served, caplog):
    one = served.start(timeout_ms=400, hosts="127.0.0.1:1")
    served.until(lambda: "still trying" in caplog.text)
    assert "127.0.0.1:1: Connection refused" in caplog.text
    assert one.store.failed is None


@pytest.mark.slow
def test_a_chroot_that_is_missing_is_refused(served):
    one = served.start(chroot="/nowhere")
    served.until(lambda: one.store.failed is not None)
    assert "/nowhere does not exist; create it" in one.store.failed.message
    served.run(50)
    assert one.told == []


@pytest.mark.interop
@pytest.mark.slow
def test_everything_lies_below_the_chroot(rig):
    one = rig.client()
    one.submit(Op("create", "/a"), Op("sequential", "/a/n-"))
    assert spectator(rig).get_children(f"{rig.chroot}/a") == ["n-0000000000"]
    one.children("/", watch=True)
    spectator(rig).create(f"{rig.chroot}/b")
    rig.until(lambda: one.nodes == ["/"])


@pytest.mark.interop
@pytest.mark.slow
def test_nodes_belong_to_whoever_shows_the_credentials(rig):
    one = rig.start(digest="broker:secret", set_acl=True)
    one.until(OPEN)
    one.submit(Op("create", "/config"), Op("create", "/config/users", b"1"), Op("create", "/config/topics", b"2"))
    stranger = spectator(rig)
    assert stranger.get(f"{rig.chroot}/config/topics")[0] == b"2"
    for ask in (
        lambda: stranger.set(f"{rig.chroot}/config/topics", b"x"),
        lambda: stranger.get(f"{rig.chroot}/config/users"),
        lambda: stranger.create(f"{rig.chroot}/config/x"),
    ):
        with pytest.raises(NoAuthError):
            ask()
    other = rig.client()
    with pytest.raises(Failure, match="/config/topics NoAuthError") as refused:
        other.submit(Op("put", "/config/topics", b"x"))
    assert refused.value.kind is Kind.NOT_DONE
    again = rig.start(digest="broker:secret", set_acl=True)
    again.until(OPEN)
    assert again.submit(Op("put", "/config/users", b"3")) == [("/config/users", 1)]


# -- what kazoo would do by itself -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_completions_and_watches_come_in_one_order(served):
    """Changes by another client: as long as a watch is set, no read shows anything new before its event."""
    one, two = served.client(), served.client()
    two.submit(Op("create", "/a", b"0"))
    watched: list[bytes] = []
    wrong: list[bytes] = []
    events: list[str] = []

    def look() -> None:
        one.store.get_node("/a", True, lambda node: watched.append(node.data))
        for _ in range(20):
            one.store.get_node("/a", False, seen)

    def seen(node) -> None:
        if watched and node.data != watched[-1]:
            wrong.append(node.data)

    def on_node(path: str) -> None:
        events.append(path)
        watched.clear()
        look()

    one.on_node = on_node
    look()
    for number in range(200):
        two.store.submit_ops("x", [Op("put", "/a", b"%d" % number)], lambda _: None)
    served.until(lambda: watched == [b"199"])
    assert len(events) > 10
    assert wrong == []


@pytest.mark.slow
def test_after_a_new_connection_the_first_thing_is_a_sync(served, asked):
    """Another server of an ensemble may know less than whoever reads again."""
    one = served.client()
    one.submit(Op("create", "/a"))
    asked.clear()
    served.cut(one)
    read = one.begin("get_node", "/a", False)
    served.until(lambda: bool(read))
    assert asked.index("sync_server") < len(asked) - 1 - asked[::-1].index("get_node")
    assert asked[asked.index("sync_server") :][:3] == ["sync_server", "check_exists", "get_node"]


@pytest.mark.slow
def test_requests_on_their_way_are_bounded_and_asking_never_waits(served, asked):
    """kazoo is woken through a socket that fills: asked too much at once, it would stop the loop."""
    one = served.client()
    asked.clear()
    served.hold(one)
    outcomes = [one.begin("submit_ops", f"lane {number}", [Op("create", f"/{number}")]) for number in range(1000)]
    reads = [one.begin("get_node", f"/{number}", False) for number in range(1000)]
    served.run(50)
    assert asked == ["send_multi"] * 10
    served.release(one)
    served.until(lambda: all(outcomes) and all(reads))
    assert one.states == [OPEN]
    assert all(outcome == [[(f"/{number}", 0)]] for number, outcome in enumerate(outcomes))


@pytest.mark.slow
def test_a_stop_ends_the_session_at_once_and_tells_nobody(served):
    one, two = served.client(), served.client()
    one.submit(Op("ephemeral", "/me"))
    served.settle()
    two.get("/me", watch=True)
    began = time.monotonic()
    one.store.close_session()
    served.until(lambda: two.nodes == ["/me"])
    assert time.monotonic() - began < LONG_MS / 1000 - 5, "it took the session's time-out"
    served.run(50)
    assert one.states == [OPEN]


@pytest.mark.slow
def test_a_process_that_comes_back_quickly_finds_its_own_old_node(served):
    one, two = served.client(TIMEOUT_MS), served.client()
    one.submit(Op("ephemeral", "/me"))
    served.hold(one)
    with pytest.raises(Failure) as refused:
        two.submit(Op("ephemeral", "/me"))
    assert refused.value.kind is Kind.CONFLICT
    assert two.get("/me", watch=True).owner == one.sessions[0]
    served.until(lambda: two.nodes == ["/me"])
    assert two.submit(Op("ephemeral", "/me")) == [("/me", 0)]


# -- servers and processes that stand still ----------------------------------------------------------------------------


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.parametrize("busy", [False, True])
def test_a_server_that_stands_still_is_noticed(rig, zookeeper, busy):
    one = rig.client(TIMEOUT_MS)
    rig.settle()
    zookeeper.servers[0].pause()
    try:
        number = 0
        while EXPIRED not in one.states:
            number += 1
            if busy:
                one.begin("submit_ops", f"{number}", [Op("check", "/")])
            rig.run(50)
    finally:
        zookeeper.servers[0].resume()
    assert one.states == [OPEN, SUSPENDED, EXPIRED]
    one.until(SUSPENDED, EXPIRED, OPEN)
    assert len(one.sessions) == 2


@pytest.mark.interop
@pytest.mark.slow
def test_the_session_outlives_the_leader_of_the_ensemble(tmp_path):
    with ZooKeeper(tmp_path, servers=3) as ensemble:
        leader = ensemble.leader
        rig = RealRig(new_loop()[0], HOST, 1, "")
        one = rig.start(timeout_ms=10_000, hosts=ensemble.connect)
        one.until(OPEN)
        one.submit(Op("create", "/a", b"0"), Op("ephemeral", "/me"))
        leader.kill()
        number = written = 0
        while written < 20:
            number += 1
            (outcome,) = waited(rig, one.begin("submit_ops", "x", [Op("put", "/a", b"%d" % number)]))
            written += not isinstance(outcome, Failure)
        assert one.get("/a").data == b"%d" % number
        assert one.get("/me").owner == one.sessions[0]
        assert len(one.sessions) == 1
        rig.close()


def waited(rig: RealRig, outcomes: list) -> list:
    rig.until(lambda: bool(outcomes))
    return outcomes


@pytest.mark.interop
@pytest.mark.slow
def test_a_process_that_stood_still_beyond_its_session_knows_it_first(rig):
    two = rig.client()
    two.submit(Op("create", "/a"))
    command = [sys.executable, "-c", PROCESS, "{}:{}".format(*rig.server), rig.chroot]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = iter(process.stdout.readline, "")
            assert next(lines).startswith("OPEN")
            while not next(lines).startswith("put"):
                pass
            assert two.get("/me", watch=True) is not None
            stand_still(process.pid)
            rig.until(lambda: two.nodes == ["/me"])
            value = two.get("/a").data
            os.kill(process.pid, signal.SIGCONT)
            told = []
            while not told or not told[-1].startswith("OPEN"):
                told.append(next(lines))
        finally:
            process.kill()
    states = [line.split()[0] for line in told]
    before = told[: states.index("EXPIRED")]
    late = [line for line in before if line.startswith("put") and int(line.split()[1]) > int(value)]
    assert late == [], "something was carried out for a session that was over"
    assert len({line.split()[1] for line in told if line.startswith(("OPEN", "EXPIRED"))}) == 2, "another session"
