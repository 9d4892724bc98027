"""Compaction of one log: CPU of the broker and of its worker, and the latency of requests meanwhile."""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from testbench.apache_kafka.broker import cpu_seconds
from testbench.apache_kafka.packages import BenchError
from testbench.ports import HOST, free_port

from bench.peers import Process
from bench.wire import Crowd, Script, run_one
from bench.work import make_topic
from ottla.record.batch import Record, encode_batch
from ottla.storage.layout import CLEAN_SHUTDOWN, CLEANED_UNTIL, RECOVERY_POINTS
from ottla.wire.messages import ApiVersionsRequest, ProduceRequest

TOPIC = "compacted"
BATCH_BYTES = 16 * 1024
UNIQUE = 0.1
"""Keys, as a part of the records."""
BETWEEN_S = 0.002
"""Time from an answer to the next request."""
LONGEST_S = 900
IDLE_S = 3


class Compacted(NamedTuple):
    """Figures of one pass."""

    seconds_per_gb: float
    """CPU per GB of the compacted log."""
    us_per_record: float
    """CPU per record."""
    waits_ms: list[float]
    """Latencies of requests during the pass."""
    before_ms: list[float]
    """Latencies of requests before the pass."""


class Keyed:
    """A log with one closed segment of records of one size, saved before its first compaction."""

    def __init__(self, directory: Path, record_bytes: int, size: int) -> None:
        self._directory = directory
        directory.mkdir(parents=True)
        self._segment = directory / "segment"
        self.records, self.batches = self._write(record_bytes, size)
        self.size = self._segment.stat().st_size

    def _write(self, record_bytes: int, size: int) -> tuple[int, int]:
        chosen = random.Random(1)
        each = BATCH_BYTES // record_bytes
        batches = size // BATCH_BYTES
        keys = int(each * batches * UNIQUE)
        value = bytes(record_bytes - 30)
        with self._segment.open("wb", buffering=1 << 20) as log:
            for at in range(batches):
                rows = [Record(n, 1_700_000_000_000, b"key-%012d" % chosen.randrange(keys), value) for n in range(each)]
                batch = encode_batch(rows)
                batch[:8] = (at * each).to_bytes(8, "big")
                log.write(batch)
        return each * batches, batches

    def run(self) -> Compacted:
        """Compact it once."""
        data = self._directory / "data"
        shutil.rmtree(data, ignore_errors=True)
        broker = self._start(data)
        config = {"cleanup.policy": "compact", "segment.bytes": str(self.size), "min.cleanable.dirty.ratio": "1"}
        make_topic(broker.port, TOPIC, 1, config)
        broker.stop(LONGEST_S)
        self._put(data)
        broker = self._start(data)
        try:
            run_one(broker.port, _one_more(), 60, "a record that begins a segment")
            return self._measure(broker, data)
        finally:
            broker.stop(LONGEST_S)

    def _start(self, data: Path) -> Process:
        port = free_port()
        command = [str(Path(sys.executable).parent / "ottla"), "up", "--data", str(data), "--port", str(port)]
        command += ["--set", "log.cleaner.backoff.ms=100"]
        return Process("ottla", command, port, self._directory / "log")

    def _put(self, data: Path) -> None:
        (log,) = data.rglob(f"{TOPIC}-0/*.log")
        shutil.copyfile(self._segment, log)
        for name in (CLEAN_SHUTDOWN, RECOVERY_POINTS, "*.index", "*.timeindex", "*.snapshot"):
            for found in data.rglob(name):
                if found.parent == log.parent or "*" not in name:
                    found.unlink()

    def _measure(self, broker: Process, data: Path) -> Compacted:
        idle = _ask_until(broker.port, _after(IDLE_S))
        before, workers = cpu_seconds(broker.pid), _children(broker.pid)
        _alter(broker.port, "0")
        waits = _ask_until(broker.port, lambda: _noted(data))
        seconds = cpu_seconds(broker.pid) - before
        seconds += sum(cpu_seconds(pid) for pid in _children(broker.pid) if pid not in workers)
        return Compacted(seconds / self.size * 1e9, seconds / self.records * 1e6, waits, idle)


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def _noted(data: Path) -> bool:
    """Whether a pass has ended. The checkpoint has offset 0 when one begins."""
    rows = [line.split() for found in data.rglob(CLEANED_UNTIL) for line in found.read_text().splitlines()]
    return any(row[0] == TOPIC and int(row[2]) > 0 for row in rows if len(row) == 3)


def _alter(port: int, ratio: str) -> None:
    admin = AdminClient({"bootstrap.servers": f"{HOST}:{port}"})
    entry = ConfigEntry("min.cleanable.dirty.ratio", ratio, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def _one_more() -> Script:
    batch = bytes(encode_batch([Record(0, 1_700_000_000_000, b"last", b"x")]))
    data = ProduceRequest.PartitionProduceData(index=0, records=memoryview(batch))
    topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[data])
    code = -1
    while code:  # until the broker has its leaderships
        answer = yield ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[topic]), 9
        code = answer.responses[0].partition_responses[0].error_code
        yield 0.1


def _ask_until(port: int, done: Callable[[], bool]) -> list[float]:
    """Latencies in ms of consecutive requests until `done()`."""
    waits: list[float] = []

    def ask() -> Script:
        began = time.monotonic()
        while not done():
            if time.monotonic() - began > LONGEST_S:
                raise BenchError(f"the log is not compacted after {LONGEST_S} s")
            sent = time.monotonic()
            yield ApiVersionsRequest(client_software_name="bench", client_software_version="1"), 3
            waits.append((time.monotonic() - sent) * 1e3)
            yield BETWEEN_S

    crowd = Crowd()
    try:
        crowd.run([(crowd.connect(port), ask())], LONGEST_S, "compaction")
    finally:
        crowd.close()
    return waits


def _children(pid: int) -> list[int]:
    """Child processes of a process."""
    found = []
    for each in filter(str.isdecimal, os.listdir("/proc")):
        try:
            stat = Path("/proc", each, "stat").read_text()
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == pid:
            found.append(int(each))
    return found
