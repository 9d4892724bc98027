"""ZooKeeper from Debian's package: one server or an ensemble, on this machine or in network namespaces.

Zone: real. Configures, starts, stops, kills and pauses servers; independent of the broker.

    with ZooKeeper(directory, servers=3) as zookeeper:
        client = KazooClient(zookeeper.connect)
        zookeeper.servers[0].kill()
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from kazoo.client import KazooClient

from testbench.apache_kafka.packages import BenchError, java
from testbench.ports import HOST, free_port
from testbench.process import ManagedProcess

JARS: Final = Path("/usr/share/java")
_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_SHELL: Final = "org.apache.zookeeper.ZooKeeperMain"
_JVM: Final = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""A small heap and the quick compiler halve the start time of servers, which are killed often."""


class Server(ManagedProcess):
    """One ZooKeeper server. Its log is `<directory>.log`."""

    clean_exits = (0, 143)  # the JVM ends by SIGTERM's number

    def __init__(self, number: int, directory: Path, address: str, prefix: Sequence[str]) -> None:
        super().__init__(f"ZooKeeper server {number}", directory.with_name(directory.name + ".log"), prefix)
        self.number = number
        self.directory = directory
        self.address = address
        self.port, self.peer_port, self.election_port = free_port(), free_port(), free_port()

    @property
    def endpoint(self) -> str:
        """`host:port` for clients."""
        return f"{self.address}:{self.port}"

    def configure(self, lines: Sequence[str]) -> None:
        """Write its files."""
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{self.number}\n")
        own = [f"dataDir={data}", f"clientPort={self.port}", f"clientPortAddress={self.address}"]
        (self.directory / "zoo.cfg").write_text("\n".join([*lines, *own]) + "\n")

    def begin(self) -> None:
        """Start without waiting: members of an ensemble serve only together."""
        self.launch([java(), *_JVM, "-cp", class_path(), _MAIN, str(self.directory / "zoo.cfg")])

    def start(self, wait_s: float = 180) -> None:
        """Start, and wait until it serves; a member of an ensemble needs a majority for that. Raises NodeError."""
        self.begin()
        self.await_ready(lambda: self.mode() != "", wait_s, 0.05)

    def mode(self) -> str:
        """`standalone`, `leader`, `follower`, or empty while it does not serve. It must be reachable from here."""
        return next((line[6:] for line in self.ask("srvr").splitlines() if line.startswith("Mode: ")), "")

    def ask(self, word: str) -> str:
        """The answer to a four-letter word; empty when there is none within two seconds."""
        answer = b""
        try:
            with socket.create_connection((self.address, self.port), 2) as line:
                line.settimeout(2)
                line.sendall(word.encode())
                while part := line.recv(65_536):
                    answer += part
        except OSError:
            pass
        return answer.decode(errors="replace")

    def shell(self, *words: str) -> list[str]:
        """A command line for ZooKeeper's own shell on this server, for `subprocess.run`."""
        return shell(self.endpoint, *words)


class ZooKeeper:
    """One server, or an ensemble. `addresses` and `prefixes`: one per server, for servers in network namespaces."""

    def __init__(
        self,
        directory: Path,
        servers: int = 1,
        tick_ms: int = 200,
        addresses: Sequence[str] = (),
        prefixes: Sequence[Sequence[str]] = (),
    ) -> None:
        """`tick_ms`: sessions expire at multiples of it; the shortest session has two."""
        self._tick_ms = tick_ms
        self.servers = [
            Server(
                number,
                directory / f"zookeeper{number}",
                addresses[number - 1] if addresses else HOST,
                prefixes[number - 1] if prefixes else (),
            )
            for number in range(1, servers + 1)
        ]

    @property
    def connect(self) -> str:
        """`host:port,…` for clients."""
        return ",".join(server.endpoint for server in self.servers)

    @property
    def leader(self) -> Server:
        """The present leader, or the only server. Raises BenchError while there is none."""
        for server in self.servers:
            if server.alive and server.mode() in ("leader", "standalone"):
                return server
        raise BenchError("no ZooKeeper server leads")

    def start(self, wait_s: float = 180) -> None:
        """Start all servers, and wait until each serves. Raises NodeError, or BenchError when it is not installed."""
        for server in self.servers:
            server.configure(self._lines())
            server.begin()
        for server in self.servers:
            server.await_ready(lambda server=server: server.mode() != "", wait_s, 0.05)  # type: ignore[misc]

    def chroot(self, path: str) -> str:
        """Create a path, and return the connect string with it as chroot."""
        client = KazooClient(self.connect)
        client.start(20)
        try:
            client.ensure_path(path)
        finally:
            client.stop()
            client.close()
        return self.connect + path

    def kill(self) -> None:
        """SIGKILL to all that run."""
        for server in self.servers:
            server.kill()

    def _lines(self) -> list[str]:
        lines = [
            f"tickTime={self._tick_ms}",
            "initLimit=50",
            "syncLimit=10",
            "maxClientCnxns=0",
            "minSessionTimeout=400",
            "maxSessionTimeout=60000",
            "admin.enableServer=false",
            "4lw.commands.whitelist=*",
        ]
        if len(self.servers) > 1:
            lines += [f"server.{one.number}={one.address}:{one.peer_port}:{one.election_port}" for one in self.servers]
        return lines

    def __enter__(self) -> ZooKeeper:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()


def shell(connect: str, *words: str) -> list[str]:
    """A command line for ZooKeeper's own shell on anything that speaks its protocol, for `subprocess.run`."""
    return [java(), "-Xmx64m", "-cp", class_path(), _SHELL, "-server", connect, *words]


def class_path() -> str:
    """The jars of ZooKeeper, a logger, and the shell. Raises BenchError with the packages to install."""
    zookeeper = JARS / "zookeeper.jar"
    logger = JARS / "slf4j-simple.jar"  # without it ZooKeeper logs nothing
    for jar in (zookeeper, logger):
        if not jar.exists():
            raise BenchError(f"{jar} is missing: run testbench/setup (Debian: apt-get install zookeeper)")
    return os.pathsep.join([str(logger), str(zookeeper), str(JARS / "commons-cli.jar")])
