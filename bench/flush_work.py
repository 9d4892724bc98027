"""Flush before acknowledgement: the latency of producers, and how many of them each fsync serves.

The disk is in memory, and its syncs take a given time, so that the figure does not depend on a shared device.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from testbench.ports import free_port

from bench.memory import in_memory
from bench.peers import Process, native
from bench.slow_broker import syncs_of
from bench.work import load, make_topic, produce_frame

TOPIC = "flushed"
SYNC_MS = 5
PRODUCERS = 100


class Flushed(NamedTuple):
    """Figures of one run."""

    syncs: float
    """Syncs per 100 acknowledgements."""
    p50_ms: float
    """Time from a request to its acknowledgement."""
    p99_ms: float


class Producers:
    """A broker that flushes before it acknowledges, and its producers."""

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
        """Run producers with one record in flight each, `requests` in total."""
        before = syncs_of(self._counter.read_bytes())
        seen = load(self._load, self.broker, self._frame, PRODUCERS, 1, requests)
        syncs = syncs_of(self._counter.read_bytes()) - before
        return Flushed(syncs / requests * 100, seen["p50"] / 1e3, seen["p99"] / 1e3)

    def stop(self) -> None:
        """End the broker, and free the memory of its disk."""
        self.broker.stop()
        self._disk.cleanup()
