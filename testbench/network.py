"""Hosts in separate network namespaces on one switch, whose wires can be cut, made lossy and healed.

Zone: real. Needs root, iproute2, nftables and util-linux; a NetworkError names what is missing. Faults of wires are
rules of the switch (nftables' bridge family), so a cut may have one direction; only faults between processes of one
host (`silence`) are rules in that host. The machine's own network is not affected: there is no route in or out.

Commands run in a host by `nsenter --net`, never by `ip netns exec`: that one clones the mount namespace, and the copy
keeps every loop-mounted volume busy until the last such process has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
NEEDED = {"ip": "iproute2", "ss": "iproute2", "nft": "nftables", "nsenter": "util-linux"}
NAMESPACES = Path("/run/netns")
CLONE_NEWNET = 0x40000000
SUBNET = "10.77.0"
FIRST = 10
"""The last byte of host 0's address."""
SWITCH_RULES = """
table bridge faults {
  set cut { type ifname . ifname; }
  chain wires { type filter hook forward priority 0; policy accept; iifname . oifname @cut drop; }
  chain loss { type filter hook forward priority 1; policy accept; }
}
"""
HOST_RULES = """
table inet faults {
  set deaf { type inet_service; }
  set mute { type inet_service; }
  chain in { type filter hook input priority 0; policy accept; tcp dport @deaf drop; }
  chain out { type filter hook output priority 0; policy accept; tcp sport @mute drop; }
}
"""


class NetworkError(Exception):
    """No network can be created here; the message has the reason."""


def _run(*command: str, fails: bool = False, stdin: str | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, input=stdin, env={**os.environ, "PATH": SBIN}, timeout=30
    )
    if done.returncode and not fails:
        raise NetworkError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def _inside(namespace: str) -> list[str]:
    return ["nsenter", f"--net={NAMESPACES / namespace}"]


class Host:
    """One namespace with one wire to the switch. Made by `Network.add`."""

    def __init__(self, network: Network, number: int) -> None:
        self.number = number
        self.address = f"{SUBNET}.{FIRST + number}"
        self.namespace = f"{network.name}-{number}"
        self.wire = f"w{number}"
        """The switch's end of the wire."""
        switch = network.namespace
        _run("ip", "netns", "add", self.namespace)
        _run("ip", "-n", self.namespace, "link", "set", "lo", "up")
        pair = ["type", "veth", "peer", "name", "eth0", "netns", self.namespace]
        _run("ip", "-n", switch, "link", "add", self.wire, *pair)
        _run("ip", "-n", switch, "link", "set", self.wire, "master", "br0", "up")
        _run("ip", "-n", self.namespace, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _run("ip", "-n", self.namespace, "link", "set", "eth0", "up")
        self._nft(HOST_RULES)

    def _nft(self, rules: str) -> None:
        _run(*_inside(self.namespace), "nft", "-f", "-", stdin=rules)

    @property
    def prefix(self) -> list[str]:
        """Prefix of a command that runs in this host; the process id is that of the command."""
        return _inside(self.namespace)

    def run(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end in this host; output as text."""
        settings = {"capture_output": True, "text": True, **options}
        return subprocess.run([*self.prefix, *command], check=False, **settings)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """This thread's new sockets, and threads and processes it starts meanwhile, belong to this host."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        here = os.open(NAMESPACES / self.namespace, os.O_RDONLY)
        try:
            _setns(here)
            yield
        finally:
            _setns(before)
            os.close(here)
            os.close(before)

    def silence(self, port: int, *, hears: bool = False, speaks: bool = False) -> None:
        """Drop packets to a listening port of this host (unless it `hears`) and from it (unless it `speaks`).

        Works for connections within the host as well. `Network.heal_links` ends it.
        """
        rules = "" if hears else f"add element inet faults deaf {{ {port} }}\n"
        rules += "" if speaks else f"add element inet faults mute {{ {port} }}\n"
        self._nft(rules)

    def heal(self) -> None:
        """End `silence` for all ports."""
        self._nft("flush set inet faults deaf\nflush set inet faults mute\n")

    def kill_connections(self, *, peer: Host | None = None, port: int | None = None) -> None:
        """Abort established connections of this host: those with another host, or those at a port of either side."""
        filters = [] if peer is None else [f"dst {peer.address}"]
        filters += [] if port is None else [f"( sport = :{port} or dport = :{port} )"]
        _run(*self.prefix, "ss", "--tcp", "--kill", " and ".join(filters), fails=True)


class Network:
    """The switch and its hosts. A context manager, or call `close`. Removes leftovers of dead owners."""

    def __init__(self, hosts: int = 0) -> None:
        self._check()
        sweep()
        self.name = f"ottla{os.getpid()}"
        if (NAMESPACES / f"{self.name}-sw").exists():
            raise NetworkError(f"this process has a network already ({self.name}): one at a time, they share {SUBNET}")
        self.namespace = f"{self.name}-sw"
        self.hosts: list[Host] = []
        try:
            _run("ip", "netns", "add", self.namespace)
            _run("ip", "-n", self.namespace, "link", "set", "lo", "up")
            bridge = ["name", "br0", "type", "bridge", "stp_state", "0", "forward_delay", "0"]
            _run("ip", "-n", self.namespace, "link", "add", *bridge)
            _run("ip", "-n", self.namespace, "link", "set", "br0", "up")
            self._nft(SWITCH_RULES)
            for _ in range(hosts):
                self.add()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _check() -> None:
        if os.geteuid() != 0:
            raise NetworkError("network namespaces need root: run as root, or leave these tests out with -m 'not root'")
        for command, package in NEEDED.items():
            if shutil.which(command, path=SBIN) is None:
                raise NetworkError(f"{command} is missing: run testbench/setup (Debian: apt-get install {package})")

    def _nft(self, rules: str) -> None:
        _run(*_inside(self.namespace), "nft", "-f", "-", stdin=rules)

    def add(self) -> Host:
        """Add a host; its number is its index in `hosts`."""
        host = Host(self, len(self.hosts))
        self.hosts.append(host)
        return host

    def cut(self, source: Host, target: Host) -> None:
        """Drop packets from one host to another; those in the other direction still pass."""
        self._nft(f"add element bridge faults cut {{ {source.wire} . {target.wire} }}\n")

    def cut_both(self, one: Host, other: Host) -> None:
        """Drop all packets between two hosts."""
        self.cut(one, other)
        self.cut(other, one)

    def isolate(self, host: Host) -> None:
        """Cut a host off in both directions; its link stays up."""
        self.split([host], [other for other in self.hosts if other is not host])

    def split(self, some: list[Host], others: list[Host]) -> None:
        """Drop all packets between two groups of hosts."""
        for one in some:
            for other in others:
                self.cut_both(one, other)

    def lose(self, source: Host, target: Host, percent: int) -> None:
        """Drop that percentage of the packets from one host to another."""
        match = f"iifname {source.wire} oifname {target.wire}"
        self._nft(f"add rule bridge faults loss {match} numgen random mod 100 < {percent} drop\n")

    def link_down(self, host: Host) -> None:
        """Take the link down: unlike a cut, the host sees the loss of its carrier."""
        _run("ip", "-n", self.namespace, "link", "set", host.wire, "down")

    def link_up(self, host: Host) -> None:
        """Take the link up."""
        _run("ip", "-n", self.namespace, "link", "set", host.wire, "up")

    def heal(self) -> None:
        """End all faults of wires. Connections that survived resume with TCP's next retransmission, which may take as
        long as the fault; `Host.kill_connections` ends the wait."""
        self._nft("flush set bridge faults cut\nflush chain bridge faults loss\n")
        for host in self.hosts:
            self.link_up(host)
            host.heal()

    def close(self) -> None:
        """End every process in the hosts, and remove the hosts; a second call does nothing."""
        _remove(self.name)
        self.hosts.clear()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def sweep() -> None:
    """Remove networks whose owner has ended without closing them."""
    for name in {path.name.partition("-")[0] for path in NAMESPACES.glob("ottla*-*")}:
        found = re.fullmatch(r"ottla(\d+)", name)
        if found is not None and not Path(f"/proc/{found.group(1)}").exists():
            _remove(name)


def _remove(name: str) -> None:
    for path in NAMESPACES.glob(f"{name}-*"):
        _end_processes(path.name)
        _run("ip", "netns", "delete", path.name, fails=True)


def _end_processes(namespace: str, wait_s: float = 5) -> None:
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        pids = {int(word) for word in _run("ip", "netns", "pids", namespace, fails=True).split()} - {os.getpid()}
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _setns(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise NetworkError(f"setns: {os.strerror(ctypes.get_errno())}")
