"""The test bench's own network: a fault that does not cut what it says would make every chaos run a lie."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbench.network import NAMESPACES, Host, Network, NetworkError, sweep

pytestmark = [pytest.mark.slow, pytest.mark.root]

PORT = 7007
TCP_PORT = 7008


class Ears:
    """A UDP socket in every host: who hears whom."""

    def __init__(self, network: Network) -> None:
        self.hosts = network.hosts
        self.sockets = {host.number: self._socket(host) for host in self.hosts}

    @staticmethod
    def _socket(host: Host) -> socket.socket:
        with host.entered():
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind((host.address, PORT))
        made.settimeout(5)
        return made

    def matrix(self) -> dict[int, set[int]]:
        """Host → hosts that it hears. A packet to oneself, sent last, says that nothing more is to come."""
        for source in self.hosts:
            for target in self.hosts:
                if source is not target:
                    self.tell(source, target, str(source.number))
        for host in self.hosts:
            self.tell(host, host, "end")
        return {host.number: {int(word) for word in self.heard(host)} for host in self.hosts}

    def tell(self, source: Host, target: Host, word: str) -> None:
        self.sockets[source.number].sendto(word.encode(), (target.address, PORT))

    def heard(self, host: Host) -> list[str]:
        return list(iter(lambda: self.sockets[host.number].recv(100).decode(), "end"))


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(3) as made:
        yield made


@pytest.fixture
def ears(network: Network) -> Iterator[Ears]:
    made = Ears(network)
    # The first packets of a wire wait for addresses to be resolved; afterwards they pass at once.
    for source in network.hosts:
        for target in network.hosts:
            made.tell(source, target, "hello")
    for host in network.hosts:
        for _ in network.hosts:
            made.sockets[host.number].recv(100)
    yield made
    for each in made.sockets.values():
        each.close()


ALL = {0: {1, 2}, 1: {0, 2}, 2: {0, 1}}


def test_cuts_go_one_way_until_healed(network: Network, ears: Ears) -> None:
    zero, one, two = network.hosts
    assert ears.matrix() == ALL
    network.cut(one, two)
    assert ears.matrix() == ALL | {2: {0}}
    network.cut_both(zero, one)
    assert ears.matrix() == {0: {2}, 1: {2}, 2: {0}}
    network.heal()
    assert ears.matrix() == ALL
    network.isolate(two)
    assert ears.matrix() == {0: {1}, 1: {0}, 2: set()}
    network.heal()
    network.split([zero], [one])
    assert ears.matrix() == {0: {2}, 1: {2}, 2: {0, 1}}
    network.heal()
    network.link_down(zero)
    assert ears.matrix() == {0: set(), 1: {2}, 2: {1}}
    network.heal()
    ears.tell(one, zero, "again")  # waits in the host until the address is resolved, however long that takes
    assert ears.sockets[0].recv(100) == b"again"


def test_loss_takes_about_so_many(network: Network, ears: Ears) -> None:
    zero, one, _ = network.hosts
    network.lose(zero, one, 50)
    for number in range(400):
        ears.tell(zero, one, str(number))
    ears.tell(one, one, "end")
    assert 120 < len(ears.heard(one)) < 280
    network.heal()
    assert ears.matrix() == ALL


def connected(server: Host, client: Host) -> tuple[socket.socket, socket.socket]:
    with server.entered():
        listener = socket.create_server((server.address, TCP_PORT))
    with client.entered():
        near = socket.create_connection((server.address, TCP_PORT), 5)
    far, _ = listener.accept()
    listener.close()
    far.settimeout(5)
    return near, far


def test_connections_are_killed(network: Network) -> None:
    zero, one, two = network.hosts
    near, far = connected(one, zero)
    one.kill_connections(peer=two)
    one.kill_connections(peer=zero, port=TCP_PORT + 1)
    near.sendall(b"alive")
    assert far.recv(10) == b"alive"
    one.kill_connections(peer=zero, port=TCP_PORT)
    with near, far, pytest.raises(ConnectionError):
        far.recv(1)


@pytest.mark.parametrize("way", ["deaf", "mute"])
def test_a_port_is_silenced_even_within_its_host(network: Network, way: str) -> None:
    zero = network.hosts[0]
    near, far = connected(zero, zero)
    zero.silence(TCP_PORT, hears=way == "mute", speaks=way == "deaf")
    source, target = (near, far) if way == "deaf" else (far, near)
    source.sendall(b"late")
    target.settimeout(0.1)
    with pytest.raises(TimeoutError):
        target.recv(1)
    network.heal()
    target.settimeout(10)
    assert target.recv(4) == b"late"
    near.close()
    far.close()


def test_a_command_runs_in_its_host(network: Network) -> None:
    one = network.hosts[1]
    assert one.address in one.run("ip", "-4", "addr").stdout
    assert network.hosts[0].address not in one.run("ip", "-4", "addr").stdout


def test_closing_ends_whatever_still_runs_there() -> None:
    network = Network(1)
    process = subprocess.Popen([*network.hosts[0].prefix, "sleep", "1000"])
    names = [network.namespace, network.hosts[0].namespace]
    assert all((NAMESPACES / name).exists() for name in names)
    inside = (NAMESPACES / network.hosts[0].namespace).stat().st_ino
    while Path(f"/proc/{process.pid}/ns/net").stat().st_ino != inside:
        assert process.poll() is None, "it has ended before it was there"
    with pytest.raises(NetworkError, match="one at a time"):
        Network(1)
    network.close()
    assert process.wait(60) != 0
    assert not any((NAMESPACES / name).exists() for name in names)
    network.close()


def test_what_a_killed_owner_left_is_removed() -> None:
    code = "import os; from testbench.network import Network; Network(1); os._exit(0)"
    root = Path(__file__).resolve().parents[2]
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=root)
    owner.wait(180)
    assert list(NAMESPACES.glob(f"ottla{owner.pid}-*"))
    sweep()
    assert not list(NAMESPACES.glob(f"ottla{owner.pid}-*"))


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NetworkError, match="need root"):
        Network(1)
