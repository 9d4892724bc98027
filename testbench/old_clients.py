"""Clients of 2015 to 2018 with one interface: writes, reads, and groups.

Zone: real. librdkafka as it speaks to brokers of 0.9 and 0.10, kafka-python 1.4 pinned to 0.8.2, 0.9 and 0.10, Apache
Kafka's own consumer and producer of 0.10.2 and 1.0. `python -m testbench.old_clients` fetches them with pip and Maven,
and Kafka's tools of 1.0.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from testbench import java_program
from testbench.apache_kafka import packages
from testbench.apache_kafka.packages import BenchError, cache
from testbench.clients import WAIT_S, ClientFailure

PYTHON_PACKAGES: Final = ("kafka-python==1.4.7", "python-snappy==0.7.3", "xxhash==4.1.0")
JAVA_VERSIONS: Final = ("0.10.2.2", "1.0.2")
OLD_TOOLS: Final = "1.0.2"
"""The version of Apache Kafka's tools that still speak to ZooKeeper."""
CODECS: Final = ("none", "gzip", "snappy", "lz4")


class Row(NamedTuple):
    """A record without headers, which exist since format v2."""

    key: bytes | None
    value: bytes | None
    timestamp: int


class Seen(NamedTuple):
    """A record that a consumer got; a timestamp of None or -1: there is none."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int | None


class OldLibrdkafka:
    """librdkafka with a configured broker version, without ApiVersions."""

    def __init__(self, fallback: str, format_: int) -> None:
        self.name = f"librdkafka-{fallback}"
        self.format = format_
        """The newest message format that it writes and reads."""
        self._settings = {"api.version.request": False, "broker.version.fallback": fallback, "log_level": 3}

    def write(self, bootstrap: str, topic: str, rows: Sequence[Row], codecs: Sequence[str] = CODECS) -> None:
        """Produce to partition 0, in order, once with each codec. Raises ClientFailure."""
        from confluent_kafka import Producer

        for codec in codecs:
            settings = {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20}
            producer = Producer({**settings, **self._settings})
            failed: list[str] = []

            def report(error: Any, _message: Any, failed: list[str] = failed) -> None:
                if error is not None:
                    failed.append(str(error))

            for row in rows:
                producer.produce(topic, row.value, row.key, 0, timestamp=row.timestamp, on_delivery=report)
            if producer.flush(WAIT_S) or failed:
                raise ClientFailure(f"{self.name}, {codec}: {failed[:3] or 'records not delivered'}")

    def read(self, bootstrap: str, topic: str) -> list[Seen]:
        """Partition 0 from the beginning to the end. Raises ClientFailure."""
        from confluent_kafka import KafkaError, TopicPartition

        consumer = self._consumer(bootstrap, "unused", **{"enable.partition.eof": True})
        found: list[Seen] = []
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            for message in _polled(consumer):
                error = message.error()
                if error is None:
                    kind, stamp = message.timestamp()
                    found.append(Seen(message.offset(), message.key(), message.value(), stamp if kind else None))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
                else:
                    raise ClientFailure(f"{self.name}: {error}")
        finally:
            consumer.close()
        raise ClientFailure(f"{self.name}: no end of {topic} in {WAIT_S} s")

    def read_in_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[bytes | None]:
        """Read the next records of the group, and commit their positions. Raises ClientFailure."""
        consumer = self._consumer(bootstrap, group, **{"auto.offset.reset": "earliest"})
        found: list[Any] = []
        try:
            consumer.subscribe([topic])
            for message in _polled(consumer):
                if message.error() is not None:
                    raise ClientFailure(f"{self.name}: {message.error()}")
                found.append(message)
                if len(found) == count:
                    consumer.commit(message=message, asynchronous=False)
                    return [each.value() for each in found]
        finally:
            consumer.close()
        raise ClientFailure(f"{self.name}: {len(found)} of {count} records in {WAIT_S} s")

    def _consumer(self, bootstrap: str, group: str, **more: Any) -> Any:
        from confluent_kafka import Consumer

        settings = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
        return Consumer({**settings, "fetch.wait.max.ms": 50, "check.crcs": True, **self._settings, **more})


def _polled(consumer: Any) -> Any:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None:
            yield message


class OldKafkaPython:
    """kafka-python 1.4, with a configured broker version."""

    def __init__(self, version: tuple[int, ...], format_: int) -> None:
        self.name = "kafka-python-" + ".".join(map(str, version))
        self.format = format_
        self._version = version

    def write(self, bootstrap: str, topic: str, rows: Sequence[Row], codecs: Sequence[str] = CODECS) -> None:
        """Produce to partition 0, in order, once with each codec. Raises ClientFailure."""
        shown = [(_text(row.key), _text(row.value), row.timestamp) for row in rows]
        self._run("write", bootstrap, topic=topic, rows=shown, codecs=list(codecs))

    def read(self, bootstrap: str, topic: str) -> list[Seen]:
        """Partition 0 from the beginning to the end. Raises ClientFailure."""
        found = self._run("read", bootstrap, topic=topic)
        return [Seen(offset, _bytes(key), _bytes(value), stamp) for offset, key, value, stamp in found]

    def read_in_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[bytes | None]:
        """Read the next records of the group, and commit their positions. Raises ClientFailure."""
        found = self._run("group", bootstrap, topic=topic, group=group, count=count)
        return [_bytes(value) for value in found]

    def commit(self, bootstrap: str, topic: str, group: str, offset: int) -> int | None:
        """Commit a position without membership. Returns the one before. Raises ClientFailure."""
        before: int | None = self._run("commit", bootstrap, topic=topic, group=group, offset=offset)
        return before

    def _run(self, act: str, bootstrap: str, **job: Any) -> Any:
        job |= {"act": act, "bootstrap": bootstrap, "version": self._version}
        command = [sys.executable, str(Path(__file__).parent / "old_python" / "client.py")]
        environment = {**os.environ, "PYTHONPATH": str(kafka_python_home())}
        done = subprocess.run(
            command, input=json.dumps(job), capture_output=True, text=True, timeout=WAIT_S, env=environment, check=False
        )
        if done.returncode:
            raise ClientFailure(f"{self.name}: {done.stderr[-2000:]}")
        return json.loads(done.stdout)


class OldJava:
    """An old version of Apache Kafka's own client."""

    def __init__(self, version: str, format_: int) -> None:
        self.name = f"java-{version}"
        self.format = format_
        self._version = version

    def write(self, bootstrap: str, topic: str, rows: Sequence[Row], codecs: Sequence[str] = CODECS) -> None:
        """Produce to partition 0, in order, once with each codec. Raises ClientFailure."""
        lines = [f"{_text(row.key) or '-'} {_text(row.value) or '-'} {row.timestamp}\n" for row in rows]
        self._run("".join(lines), "write", bootstrap, topic, *codecs)

    def read(self, bootstrap: str, topic: str) -> list[Seen]:
        """Partition 0 from the beginning to the end. Raises ClientFailure."""
        found = []
        for line in self._run("", "read", bootstrap, topic):
            offset, key, value, stamp = line.split()
            found.append(Seen(int(offset), _bytes(key), _bytes(value), int(stamp)))
        return found

    def read_in_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[bytes | None]:
        """Read the next records of the group, and commit their positions. Raises ClientFailure."""
        return [_bytes(line) for line in self._run("", "group", bootstrap, topic, group, str(count))]

    def _run(self, given: str, *words: str) -> list[str]:
        command = java_program.command("OldClient", *words, version=self._version)
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=WAIT_S, check=False)
        if done.returncode:
            raise ClientFailure(f"{self.name}: {done.stderr[-2000:]}")
        return done.stdout.splitlines()


LIBRDKAFKA: Final = (OldLibrdkafka("0.9.0", 0), OldLibrdkafka("0.10.0", 1))
KAFKA_PYTHON: Final = (OldKafkaPython((0, 8, 2), 0), OldKafkaPython((0, 9), 0), OldKafkaPython((0, 10), 1))
JAVA: Final = (OldJava("0.10.2.2", 1), OldJava("1.0.2", 2))
OLD_CLIENTS: Final = (*LIBRDKAFKA, *KAFKA_PYTHON, *JAVA)


def _text(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text in (None, "-") else base64.b64decode(text)


def kafka_python_home() -> Path:
    """The directory of kafka-python 1.4. Raises BenchError if it was not fetched."""
    directory = cache() / "kafka-python-1.4.7"
    if not (directory / ".complete").exists():
        raise BenchError(f"kafka-python 1.4.7 is not in {cache()}: run  testbench/setup")
    return directory


def fetch() -> None:
    """Fetch the old clients into the cache. Raises BenchError."""
    for version in JAVA_VERSIONS:
        packages.fetch_clients(version)
    packages.fetch_old_tools(OLD_TOOLS)
    directory = cache() / "kafka-python-1.4.7"
    if (directory / ".complete").exists():
        return
    shutil.rmtree(directory, ignore_errors=True)
    options = ["--quiet", "--no-deps", "--disable-pip-version-check", "--target", str(directory)]
    command = [sys.executable, "-m", "pip", "install", *options, *PYTHON_PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"pip could not get {', '.join(PYTHON_PACKAGES)}:\n{done.stderr.strip()[-500:]}")
    (directory / ".complete").write_text("\n".join(PYTHON_PACKAGES))


if __name__ == "__main__":
    try:
        fetch()
    except BenchError as error:
        sys.exit(f"setup: {error}")
