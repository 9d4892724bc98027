"""Rigs for the metadata store: one per engine, with the faults that it can have.

Zone: real. No test knows which engine it has; a rig with connections can break and silence them.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kazoo.client import KazooClient
from testbench.proxy import Proxy
from testbench.zookeeper import ZooKeeper

from ottla.effects import Effects
from ottla.seams import Failure, Op, Session
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.loop.poller import new_loop
from ottla.server.zookeeper.session import ENDING
from ottla.server.zookeeper.settings import ZooKeeperSettings
from ottla.server.zookeeper.store import ZooKeeperStore
from ottla.server.zookeeper.znode_server import ZnodeServer
from ottla.sim.disks.disk import SimDisk
from ottla.sim.disks.drive import Drive
from ottla.sim.disks.drive_faults import DriveFaults
from ottla.sim.entropy import Streams
from ottla.sim.machines.ensemble import STORE_NODES, Ensemble
from ottla.sim.machines.machine import Machine
from ottla.sim.machines.store import SimStore
from ottla.sim.networks.network import FOREVER
from ottla.sim.networks.network import Network as SimNetwork
from ottla.sim.world import MS, SECOND, Timeline
from ottla.znodes.local_session import LocalSession
from ottla.znodes.store import EmbeddedStore

TIMEOUT_MS = 2000
"""Of a session whose end a test waits for."""
LONG_MS = 30_000
"""Of all other sessions: a busy machine ends none of them."""
PATIENCE_S = 180
"""The time of a broken world, not a measurement."""


class Client:
    """A broker as far as its store goes: it notes what it is told, and asks."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.store = None
        self.told: list[object] = []
        self.inside = 0

    def on_session(self, state: Session, session_id: int) -> None:
        self.told.append((state, session_id))

    def on_standstill(self) -> None:
        """Nothing is led here."""

    def on_node(self, path: str) -> None:
        self.told.append(path)

    def end_turn(self) -> None:
        """Nothing is left to do."""

    def run_background(self, _budget_ns: int) -> bool:
        return False

    @property
    def states(self) -> list[Session]:
        return [entry[0] for entry in self.told if isinstance(entry, tuple)]

    @property
    def sessions(self) -> list[int]:
        """Ids of the sessions that were opened, each once."""
        return list(dict.fromkeys(entry[1] for entry in self.told if isinstance(entry, tuple)))

    @property
    def nodes(self) -> list[str]:
        return [entry for entry in self.told if isinstance(entry, str)]

    def begin(self, what: str, *arguments) -> list:
        """Ask; the list gets the outcome, once."""
        outcomes: list = []

        def done(outcome: object) -> None:
            assert self.inside == 0, "done was called before the call that took it had returned"
            outcomes.append(outcome)
            assert len(outcomes) == 1, "done was called twice"

        self.inside += 1
        getattr(self.store, what)(*arguments, done)
        self.inside -= 1
        return outcomes

    def ask(self, what: str, *arguments):
        """Ask and wait: the value, or the Failure raised."""
        outcomes = self.begin(what, *arguments)
        self.rig.until(lambda: bool(outcomes))
        if isinstance(outcomes[0], Failure):
            raise outcomes[0]
        return outcomes[0]

    def submit(self, *ops: Op, lane: str = "lane"):
        return self.ask("submit_ops", lane, ops)

    def get(self, path: str, watch: bool = False):
        return self.ask("get_node", path, watch)

    def children(self, path: str, watch: bool = False):
        return list(self.ask("get_children", path, watch))

    def until(self, *states: Session) -> None:
        """Until it is told these states, as the last ones."""
        self.rig.until(lambda: tuple(self.states[-len(states) :]) == states)


class Rig:
    """One store, and clients."""

    def client(self, timeout_ms: int = LONG_MS) -> Client:
        """A client with an open session."""
        raise NotImplementedError

    def until(self, holds: Callable[[], bool]) -> None:
        """Run the world until a condition holds."""
        raise NotImplementedError

    def run(self, ms: int) -> None:
        """Let time pass."""
        raise NotImplementedError

    def expire(self, client: Client) -> None:
        """The store ends the client's session."""
        raise NotImplementedError

    def settle(self) -> None:
        """Let the store tell what it has to tell: what happens, has happened by then."""
        raise NotImplementedError

    def close(self) -> None:
        """The end."""


class EmbeddedRig(Rig):
    """The embedded store in its own process, on a simulated disk."""

    def __init__(self, _directory: Path) -> None:
        self.timeline = Timeline()
        drive = Drive("data")
        self.machine = Machine(1, self.timeline, Streams(1), [drive])
        self.process = self.machine.boot_process()
        self.effects = Effects()
        self.process.inputs = self
        disk = SimDisk(drive, DriveFaults(), self.process)
        self.engine = EmbeddedStore(disk, self.process.clock, self.effects.queue_effect)
        self.engine.load_files()

    def end_turn(self) -> None:
        self.effects.drain_effects()

    def run_background(self, _budget_ns: int) -> bool:
        return False

    def client(self, timeout_ms: int = LONG_MS) -> Client:  # a session in the store's process has none
        client = Client(self)
        client.store = LocalSession(self.engine, client.on_node, client.on_session).begin_session()
        client.until(Session.OPEN)
        return client

    def until(self, holds: Callable[[], bool]) -> None:
        self.effects.drain_effects()
        limit = self.timeline.now_ns + 3600 * SECOND
        held = self.timeline.run_while(lambda: not holds() and not self.machine.crashes, limit)
        assert not self.machine.crashes, self.machine.crashes[0]
        assert held, "the world stands still"

    def run(self, ms: int) -> None:
        self.effects.drain_effects()
        self.timeline.run_until(self.timeline.now_ns + ms * MS)

    def settle(self) -> None:
        self.run(1000)

    def expire(self, client: Client) -> None:
        self.engine.expire_session(client.sessions[-1])


class SimRig(Rig):
    """The simulated ensemble."""

    def __init__(self, _directory: Path) -> None:
        self.timeline = Timeline()
        self.streams = Streams(1)
        self.network = SimNetwork(self.timeline, self.streams.named_stream("net"))
        self.ensemble = Ensemble(self.timeline, self.network, self.streams.named_stream("store"))
        self.machines: dict[Client, Machine] = {}

    def client(self, timeout_ms: int = LONG_MS) -> Client:
        client = Client(self)
        number = len(self.machines)
        machine = self.machines[client] = Machine(
            number, self.timeline, self.streams.scoped_streams(f"node{number}"), []
        )
        process = machine.boot_process()
        process.inputs = client
        client.store = SimStore(process, self.ensemble, timeout_ms * MS)
        client.store.start_session()
        client.until(Session.OPEN)
        return client

    def until(self, holds: Callable[[], bool]) -> None:
        limit = self.timeline.now_ns + 3600 * SECOND
        held = self.timeline.run_while(lambda: not holds() and not self._crashes(), limit)
        assert not self._crashes(), self._crashes()[0]
        assert held, "the world stands still"

    def _crashes(self) -> list:
        return [crash for machine in self.machines.values() for crash in machine.crashes]

    def run(self, ms: int) -> None:
        self.timeline.run_until(self.timeline.now_ns + ms * MS)

    def settle(self) -> None:
        self.run(1000)

    def expire(self, client: Client) -> None:
        self.ensemble.end_session(client.sessions[-1])

    def cut(self, client: Client) -> None:
        """The connection breaks; another one can be made."""
        host = f"node{self.machines[client].node}"
        self.ensemble.break_connections(lambda other: other == host)

    def hold(self, client: Client, requests: bool = True, answers: bool = True) -> None:
        """Nothing gets through, in these directions."""
        for node in STORE_NODES:
            path = self.network.path_between(f"node{self.machines[client].node}", node)
            path.inward_cut_ns, path.outward_cut_ns = FOREVER * requests, FOREVER * answers

    def release(self, client: Client) -> None:
        """Everything gets through again."""
        for node in STORE_NODES:
            path = self.network.path_between(f"node{self.machines[client].node}", node)
            path.inward_cut_ns = path.outward_cut_ns = 0


class RealRig(Rig):
    """Brokers' own client, over TCP, to whatever serves ZooKeeper's protocol at `host:port`."""

    def __init__(self, loop, host: str, port: int, chroot: str) -> None:
        self.loop = loop
        self.errors: list[object] = []
        loop.set_exception_handler(lambda _loop, context: self.errors.append(context))
        self.server = (host, port)
        self.chroot = chroot
        self.proxies: dict[Client, Proxy] = {}
        self.stops: list[Callable[[], None]] = []

    def start(self, timeout_ms: int = LONG_MS, away: bool = False, **settings) -> Client:
        """A client that has not been told anything yet; `away`: the server refuses it for now."""
        client = Client(self)
        proxy = self.proxies[client] = Proxy(*self.server)
        proxy.refuse(away)
        turns = CompletionQueue(self.loop)
        turns.set_end_turn(client.end_turn)
        options = {"hosts": proxy.address, "chroot": self.chroot, "timeout_ms": timeout_ms}
        client.store = ZooKeeperStore(self.loop, turns, ZooKeeperSettings(**{**options, **settings}))
        client.store.open_session(client)
        self.stops += [client.store.close_session, turns.stop_threads, proxy.stop]
        return client

    def client(self, timeout_ms: int = LONG_MS) -> Client:
        client = self.start(timeout_ms)
        client.until(Session.OPEN)
        return client

    def until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end, "the world stands still"
            self.run(2)

    def run(self, ms: int) -> None:
        self.loop.call_later(ms / 1000, self.loop.stop)
        self.loop.run_forever()
        assert not self.errors

    def settle(self) -> None:
        """An answer comes after everything that happened before the question."""
        for client in self.proxies:
            if client.states[-1:] == [Session.OPEN]:
                client.ask("submit_ops", "settle", [Op("check", "/")])

    def expire(self, client: Client) -> None:
        """Somebody who knows the session's password closes it."""
        kazoo = client.store._link._client
        thief = KazooClient("{}:{}".format(*self.server), client_id=kazoo.client_id, timeout=TIMEOUT_MS / 1000)
        thief.start(PATIENCE_S)
        thief.stop()
        thief.close()

    def cut(self, client: Client) -> None:
        """The connection breaks; another one can be made."""
        self.proxies[client].cut()

    def hold(self, client: Client, requests: bool = True, answers: bool = True) -> None:
        """Nothing gets through, in these directions."""
        self.proxies[client].hold(requests, answers)

    def release(self, client: Client) -> None:
        """Everything gets through again."""
        self.proxies[client].release()

    def close(self) -> None:
        for stop in self.stops:
            stop()
        for thread in threading.enumerate():
            if thread.name == ENDING:
                thread.join(PATIENCE_S)
        self.run(1)
        self.loop.close()


class ServedRig(RealRig):
    """The embedded store behind the supervisor's server, on a thread of its own."""

    def __init__(self, directory: Path) -> None:
        self._thread_loop = asyncio.new_event_loop()
        self.served = ZnodeServer(self._thread_loop, str(directory))
        self.served.load_store()
        self._thread_loop.run_until_complete(self.served.start_listening("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._thread_loop.run_forever)
        self._thread.start()
        super().__init__(new_loop()[0], "127.0.0.1", self.served.port, "")

    def close(self) -> None:
        super().close()
        asyncio.run_coroutine_threadsafe(self.served.stop_serving(), self._thread_loop).result(PATIENCE_S)
        self._thread_loop.call_soon_threadsafe(self._thread_loop.stop)
        self._thread.join()
        self._thread_loop.run_until_complete(asyncio.sleep(0))
        self._thread_loop.close()

    def expire(self, client: Client) -> None:
        self._thread_loop.call_soon_threadsafe(self.served.expire_session, client.sessions[-1])


class ZooKeeperRig(RealRig):
    """A real ZooKeeper server; every rig has a chroot of its own there."""

    numbers = itertools.count(1)

    def __init__(self, zookeeper: ZooKeeper) -> None:
        loop, _ = new_loop()
        server = zookeeper.servers[0]
        chroot = f"/test{next(self.numbers)}"
        maker = KazooClient(server.endpoint)
        maker.start(PATIENCE_S)
        maker.create(chroot)
        maker.stop()
        maker.close()
        super().__init__(loop, server.address, server.port, chroot)
