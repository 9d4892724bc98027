"""Ottla clusters as processes: brokers on a ZooKeeper ensemble, or `ottla up --brokers N` on one machine.

Zone: real. Starts, stops and reaches single brokers, without imports of the broker.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from testbench.apache_kafka.broker import answers
from testbench.network import Host
from testbench.ottla_node import OTTLA
from testbench.ports import HOST, free_port
from testbench.process import ManagedProcess, NodeError, stand_still
from testbench.releases import environment_of

REPLICATED = {"default.replication.factor": "3", "min.insync.replicas": "2"}


class Broker(Protocol):
    """One broker of a cluster: of Ottla or of Apache Kafka, started here or by a supervisor."""

    data: Path
    """Its log directory."""

    @property
    def pid(self) -> int: ...
    @property
    def alive(self) -> bool: ...
    def start(self, wait_s: float = 180) -> None: ...
    def stop(self, wait_s: float = 180) -> None: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class OttlaServer(ManagedProcess):
    """`ottla server --config`: a broker whose metadata store is ZooKeeper."""

    def __init__(
        self,
        number: int,
        directory: Path,
        settings: dict[str, str],
        *,
        data: Path | None = None,
        more: Sequence[Path] = (),
        host: Host | None = None,
    ) -> None:
        """`more`: further log directories."""
        super().__init__(f"broker {number}", directory / f"broker-{number}.log", host.prefix if host else ())
        self.id = number
        self.data = data or directory / f"broker-{number}"
        self._more = more
        self.address = host.address if host else HOST
        self.port = free_port()
        self.source: Path | None = None
        """The source of another release that its next start runs; None: today's."""
        self._file = directory / f"broker-{number}.properties"
        self._settings = settings

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients."""
        return f"{self.address}:{self.port}"

    def configure(self, settings: dict[str, str]) -> None:
        """Add or replace settings, from its next start on."""
        self._settings = self._settings | settings

    def start(self, wait_s: float = 180) -> None:
        """Start, and wait until the broker reports that it is ready. Raises NodeError."""
        ready = self.begin()
        self.await_ready(lambda: ready.exists() and bool(ready.read_text().strip()), wait_s)

    def begin(self) -> Path:
        """Start without waiting. Returns the file that it writes when it is ready."""
        own = {
            "broker.id": str(self.id),
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": ",".join(map(str, (self.data, *self._more))),
        }
        properties = REPLICATED | own | self._settings
        self._file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        ready = self._file.with_suffix(".ready")
        ready.unlink(missing_ok=True)
        command = [*OTTLA, "server", "--config", str(self._file), "--ready-file", str(ready)]
        self.launch(command, environment_of(self.source))
        return ready


class OttlaOnZooKeeper:
    """Brokers 1 to N on a running ensemble, on this host or each on a separate host."""

    def __init__(
        self,
        directory: Path,
        connect: str,
        size: int = 3,
        *,
        settings: dict[str, str] | None = None,
        hosts: Sequence[Host] = (),
        data: Sequence[Path] = (),
        more: Sequence[Path] = (),
    ) -> None:
        """`data`, `more`: the log directory of each broker and a second one, in place of the default."""
        directory.mkdir(parents=True, exist_ok=True)
        common = {"zookeeper.connect": connect, **(settings or {})}
        self.brokers = [
            OttlaServer(
                index + 1,
                directory,
                common,
                data=data[index] if data else None,
                more=more[index : index + 1],
                host=hosts[index] if hosts else None,
            )
            for index in range(size)
        ]

    @property
    def bootstrap(self) -> str:
        """All brokers, for clients."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self, wait_s: float = 180) -> None:
        """Start all at once. Raises NodeError."""
        ready = [broker.begin() for broker in self.brokers]
        for broker, file in zip(self.brokers, ready, strict=True):
            broker.await_ready(lambda file=file: file.exists() and bool(file.read_text().strip()), wait_s)

    def stop(self) -> None:
        """Kill all; fine when some have ended."""
        for broker in self.brokers:
            broker.kill()


class SupervisedBroker:
    """A broker of `ottla up`, which restarts it whenever it ends; its process id is in its `pid` file."""

    def __init__(self, number: int, data: Path) -> None:
        self.id = number
        self.name = f"broker {number}"
        self.data = data
        self._ended = 0
        """The process that was ended last; a `pid` file that still names it is outdated."""
        self._seen = 0

    @property
    def pid(self) -> int:
        """The process id. Raises NodeError while no process runs."""
        try:
            self._seen = int((self.data / "pid").read_text())
        except (FileNotFoundError, ValueError):
            raise NodeError(f"{self.data}/pid names no process") from None
        except OSError as error:
            if error.errno != errno.EIO:  # its disk failed, so the file is unreadable; the process is the same
                raise
        return self._seen

    @property
    def alive(self) -> bool:
        """Whether its process is running, and is not the one that was ended."""
        try:
            pid = self.pid
        except NodeError:
            return False
        return pid != self._ended and _runs(pid)

    def start(self, wait_s: float = 180) -> None:
        """Wait until the supervisor has started it again. Raises NodeError."""
        deadline = time.monotonic() + wait_s
        while not self.alive:
            if time.monotonic() > deadline:
                raise NodeError(f"the supervisor did not start {self.name} again within {wait_s} s")
            time.sleep(0.01)

    def stop(self, wait_s: float = 180) -> None:
        """SIGTERM, and wait for the end. Raises NodeError."""
        self._end(signal.SIGTERM, wait_s)

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self._end(signal.SIGKILL, 10)

    def _end(self, number: int, wait_s: float) -> None:
        if not self.alive:
            return
        pid = self._ended = self.pid
        os.kill(pid, number)
        deadline = time.monotonic() + wait_s
        while _runs(pid):
            if time.monotonic() > deadline:
                raise NodeError(f"{self.name} (process {pid}) did not end within {wait_s} s")
            time.sleep(0.005)

    def pause(self) -> None:
        """SIGSTOP, and wait until all threads have stopped."""
        stand_still(self.pid)

    def resume(self) -> None:
        """SIGCONT, after `pause`."""
        os.kill(self.pid, signal.SIGCONT)


def _runs(pid: int) -> bool:
    """Whether the process runs. A zombie does not: its files are closed, and its parent has not reaped it yet."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


class OttlaUp(ManagedProcess):
    """`ottla up --brokers N`: the supervisor, and its brokers 1 to N."""

    def __init__(
        self,
        directory: Path,
        size: int = 3,
        *,
        settings: dict[str, str] | None = None,
        host: Host | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__("the supervisor", directory / "supervisor.log", host.prefix if host else ())
        self.directory = directory / "data"
        self.address = host.address if host else HOST
        self.port = free_port()
        self.brokers = [SupervisedBroker(index + 1, self.directory / f"broker-{index + 1}") for index in range(size)]
        self._settings = REPLICATED | (settings or {})

    @property
    def bootstrap(self) -> str:
        """The port that all brokers share."""
        return f"{self.address}:{self.port}"

    def start(self, wait_s: float = 180) -> None:
        """Start, and wait until it reports that all brokers are ready. Raises NodeError."""
        ready = self.log.with_suffix(".ready")
        ready.unlink(missing_ok=True)
        where = ["--data", str(self.directory), "--host", self.address, "--port", str(self.port)]
        words = [*OTTLA, "up", "--brokers", str(len(self.brokers)), *where, "--ready-file", str(ready)]
        for key, value in self._settings.items():
            words += ["--set", f"{key}={value}"]
        self.launch(words)
        self.await_ready(lambda: ready.exists() and bool(ready.read_text().strip()), wait_s)

    @property
    def store(self) -> str:
        """`host:port` of the metadata store for ZooKeeper clients, on the loopback interface of its host."""
        return str(self._status()["store"])

    @property
    def digest(self) -> str:
        """The credentials of clients of the metadata store."""
        return (self.directory / "store.digest").read_text().strip()

    def _status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "status.json").read_text())
        return found

    def port_of(self, number: int) -> int:
        """The port of one broker, besides the one that all share."""
        return next(int(each["port"]) for each in self._status()["brokers"] if each["id"] == number)

    def kill_all(self) -> None:
        """SIGKILL to the supervisor and all its processes; does nothing if it has ended."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self.kill()
        for broker in self.brokers:
            broker.kill()


__all__ = ["HOST", "Broker", "OttlaOnZooKeeper", "OttlaServer", "OttlaUp", "SupervisedBroker", "answers"]
