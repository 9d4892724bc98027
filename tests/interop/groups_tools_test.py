"""Apache Kafka's consumers and its tools for groups, of two generations, against the broker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from testbench.apache_kafka import packages, tools
from testbench.clients import Confluent, Record
from testbench.members import Party

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

VERSIONS = ("4.4.0", "3.9.1")
RECORDS = [Record(b"%d" % at, b"v%d" % at, (), 1_700_000_000_000 + at) for at in range(10)]


@pytest.fixture(params=VERSIONS)
def kafka(request: pytest.FixtureRequest, bootstrap: str) -> Callable[..., str]:
    """`kafka("kafka-consumer-groups", words…)`: what a tool prints; its failures fail the test."""
    try:
        packages.class_path(request.param, "tools")
    except packages.BenchError as error:
        pytest.fail(f"{error} (testbench/setup does it)")

    def run(name: str, *words: str, fails: bool = False) -> str:
        patience = ["--timeout", "60000"] if name == "kafka-consumer-groups" else []  # 5 s, where nothing else is said
        done = tools.run(request.param, name, *words, "--bootstrap-server", bootstrap, *patience)
        if not fails:
            assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if fails else "")

    run.version = request.param  # type: ignore[attr-defined]
    return run


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def test_looking_at_groups(kafka, bootstrap: str, topic: str, tmp_path: Path) -> None:
    Confluent().write(bootstrap, topic, RECORDS)
    commit(bootstrap, f"{topic}-idle", topic, 4)
    with Party(tmp_path, bootstrap, topic, topic) as party:
        member = party.add("confluent")
        party.await_that("all is read", lambda: len(member.read) == len(RECORDS))
        listed = kafka("kafka-consumer-groups", "--list", "--state", "Stable,Empty")
        states = dict(re.findall(rf"^({re.escape(topic)}\S*)\s+.*?(Stable|Empty)\s*$", listed, re.MULTILINE))
        assert states == {topic: "Stable", f"{topic}-idle": "Empty"}
        described = kafka("kafka-consumer-groups", "--describe", "--group", topic)
        assert re.search(
            rf"{re.escape(topic)}\s+{re.escape(topic)}\s+0\s+10\s+10\s+0\s+rdkafka-\S+\s+/127.0.0.1", described
        )
        members = kafka("kafka-consumer-groups", "--describe", "--group", topic, "--members", "--verbose")
        assert re.search(r"rdkafka\s+1\s+.*[:(]0", members), "3.9.1 leaves the topic out"
        state = kafka("kafka-consumer-groups", "--describe", "--group", topic, "--state")
        assert re.search(r"range\s+Stable\s+1", state)
    idle = kafka("kafka-consumer-groups", "--describe", "--group", f"{topic}-idle")
    assert re.search(r"\s0\s+4\s+10\s+6\s", idle)


@pytest.mark.parametrize(
    ("words", "offset"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-offset", "7"], 7),
        (["--shift-by", "-2"], 2),
        (["--to-current"], 4),
        (["--to-datetime", "2023-11-14T22:13:20.005"], 5),
        (["--by-duration", "PT1H"], 10),
    ],
)
def test_resetting(kafka, bootstrap: str, topic: str, words: list[str], offset: int) -> None:
    Confluent().write(bootstrap, topic, RECORDS)
    commit(bootstrap, topic, topic, 4)
    about = ("--reset-offsets", "--group", topic, "--topic", topic, *words)
    kafka("kafka-consumer-groups", *about, "--dry-run")
    shown = kafka("kafka-consumer-groups", *about, "--execute")
    assert re.search(rf"{re.escape(topic)}\s+{re.escape(topic)}\s+0\s+{offset}", shown)
    described = kafka("kafka-consumer-groups", "--describe", "--group", topic)
    assert re.search(rf"\s0\s+{offset}\s+10\s", described)


def test_resetting_from_a_file_that_it_wrote(kafka, bootstrap: str, topic: str, tmp_path: Path) -> None:
    Confluent().write(bootstrap, topic, RECORDS)
    commit(bootstrap, topic, topic, 4)
    about = ("--reset-offsets", "--group", topic)
    plan = kafka("kafka-consumer-groups", *about, "--all-topics", "--to-offset", "6", "--export", "--dry-run")
    lines = [line.replace('"', "") for line in plan.splitlines() if topic in line]
    assert [line.split(",")[-3:] for line in lines] == [[topic, "0", "6"]]
    assert re.search(r"\s0\s+4\s+10\s", kafka("kafka-consumer-groups", "--describe", "--group", topic)), "only a plan"
    file = tmp_path / "plan.csv"
    file.write_text("".join(f"{line}\n" for line in lines))
    kafka("kafka-consumer-groups", *about, "--from-file", str(file), "--execute")
    assert re.search(r"\s0\s+6\s+10\s", kafka("kafka-consumer-groups", "--describe", "--group", topic))


def test_a_group_at_work_is_left_alone(kafka, bootstrap: str, topic: str, tmp_path: Path) -> None:
    Confluent().write(bootstrap, topic, RECORDS)
    with Party(tmp_path, bootstrap, topic, topic) as party:
        member = party.add("confluent")
        party.await_that("all is read", lambda: len(member.read) == len(RECORDS))
        reset = ("--reset-offsets", "--group", topic, "--topic", topic, "--to-earliest", "--execute")
        said = kafka("kafka-consumer-groups", *reset, fails=True)
        assert re.search("Assignments can only be reset if the group .* is inactive", said)
        said = kafka("kafka-consumer-groups", "--delete", "--group", topic, fails=True)
        assert re.search("GroupNotEmptyException|not empty", said)
        said = kafka("kafka-consumer-groups", "--delete-offsets", "--group", topic, "--topic", topic, fails=True)
        assert "actively subscribed" in said
        described = kafka("kafka-consumer-groups", "--describe", "--all-groups")
        assert re.search(rf"{re.escape(topic)}\s+{re.escape(topic)}\s+0\s+10\s+10\s+0\s", described)


def test_deleting(kafka, bootstrap: str, topic: str) -> None:
    Confluent().write(bootstrap, topic, RECORDS)
    commit(bootstrap, topic, topic, 4)
    shown = kafka("kafka-consumer-groups", "--delete-offsets", "--group", topic, "--topic", topic)
    assert "Successful" in shown
    commit(bootstrap, topic, topic, 4)
    shown = kafka("kafka-consumer-groups", "--delete", "--group", topic)
    assert "success" in shown.lower()
    assert topic not in kafka("kafka-consumer-groups", "--list").split()


def test_javas_consumer_in_a_group(kafka, bootstrap: str, topic: str) -> None:
    Confluent().write(bootstrap, topic, RECORDS)
    words = ("--topic", topic, "--group", topic, "--max-messages", "10", "--timeout-ms", "60000")
    assert kafka("kafka-console-consumer", *words, "--from-beginning").split() == [f"v{at}" for at in range(10)]
    described = kafka("kafka-consumer-groups", "--describe", "--group", topic)
    assert re.search(r"\s0\s+10\s+10\s+0\s", described)
    Confluent().write(bootstrap, topic, [Record(b"k", b"next")])
    again = kafka("kafka-console-consumer", *words[:-4], "--max-messages", "1", "--timeout-ms", "60000")
    assert again.split() == ["next"], "it goes on where it was"


def test_kafkas_formatters_read_our_topic(kafka, bootstrap: str, topic: str) -> None:
    Confluent().write(bootstrap, topic, RECORDS)
    commit(bootstrap, topic, topic, 4)
    package = "org.apache.kafka.tools.consumer" if kafka.version.startswith("4") else "kafka.coordinator.group"
    name = (
        "OffsetsMessageFormatter" if kafka.version.startswith("4") else "GroupMetadataManager$OffsetsMessageFormatter"
    )
    shown = kafka(
        "kafka-console-consumer", "--topic", "__consumer_offsets", "--from-beginning", "--timeout-ms", "10000",
        "--formatter", f"{package}.{name}",
    )  # fmt: skip
    if kafka.version.startswith("4"):
        rows = [json.loads(line) for line in shown.replace('}{"key"', '}\n{"key"').splitlines() if line[:1] == "{"]
        mine = [row for row in rows if row["key"]["data"]["group"] == topic]
        assert mine[0]["key"]["data"] == {"group": topic, "topic": topic, "partition": 0}
        assert mine[0]["value"]["data"]["offset"] == 4
    else:
        assert f"[{topic},{topic},0]::" in shown
        assert re.search(r"OffsetAndMetadata\(offset=4,", shown)


def test_kafkas_dump_reads_our_topic(kafka, broker, bootstrap: str, topic: str) -> None:
    Confluent().write(bootstrap, topic, RECORDS)
    commit(bootstrap, topic, topic, 4)
    logs = sorted(str(path) for path in broker.data.glob("__consumer_offsets-*/*.log") if path.stat().st_size)
    done = tools.run(kafka.version, "kafka-dump-log", "--offsets-decoder", "--files", ",".join(logs))
    assert done.returncode == 0, done.stderr
    assert re.search(rf'"group":"{re.escape(topic)}","topic":"{re.escape(topic)}","partition":0', done.stdout)
    assert "isvalid: false" not in done.stdout
