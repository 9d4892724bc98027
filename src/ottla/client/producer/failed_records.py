"""Handlers of failed records: an application's function, a file, or a topic.

Zone: real. Implements `on_failed` of the producer; `core` decides when a record has failed.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from ottla.client.errors import ClientError
from ottla.client.producer.batch import ProducerBatch
from ottla.record.batch import Headers


class FailedRecord(NamedTuple):
    """A record that failed, with its error. After some errors it may be in the log."""

    topic: str
    partition: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    error: ClientError


def failed_records(batch: ProducerBatch) -> Iterator[FailedRecord]:
    """The records of a failed batch."""
    assert batch.error is not None
    for record in batch.decode_records():
        yield FailedRecord(
            batch.tp.topic, batch.tp.partition, record.timestamp, record.key, record.value, record.headers,
            batch.error,
        )  # fmt: skip


def for_each_record(on_failed: Callable[[FailedRecord], object]) -> Callable[[ProducerBatch], None]:
    """A function that calls `on_failed` for every record of a failed batch."""

    def record(batch: ProducerBatch) -> None:
        for one in failed_records(batch):
            on_failed(one)

    return record


def to_file(path: str | Path) -> Callable[[FailedRecord], None]:
    """An `on_failed` that appends a JSON line per record, flushed at once; key, value and headers in base64."""
    lock = threading.Lock()

    def record(failed: FailedRecord) -> None:
        line = {
            "topic": failed.topic,
            "partition": failed.partition,
            "timestamp": failed.timestamp,
            "key": _base64_text(failed.key),
            "value": _base64_text(failed.value),
            "headers": [[name, _base64_text(content)] for name, content in failed.headers],
            "error": str(failed.error),
        }
        with lock, Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    return record


def to_topic(send: Callable[..., object], topic: str) -> Callable[[FailedRecord], None]:
    """An `on_failed` that sends the record to `topic`, with its topic, partition and error in headers.

    send: the method of *another* producer: the one that failed may fail again, and must not wait for itself.
    """

    def record(failed: FailedRecord) -> None:
        headers = (
            *failed.headers,
            ("ottla.failed.topic", failed.topic.encode()),
            ("ottla.failed.partition", str(failed.partition).encode()),
            ("ottla.failed.error", str(failed.error).encode()),
        )
        send(topic, failed.value, key=failed.key, headers=headers, timestamp=failed.timestamp)

    return record


def _base64_text(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()
