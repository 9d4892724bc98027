"""The faults, with their beginning and their end. The nemesis chooses targets and times.

Zone: real.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from testbench.chaos.arena import SESSION_MS, Arena, View
from testbench.cluster import Broker
from testbench.network import Host
from testbench.process import ManagedProcess, stand_still

Action = Callable[[], None]
SESSION_S = SESSION_MS / 1_000


def nothing() -> None:
    """The end of faults that end by themselves: does nothing."""


@dataclass(frozen=True)
class Fault:
    """One fault that was chosen and has not begun."""

    kind: str
    target: str
    """Its target, and the reason for the choice, in words."""
    seconds: float
    """How long it lasts."""
    begin: Action
    end: Action
    touches: frozenset[str] = frozenset()
    """Things that no other fault may use at the same time."""
    alone: bool = False
    """No other fault may be active before it, and until everything is in sync again."""


class Prey:
    """Chooses a target: any broker, a leader, or the controller."""

    def __init__(self, arena: Arena, rng: random.Random, view: View | None) -> None:
        self.arena = arena
        self._rng = rng
        self._view = view

    def broker(self) -> tuple[int, str]:
        """(index of a broker, reason in words)"""
        role = self._rng.choice(("any", "leader", "controller"))
        chosen = None
        if self._view is not None and role == "leader":
            chosen = self._rng.choice(list(self._view.leaders.values()))
        elif self._view is not None and role == "controller":
            chosen = self._view.controller
        if chosen is None or not 1 <= chosen <= len(self.arena.brokers):
            chosen, role = self._rng.randint(1, len(self.arena.brokers)), "any"
        return chosen - 1, f"broker {chosen} ({role})"

    def store(self) -> tuple[int, str]:
        """(index of a ZooKeeper server, reason in words)"""
        index = self._rng.randrange(len(self.arena.stores))
        return index, f"ZooKeeper server {index + 1}"


class Faults:
    """Makes faults of every kind. A method per kind; its name is the kind."""

    def __init__(self, arena: Arena, rng: random.Random) -> None:
        self._arena = arena
        self._network = arena.network
        self._rng = rng

    def make(self, kind: str, view: View | None) -> Fault:
        """Make a fault of a kind for the present state of the cluster."""
        builder: Callable[[Prey], Fault] = getattr(self, kind)
        return builder(Prey(self._arena, self._rng, view))

    def _seconds(self, low: float, high: float) -> float:
        return self._rng.uniform(low, high)

    # Processes

    def kill(self, prey: Prey) -> Fault:
        """SIGKILL; the broker starts again after a while."""
        index, words = prey.broker()
        broker = self._arena.brokers[index]
        return Fault("kill", words, self._seconds(0, 4), broker.kill, broker.start, _broker(index))

    def kill_two(self, _prey: Prey) -> Fault:
        """SIGKILL to two brokers: nothing can be acknowledged meanwhile, and nothing may be lost."""
        indexes = self._rng.sample(range(len(self._arena.brokers)), 2)
        brokers = [self._arena.brokers[index] for index in indexes]
        words = f"brokers {' and '.join(str(index + 1) for index in indexes)}"
        return Fault("kill_two", words, self._seconds(0, 3), _each(_kill, brokers), _each(_start, brokers), ANY_BROKER)

    def kill_all(self, _prey: Prey) -> Fault:
        """SIGKILL to all brokers; the page cache survives."""
        brokers = list(self._arena.brokers)
        return Fault(
            "kill_all", "all brokers", self._seconds(0, 2), _each(_kill, brokers), _each(_start, brokers), ANY_BROKER
        )

    def stop(self, prey: Prey) -> Fault:
        """SIGTERM: a controlled shutdown, and a start."""
        index, words = prey.broker()
        broker = self._arena.brokers[index]
        return Fault("stop", words, self._seconds(0, 2), broker.stop, broker.start, _broker(index))

    def pause_short(self, prey: Prey) -> Fault:
        """SIGSTOP for less than the session timeout: the cluster should hardly notice."""
        index, words = prey.broker()
        broker = self._arena.brokers[index]
        seconds = self._seconds(0.1, SESSION_S * 0.9)
        return Fault("pause_short", words, seconds, broker.pause, broker.resume, _broker(index))

    def pause_long(self, prey: Prey) -> Fault:
        """SIGSTOP past the session timeout: the broker resumes as a zombie."""
        index, words = prey.broker()
        broker = self._arena.brokers[index]
        seconds = SESSION_S + self._seconds(0.5, 4)
        return Fault("pause_long", words, seconds, broker.pause, broker.resume, _broker(index))

    def power_cut(self, prey: Prey) -> Fault:
        """Power loss: the disk keeps synced data only, and the broker starts with that."""
        index, words = prey.broker()
        return self.power_cut_of(index, words, self._seconds(0, 3))

    def power_cut_of(self, index: int, words: str, seconds: float) -> Fault:
        """Power loss of the given broker."""
        start = self._arena.brokers[index].start
        begin = lambda: self._cut_power([index])  # noqa: E731
        return Fault("power_cut", words, seconds, begin, start, ANY_BROKER, alone=True)

    def power_cut_all(self, _prey: Prey) -> Fault:
        """Power loss of all brokers at once, for clusters that flush before they acknowledge."""
        indexes = list(range(len(self._arena.brokers)))
        start = _each(_start, self._arena.brokers)
        begin = lambda: self._cut_power(indexes)  # noqa: E731
        return Fault("power_cut_all", "all brokers", self._seconds(0, 1), begin, start, ANY_BROKER)

    def _cut_power(self, indexes: list[int]) -> None:
        hit = [(self._arena.brokers[index], self._arena.disks[index]) for index in indexes]
        supervisor = self._arena.supervisor if self._arena.engine == "embedded" else None
        for broker, _ in hit:
            if broker.alive:
                broker.pause()
        if supervisor is not None:  # it would start brokers while their disks are unmounted
            stand_still(supervisor.pid)
        for _, disk in hit:
            disk.die()
        for broker, disk in hit:
            broker.kill()
            disk.come_back()
        if supervisor is not None:
            supervisor.resume()

    # Wires

    def isolate(self, prey: Prey) -> Fault:
        """Cut a broker off in both directions."""
        host, words = self._host(prey)
        return self._wire("isolate", words, lambda: self._network.isolate(host))

    def cut_in(self, prey: Prey) -> Fault:
        """Cut a broker off; only its outgoing packets arrive."""
        host, words = self._host(prey)
        return self._wire("cut_in", words, self._one_way(self._others(host), [host]))

    def cut_out(self, prey: Prey) -> Fault:
        """Cut a broker off; only packets to it arrive."""
        host, words = self._host(prey)
        return self._wire("cut_out", words, self._one_way([host], self._others(host)))

    def cut_pair(self, prey: Prey) -> Fault:
        """Drop packets from one broker to another."""
        host, words = self._host(prey)
        other = self._rng.choice([each for each in self._arena.broker_hosts if each is not host])
        if self._rng.random() < 0.5:
            return self._wire("cut_pair", f"{words} and {other.address}", lambda: self._network.cut_both(host, other))
        return self._wire("cut_pair", f"{words} to {other.address}", self._one_way([host], [other]))

    def cut_from_brokers(self, prey: Prey) -> Fault:
        """Cut a broker off from the other brokers; clients and ZooKeeper reach it."""
        host, words = self._host(prey)
        others = [each for each in self._arena.broker_hosts if each is not host]
        return self._wire("cut_from_brokers", words, lambda: self._network.split([host], others))

    def cut_from_clients(self, prey: Prey) -> Fault:
        """Cut a broker off from the clients."""
        host, words = self._host(prey)
        return self._wire("cut_from_clients", words, lambda: self._network.cut_both(host, self._arena.client))

    def cut_from_store(self, prey: Prey) -> Fault:
        """Cut a broker off from ZooKeeper, in one direction or both; clients and brokers reach it."""
        host, words = self._host(prey)
        stores = self._arena.store_hosts
        way = self._rng.choice(("to", "from", "both ways"))
        begin = {
            "to": self._one_way([host], stores),
            "from": self._one_way(stores, [host]),
            "both ways": lambda: self._network.split([host], stores),
        }[way]
        return self._wire("cut_from_store", f"{words}, {way}", begin, long=True)

    def link_down(self, prey: Prey) -> Fault:
        """Take the link of a broker down."""
        host, words = self._host(prey)
        return self._wire("link_down", words, lambda: self._network.link_down(host))

    def loss(self, prey: Prey) -> Fault:
        """Drop a part of the packets to and from a broker."""
        host, words = self._host(prey)
        percent = self._rng.choice((5, 20, 40))

        def begin() -> None:
            for other in self._others(host):
                self._network.lose(host, other, percent)
                self._network.lose(other, host, percent)

        return self._wire("loss", f"{words}, {percent} %", begin)

    def kill_connections(self, prey: Prey) -> Fault:
        """Abort all connections of a broker."""
        host, words = self._host(prey)
        return Fault("kill_connections", words, 0, host.kill_connections, nothing)

    # Connections within the one machine of `ottla up`

    def silence(self, prey: Prey) -> Fault:
        """Drop packets to or from the port of a broker, or both; its own requests to others still work."""
        index, words = prey.broker()
        up = self._arena.supervisor
        return self._silenced("silence", words, lambda: up.port_of(index + 1))

    def store_silence(self, _prey: Prey) -> Fault:
        """Drop the packets of the metadata store: no broker can keep its session."""
        up = self._arena.supervisor
        return self._silenced("store_silence", "the metadata store", lambda: int(up.store.rpartition(":")[2]))

    def _silenced(self, kind: str, words: str, port: Callable[[], int]) -> Fault:
        (host,) = self._arena.broker_hosts
        way = self._rng.choice(("deaf", "mute", "deaf and mute"))
        begin = lambda: host.silence(port(), hears=way == "mute", speaks=way == "deaf")  # noqa: E731
        return self._wire(kind, f"{words}, {way}", begin, long=True)

    def kill_port_connections(self, prey: Prey) -> Fault:
        """Abort all connections with the port of a broker."""
        index, words = prey.broker()
        (host,) = self._arena.broker_hosts
        up = self._arena.supervisor
        begin = lambda: host.kill_connections(port=up.port_of(index + 1))  # noqa: E731
        return Fault("kill_port_connections", words, 0, begin, nothing)

    # ZooKeeper

    def store_kill(self, prey: Prey) -> Fault:
        """SIGKILL to one ZooKeeper server."""
        index, words = prey.store()
        store = self._arena.stores[index]
        return Fault("store_kill", words, self._seconds(0, 4), store.kill, lambda: _begin_store(store), STORE)

    def store_pause(self, prey: Prey) -> Fault:
        """SIGSTOP to one ZooKeeper server: its clients must notice by their timeouts."""
        index, words = prey.store()
        store = self._arena.stores[index]
        return Fault("store_pause", words, self._seconds(0.5, 6), store.pause, store.resume, STORE)

    def store_isolate(self, prey: Prey) -> Fault:
        """Cut one ZooKeeper server off in both directions."""
        index, words = prey.store()
        host = self._arena.store_hosts[index]
        return self._wire("store_isolate", words, lambda: self._network.isolate(host), long=True)

    def store_quorum_lost(self, _prey: Prey) -> Fault:
        """SIGSTOP to two of three ZooKeeper servers."""
        stores = self._rng.sample(self._arena.stores, 2)
        return Fault(
            "store_quorum_lost",
            " and ".join(store.name for store in stores),
            self._seconds(0.5, SESSION_S * 2),
            _each(lambda store: store.pause(), stores),
            _each(lambda store: store.resume(), stores),
            STORE,
        )

    # The supervisor, which has the metadata store of `ottla up`

    def supervisor_pause(self, _prey: Prey) -> Fault:
        """SIGSTOP to the supervisor, for less or more than the session timeout."""
        supervisor = self._arena.supervisor
        seconds = self._seconds(0.2, SESSION_S * 2)
        return Fault("supervisor_pause", "the supervisor", seconds, supervisor.pause, supervisor.resume, STORE)

    def supervisor_kill(self, _prey: Prey) -> Fault:
        """SIGKILL to the supervisor; the same command starts it again."""
        supervisor = self._arena.supervisor
        seconds = self._seconds(0, 2)
        touches = STORE | ANY_BROKER
        return Fault("supervisor_kill", "the supervisor", seconds, supervisor.kill, supervisor.start, touches)

    def _host(self, prey: Prey) -> tuple[Host, str]:
        index, words = prey.broker()
        return self._arena.broker_hosts[index], words

    def _others(self, host: Host) -> list[Host]:
        return [other for other in self._network.hosts if other is not host]

    def _one_way(self, sources: list[Host], targets: list[Host]) -> Action:
        def begin() -> None:
            for source in sources:
                for target in targets:
                    self._network.cut(source, target)

        return begin

    def _wire(self, kind: str, words: str, begin: Action, *, long: bool = False) -> Fault:
        seconds = self._seconds(0.5, SESSION_S + (4 if long else 3))
        return Fault(kind, words, seconds, begin, self._network.heal, WIRES)


ANY_BROKER = frozenset({"broker 1", "broker 2", "broker 3"})
STORE = frozenset({"store"})
WIRES = frozenset({"wires"})
"""A fault of wires. Healing covers all wires, so faults of wires must not overlap."""


def _broker(index: int) -> frozenset[str]:
    return frozenset({f"broker {index + 1}"})


def _kill(broker: Broker) -> None:
    broker.kill()


def _start(server: Broker | ManagedProcess) -> None:
    server.start()


def _begin_store(store: ManagedProcess) -> None:
    store.begin()  # it becomes ready only with a majority, which another fault may prevent


def _each(action: Callable[..., None], servers: list) -> Action:
    def run() -> None:
        for server in servers:
            action(server)

    return run


WEIGHTS: dict[str, dict[str, int]] = {
    "embedded": {
        "kill": 6, "kill_two": 1, "kill_all": 1, "stop": 2, "pause_short": 2, "pause_long": 4, "power_cut": 2,
        "supervisor_pause": 2, "supervisor_kill": 1, "silence": 3, "store_silence": 2, "kill_port_connections": 1,
    },
    "zookeeper": {
        "kill": 4, "kill_two": 1, "kill_all": 1, "stop": 2, "pause_short": 2, "pause_long": 4, "power_cut": 2,
        "isolate": 3, "cut_in": 2, "cut_out": 2, "cut_pair": 3, "cut_from_brokers": 2, "cut_from_clients": 1,
        "cut_from_store": 4, "link_down": 1, "loss": 2, "kill_connections": 1,
        "store_kill": 2, "store_pause": 2, "store_isolate": 2, "store_quorum_lost": 1,
    },
    "kafka": {
        "kill": 3, "stop": 1, "pause_short": 2, "pause_long": 3, "power_cut": 1, "isolate": 2, "cut_in": 2,
        "cut_out": 2, "cut_pair": 2, "cut_from_clients": 1, "loss": 1, "kill_connections": 1,
    },
}  # fmt: skip
"""Engine → kind → weight."""
WEIGHTS["secured"] = WEIGHTS["zookeeper"]
FLUSHED = {"power_cut": 0, "power_cut_all": 4}
"""The weights where every broker flushes before it acknowledges."""


def weights(engine: str, *, flush: bool) -> dict[str, int]:
    """Kind → weight."""
    return WEIGHTS[engine] | (FLUSHED if flush else {})
