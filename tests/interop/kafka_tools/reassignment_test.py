"""kafka-reassign-partitions beside Apache Kafka's own: on one broker, with two log directories, on two brokers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbench.apache_kafka.tool_shell import ToolShell
from testbench.cluster import OttlaUp
from testbench.ottla_node import OttlaNode
from tests.interop.kafka_tools.comparison import Comparison, run_ottla

from ottla.client import Producer

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]
FIRST = {"topic": "TOPIC", "partition": 0, "replicas": [1]}
FILES = {
    "one": [{**FIRST, "log_dirs": ["any"]}],
    "two": [{**FIRST, "partition": 1}, FIRST],
    "unknown": [{**FIRST, "topic": "TOPICx"}],
    "missing": [{**FIRST, "partition": 9}],
    "dead": [{**FIRST, "replicas": [7]}],
    "repeated": [{**FIRST, "replicas": [1, 1]}],
    "twice": [FIRST, FIRST],
    "empty": [],
    "bare": [{**FIRST, "replicas": []}],
    "longer": [{**FIRST, "log_dirs": ["any", "any"]}],
    "elsewhere": [{**FIRST, "log_dirs": ["/nowhere"]}],
    "less": [{"topic": "TOPIC", "partition": 0}],
    "text": [{**FIRST, "partition": "x"}],
    "large": [{**FIRST, "replicas": [3000000000]}],
    "row": [3],
    "scalar": [{**FIRST, "replicas": 3}],
}
"""The partitions of reassignment files, by name."""
TOPICS = {"move": ["TOPIC"], "moves": ["TOPIC", "TOPIC"], "nothing": [], "gone": ["TOPICx"]}


def write_files(directory: Path, prefix: str, files: dict[str, list[object]]) -> None:
    def write(name: str, document: object) -> None:
        (directory / f"{prefix}{name}").write_text(json.dumps(document).replace("TOPIC", f"{prefix}a"))

    for name, rows in files.items():
        write(name, {"version": 1, "partitions": rows})
    for name, topics in TOPICS.items():
        write(name, {"version": 1, "topics": [{"topic": topic} for topic in topics]})
    write("later", {"version": 2, "partitions": []})
    write("list", [])
    (directory / f"{prefix}broken").write_text('{"version":1,')


def create_topics(both: Comparison, *words: str) -> None:
    for prefix in (both.kafka_prefix, both.ottla_prefix):
        given = ["--bootstrap-server", both.bootstrap, "--create", "--topic", f"{prefix}a", *words]
        assert run_ottla("kafka-topics", given)[0] == 0


OTHER_LINES = """
    BS --list
    BS --verify --preserve-throttles --reassignment-json-file {at}nowhere
    BS --generate --topics-to-move-json-file {at}move --broker-list ' 1'
    BS --generate --topics-to-move-json-file {at}move --broker-list 1
    BS --generate --topics-to-move-json-file {at}move --broker-list 7,1 --disable-rack-aware
    BS --generate --topics-to-move-json-file {at}move --broker-list 7
    BS --generate --topics-to-move-json-file {at}move --broker-list 1,1
    BS --generate --topics-to-move-json-file {at}move --broker-list x
    BS --generate --topics-to-move-json-file {at}moves --broker-list 1
    BS --generate --topics-to-move-json-file {at}nothing --broker-list 1
    BS --generate --topics-to-move-json-file {at}gone --broker-list 1
    BS --generate --topics-to-move-json-file {at}broken --broker-list 1
    BS --generate --topics-to-move-json-file {at}absent --broker-list 1
    BS --execute --reassignment-json-file {at}two --throttle 1000
    BS --verify --preserve-throttles --reassignment-json-file {at}two
    BS --verify --reassignment-json-file {at}two
    BS --execute --reassignment-json-file {at}two --throttle 0
    BS --execute --reassignment-json-file {at}two --throttle x
    BS --execute --reassignment-json-file {at}one --replica-alter-log-dirs-throttle 1000
    BS --execute --additional --reassignment-json-file {at}one --timeout 5
    BS --cancel --reassignment-json-file {at}one --timeout 5
    BS --execute
    BS --verify
    BS --cancel
    BS --generate --broker-list 1
    BS --generate --topics-to-move-json-file {at}move
    BS --execute --verify --reassignment-json-file {at}one
    BS --list --throttle 5
    BS --verify --reassignment-json-file {at}one --throttle 5
    BS --list --bootstrap-controller localhost:1
    BS --nonsense
    BS
    --list
"""
"""After the actions with each file. at: where the files are."""


def test_reassignments_on_one_broker(both: Comparison, tmp_path: Path) -> None:
    create_topics(both, "--partitions", "2")
    nowhere = [{**FIRST, "topic": "TOPICx", "log_dirs": ["/nowhere"]}]
    both.prepare(lambda prefix: write_files(tmp_path, prefix, {**FILES, "nowhere": nowhere}))
    plan = f"--reassignment-json-file {tmp_path}/{{name}}"
    # Where a broker of a plan is not alive, Apache Kafka's tool waits for a minute to change its settings.
    lines = [
        f"BS --{action} {plan}{file}"
        for file in (*FILES, "later", "list", "absent")
        for action in ("execute", "verify", "cancel")
        if (file, action) not in {("dead", "verify"), ("dead", "cancel")}
        # Messages about numbers that are no ids of brokers, and about topics that are not there, are the broker's.
        and (file, action) not in {("large", "verify"), ("unknown", "verify"), ("unknown", "cancel")}
    ]
    both.compare("kafka-reassign-partitions", "\n".join(lines) + OTHER_LINES.format(at=f"{tmp_path}/{{name}}"))


def test_throttles_are_set_and_removed(both: Comparison, tmp_path: Path) -> None:
    create_topics(both, "--partitions", "2")
    both.prepare(lambda prefix: write_files(tmp_path, prefix, {"two": FILES["two"]}))
    for action in ("--execute --throttle 1000 --replica-alter-log-dirs-throttle 900", "--verify"):
        both.compare("kafka-reassign-partitions", f"BS {action} --reassignment-json-file {tmp_path}/{{name}}two")
        both.compare("kafka-configs", "BS --describe --topic {name}a\nBS --describe --broker 1")


@pytest.fixture
def directories(tmp_path: Path, shell: ToolShell) -> Iterator[tuple[Comparison, list[Path]]]:
    """A broker with two log directories, and slow moves between them."""
    dirs = [tmp_path / "one", tmp_path / "two"]
    for each in dirs:
        each.mkdir()
    settings = {"log.dirs": ",".join(map(str, dirs)), "log.initial.task.delay.ms": "86400000"}
    with OttlaNode(tmp_path / "data", settings) as node:
        yield Comparison(shell, node.bootstrap, "dirs"), dirs


def test_moves_between_log_directories(directories: tuple[Comparison, list[Path]], tmp_path: Path) -> None:
    both, dirs = directories
    create_topics(both, "--partitions", "1")
    with Producer({"bootstrap.servers": both.bootstrap}) as producer:
        for prefix in (both.kafka_prefix, both.ottla_prefix):
            for _ in range(200):
                producer.send(f"{prefix}a", bytes(10_000))

    def write(prefix: str) -> None:
        (present,) = [each for each in dirs if (each / f"{prefix}a-0").exists()]
        other = next(each for each in dirs if each != present)
        row = {"topic": f"{prefix}a", "partition": 0, "replicas": [1]}
        write_files(tmp_path, prefix, {
            "there": [{**row, "log_dirs": [str(other)]}], "back": [{**row, "log_dirs": [str(present)]}],
        })  # fmt: skip

    both.prepare(write)
    there, back = (f"--reassignment-json-file {tmp_path}/{{name}}{name}" for name in ("there", "back"))
    # The directories of both sides may be the same ones, or not.
    both.compare(
        "kafka-reassign-partitions",
        f"""
        BS --execute {there} --replica-alter-log-dirs-throttle 1
        BS --verify {there}
        BS --verify {back}
        BS --cancel {there} --preserve-throttles
        BS --verify {there} --preserve-throttles
        """,
        hidden=dirs,
    )


@pytest.fixture
def pair(tmp_path: Path, shell: ToolShell) -> Iterator[Comparison]:
    """Two brokers."""
    cluster = OttlaUp(tmp_path / "data", 2)
    cluster.start()
    try:
        yield Comparison(shell, cluster.bootstrap, "pair")
    finally:
        cluster.stop()
        shutil.rmtree(tmp_path / "data", ignore_errors=True)


def test_moves_between_brokers(pair: Comparison, tmp_path: Path) -> None:
    create_topics(pair, "--replica-assignment", "1,1")
    with Producer({"bootstrap.servers": pair.bootstrap}) as producer:
        for prefix in (pair.kafka_prefix, pair.ottla_prefix):
            for number in range(400):
                producer.send(f"{prefix}a", bytes(10_000), partition=number % 2)
    rows = [{**FIRST, "partition": number, "replicas": [2]} for number in range(2)]
    files = {"there": rows, "half": rows[:1], "more": [{**FIRST, "replicas": [1, 2]}]}
    pair.prepare(lambda prefix: write_files(tmp_path, prefix, dict(files)))
    there, half, more = (f"--reassignment-json-file {tmp_path}/{{name}}{name}" for name in files)
    for prefix in (pair.kafka_prefix, pair.ottla_prefix):
        wide = ["--create", "--topic", f"{prefix}b", "--replica-assignment", "1:2"]
        assert run_ottla("kafka-topics", ["--bootstrap-server", pair.bootstrap, *wide])[0] == 0
        (tmp_path / f"{prefix}wide").write_text(json.dumps({"topics": [{"topic": f"{prefix}b"}]}))
    # The first move of each side is in addition to that of the other.
    pair.compare(
        "kafka-reassign-partitions",
        f"""
        BS --generate --topics-to-move-json-file {tmp_path}/{{name}}move --broker-list 2
        BS --generate --topics-to-move-json-file {tmp_path}/{{name}}wide --broker-list 2
        BS --execute --additional {there} --throttle 1
        BS --verify {there}
        BS --execute {there}
        BS --execute --additional {there} --throttle 3
        BS --cancel {half} --preserve-throttles
        BS --verify {there}
        BS --execute --additional --disallow-replication-factor-change {more}
        """,
    )
    pair.compare("kafka-configs", "BS --describe --topic {name}a")
    pair.compare("kafka-reassign-partitions", "BS --list", same_words=True)
    pair.compare("kafka-reassign-partitions", f"BS --cancel {there}\nBS --cancel {there}")
