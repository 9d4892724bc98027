"""Opening data directories: one log after an unclean stop, and thousands of clean ones."""

from __future__ import annotations

import time
from pathlib import Path

from testbench.apache_kafka.packages import BenchError

from bench.peers import Process, ottla
from bench.wire import Crowd, Script
from bench.work import make_topic
from ottla.record.batch import Record, encode_batch
from ottla.storage.layout import CLEAN_SHUTDOWN, RECOVERY_POINTS
from ottla.wire.messages import ListOffsetsRequest, ProduceRequest

TOPIC = "opened"
BATCH_BYTES = 16 * 1024
RECORDS = 16
GIB = 1 << 30
AT_ONCE = 500
"""Partitions per topic, and so per request, where there are thousands."""
STOP_S = 600
"""A clean stop syncs every file that was written, which may take long on a busy disk."""


class Unclean:
    """A broker with one log that no recovery point covers at its next start."""

    def __init__(self, directory: Path, size: int) -> None:
        self._directory = directory
        broker, _ = _started(directory)
        make_topic(broker.port, TOPIC, 1)
        broker.stop(STOP_S)
        self.batches = size // BATCH_BYTES
        self.bytes = self._fill(_only(directory, f"{TOPIC}-0/*.log"))
        self._forget()
        self._recover()

    def _fill(self, path: Path) -> int:
        batch = bytearray(
            encode_batch([Record(at, int(time.time() * 1000), None, b"x" * 1010, ()) for at in range(RECORDS)])
        )
        with path.open("wb", buffering=1 << 20) as log:
            for at in range(self.batches):
                # The base offset is the first field of a batch, and its checksum does not cover it.
                batch[:8] = (at * RECORDS).to_bytes(8, "big")
                log.write(batch)
        return path.stat().st_size

    def start(self) -> float:
        """Additional seconds of a start, compared with one after a clean stop, per GiB that has to be read."""
        clean, seconds = _started(self._directory)
        clean.stop(STOP_S)
        self._forget()
        return (self._recover() - seconds) / (self.bytes / GIB)

    def _forget(self) -> None:
        data = self._directory / "data"
        for name in (CLEAN_SHUTDOWN, RECOVERY_POINTS):
            for found in data.rglob(name):
                found.unlink()
        for pattern in ("*.index", "*.timeindex", "*.snapshot"):
            for found in data.rglob(f"{TOPIC}-0/{pattern}"):
                found.unlink()

    def _recover(self) -> float:
        broker, seconds = _started(self._directory)
        try:
            end = sum(_ends(broker, TOPIC, 1))
        finally:
            broker.stop(STOP_S)
        if end != self.batches * RECORDS:
            raise BenchError(f"the log ends at {end} and not at {self.batches * RECORDS}")
        return seconds


class Clean:
    """A broker with many partitions with records, after a clean stop."""

    def __init__(self, directory: Path, partitions: int) -> None:
        self._directory = directory
        self.partitions = partitions
        broker, _ = _started(directory)
        for first in range(0, partitions, AT_ONCE):
            make_topic(broker.port, f"{TOPIC}-{first}", min(AT_ONCE, partitions - first))
        crowd = Crowd()
        try:
            crowd.run([(crowd.connect(broker.port), self._produce())], 300, "filling partitions")
        finally:
            crowd.close()
            broker.stop(STOP_S)

    def _produce(self) -> Script:
        batch = bytes(encode_batch([Record(0, int(time.time() * 1000), None, b"x" * 100, ())]))
        for first in range(0, self.partitions, AT_ONCE):
            data = [
                ProduceRequest.PartitionProduceData(index=at, records=memoryview(batch))
                for at in range(min(AT_ONCE, self.partitions - first))
            ]
            topic = ProduceRequest.TopicProduceData(name=f"{TOPIC}-{first}", partition_data=data)
            answer = yield ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[topic]), 9
            bad = {part.error_code for part in answer.responses[0].partition_responses} - {0}
            if bad:
                raise BenchError(f"Produce met errors {bad}")

    def start(self) -> float:
        """Seconds from the command until the broker has returned the log end of every partition."""
        began = time.monotonic()
        broker, _ = _started(self._directory)
        try:
            while any(end != 1 for end in self._all_ends(broker)):
                if time.monotonic() - began > STOP_S:
                    raise BenchError("not all partitions end at 1")
            seconds = time.monotonic() - began
        finally:
            broker.stop(STOP_S)
        return seconds

    def _all_ends(self, broker: Process) -> list[int]:
        firsts = range(0, self.partitions, AT_ONCE)
        sizes = [min(AT_ONCE, self.partitions - first) for first in firsts]
        return [
            end for first, size in zip(firsts, sizes, strict=True) for end in _ends(broker, f"{TOPIC}-{first}", size)
        ]


def _started(directory: Path) -> tuple[Process, float]:
    """Start a broker; also returns the seconds from its command until it is ready."""
    began = time.monotonic()
    broker = ottla(directory)
    while b"ready bootstrap=" not in (directory / "log").read_bytes():
        if time.monotonic() - began > STOP_S:
            raise BenchError(f"the broker is not ready after {STOP_S} s; see {directory / 'log'}")
        time.sleep(0.01)
    return broker, time.monotonic() - began


def _only(directory: Path, pattern: str) -> Path:
    (found,) = directory.rglob(pattern)
    return found


def _ends(broker: Process, name: str, partitions: int) -> list[int]:
    """The log ends of a topic's partitions."""
    crowd = Crowd()

    def ask() -> Script:
        wanted = [ListOffsetsRequest.ListOffsetsPartition(partition_index=at, timestamp=-1) for at in range(partitions)]
        topic = ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=wanted)
        answer = yield ListOffsetsRequest(replica_id=-1, topics=[topic]), 5
        return [part.offset for part in sorted(answer.topics[0].partitions, key=lambda part: part.partition_index)]

    try:
        (ends,) = crowd.run([(crowd.connect(broker.port), ask())], 60, "asking for log ends")
        return ends
    finally:
        crowd.close()
