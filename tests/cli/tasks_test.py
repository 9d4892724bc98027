"""docs/cli-tasks.md: each `ottla` line of the page does what its comment says, on Ottla and on Apache Kafka 4.4.

Zone: real. A section is a test: its lines run in their order, from the state that `BEGINNINGS` makes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from testbench.registry import RegistryProcess
from tests.cli.task_clusters import TaskCluster, start_kafka, start_ottla
from tests.cli.task_page import Outcome, Task, find_faults, parse_task, read_sections, run_line
from tests.hanging import hang

from ottla.client import Consumer
from ottla.client import Producer as OttlaProducer
from ottla.client.schemas import AvroSerializer, MessageField, SchemaRegistry, SerializationContext

SECTIONS = read_sections()
WAIT_S = 60.0
CHANGING = {
    "abort", "add", "alter", "apply", "cancel", "copy", "create", "delete", "delete-offsets", "delete-records",
    "elect", "expire", "import", "move", "perf", "produce", "register", "remove", "remove-member", "renew", "reset",
    "run", "set", "unset", "use", "verify",
}  # fmt: skip
"""Words of commands that may not be repeated."""


class Week:
    """A cluster, and the files and variables of a section's lines."""

    def __init__(self, cluster: TaskCluster, directory: Path, address: str) -> None:
        self.cluster = cluster
        self.directory = directory
        self.variables = {"OTTLA_BROKERS": address, "OTTLA_CONFIG_DIR": str(directory / "config")}
        self.variables["LOGGER"] = cluster.logger

    def run(self, line: str, *, code: int | None = 0) -> str:
        """Prepare something; a line that must end with this code."""
        outcome = run_line(line, self.variables)
        assert code is None or outcome.code == code, f"{line}: {outcome}"
        return outcome.stdout

    def write(self, name: str, text: str | bytes) -> None:
        """A file in the working directory."""
        (self.directory / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    def until(self, line: str, check: Callable[[str], bool]) -> None:
        """Repeat a reading line until its output is as wanted."""
        end = time.monotonic() + WAIT_S
        while not check(text := self.run(line, code=None)):
            assert time.monotonic() < end, f"{line}: {text}"
            time.sleep(0.02)

    def clear(self) -> None:
        """Delete all topics and groups."""
        names = self.run("ottla topic list -o name").split()
        if names:
            self.run(f"ottla topic delete {' '.join(names)} --yes")
            self.until("ottla topic list -o name", lambda text: not text)
        groups = self.run("ottla group list -o name").split()
        if groups:
            self.run(f"ottla group delete {' '.join(groups)} --yes")

    def create(self, name: str, partitions: int = 1, replicas: int = 1) -> None:
        """Create a topic whose records stay, however old they are; all brokers know it."""
        self.run(f"ottla topic create {name} -p {partitions} -r {replicas} -c retention.ms=-1")
        self.until(f"ottla offsets {name}", lambda text: text.count(":0\n") == partitions)


# -- what the sections begin with --------------------------------------------------------------------------------------


@contextmanager
def nothing(week: Week) -> Iterator[None]:
    yield


@contextmanager
def files_and_a_topic(week: Week) -> Iterator[None]:
    week.create("orders", 3)
    week.write("lines.txt", "cake\ntea\n")
    week.write("keyed.txt", "ann:cake\nbob:tea\n")
    week.write("bill.pdf", b"%PDF\n\x00\xff")
    week.write("orders.jsonl", '{"key": "eve", "value": {"item": "cake"}, "headers": {"source": "web"}}\n')
    yield


def write_orders(week: Week, replicas: int = 1) -> None:
    """Nine records in three partitions, one a minute."""
    week.create("orders", 3, replicas)
    lines = [
        {
            "partition": at % 3,
            "timestamp": 1_795_161_600_000 + at * 60_000,
            "key": ("ann", "bob", "eve")[at % 3],
            "value": {"item": f"cake-{at}", "price": at},
            "headers": {"source": ("web", "shop")[at % 2]},
        }
        for at in range(9)
    ]
    week.write("nine.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    week.run("ottla produce orders --jsonl < nine.jsonl")


@contextmanager
def orders(week: Week) -> Iterator[None]:
    write_orders(week)
    week.create("orders-eu")
    week.run("echo bread | ottla produce orders-eu")
    yield


@contextmanager
def orders_on_a_disk(week: Week) -> Iterator[None]:
    write_orders(week, replicas=2)
    (where,) = [each for each in week.cluster.log_dirs if (each / "orders-0").exists()]
    week.variables["LOG_DIR"] = str(where)
    for name in ("orders-restored", "orders-ann"):
        week.create(name, 3)
    week.write("offsets.json", '{"version": 1, "partitions": [{"topic": "orders", "partition": 2, "offset": 2}]}')
    yield


@contextmanager
def groups(week: Week) -> Iterator[None]:
    write_orders(week)
    week.write("billing.csv", "orders,0,1\norders,1,1\norders,2,1\n")
    week.run("ottla group import billing.csv --group billing --execute")
    settings = {"bootstrap.servers": week.variables["OTTLA_BROKERS"], "group.id": "cart"}
    with Consumer(settings | {"group.instance.id": "cart-1"}) as consumer:
        consumer.subscribe(["orders"])
        while not consumer.assignment():
            consumer.poll(0.05)
        yield


@contextmanager
def two_directories(week: Week) -> Iterator[None]:
    week.create("orders", 1, week.cluster.disk_replicas)
    (empty,) = [each for each in week.cluster.disk_dirs if not (each / "orders-0").exists()]
    week.variables["EMPTY_DIR"] = str(empty)
    yield


@contextmanager
def one_replica(week: Week) -> Iterator[None]:
    week.create("orders", 3)
    yield


@contextmanager
def a_login(week: Week) -> Iterator[None]:
    week.create("orders")
    week.write("admin.password", "secret\n")
    week.run("ottla user create admin --mechanism SCRAM-SHA-512 --replace --password-file admin.password")
    settings = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=SCRAM-SHA-512", "sasl.username=admin")
    lines = (f"bootstrap.servers={week.cluster.login}", *settings, "sasl.password=secret")
    week.write("admin.properties", "".join(f"{line}\n" for line in lines))
    week.until("ottla topic list --command-config admin.properties", lambda text: "orders" in text)
    yield


@contextmanager
def open_transactions(week: Week) -> Iterator[None]:
    write_orders(week)
    address = week.variables["OTTLA_BROKERS"]
    shop = Producer({"bootstrap.servers": address, "transactional.id": "shop", "log_level": 0})
    shop.init_transactions(WAIT_S)
    shop.begin_transaction()
    shop.produce("orders", b"open", partition=0)
    assert shop.flush(WAIT_S) == 0
    hang(address, "orders", 1)
    yield
    shop.abort_transaction(WAIT_S)


@contextmanager
def a_registry(week: Week) -> Iterator[None]:
    week.create("orders")
    address = week.variables["OTTLA_BROKERS"]
    fields = [{"name": "item", "type": "string"}, {"name": "price", "type": "int"}]
    note: dict[str, Any] = {"name": "note", "type": "string"}
    for name, more in (("orders", []), ("next", [note | {"default": ""}]), ("wrong", [note])):
        week.write(f"{name}.avsc", json.dumps({"type": "record", "name": "Order", "fields": fields + more}))
    schema = (week.directory / "orders.avsc").read_text()
    with RegistryProcess(week.directory, address) as process:
        week.variables["OTTLA_SCHEMA_REGISTRY"] = process.url
        with OttlaProducer({"bootstrap.servers": address}) as producer:
            value = AvroSerializer(SchemaRegistry(process.url), schema)(
                {"item": "cake", "price": 4}, SerializationContext("orders", MessageField.VALUE)
            )
            producer.send("orders", value)
        yield


@contextmanager
def a_file(week: Week) -> Iterator[None]:
    week.create("orders")
    week.write(
        "week.yaml", "version: 1\ntopics:\n  orders: {configs: {retention.ms: 60000}}\n  returns: {partitions: 2}\n"
    )
    week.write("pipelines.yaml", "version: 1\npipelines:\n  shop: {file: shop.py}\n")
    yield


@contextmanager
def settings_of_a_client(week: Week) -> Iterator[None]:
    week.create("orders")
    week.write("app.properties", f"bootstrap.servers={week.variables['OTTLA_BROKERS']}\nclient.id=app\n")
    yield


BEGINNINGS: dict[str, Callable[[Week], AbstractContextManager[None]]] = {
    "Topics": nothing,
    "Writing records": files_and_a_topic,
    "Reading records": orders,
    "Moving and deleting records": orders_on_a_disk,
    "Groups": groups,
    "Cluster, brokers, settings": nothing,
    "Disks": two_directories,
    "Moving partitions, electing leaders": one_replica,
    "Users, ACLs, quotas": nothing,
    "Delegation tokens": a_login,
    "Transactions": open_transactions,
    "Schemas": a_registry,
    "The cluster as a file": a_file,
    "The command line itself": settings_of_a_client,
}
ON_DISKS = ("Disks", "Delegation tokens")
"""Sections for the broker with two log directories and logins."""


# -- the page ----------------------------------------------------------------------------------------------------------


def test_every_row_of_the_page_is_a_task_with_an_expectation() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "cli-tasks.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| task |")]
    missing = [row for row in rows if parse_task(row) is None]
    assert missing == []
    assert sum(map(len, SECTIONS.values())) == len(rows) > 200
    assert list(BEGINNINGS) == list(SECTIONS)


def test_a_difference_is_seen() -> None:
    task = Task("", "ottla --version", 0, ("ottla", "$NAME", "!gone"))
    assert find_faults(task, Outcome(0, "ottla ", "here"), {"NAME": "here"}) == []
    faults = find_faults(task, Outcome(3, "gone", ""), {"NAME": "here"})
    assert faults == ["exit code 3, not 0", "has no 'ottla'", "has no 'here'", "has 'gone'"]


# -- the lines ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["ottla", pytest.param("kafka", marks=pytest.mark.kafka)])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskCluster]:
    start = start_kafka if request.param == "kafka" else start_ottla
    with start(tmp_path_factory.mktemp("tasks")) as running:
        yield running


def run_task(week: Week, task: Task) -> None:
    """Run a line until it does as promised. Brokers of Apache Kafka know of a change a moment after it was answered, so
    that lines that change nothing are repeated, and those that did not find something."""
    words = set(task.line.split())
    repeatable = not words & CHANGING and "--group" not in words
    end = time.monotonic() + WAIT_S
    while faults := find_faults(task, outcome := run_line(task.line, week.variables), week.variables):
        again = repeatable or (outcome.code == 3 and task.code != 3)
        if not again or time.monotonic() > end:
            pytest.fail(
                f"{task.name}: {task.line}\n{'; '.join(faults)}:\n{outcome.stdout}{outcome.stderr}", pytrace=False
            )
        time.sleep(0.05)
    if outcome.variable is not None:
        week.variables |= dict([outcome.variable])


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS)
def test_the_tasks(section: str, cluster: TaskCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    week = Week(cluster, tmp_path, cluster.disks if section in ON_DISKS else cluster.bootstrap)
    week.clear()
    with BEGINNINGS[section](week):
        for task in SECTIONS[section]:
            run_task(week, task)
