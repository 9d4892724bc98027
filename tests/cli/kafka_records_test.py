"""Commands about records and offsets against Apache Kafka 4.4, and files that its tools and ours exchange.

Zone: real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from testbench.apache_kafka import tools
from testbench.apache_kafka.broker import KafkaNode
from tests.interop.kafka_tools.comparison import run_ottla
from tests.interop.kafka_tools.perf_test import form
from tests.interop.kafka_tools.verifiable_test import compare_readers, compare_runs

from ottla.cli.main import cli
from ottla.client import Consumer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

VERSION = "4.4.0"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Kafka broker."""
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with KafkaNode(tmp_path_factory.mktemp("kafka"), VERSION, settings) as node:
        yield node.bootstrap


def ottla(kafka: str, *words: str, stdin: str | bytes = "") -> Result:
    shown = CliRunner().invoke(cli, [*words, "-b", kafka], input=stdin)
    assert shown.exit_code == 0, shown.stderr
    return shown


def make_topic(kafka: str, name: str, partitions: int = 2) -> None:
    """Ten records in each partition."""
    ottla(kafka, "topic", "create", name, "-p", str(partitions))
    lines = [{"partition": at % partitions, "value": str(at)} for at in range(10 * partitions)]
    ottla(kafka, "produce", name, "--jsonl", stdin="".join(json.dumps(line) + "\n" for line in lines))


def test_deletion_of_records(kafka: str, tmp_path: Path) -> None:
    make_topic(kafka, "deleted")
    ottla(kafka, "topic", "delete-records", "deleted:0", "--before", "-3", "--yes")
    file = tmp_path / "offsets.json"
    rows = [{"topic": "deleted", "partition": 0, "offset": 8}, {"topic": "deleted", "partition": 1, "offset": -1}]
    file.write_text(json.dumps({"version": 1, "partitions": rows[:1]}))
    run = ("kafka-delete-records", "--bootstrap-server", kafka, "--offset-json-file", str(file))
    assert "partition: deleted-0\tlow_watermark: 8" in tools.run(VERSION, *run).stdout
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    shown = ottla(kafka, "topic", "delete-records", "--offset-json-file", str(file), "-y", "-o", "json")
    assert [each["low_watermark"] for each in json.loads(shown.stdout)] == [8, 10]


def test_kafkas_tool_and_ours_read_each_others_offsets(kafka: str, tmp_path: Path) -> None:
    make_topic(kafka, "exported")
    groups = ["--bootstrap-server", kafka, "--timeout", "60000"]
    ours, theirs = tmp_path / "ours.csv", tmp_path / "theirs.csv"
    ours.write_text("exported,0,3\nexported,1,7\n")
    ottla(kafka, "group", "import", str(ours), "--group", "one", "--execute")
    reset = ("kafka-consumer-groups", "--reset-offsets", "--all-topics", *groups)

    def theirs_of(*words: str) -> str:
        done = tools.run(VERSION, *reset, *words, "--to-current", "--export", "--dry-run")
        assert done.returncode == 0, done.stderr
        return "".join(sorted(line + "\n" for line in done.stdout.splitlines() if line.strip()))

    assert theirs_of("--group", "one") == ottla(kafka, "group", "export", "one").stdout
    # 1. Kafka's tool reads our file. 2. We read its file. 3. The same with a column for the group.
    ours.write_text(ottla(kafka, "group", "export", "one").stdout)
    done = tools.run(VERSION, *reset[:2], *groups, "--group", "two", "--from-file", str(ours), "--execute")
    assert done.returncode == 0, done.stderr
    theirs.write_text(theirs_of("--group", "two"))
    ottla(kafka, "group", "import", str(theirs), "--group", "three", "--execute")
    both = theirs_of("--group", "two", "--group", "three")
    assert both == "".join(sorted(ottla(kafka, "group", "export", "two", "three").stdout.splitlines(keepends=True)))
    theirs.write_text(both.replace(",3\n", ",4\n"))
    ottla(kafka, "group", "import", str(theirs), "--execute")
    assert "two,exported,0,4\n" in ottla(kafka, "group", "export", "two", "three").stdout


def test_a_member_is_removed(kafka: str) -> None:
    make_topic(kafka, "membered", 1)
    settings = {"bootstrap.servers": kafka, "group.id": "membered", "group.instance.id": "a"}
    with Consumer(settings) as consumer:
        consumer.subscribe(["membered"])
        while not consumer.assignment():
            consumer.poll(0.1)
        shown = ottla(kafka, "group", "remove-member", "membered", "--all", "-y", "-o", "json")
        assert json.loads(shown.stdout) == [{"group": "membered", "member_id": None, "instance_id": "a"}]
        (state,) = json.loads(ottla(kafka, "group", "describe", "membered", "-o", "json").stdout)
        assert state["members"] == []


def test_reading_and_writing(kafka: str, tmp_path: Path) -> None:
    for name in ("read-1", "read-2"):
        make_topic(kafka, name, 1)
    file = tmp_path / "whole"
    file.write_text('{"a":\n1}\n')
    ottla(kafka, "produce", "read-2", "--whole", "--file", str(file), "-k", "00ff", "--key-format", "hex")
    for group in ((), ("--group", "reading", "--from-beginning")):
        shown = ottla(kafka, "consume", "--include", "read-.", "-e", "-f", "%t ", *group)
        assert sorted(shown.stdout.split()) == ["read-1"] * 10 + ["read-2"] * 11
    words = ("-e", "--json", ".a=1", "--key-format", "base64", "-f", "%k")
    assert ottla(kafka, "consume", "read-1", "read-2", *words).stdout == "AP8="


def test_a_copy_to_and_from_kafka(kafka: str, brokers: str) -> None:
    make_topic(kafka, "carried")
    there = ("copy", "carried", "--from", kafka, "--to", brokers, "-o", "json")
    back = ("copy", "carried", "carried-back", "--from", brokers, "--to", kafka, "-o", "json")
    for words in (there, back, back):
        shown = CliRunner().invoke(cli, words)
        assert shown.exit_code == 0, shown.stderr
    assert json.loads(shown.stdout)["records"] == 0
    texts = [ottla(kafka, "consume", name, "-e", "-f", "%p %s %T\n").stdout for name in ("carried", "carried-back")]
    assert sorted(texts[0].splitlines()) == sorted(texts[1].splitlines())
    assert len(texts[0].splitlines()) == 20


def test_records_in_files_and_what_is_seen_of_them(kafka: str, tmp_path: Path) -> None:
    make_topic(kafka, "in-files")
    ottla(kafka, "topic", "create", "from-files", "-p", "2")
    for name in ("a.parquet", "b.csv"):
        ottla(kafka, "export", "in-files", str(tmp_path / name), "--to", "+5")
        ottla(kafka, "import", "from-files", str(tmp_path / name))
    shown = ottla(kafka, "consume", "from-files", "-e", "-p", "1", "-f", "%s ").stdout
    assert shown == "1 3 5 7 9 1 3 5 7 9 "
    top = json.loads(ottla(kafka, "top", "from-files", "--once", "--interval", "0.1", "-o", "json").stdout)
    assert [(each["partitions"], each["bytes_in_per_s"]) for each in top["topics"]] == [(2, 0.0)]
    parts = json.loads(ottla(kafka, "support-bundle", str(tmp_path / "c.tar.gz"), "-o", "json").stdout)["parts"]
    assert [each for each in parts if each["error"]] == []


def test_the_verifiable_producer_by_its_kafka_name(kafka: str) -> None:
    compare_runs(kafka, "verifiable", "--max-messages 3 --repeating-keys 0 --message-create-time 0 --acks 1")


def test_the_verifiable_consumer_by_its_kafka_name(kafka: str) -> None:
    compare_readers(kafka, "verified", "--max-messages 5 --enable-autocommit")


def test_the_latency_by_its_kafka_name(kafka: str) -> None:
    words = ["--bootstrap-server", kafka, "--num-records", "3", "--producer-acks", "all", "--record-size", "9"]
    words += ["--num-headers", "1", "--record-header-size", "-1", "--topic", "timed"]
    code, text = run_ottla("kafka-e2e-latency", words)
    ours = form(text, progress=False)
    theirs = tools.run(VERSION, "kafka-e2e-latency", *words)
    assert (code, ours[1:]) == (theirs.returncode, form(theirs.stdout + theirs.stderr, progress=False))
    assert ours[0] == 'Topic "timed" does not exist. Will create topic with 1 partition(s) and replication factor = 1'
