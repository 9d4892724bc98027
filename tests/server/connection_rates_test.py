"""The rate of new connections: accepting pauses, and connections of an address are refused.

Zone: real. The limits are so low that a second connection exceeds them within one window, or so high that none does.
"""

from __future__ import annotations

from ottla.config.broker import BrokerConfig
from ottla.security.quotas.rates import Windows
from ottla.server.connections import connection_rates
from ottla.server.connections.connection_rates import CreationLimits, CreationRates


class Loop:
    """A loop whose time the test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.later: list[tuple[float, object, tuple]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay, function, *arguments) -> None:
        self.later.append((delay, function, arguments))


class Sock:
    """A socket that can be closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


class Creation:
    """Rates, and the pauses that they caused."""

    def __init__(self, **limits) -> None:
        self.loop = Loop()
        self.rates = CreationRates(self.loop, Windows(11, 1000), CreationLimits(**limits))
        self.pauses: list[float] = []

    def connect(self, listener: str = "PLAINTEXT", address: str = "10.0.0.1") -> Sock | None:
        """A new connection; None if it was refused."""
        sock = self.last = Sock()
        return sock if self.rates.admit_socket(sock, listener, address, self.pauses.append) else None


def test_without_limits_nothing_is_recorded():
    creation = Creation()
    assert all(creation.connect() for _ in range(1_000))
    assert not creation.pauses
    assert not creation.rates._rates._listeners._rates


def test_the_rate_of_the_broker_pauses_accepting():
    creation = Creation(broker=10)
    assert all(creation.connect() for _ in range(100))
    assert not creation.pauses, "100 connections in ten seconds"
    assert creation.connect()
    assert creation.pauses == [0.1]
    creation.loop.now += 60
    assert creation.connect()
    assert len(creation.pauses) == 1


def test_the_listener_between_brokers_has_only_a_rate_of_its_own():
    creation = Creation(broker=1, listeners={"INSIDE": 2}, protected="INSIDE")
    for _ in range(20):
        creation.connect("INSIDE")
    assert not creation.pauses
    creation.connect("INSIDE")
    assert creation.pauses == [0.5]
    for _ in range(10):
        creation.connect("PLAINTEXT")
    assert len(creation.pauses) == 1
    creation.connect("PLAINTEXT")
    assert creation.pauses == [0.5, 1.0]


def test_a_rate_of_zero_accepts_one_connection_per_window():
    creation = Creation(broker=0)
    assert creation.connect()
    assert creation.pauses == [1.0]


def test_connections_of_an_address_are_refused_and_closed_later():
    creation = Creation()
    creation.rates.set_address_limit({"10.0.0.1": 1.0}.get)
    for _ in range(10):
        assert creation.connect()
    assert creation.connect(address="::ffff:10.0.0.1") is None, "the same address"
    assert creation.connect(address="10.0.0.2")
    assert not creation.pauses
    assert not creation.last.closed
    ((delay, close, arguments),) = creation.loop.later
    assert delay == 1.0
    close(*arguments)
    assert arguments[0].closed
    creation.loop.now += 12
    assert creation.connect()


def test_few_refused_connections_are_kept(monkeypatch):
    monkeypatch.setattr(connection_rates, "REFUSED_MAX", 3)
    creation = Creation()
    creation.rates.set_address_limit(lambda _: 0.01)
    socks = []
    for _ in range(10):
        if creation.connect() is None:
            socks.append(creation.last)
    assert len(socks) == 10
    assert [sock.closed for sock in socks] == [False] * 3 + [True] * 7
    creation.rates.close_all()
    assert all(sock.closed for sock in socks)


def test_limits_of_the_configuration():
    config, _ = BrokerConfig.from_properties({"max.connection.creation.rate": "7"})
    assert CreationLimits.from_config(config) == CreationLimits(7, {}, "")
    given = {"listener.name.inside.max.connection.creation.rate": "3", "listener.name.inside.ssl.client.auth": "none"}
    assert connection_rates._listener_rates(given) == {"INSIDE": 3}


def test_a_listener_accepts_no_connection_during_a_pause(server):
    server.quotas.rates.set_limits(CreationLimits(broker=1))
    for _ in range(10):
        server.connect()
    server.until(lambda: len(server.traffic.connections) == 10)
    for _ in range(3):
        server.connect()
    server.until(lambda: len(server.traffic.connections) == 11)
    assert not server.listener._accepting
    server.quotas.rates.set_limits(CreationLimits())
    server.listener.resume_accepting()
    server.until(lambda: len(server.traffic.connections) == 13)


def test_a_refused_connection_is_not_served(server, framed):
    server.quotas.rates.set_address_limit(lambda _: 1e-9)
    client = server.connect()
    client.sendall(framed(20))
    server.until(lambda: len(server.quotas.rates._refused) == 1)
    assert not server.traffic.connections
    server.quotas.rates.close_all()
    assert server.closed(client)
