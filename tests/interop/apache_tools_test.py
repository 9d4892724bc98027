"""Apache Kafka's own command line tools, of two generations, against the broker."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
from testbench.apache_kafka import packages, tools
from testbench.clients import Confluent, Record

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

VERSIONS = ("4.4.0", "3.9.1")


@pytest.fixture(params=VERSIONS)
def kafka(request: pytest.FixtureRequest, bootstrap: str):
    """`kafka("kafka-topics", words…)`: what a tool prints; its failures and logged errors fail the test."""
    try:
        packages.class_path(request.param, "tools")
    except packages.BenchError as error:
        pytest.fail(f"{error} (testbench/setup does it)")

    def run(name: str, *words: str, stdin: str = "", fails: bool = False) -> str:
        server = [] if name == "kafka-producer-perf-test" else ["--bootstrap-server", bootstrap]
        if name == "kafka-cluster":
            words, server = (words[0], *server), []
        done = tools.run(request.param, name, *words, *server, input=stdin)
        if not fails:
            assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
            assert "ERROR" not in done.stderr, done.stderr
        return done.stdout + done.stderr if fails else done.stdout

    run.version = request.param
    return run


def test_topics(kafka, topic: str) -> None:
    words = ("--create", "--topic", topic, "--partitions", "2", "--replication-factor", "1")
    assert f"Created topic {topic}." in kafka("kafka-topics", *words, "--config", "segment.bytes=1048576")
    assert "already exists" in kafka("kafka-topics", *words, fails=True)
    assert topic in kafka("kafka-topics", "--list").split()
    kafka("kafka-topics", "--alter", "--topic", topic, "--partitions", "3")
    described = kafka("kafka-topics", "--describe", "--topic", topic)
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: segment\.bytes=1048576", described)
    assert len(re.findall(r"Partition: \d\s+Leader: 1\s+Replicas: 1\s+Isr: 1", described)) == 3
    kafka("kafka-topics", "--delete", "--topic", topic)
    assert topic not in kafka("kafka-topics", "--list").split()


def test_configs(kafka, bootstrap: str, topic: str) -> None:
    Confluent().write(bootstrap, topic, [Record(b"k", b"v")])
    entity = ("--entity-type", "topics", "--entity-name", topic)
    kafka("kafka-configs", "--alter", *entity, "--add-config", "retention.ms=5000000,cleanup.policy=[delete,compact]")
    described = kafka("kafka-configs", "--describe", *entity)
    assert "retention.ms=5000000" in described
    assert "cleanup.policy=delete,compact" in described
    kafka("kafka-configs", "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms" not in kafka("kafka-configs", "--describe", *entity)
    assert "nonsense" in kafka("kafka-configs", "--alter", *entity, "--add-config", "nonsense=1", fails=True)
    broker = kafka("kafka-configs", "--describe", "--entity-type", "brokers", "--entity-name", "1", "--all")
    assert "log.segment.bytes=1073741824" in broker


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_console_producer(kafka, bootstrap: str, topic: str, codec: str) -> None:
    words = ["--topic", topic, "--compression-codec", codec]
    for each in ("parse.key=true", "parse.headers=true", "null.marker=NIL"):
        words += ["--property", each]
    kafka("kafka-console-producer", *words, stdin="h1:1,h2:2\tk1\tv1\nh1:9\tk2\té €\nx:y\tk3\tNIL\n")
    found = Confluent().read(bootstrap, topic)
    assert [each[:3] for each in found] == [
        (b"k1", b"v1", (("h1", b"1"), ("h2", b"2"))),
        (b"k2", "é €".encode(), (("h1", b"9"),)),
        (b"k3", None, (("x", b"y"),)),
    ]


def test_console_consumer(kafka, bootstrap: str, topic: str) -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        records = [Record(f"k-{codec}".encode(), "é €".encode(), (("h", b"9"),)), Record(b"none", None)]
        Confluent().write(bootstrap, topic, records, codec)
    stamps = [each.timestamp for each in Confluent().read(bootstrap, topic)]
    words = ["--topic", topic, "--partition", "0", "--offset", "1", "--max-messages", "9"]
    for each in ("key", "headers", "offset", "timestamp", "partition"):
        words += ["--property", f"print.{each}=true"]
    lines = [line for line in kafka("kafka-console-consumer", *words).splitlines() if line.startswith("CreateTime:")]
    expected = []
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        expected += [f"Offset:{2 * number}\th:9\tk-{codec}\té €", f"Offset:{2 * number + 1}\tNO_HEADERS\tnone\tnull"]
    expected = [f"CreateTime:{stamp}\tPartition:0\t{line}" for stamp, line in zip(stamps, expected, strict=True)]
    assert lines == expected[1:]


def test_perf_offsets_directories_and_deletion(kafka, broker, bootstrap: str, topic: str, tmp_path) -> None:
    words = ["--topic", topic, "--num-records", "5000", "--record-size", "200", "--throughput", "-1"]
    options = [f"bootstrap.servers={bootstrap}", "compression.type=lz4", "acks=all"]
    assert "5000 records sent" in kafka("kafka-producer-perf-test", *words, "--producer-props", *options)
    assert f"{topic}:0:5000" in kafka("kafka-get-offsets", "--topic", topic)
    directories = json.loads(kafka("kafka-log-dirs", "--describe", "--topic-list", topic).splitlines()[-1])
    (directory,) = directories["brokers"][0]["logDirs"]
    assert (directory["logDir"], directory["error"]) == (str(broker.data), None)
    size = (broker.data / f"{topic}-0" / "00000000000000000000.log").stat().st_size
    assert [each["size"] for each in directory["partitions"]] == [size]
    wanted = {"partitions": [{"topic": topic, "partition": 0, "offset": 1234}], "version": 1}
    file = tmp_path / "delete.json"
    file.write_text(json.dumps(wanted))
    assert f"partition: {topic}-0\tlow_watermark: 1234" in kafka(
        "kafka-delete-records", "--offset-json-file", str(file)
    )
    assert f"{topic}:0:1234" in kafka("kafka-get-offsets", "--topic", topic, "--time", "earliest")
    assert f"{topic}:0:5000" in kafka("kafka-get-offsets", "--topic", topic, "--time", "latest")


def test_cluster_and_versions(kafka, broker, bootstrap: str) -> None:
    said = kafka("kafka-cluster", "cluster-id")
    assert re.search(r"Cluster ID: [\w-]{22}", said)
    versions = kafka("kafka-broker-api-versions")
    assert f"{bootstrap} (id: 1 rack: null" in versions
    assert re.search(r"Produce\(0\): 0 to 1[123] \[usable: \d+\]", versions)
    assert "Fetch(1): 0 to 1" in versions


def test_a_batch_too_large_is_told(kafka, bootstrap: str, topic: str) -> None:
    kafka("kafka-topics", "--create", "--topic", topic, "--config", "max.message.bytes=1000")
    said = kafka("kafka-console-producer", "--topic", topic, stdin="x" * 5000 + "\n", fails=True)
    assert "RecordTooLargeException" in said
    assert Confluent().read(bootstrap, topic) == []


def test_tools_are_there() -> None:
    """A tool that the bench names but cannot start would pass no other test either; this one says which."""
    for version in VERSIONS:
        command = tools.command(version, "kafka-topics", "--version")
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
