"""Apache Kafka's dump tool reads our files without a complaint, and prints what our dump prints; and the reverse."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

import pytest
from testbench.apache_kafka import tools
from testbench.apache_kafka.broker import KafkaNode
from testbench.clients import Aiokafka, Confluent, KafkaPython, Kcat, Record
from testbench.ottla_node import OttlaNode

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COMPLAINTS = (
    "Mismatches",
    "isvalid: false",
    "Exception",
    "WARN",
    "not find",
    "out of order",
    "ERROR",
    "Found timestamp",
)
REPORTS = ("Mismatches in", "Non-consecutive offsets in", "The following indexed offsets are not found in")
START = 1_700_000_000_000
RECORDS = [
    Record(
        b"key %d" % number if number % 3 else None, b"value %d " % number * 9, (("h", b"%d" % number),), START + number
    )
    for number in range(400)
]
BULK = [Record(None, bytes([number % 251]) * 6_000, (), START + number) for number in range(600)]


def write_everything(bootstrap: str) -> None:
    """Topics with every codec, several segments, idempotent producers, and the broker's own time."""
    from confluent_kafka.admin import AdminClient, NewTopic

    small = {"segment.bytes": "1048576", "index.interval.bytes": "2048"}
    topics = [NewTopic(name, 1, 1, config=small) for name in ("plain", "segments", "idempotent")]
    topics.append(NewTopic("append", 1, 1, config={**small, "message.timestamp.type": "LogAppendTime"}))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(topics).values():
        future.result(180)
    for codec in CODECS:
        Confluent().write(bootstrap, "plain", RECORDS, codec, **{"batch.num.messages": 40})
        Confluent().write(bootstrap, "append", RECORDS[:50], codec)
    Aiokafka().write(bootstrap, "plain", RECORDS[:50], "gzip")
    Confluent().write(bootstrap, "segments", BULK, **{"batch.num.messages": 5})
    for client, option in ((Confluent(), "enable.idempotence"), (KafkaPython(), "enable_idempotence")):
        client.write(bootstrap, "idempotent", RECORDS, **{option: True})


def files_of(data: Path) -> list[str]:
    """What the dump tools read, in a fixed order; without the metadata store's own logs."""
    kinds = (".log", ".index", ".timeindex", ".snapshot")
    found = [each for each in data.glob("*-0/*") if each.suffix in kinds and not each.parent.name.startswith("__")]
    return sorted(map(str, found))


def kafkas(version: str, files: list[str], *options: str) -> list[str]:
    """What Kafka's tool prints, stdout and stderr."""
    done = tools.run(version, "kafka-dump-log", "--files", ",".join(files), *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines() + done.stderr.splitlines()


def ours(files: list[str], *options: str) -> list[str]:
    """What `ottla log dump` prints, stdout and stderr."""
    command = [sys.executable, "-m", "ottla", "log", "dump", "--files", ",".join(files), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines() + done.stderr.splitlines()


def assert_same(theirs: list[str], own: list[str]) -> None:
    """Line for line; the reports at the end may come in another order of files (Kafka's is that of a hash map)."""
    difference = list(difflib.unified_diff(*map(_reports_sorted, (theirs, own)), "kafka", "ottla", n=0, lineterm=""))
    assert not difference, "\n".join(line[:300] for line in difference[:20])


def _reports_sorted(lines: list[str]) -> list[str]:
    starts = [at for at, line in enumerate(lines) if line.startswith(REPORTS)]
    blocks = [lines[at:end] for at, end in zip(starts, [*starts[1:], len(lines)], strict=False)]
    return lines[: starts[0]] + [line for block in sorted(blocks) for line in block] if starts else lines


def assert_content(lines: list[str]) -> None:
    """Nothing to complain about, and everything is there."""
    complaints = [line for line in lines if any(word in line for word in COMPLAINTS)]
    assert not complaints, "\n".join(line[:300] for line in complaints[:10])
    for codec in CODECS:
        assert any(f"compresscodec: {codec}" in line for line in lines), codec
    assert any("LogAppendTime: " in line for line in lines)
    assert any("producerId: 0 " in line for line in lines)
    assert sum(line.startswith("| offset: ") for line in lines) == 5 * 400 + 50 + 5 * 50 + 600 + 2 * 400


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a broker that was stopped in order."""
    with OttlaNode(tmp_path_factory.mktemp("stopped") / "data") as node:
        write_everything(node.bootstrap)
    return node.data


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> OttlaNode:
    """A broker killed by -9 after the same."""
    node = OttlaNode(tmp_path_factory.mktemp("killed") / "data")
    node.start()
    try:
        write_everything(node.bootstrap)
    finally:
        node.kill()
    return node


def check(data: Path, version: str) -> None:
    files = files_of(data)
    assert sum(each.endswith(".log") for each in files) >= 7
    for options in (("--deep-iteration", "--print-data-log"), ("--deep-iteration",), ()):
        theirs = kafkas(version, files, *options)
        if "--print-data-log" in options:
            assert_content(theirs)
        assert not [line for line in theirs if any(word in line for word in COMPLAINTS)]
        if version == "4.4.0":
            assert_same(theirs, ours(files, *options))
    indexes = [each for each in files if each.endswith("index")]
    checked = kafkas(version, indexes, "--index-sanity-check")
    assert sum("passed sanity check." in line for line in checked) == len(indexes), checked
    if version == "4.4.0":
        assert_same(checked, ours(indexes, "--index-sanity-check"))


@pytest.mark.parametrize("version", ["4.4.0", "3.9.1"])
def test_kafka_reads_what_a_stopped_broker_left(stopped: Path, version: str) -> None:
    assert any(each.endswith(".snapshot") for each in files_of(stopped))
    check(stopped, version)


def test_kafka_reads_what_a_killed_broker_left_and_what_its_recovery_made(killed: OttlaNode) -> None:
    files = files_of(killed.data)
    logs = [each for each in files if each.endswith((".log", ".snapshot"))]
    assert_content(kafkas("4.4.0", logs, "--deep-iteration", "--print-data-log"))
    # Entries of an active index reach its file with the next flush: both tools find the zeros before that.
    for options in (("--deep-iteration", "--print-data-log"), ()):
        assert_same(kafkas("4.4.0", files, *options), ours(files, *options))
    killed.start()
    killed.stop()
    check(killed.data, "4.4.0")


def test_our_dump_of_what_apache_kafka_writes(tmp_path: Path) -> None:
    with KafkaNode(tmp_path / "kafka", "4.4.0") as kafka:
        write_everything(kafka.bootstrap)
    files = files_of(tmp_path / "kafka" / "data")
    for options in (("--deep-iteration", "--print-data-log"), ()):
        theirs = kafkas("4.4.0", files, *options)
        assert_same(theirs, ours(files, *options))
    assert_content(kafkas("4.4.0", files, "--deep-iteration", "--print-data-log"))


OLD = {"v0": "0.9.0", "v1": "0.10.0"}


@pytest.mark.parametrize("version", ["4.4.0", "3.9.1"])
def test_kafka_reads_messages_of_old_formats_that_the_broker_wrote(tmp_path: Path, version: str) -> None:
    """Plain ones, wrappers of every codec, indexes of several segments, and batches behind them."""
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

    plain = [each._replace(headers=()) for each in RECORDS]
    with OttlaNode(tmp_path / "data") as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        small = {"segment.bytes": "40000", "index.interval.bytes": "2048"}
        topics = [NewTopic(name, 1, 1, config={**small, "message.format.version": OLD[name]}) for name in OLD]
        for future in admin.create_topics(topics).values():
            future.result(180)
        for name in OLD:
            for codec in CODECS[:4]:
                Confluent().write(node.bootstrap, name, plain, codec, **{"batch.num.messages": 40})
        entry = ConfigEntry("message.format.version", "3.0", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, "v1", incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(180)
        Confluent().write(node.bootstrap, "v1", RECORDS, **{"batch.num.messages": 40})
        for client in (Confluent(), Kcat()):
            assert len(client.read(node.bootstrap, "v1")) == 5 * len(RECORDS)
    files = files_of(node.data)
    theirs = kafkas(version, files, "--deep-iteration", "--print-data-log")
    assert not [line for line in theirs if any(word in line for word in COMPLAINTS)]
    assert {f"magic: {magic} " for magic in range(3)} <= {line[line.find("magic: ") :][:9] for line in theirs}
    assert sum(line.startswith("| offset: ") for line in theirs) == 9 * len(RECORDS)
    if version == "4.4.0":
        assert_same(theirs, ours(files, "--deep-iteration", "--print-data-log"))
    indexes = [each for each in files if each.endswith("index")]
    checked = kafkas(version, indexes, "--index-sanity-check")
    assert sum("passed sanity check." in line or "is empty." in line for line in checked) == len(indexes), checked
