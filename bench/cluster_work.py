"""The workloads of clusters. Every function returns plain numbers."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import confluent_kafka

from bench.clusters import Cluster
from bench.peers import Cpu

QUICK = {  # a client that looks for the next leader at once, so that only the cluster is measured
    "acks": "all",
    "linger.ms": 0,
    "batch.num.messages": 1,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 50,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "enable.sparse.connections": False,  # otherwise it may wait a second before it connects to a new leader
    "socket.timeout.ms": 2_000,
    "message.timeout.ms": 60_000,
    "log_level": 0,
}


def one_record_requests(cluster: Cluster, topic: str, rate: int, seconds: float) -> dict[str, float]:
    """Send one record per request, acks all, on a schedule. Returns p50 and p99 of the acknowledgement in ms, and
    `late`: by how many percent the last acknowledgement exceeded the schedule."""
    producer = confluent_kafka.Producer({**QUICK, "bootstrap.servers": cluster.bootstrap})
    taken: list[float] = []
    failed: list[object] = []

    def report(error: object, message: confluent_kafka.Message) -> None:
        (taken if error is None else failed).append(message.latency() if error is None else error)  # type: ignore[arg-type]

    _warm(producer, topic)
    began = time.perf_counter()
    for number in range(int(rate * seconds)):
        producer.produce(topic, b"x" * 100, on_delivery=report)
        producer.poll(0)
        while (left := began + (number + 1) / rate - time.perf_counter()) > 0:
            producer.poll(left)
    producer.flush(60)
    took = time.perf_counter() - began
    assert not failed, failed[0]
    kept = sorted(each * 1e3 for each in taken)
    return {
        "p50": statistics.median(kept),
        "p99": kept[int(len(kept) * 0.99)],
        "late": max(0.0, took / seconds - 1) * 100,
    }


def _warm(producer: confluent_kafka.Producer, topic: str) -> None:
    """Open connections and get metadata before the clock starts."""
    for _ in range(50):
        producer.produce(topic, b"warm")
    producer.flush(30)


def idle(cluster: Cluster, seconds: float) -> dict[str, float]:
    """Memory in MiB and CPU in percent of a core, of idle brokers."""
    with Cpu(*cluster.pids) as cpu:
        time.sleep(seconds)
    return {"rss": cluster.rss(), "cpu": cpu.seconds / seconds * 100}


@dataclass
class Gap:
    """The effect of a fault on a producer."""

    recovered_s: float
    """Time from the fault to the first acknowledgement of a record that was sent after it."""
    longest_s: float
    """Longest time between two acknowledgements, from the fault on."""
    errors: list[str] = field(default_factory=list)
    """Records that failed."""


class Stream:
    """A producer of one partition that sends a record every few milliseconds, in a separate thread."""

    EVERY_S = 0.004

    def __init__(self, cluster: Cluster, topic: str) -> None:
        # A stopped leader does not answer: the timeout of the client is not part of the measurement.
        own = {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "socket.timeout.ms": 300}
        self._producer = confluent_kafka.Producer({**QUICK, **own})
        self._topic = topic
        self._acknowledged: list[tuple[float, float]] = []
        """(sent, acknowledged) on the monotonic clock"""
        self.errors: list[str] = []
        self._stop = threading.Event()
        _warm(self._producer, topic)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            sent = time.monotonic()
            try:
                self._producer.produce(self._topic, b"x" * 100, partition=0, on_delivery=self._report(sent))
            except BufferError:
                self._producer.poll(0.01)
                continue
            due = max(due + self.EVERY_S, sent)
            self._producer.poll(0)
            while (left := due - time.monotonic()) > 0:
                self._producer.poll(left)
        self._producer.flush(60)

    def _report(self, sent: float) -> Callable[[object, object], None]:
        def report(error: object, _message: object) -> None:
            if error is None:
                self._acknowledged.append((sent, time.monotonic()))
            else:
                self.errors.append(str(error))

        return report

    def gap(self, fault_at: float, settle_s: float = 1, wait_s: float = 60) -> Gap:
        """The effect of a fault at this time; waits until `settle_s` after the recovery. Raises TimeoutError."""
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            after = [at for sent, at in list(self._acknowledged) if sent > fault_at]
            if after and time.monotonic() > after[0] + settle_s:
                times = sorted(at for _, at in list(self._acknowledged) if at > fault_at - 0.1)
                longest = max((later - before for before, later in itertools.pairwise(times)), default=0.0)
                return Gap(min(after) - fault_at, longest, list(self.errors))
            time.sleep(0.01)
        raise TimeoutError(f"nothing was acknowledged for {wait_s} s after a fault")

    def forget(self) -> None:
        """Drop all samples so far."""
        self._acknowledged = self._acknowledged[-10:]
        self.errors.clear()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(90)
