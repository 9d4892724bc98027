"""The processes that are measured: Ottla, Apache Kafka, and the C floor, each in a separate directory."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol

from testbench.apache_kafka.broker import KAFKAS_HEAP, KafkaNode, answers, cpu_seconds
from testbench.apache_kafka.packages import BenchError
from testbench.ports import HOST, free_port

from testbench import programs

HERE = Path(__file__).parent


class Peer(Protocol):
    """A running broker."""

    name: str
    port: int

    @property
    def pid(self) -> int: ...
    def stop(self) -> None: ...


def rss_mib(pid: int) -> float:
    """Resident memory of a process, MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise BenchError(f"process {pid} has no VmRSS")


class Cpu:
    """CPU seconds of some processes, together, between enter and exit."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self.seconds = 0.0

    def __enter__(self) -> Cpu:
        self._before = sum(map(cpu_seconds, self._pids))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.seconds = sum(map(cpu_seconds, self._pids)) - self._before


class Process:
    """A peer that one command starts, and that answers ApiVersions."""

    def __init__(self, name: str, command: list[str], port: int, log: Path) -> None:
        self.name = name
        self.port = port
        started = time.monotonic()
        self._log = log.open("wb")
        # Keep bytecode, like an ordinary installation.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=environment)
        while not answers(port):
            if self._process.poll() is not None:
                raise BenchError(f"{name} ended before it answered; see {log}")
            if time.monotonic() - started > 60:
                raise BenchError(f"{name} did not answer in 60 s; see {log}")
            time.sleep(0.002)
        self.start_seconds = time.monotonic() - started

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def kill(self) -> None:
        """End it as a crash does, and wait."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def stop(self, patience_s: float = 30) -> None:
        """End it and wait; one that takes longer is killed."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class Kafka:
    """Apache Kafka 4.4.0 with the options of its own scripts."""

    name = "kafka"

    def __init__(self, directory: Path) -> None:
        started = time.monotonic()
        self._node = KafkaNode(directory, settings=COMMON, heap=KAFKAS_HEAP)
        self._node.start()
        self.start_seconds = time.monotonic() - started
        self.port = self._node.port

    @property
    def pid(self) -> int:
        """Process id."""
        return self._node.pid

    def stop(self) -> None:
        """End it and wait."""
        self._node.stop()


COMMON = {
    # Limits the disk use of a run, with equal values for every broker.
    "log.retention.bytes": str(1 << 30),
    "log.segment.bytes": str(256 << 20),
    "log.retention.check.interval.ms": "5000",
    "log.segment.delete.delay.ms": "1000",
}


def ottla(directory: Path, settings: Mapping[str, str] | None = None) -> Process:
    """`ottla up` with the present interpreter."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [str(Path(sys.executable).parent / "ottla"), "up", "--data", str(directory / "data"), "--port", str(port)]
    for key, value in {**COMMON, **(settings or {})}.items():
        command += ["--set", f"{key}={value}"]
    return Process("ottla", command, port, directory / "log")


class Observed(Process):
    """An Ottla that notes when it wakes and when it sends (`bench/observed_broker.py`)."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        port, self._file = free_port(), directory / "notes"
        command = [sys.executable, str(HERE / "observed_broker.py"), str(self._file), "up"]
        super().__init__(
            "ottla", [*command, "--data", str(directory / "data"), "--port", str(port)], port, directory / "log"
        )

    def notes(self) -> list[tuple[str, float]]:
        """Its notes so far, in order: `wake` or `send`, and the time."""
        self._file.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR2)
        while not self._file.exists():
            time.sleep(0.01)
        lines = map(str.split, self._file.read_text().splitlines())
        return [(what, float(when)) for what, when in lines]


def other(name: str, command: str, directory: Path) -> Process:
    """Any other broker, given as a command in which {port} and {dir} are filled in."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    return Process(name, shlex.split(command.format(port=port, dir=directory)), port, directory / "log")


def kfake(directory: Path) -> Process:
    """franz-go's broker in one process: keeps all in memory, and also writes files. Raises BenchError without Go."""
    command = programs.kfake()
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    return Process("kfake", [*command, str(port), str(directory / "data")], port, directory / "log")


def native(name: str, directory: Path) -> Path:
    """Compile bench/native/<name>.c. Raises BenchError."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BenchError("no C compiler: install gcc (Debian: gcc)")
    program = directory / name
    subprocess.run([compiler, "-O2", "-o", str(program), str(HERE / "native" / f"{name}.c")], check=True)
    return program


class Floor:
    """The C floor: receives, writes and answers, without a protocol."""

    name = "floor"

    def __init__(self, directory: Path, reply_bytes: int) -> None:
        self.port = free_port()
        file = directory / "floor.data"
        self._run([str(native("floor", directory)), str(self.port), str(reply_bytes), str(file)])

    def _run(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def truncate(self) -> None:
        """Empty its file."""
        self._process.send_signal(signal.SIGUSR1)

    def stop(self) -> None:
        """End it and wait."""
        self._process.kill()
        self._process.wait()


class SendFloor(Floor):
    """The C floor of a fetch: a header and bytes of a file, by sendfile."""

    def __init__(self, directory: Path, send_bytes: int) -> None:
        self.port = free_port()
        file = directory / "sendfloor.data"
        if not file.exists():
            file.write_bytes(os.urandom(1 << 20) * 100)
        self._run([str(native("sendfloor", directory)), str(self.port), str(file), str(send_bytes)])


__all__ = [
    "COMMON",
    "HOST",
    "Cpu",
    "Floor",
    "Kafka",
    "Observed",
    "Peer",
    "Process",
    "SendFloor",
    "kfake",
    "native",
    "other",
    "ottla",
    "rss_mib",
]
