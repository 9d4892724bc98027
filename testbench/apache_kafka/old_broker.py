"""A broker of Apache Kafka 1.0, whose metadata is in ZooKeeper: what its clients and tools met.

Zone: real. Starts and ends it; its jars are those of the tools of that version.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Final

from testbench.apache_kafka.broker import answers
from testbench.apache_kafka.packages import class_path, java
from testbench.apache_kafka.tools import SHORT_RUN, logging_options, tools_part
from testbench.ports import HOST, free_port
from testbench.process import ManagedProcess

VERSION: Final = "1.0.2"
_JVM: Final = ("-Xmx256m", *SHORT_RUN)


class OldKafkaNode(ManagedProcess):
    """One broker, alone on a path of a running ZooKeeper. Use as a context manager; its data ends with the test."""

    def __init__(self, directory: Path, connect: str, settings: dict[str, str] | None = None) -> None:
        super().__init__(f"Apache Kafka {VERSION}", directory / "server.log")
        self.directory = directory
        self.port = free_port()
        self._settings = {"zookeeper.connect": connect} | (settings or {})

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients."""
        return f"{HOST}:{self.port}"

    def start(self, wait_s: float = 180) -> None:
        """Start, and wait until it answers. Raises NodeError, and BenchError when Java or the packages are missing."""
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self.directory / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties().items()))
        classes = class_path(VERSION, tools_part(VERSION))
        self.launch([java(), *_JVM, *logging_options(VERSION), "-cp", classes, "kafka.Kafka", str(properties)])
        self.await_ready(lambda: answers(self.port), wait_s, 0.05)

    def _properties(self) -> dict[str, str]:
        base = {
            "broker.id": "1",
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self.directory / "data"),
            "group.initial.rebalance.delay.ms": "0",
        }
        for topic in ("offsets.topic", "transaction.state.log"):
            base |= {f"{topic}.replication.factor": "1", f"{topic}.num.partitions": "1"}
        return base | {"transaction.state.log.min.isr": "1"} | self._settings

    def __enter__(self) -> OldKafkaNode:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
