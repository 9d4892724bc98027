"""Apache Kafka brokers on this machine: KRaft, one node or several, on 127.0.0.1."""

from __future__ import annotations

import base64
import os
import secrets
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from testbench.apache_kafka.packages import BenchError, class_path, java
from testbench.ports import HOST, free_port
from testbench.process import ManagedProcess

JVM = (  # the options of Kafka's own start script, except the heap
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
)  # fmt: skip
HEAP = "512m"
"""Enough for tests; several nodes and Spark must fit into the memory of a small machine together."""
KAFKAS_HEAP = "1g"
"""The heap of Kafka's own start script, for comparisons."""
LOG4J2 = """status=warn
appender.f.type=File
appender.f.name=F
appender.f.fileName={log}
appender.f.layout.type=PatternLayout
appender.f.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level=info
rootLogger.appenderRef.f.ref=F
"""


class KafkaNode(ManagedProcess):
    """One Kafka process, by itself or as a member of a cluster. Use as a context manager, or `start` and `stop`.

    Standard error goes to `stdout.log` as well as standard output; Kafka's own log is `server.log`, beside it.
    """

    clean_exits = (0, 143)  # the JVM ends by SIGTERM's number, after its shutdown hooks

    def __init__(
        self,
        directory: Path,
        version: str = "4.4.0",
        settings: dict[str, str] | None = None,
        *,
        data: Path | None = None,
        address: str = HOST,
        prefix: Sequence[str] = (),
        heap: str = HEAP,
    ) -> None:
        super().__init__(f"Apache Kafka in {directory}", directory / "stdout.log", prefix)
        self.id = 1
        self.directory = directory
        self.data = data or directory / "data"
        """Kafka's log directory; it may be on another file system."""
        self.version = version
        self.address = address
        self.port = free_port()
        self.controller_port = free_port()
        self.cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=").replace("-", "A")
        self.settings = settings or {}
        self.heap = heap
        self.format_options: list[str] = []
        """Further options for the command that formats a new directory, such as --add-scram."""

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients."""
        return f"{self.address}:{self.port}"

    def start(self, wait_s: float = 180) -> None:
        """Format the directory if it is new, start, and wait until `ready`. Raises NodeError."""
        self.begin()
        self.await_ready(self.ready, wait_s, 0.05)

    def ready(self) -> bool:
        """Whether ApiVersions is answered and all other listeners accept connections: Kafka opens them one by one."""
        listeners = self._properties()["listeners"].split(",")
        ports = [int(each.rpartition(":")[2]) for each in listeners]
        return answers(self.port, self.address) and all(accepts(port, self.address) for port in ports)

    def begin(self) -> None:
        """Start without waiting: members of a cluster become ready only together."""
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self.directory / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties().items()))
        (self.directory / "log4j2.properties").write_text(LOG4J2.format(log=self.directory / "server.log"))
        if not (self.data / "meta.properties").exists():
            self._format(properties)
        self.launch(
            self._java(f"-Xms{self.heap}", f"-Xmx{self.heap}", *JVM, main="kafka.Kafka", arguments=[str(properties)])
        )

    def _properties(self) -> dict[str, str]:
        here = self.address
        base = {
            "process.roles": "broker,controller",
            "node.id": str(self.id),
            "controller.quorum.voters": f"{self.id}@{here}:{self.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listeners": f"PLAINTEXT://{here}:{self.port},CONTROLLER://{here}:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{here}:{self.port}",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        return base | self.settings

    def _java(self, *options: str, main: str, arguments: list[str]) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}"
        return [java(), *options, logging, "-cp", class_path(self.version, "broker"), main, *arguments]

    def _format(self, properties: Path) -> None:
        arguments = ["format", "-t", self.cluster_id, "-c", str(properties), *self.format_options]
        command = self._java(main="kafka.tools.StorageTool", arguments=arguments)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"formatting {self.directory} failed: {done.stdout[-500:]}{done.stderr[-500:]}")

    def tail(self, lines: int = 40) -> str:
        """The last lines of the JVM's output and of Kafka's own log."""
        kafkas = self.directory / "server.log"
        own = kafkas.read_text(errors="replace").splitlines()[-lines:] if kafkas.exists() else []
        return "\n".join([super().tail(lines), *own])

    def __enter__(self) -> KafkaNode:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def accepts(port: int, address: str = HOST) -> bool:
    """Whether a process listens on this port."""
    try:
        socket.create_connection((address, port), 1).close()
    except OSError:
        return False
    return True


def answers(port: int, address: str = HOST) -> bool:
    """Whether ApiVersions version 0 on this port is answered without an error."""
    request = b"\0\0\0\x0c\0\x12\0\0\0\0\0\x07\0\x02up"
    try:
        with socket.create_connection((address, port), 1) as probe:
            probe.settimeout(2)
            probe.sendall(request)
            reply = probe.recv(10)
    except OSError:
        return False
    return len(reply) == 10 and reply[4:8] == b"\0\0\0\x07" and reply[8:10] == b"\0\0"


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, in seconds with the resolution of the scheduler (ns)."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has just ended
    return total / 1e9
