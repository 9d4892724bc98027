#!/usr/bin/env python3
"""An idempotent librdkafka producer of numbered values: producer.py BOOTSTRAP TOPIC PARTITIONS ID RATE OUT

Record n goes to partition n % PARTITIONS, at RATE records a second; late records are sent as soon as possible. Five
times a second it prints: sent, acknowledged, failed. When its standard input ends, it sends its buffered records, and
writes their fates to OUT (values.py).
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from pathlib import Path

import confluent_kafka

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from testbench.chaos.login import login_settings
from testbench.chaos.values import ACKNOWLEDGED, FAILED, value

SAY_S = 0.2

SETTINGS = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "message.timeout.ms": 600_000,
    # Short, so that a request that a cut lost is retried soon.
    "socket.timeout.ms": 5_000,
    "topic.metadata.refresh.interval.ms": 5_000,
    "reconnect.backoff.max.ms": 500,
    "queue.buffering.max.messages": 10_000,
    # A batch is never larger than a segment (segment.bytes of the soak), or all of its records are refused.
    "batch.size": 100_000,
    "log_level": 2,
}


class Producing:
    """The records of one producer and their results."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, producer: int) -> None:
        self.topic = topic
        self.partitions = partitions
        self.producer = producer
        self.fate = bytearray()
        self.acknowledged = 0
        self.failed = 0
        self._client = confluent_kafka.Producer(
            {**SETTINGS, **login_settings(), "bootstrap.servers": bootstrap, "error_cb": self._on_error}
        )

    def _on_error(self, error: confluent_kafka.KafkaError) -> None:
        if error.fatal():
            print(f"fatal: {error}", file=sys.stderr, flush=True)

    def send(self) -> bool:
        """Send one more record; False when the buffer is full."""
        number = len(self.fate)
        try:
            self._client.produce(
                self.topic,
                value(self.producer, number),
                partition=number % self.partitions,
                on_delivery=functools.partial(self._report, number),
            )
        except BufferError:
            return False
        self.fate.append(0)
        return True

    def _report(self, number: int, error: object, _message: object) -> None:
        if error is None:
            self.fate[number] = ACKNOWLEDGED
            self.acknowledged += 1
            return
        self.fate[number] = FAILED
        self.failed += 1
        if self.failed <= 5:
            print(f"record {number}: {error}", file=sys.stderr, flush=True)

    def run(self, rate: float, stopped: threading.Event) -> None:
        """Send at a rate until `stop` is set; then wait for records in flight."""
        began = said = time.monotonic()
        while not stopped.is_set():
            due = int((time.monotonic() - began) * rate)
            for _ in range(min(due - len(self.fate), 100)):
                if not self.send():
                    break
            self._client.poll(0.002)
            if time.monotonic() > said + SAY_S:
                said = time.monotonic()
                self.say()
        self._client.flush(300)
        self.say()

    def say(self) -> None:
        """The counts so far."""
        print(len(self.fate), self.acknowledged, self.failed, flush=True)


def end_of_input(stopped: threading.Event) -> None:
    """Set the event when standard input ends."""
    sys.stdin.buffer.read()
    stopped.set()


def main(bootstrap: str, topic: str, partitions: str, producer: str, rate: str, out: str) -> None:
    """Run as a program."""
    stopped = threading.Event()
    threading.Thread(target=end_of_input, args=(stopped,), daemon=True).start()
    producing = Producing(bootstrap, topic, int(partitions), int(producer))
    producing.run(float(rate), stopped)
    Path(out).write_bytes(producing.fate)


if __name__ == "__main__":
    main(*sys.argv[1:])
