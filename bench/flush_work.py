"""Flush before acknowledgement: what producers wait, and how many of them each fsync serves.

The disk is one in memory whose syncs take a given time, so that the figure is the broker's and not that of a device
which others use as well.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from testbench.apache_kafka.broker import free_port

from bench.memory import in_memory
from bench.peers import Process, native
from bench.slow_broker import syncs_of
from bench.work import load, make_topic, produce_frame

TOPIC = "flushed"
SYNC_MS = 5
PRODUCERS = 100


class Flushed(NamedTuple):
    """What was seen of one run."""

    syncs: float
    """Per 100 acknowledgements."""
    p50_ms: float
    """From a request to its acknowledgement."""
    p99_ms: float


class Producers:
    """A broker that flushes before it acknowledges, and those who wait for it."""

    def __init__(self, directory: Path) -> None:
        self._disk = tempfile.TemporaryDirectory(prefix="ottla-bench-", dir=in_memory())
        self._counter = directory / "syncs"
        self._frame = directory / "flush-frame"
        self._frame.write_bytes(produce_frame(TOPIC, -1, 1, 100))
        self._load = native("load", directory)
        port = free_port()
        script = str(Path(__file__).with_name("slow_broker.py"))
        words = [str(self._counter), str(SYNC_MS), "--data", str(Path(self._disk.name) / "data"), "--port", str(port)]
        self.broker = Process("ottla", [sys.executable, script, *words], port, directory / "flush-log")
        make_topic(port, TOPIC, 1, {"flush.messages": "1"})

    def run(self, requests: int) -> Flushed:
        """Each producer has one record on its way; `requests` of them altogether."""
        before = syncs_of(self._counter.read_bytes())
        seen = load(self._load, self.broker, self._frame, PRODUCERS, 1, requests)
        syncs = syncs_of(self._counter.read_bytes()) - before
        return Flushed(syncs / requests * 100, seen["p50"] / 1e3, seen["p99"] / 1e3)

    def stop(self) -> None:
        """End the broker, and give its disk back."""
        self.broker.stop()
        self._disk.cleanup()
