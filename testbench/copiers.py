"""Programs that copy a topic exactly once, by four libraries, as processes: started, killed, and started again.

Zone: real. The programs are copier.py, StreamsCopier.java, and Apache Kafka's own TransactionalMessageCopier.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from testbench import java_program
from testbench.apache_kafka.packages import class_path, java
from testbench.apache_kafka.tools import logging_options
from testbench.copier import PER_TRANSACTION, TRANSACTION_MS
from testbench.releases import environment_of

ROOT = Path(__file__).resolve().parent.parent
KAFKA = "4.4.0"
COPIERS = ("apache", "streams", "librdkafka", "aiokafka")
MOST_STARTS = 30
"""A copier that needs more starts than this is broken."""


def command(library: str, state: Path, bootstrap: str, source: str, target: str, name: str) -> list[str]:
    """The command that starts a copier; `state` is its own directory. Raises BenchError if a program is missing."""
    if library == "streams":
        return java_program.command("StreamsCopier", bootstrap, source, target, name, str(state), part="streams")
    if library != "apache":
        return [sys.executable, "-m", "testbench.copier", library, bootstrap, source, target, name]
    # In group mode it takes all partitions in spite of this option; it reads to the end at its start, and ends.
    options = {
        "--broker-list": bootstrap, "--input-topic": source, "--input-partition": "0", "--output-topic": target,
        "--consumer-group": name, "--transactional-id": name, "--transaction-size": str(PER_TRANSACTION),
        "--transaction-timeout": str(TRANSACTION_MS),
    }  # fmt: skip
    words = [word for pair in options.items() for word in pair] + ["--group-mode", "--use-group-metadata"]
    # It is part of the tools; the clients come first on the class path, so their version is used.
    clients = Path(class_path(KAFKA, "clients")).with_name(f"kafka-clients-{KAFKA}.jar")
    path = f"{clients}:{class_path(KAFKA, 'tools')}"
    jvm = [java(), *java_program.SMALL_JVM, *logging_options(KAFKA), "-cp", path]
    return [*jvm, "org.apache.kafka.tools.TransactionalMessageCopier", *words, "--enable-random-aborts"]


class Copier:
    """One copier, over several processes."""

    def __init__(self, library: str, directory: Path, bootstrap: str, source: str, release: Path | None = None) -> None:
        """`release`: the source of another release of Ottla, for the copier of its client."""
        self.library = library
        self._environment = environment_of(release)
        self.group = f"copy-{library}"
        self.target = f"{source}-{library}"
        self.killed = 0
        self.starts = 0
        self._log = directory / f"{library}.log"  # clients may log what brokers must not
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._command = command(library, directory / "state", bootstrap, source, self.target, self.group)
        self._process: subprocess.Popen[bytes] | None = None

    def keep_running(self) -> None:
        """Start it if it is not running: it was killed, gave up, or reached the end."""
        if self._process is not None and self._process.poll() is None:
            return
        self.starts += 1
        assert self.starts <= MOST_STARTS, f"{self.library} ends again and again:\n{self.tail()}"
        self._close()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=ROOT,
                env=self._environment,
            )

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            self.killed += 1

    def end(self, wait_s: float = 180) -> None:
        """Close its standard input, and wait; the one that does not read it ends by itself."""
        if self._process is not None:
            self._close()
            self._process.wait(wait_s)

    def _close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def tail(self) -> str:
        """The last lines of its error output."""
        return self._log.read_text(errors="replace")[-2_000:] if self._log.exists() else ""
