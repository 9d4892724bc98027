"""Load with known acknowledged records, and its check after a restart of the broker.

Zone: real. Each producer writes numbered records to its own partition, so that disorder, gaps and duplicates show.
"""

from __future__ import annotations

import itertools
import struct
import threading
import zlib
from collections.abc import Callable
from typing import Any

from testbench.clients import Confluent

_NUMBER = struct.Struct(">qI")


def value_of(number: int, size: int) -> bytes:
    """A value with its number and a checksum."""
    body = (b"%d " % number * (size // 2))[:size]
    return _NUMBER.pack(number, zlib.crc32(body)) + body


def number_of(value: bytes) -> int:
    """The number of a value. Raises AssertionError if its checksum is wrong."""
    number, checksum = _NUMBER.unpack_from(value)
    assert checksum == zlib.crc32(value[_NUMBER.size :]), f"record {number} has a wrong byte"
    assert isinstance(number, int)
    return number


class Load:
    """A producer thread that writes until `stop`, across restarts of the broker."""

    def __init__(self, bootstrap: str, topic: str, *, size: int = 500, idempotent: bool = True, **options: Any) -> None:
        self.topic = topic
        self.size = size
        self.acknowledged: set[int] = set()
        self.failed: list[tuple[int, str]] = []
        self.sent = 0
        self._stop = threading.Event()
        self._options = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": idempotent,
            "acks": "all",
            "linger.ms": 1,
            "batch.num.messages": 50,
            "reconnect.backoff.max.ms": 200,
            "queue.buffering.max.messages": 2_000,
            "log_level": 0,
            **options,
        }
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(self._options)
        while not self._stop.is_set():
            try:
                producer.produce(
                    self.topic, value_of(self.sent, self.size), partition=0, on_delivery=self._report(self.sent)
                )
            except BufferError:
                producer.poll(0.05)
                continue
            self.sent += 1
            producer.poll(0)
        producer.flush(30)

    def _report(self, number: int) -> Callable[[Any, Any], None]:
        def report(error: Any, _message: Any) -> None:
            if error is None:
                self.acknowledged.add(number)
            else:
                self.failed.append((number, str(error)))

        return report

    def wait_for(self, count: int, timeout_s: float = 600) -> None:
        """Wait for that many more acknowledged records. Raises AssertionError."""
        goal = len(self.acknowledged) + count
        done = threading.Event()
        for _ in range(int(timeout_s / 0.02)):
            if len(self.acknowledged) >= goal:
                return
            done.wait(0.02)
        raise AssertionError(f"{len(self.acknowledged)} of {goal} records acknowledged in {timeout_s} s")

    def stop(self) -> None:
        """Send what is buffered, wait for it (bounded), and end the thread."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the producer does not end"


def check(bootstrap: str, load: Load, acknowledged: set[int]) -> list[int]:
    """Check that acknowledged records are there, once, in order, unharmed; returns them. Raises AssertionError."""
    found = [number_of(each.value or b"") for each in Confluent().read(bootstrap, load.topic)]
    missing = acknowledged - set(found)
    assert not missing, f"{len(missing)} acknowledged records are lost, the first is {min(missing)} of {load.sent}"
    assert all(before < after for before, after in itertools.pairwise(found)), "duplicates, or out of order"
    return found
