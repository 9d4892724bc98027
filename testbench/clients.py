"""Four third-party Kafka clients with one interface: write records to a partition, read a partition to its end.

Zone: real. kcat, confluent-kafka, kafka-python, aiokafka. The docstring of each class states its limitations.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

WAIT_S = 180
"""How long a client may take before its test fails."""


class Record(NamedTuple):
    """A record that must be read back byte for byte."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    """Milliseconds since 1970; None: the client's own clock."""


class ClientFailure(Exception):
    """A client failed to write or read."""


class Confluent:
    """confluent-kafka, with librdkafka 2.x."""

    name = "confluent"

    def write(self, bootstrap: str, topic: str, records: Sequence[Record], codec: str = "none", **options: Any) -> None:
        """Produce to partition 0, in order, acks=all, and wait for every delivery report."""
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20, "log_level": 3}
        producer = Producer({**settings, "message.max.bytes": 2_000_000, **options})
        failed: list[str] = []

        def report(error: Any, _message: Any) -> None:
            if error is not None:
                failed.append(str(error))

        for each in records:
            stamp = {} if each.timestamp is None else {"timestamp": each.timestamp}
            producer.produce(
                topic, each.value, each.key, 0, headers=list(each.headers) or None, on_delivery=report, **stamp
            )
            producer.poll(0)
        left = producer.flush(WAIT_S)
        if left or failed:
            raise ClientFailure(f"confluent-kafka: {left} records not delivered, failed: {failed[:3]}")

    def read(self, bootstrap: str, topic: str, partition: int = 0, offset: int = 0) -> list[Record]:
        """Every record of a partition from an offset to its present end; producers may still write."""
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        settings = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, "log_level": 3}
        consumer = Consumer({**settings, "enable.partition.eof": True, "fetch.wait.max.ms": 50, "check.crcs": True})
        found: list[Record] = []
        deadline = time.monotonic() + WAIT_S
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), WAIT_S)
            consumer.assign([TopicPartition(topic, partition, offset)])
            while time.monotonic() < deadline:
                message = consumer.poll(1)
                if message is None:
                    continue
                error = message.error()
                if error is None and message.offset() >= end:
                    return found
                if error is None:
                    pairs = tuple((name, _bytes(value)) for name, value in message.headers() or ())
                    found.append(Record(_bytes(message.key()), _bytes(message.value()), pairs, message.timestamp()[1]))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
                else:
                    raise ClientFailure(f"confluent-kafka: {error}")
        finally:
            consumer.close()
        raise ClientFailure(f"confluent-kafka: no end of {topic}-{partition} in {WAIT_S} s")


class KafkaPython:
    """kafka-python 3.x. It refuses records without key and value, and headers that are null."""

    name = "kafka-python"

    def write(self, bootstrap: str, topic: str, records: Sequence[Record], codec: str = "none", **options: Any) -> None:
        """Produce to partition 0, in order, acks=all, and wait for every answer."""
        from kafka import KafkaProducer

        kind = None if codec == "none" else codec
        settings = {"acks": "all", "linger_ms": 20, "max_request_size": 2_000_000, "compression_type": kind}
        producer = KafkaProducer(bootstrap_servers=bootstrap, **{**settings, **options})
        try:
            futures = [
                producer.send(topic, each.value, each.key, list(each.headers), 0, each.timestamp) for each in records
            ]
            producer.flush(WAIT_S)
            for future in futures:
                future.get(WAIT_S)
        finally:
            producer.close()

    def read(self, bootstrap: str, topic: str, partition: int = 0, offset: int = 0) -> list[Record]:
        """Every record of a partition from an offset to the end."""
        from kafka import KafkaConsumer, TopicPartition

        where = TopicPartition(topic, partition)
        consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, check_crcs=True, fetch_max_wait_ms=50)
        found: list[Record] = []
        try:
            consumer.assign([where])
            consumer.seek(where, offset)
            end = consumer.end_offsets([where])[where]
            deadline = time.monotonic() + WAIT_S
            while consumer.position(where) < end:
                if time.monotonic() > deadline:
                    raise ClientFailure(f"kafka-python: stuck at {consumer.position(where)} of {end}")
                for each in consumer.poll(1_000).get(where, ()):
                    pairs = tuple((name, _bytes(value)) for name, value in each.headers)
                    found.append(Record(_bytes(each.key), _bytes(each.value), pairs, each.timestamp))
        finally:
            consumer.close()
        return found


class Aiokafka:
    """aiokafka 0.14; it sends the oldest requests of the four, and refuses a record without key and value."""

    name = "aiokafka"

    def write(self, bootstrap: str, topic: str, records: Sequence[Record], codec: str = "none", **options: Any) -> None:
        """Produce to partition 0, in order, acks=all, and wait for every answer."""
        asyncio.run(asyncio.wait_for(self._write(bootstrap, topic, records, codec, options), WAIT_S))

    async def _write(
        self, bootstrap: str, topic: str, records: Sequence[Record], codec: str, options: dict[str, Any]
    ) -> None:
        from aiokafka import AIOKafkaProducer

        kind = None if codec == "none" else codec
        settings = {"acks": "all", "linger_ms": 20, "max_request_size": 2_000_000, "compression_type": kind}
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **{**settings, **options})
        await producer.start()
        try:
            waiting = [
                await producer.send(
                    topic,
                    each.value,
                    each.key,
                    partition=0,
                    timestamp_ms=each.timestamp,
                    headers=list(each.headers),
                )
                for each in records
            ]
            await asyncio.gather(*waiting)
        finally:
            await producer.stop()

    def read(self, bootstrap: str, topic: str, partition: int = 0, offset: int = 0) -> list[Record]:
        """Every record of a partition from an offset to the end."""
        return asyncio.run(asyncio.wait_for(self._read(bootstrap, topic, partition, offset), WAIT_S))

    async def _read(self, bootstrap: str, topic: str, partition: int, offset: int) -> list[Record]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        where = TopicPartition(topic, partition)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False, check_crcs=True, fetch_max_wait_ms=50
        )
        await consumer.start()
        found: list[Record] = []
        try:
            consumer.assign([where])
            consumer.seek(where, offset)
            end = (await consumer.end_offsets([where]))[where]
            while await consumer.position(where) < end:
                for each in (await consumer.getmany(timeout_ms=1_000)).get(where, ()):
                    pairs = tuple((name, _bytes(value)) for name, value in each.headers)
                    found.append(Record(_bytes(each.key), _bytes(each.value), pairs, each.timestamp))
        finally:
            await consumer.stop()
        return found


class Kcat:
    """kcat 1.7, with librdkafka 2.0. It sets no timestamps."""

    name = "kcat"

    def write(self, bootstrap: str, topic: str, records: Sequence[Record], codec: str = "none", **options: Any) -> None:
        """Produce to partition 0, one run per key and headers, values from files."""
        with tempfile.TemporaryDirectory() as directory:
            for number, each in enumerate(records):
                file = Path(directory) / str(number)
                file.write_bytes(each.value or b"")
                words = ["-P", "-t", topic, "-p", "0", "-z", codec]
                for option, value in options.items():
                    words += ["-X", f"{option}={value}"]
                for name, value in each.headers:
                    words += ["-H", f"{name}={(value or b'').decode()}"]
                if each.value is None:
                    self.run(bootstrap, *words, "-Z", "-K:", stdin=(each.key or b"") + b":\n")
                    continue
                if each.key is not None:
                    words += ["-k", each.key.decode()]
                self.run(bootstrap, *words, str(file))

    def read(self, bootstrap: str, topic: str, partition: int = 0, offset: int = 0) -> list[Record]:
        """Every record of a partition from an offset to the end; header values as kcat prints them."""
        shape = "%T %K %S %h|\\n%k%s\\n"
        words = ["-C", "-e", "-q", "-t", topic, "-p", str(partition), "-o", str(offset), "-f", shape]
        return _parsed(self.run(bootstrap, *words, "-X", "check.crcs=true", "-X", "fetch.wait.max.ms=50"))

    def run(self, bootstrap: str, *words: str, stdin: bytes = b"") -> bytes:
        """What kcat prints. Raises ClientFailure with its complaint."""
        command = ["kcat", "-b", bootstrap, "-X", "message.max.bytes=2000000", *words]
        done = subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=WAIT_S)
        if done.returncode or b"ERROR" in done.stderr or b"failed" in done.stderr:
            raise ClientFailure(f"{' '.join(command)}: {done.returncode}: {done.stderr.decode(errors='replace')}")
        return done.stdout


def _parsed(printed: bytes) -> list[Record]:
    found = []
    at = 0
    while at < len(printed):
        line = re.compile(rb"(\d+) (-?\d+) (-?\d+) ([^|]*)\|\n").match(printed, at)
        assert line is not None, printed[at : at + 100]
        stamp, key_size, value_size = (int(line[group]) for group in (1, 2, 3))
        middle = line.end() + max(key_size, 0)
        end = middle + max(value_size, 0)
        key = None if key_size < 0 else printed[line.end() : middle]
        value = None if value_size < 0 else printed[middle:end]
        found.append(Record(key, value, _kcat_headers(line[4].decode()), stamp))
        at = end + 1
    return found


def _kcat_headers(printed: str) -> tuple[tuple[str, bytes | None], ...]:
    """Parse `a=1,b=NULL`; kcat prints a null and the text NULL in the same way."""
    pairs = [pair.partition("=") for pair in printed.split(",") if pair]
    return tuple((name, None if value == "NULL" else value.encode()) for name, _, value in pairs)


def _bytes(found: Any) -> bytes | None:
    return None if found is None else bytes(found)


CLIENTS: tuple[Confluent | KafkaPython | Aiokafka | Kcat, ...] = (Confluent(), KafkaPython(), Aiokafka(), Kcat())
"""All of them, in the order of the parameters of tests."""
