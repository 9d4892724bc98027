"""`ottla apply` with two brokers: of Ottla, and of Apache Kafka 4.4 through the same protocol.

Zone: real.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from testbench.apache_kafka.cluster import KafkaCluster
from testbench.cluster import OttlaUp
from tests.pipeline.offline import SESSION, Offline, Query

from ottla.cli.main import cli
from ottla.client import Consumer
from ottla.pipeline.definitions.definitions_topic import TOPIC
from ottla.pipeline.definitions.follower import CONSUMER_SETTINGS, DefinitionFollower
from ottla.pipeline.service import PipelineService

pytestmark = pytest.mark.slow
SETTINGS = {
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "super.users": "User:ANONYMOUS",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}
WHOLE = """\
version: 1
topics:
  orders:
    partitions: 3
    replication_factor: 1
    configs: {retention.ms: 604800000, cleanup.policy: [compact, delete], preallocate: false}
  "payments.v1": {partitions: 1}
brokers:
  default: {log.cleaner.threads: 2}
  "1": {message.max.bytes: 2000000}
groups:
  billing: {consumer.session.timeout.ms: 46000}
users:
  ann: {mechanisms: [SCRAM-SHA-256, SCRAM-SHA-512], password_env: ANN_PASSWORD}
acls:
  - {principal: "User:ann", resource_type: topic, name: orders, operations: [Read, Describe]}
  - {principal: "User:ann", resource_type: group, name: bill, pattern_type: prefixed, operation: Read}
quotas:
  - {entity: {user: ann}, quotas: {producer_byte_rate: 1048576}}
  - {entity: {client_id: null}, quotas: {request_percentage: 50.5}}
"""
CHANGES = 12
PRUNE_ALL = [word for kind in ("topics", "configs", "users", "acls", "quotas") for word in ("--prune", kind)]


@pytest.fixture(scope="module", params=[pytest.param("ottla"), pytest.param("kafka", marks=pytest.mark.kafka)])
def brokers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of two brokers."""
    directory: Path = tmp_path_factory.mktemp("manifest")
    kind = KafkaCluster if request.param == "kafka" else OttlaUp
    cluster = kind(directory, 2, settings=SETTINGS)
    cluster.start()
    yield cluster.bootstrap
    cluster.stop()


def invoke(brokers: str, *words: str, stdin: str = "") -> Result:
    environment = {"OTTLA_BROKERS": brokers, "ANN_PASSWORD": "sesame"}
    return CliRunner().invoke(cli, list(words), input=stdin, env=environment)


def assert_as_described(brokers: str, text: str, *prune: str) -> None:
    """Brokers of Apache Kafka learn of a change a moment after the controller has answered."""
    end = time.monotonic() + 60
    while True:
        found = invoke(brokers, "diff", "-", *(prune or PRUNE_ALL), stdin=text)
        # A broker that has not learned of a topic lists it as missing, and the controller refuses to make it again.
        late = found.exit_code == 2 or "TOPIC_ALREADY_EXISTS" in found.stderr
        if not late or time.monotonic() >= end:
            break
        time.sleep(0.1)
    assert (found.exit_code, found.stdout) == (0, ""), found.stderr


def replicas_of(brokers: str, topic: str) -> set[int]:
    (described,) = json.loads(invoke(brokers, "topic", "describe", topic, "-o", "json").stdout)
    return {len(part["replicas"]) for part in described["partitions"]}


def test_a_file_is_applied_once_and_moves_replicas(brokers: str) -> None:
    assert invoke(brokers, "diff", "-", stdin=WHOLE).exit_code == 2
    made = invoke(brokers, "apply", "-", "--yes", stdin=WHOLE)
    assert (made.exit_code, made.stdout.count("done: ")) == (0, CHANGES), made.stderr
    assert_as_described(brokers, WHOLE)
    again = invoke(brokers, "apply", "-", stdin=WHOLE)
    assert (again.exit_code, again.stdout) == (0, ""), again.stderr
    # More replicas, with a throttle that is gone afterwards; then fewer.
    for factor in (2, 1):
        text = WHOLE.replace("replication_factor: 1", f"replication_factor: {factor}")
        moved = invoke(brokers, "apply", "-", "--yes", stdin=text)
        assert (moved.exit_code, moved.stdout.count("done: ")) == (0, 1), moved.stderr
        assert replicas_of(brokers, "orders") == {factor}
        assert_as_described(brokers, text)
    assert "throttled" not in invoke(brokers, "topic", "describe", "orders").stdout
    exported = invoke(brokers, "cluster", "export")
    assert (exported.exit_code, exported.stderr) == (0, "")
    assert "throttled" not in exported.stdout
    assert_as_described(brokers, exported.stdout)
    empty = (
        'version: 1\ntopics: {}\nbrokers: {default: {}, "1": {}}\ngroups: {billing: {}}\nusers: {}\nacls:\nquotas:\n'
    )
    pruned = invoke(brokers, "apply", "-", "--yes", *PRUNE_ALL, stdin=empty)
    assert pruned.exit_code == 0, pruned.stderr
    assert_as_described(brokers, empty)
    left = json.loads(invoke(brokers, "cluster", "export", "-o", "json").stdout)
    assert left.pop("brokers") in ({}, {"default": {"min.insync.replicas": 1}})
    assert {key: value for key, value in left.items() if value} == {"version": 1}


def test_an_error_changes_nothing(brokers: str) -> None:
    text = "version: 1\ntopics:\n  good: {partitions: 1}\n  bad: {configs: {retention.ms: soon}}\n"
    refused = invoke(brokers, "apply", "-", "--yes", stdin=text)
    assert refused.exit_code == 1
    assert "line 4, topics.bad:" in refused.stderr
    assert invoke(brokers, "topic", "list", "-o", "name").stdout == ""


PIPELINES = """version: 1
pipelines:
  shop: {file: shop.py, trigger: 5s}
  stock: {file: parts/stock.py, state: paused, max_restarts: 3}
"""


@pytest.fixture
def follow(brokers: str) -> Iterator[Callable[[dict[str, str]], None]]:
    """Has a service follow the definitions until its pipelines have these states. Spark's part is played."""
    service = PipelineService(None, "checkpoints", "1s")
    service.start(SESSION)
    with Consumer({"bootstrap.servers": brokers, **CONSUMER_SETTINGS, "group.id": TOPIC}) as consumer:
        follower = DefinitionFollower(consumer, TOPIC, service, lambda name, _: Offline(name, Query()))

        def follow_until(states: dict[str, str]) -> None:
            end = time.monotonic() + 60
            while (found := {each.name: each.supervision.state.value for each in service.pipelines}) != states:
                assert time.monotonic() < end, (found, follower.error)
                follower.follow(0.1)

        yield follow_until


def test_definitions_of_pipelines_are_kept_by_any_kafka(brokers: str, follow: Callable[[dict[str, str]], None]) -> None:
    made = invoke(brokers, "apply", "-", "--yes", stdin=PIPELINES)
    assert (made.exit_code, made.stdout.count("done: ")) == (0, 3), made.stderr
    assert_as_described(brokers, PIPELINES, "--prune", "pipelines")
    follow({"shop": "running", "stock": "paused"})
    exported = invoke(brokers, "cluster", "export")
    assert (exported.exit_code, exported.stderr) == (0, "")
    assert_as_described(brokers, exported.stdout)
    paused = PIPELINES.replace("trigger: 5s", "state: paused")
    changed = invoke(brokers, "apply", "-", "--yes", stdin=paused)
    assert changed.stdout.count("done: ~ pipeline shop: state running → paused, trigger 5s → default") == 1
    assert_as_described(brokers, paused, "--prune", "pipelines")
    follow({"shop": "paused", "stock": "paused"})
    empty = "version: 1\npipelines: {}\n"
    pruned = invoke(brokers, "apply", "-", "--yes", "--prune", "pipelines", stdin=empty)
    assert pruned.stdout.count("done: - pipeline") == 2, pruned.stderr
    assert_as_described(brokers, empty, "--prune", "pipelines")
    follow({})
    # Other tests have a cluster without topics.
    assert invoke(brokers, "topic", "delete", "_ottla-pipelines", "--yes").exit_code == 0


UNSET = str(2**63 - 1)


def rate_of(brokers: str, node: int) -> str:
    """Brokers of Apache Kafka show no value where none is set."""
    shown = invoke(brokers, "config", "get", f"broker/{node}", "leader.replication.throttled.rate")
    return shown.stdout.strip() or UNSET


def await_rate(brokers: str, node: int, rate: str) -> None:
    end = time.monotonic() + 60
    while (found := rate_of(brokers, node)) != rate:
        assert time.monotonic() < end, found
        time.sleep(0.05)


def test_a_reassignment_ends_no_throttle_but_its_own(brokers: str, tmp_path: Path) -> None:
    """Three cases: a rate that was set by hand, a topic that is still moved, and the last one that was moved."""
    for name in ("slow", "still"):
        made = tmp_path / name
        assert invoke(brokers, "topic", "create", name, "-p", "1").exit_code == 0
        (described,) = json.loads(invoke(brokers, "topic", "describe", name, "-o", "json").stdout)
        (leader,) = described["partitions"][0]["replicas"]
        replicas = [leader, 3 - leader] if name == "slow" else [leader]
        made.write_text(
            json.dumps({"version": 1, "partitions": [{"topic": name, "partition": 0, "replicas": replicas}]})
        )
    large = tmp_path / "large"
    large.write_bytes(bytes(900_000))
    four = ["--file", str(large)] * 4  # more than one fetch
    assert invoke(brokers, "produce", "slow", "--whole", *four).exit_code == 0
    other = 3 - leader
    by_hand = "leader.replication.throttled.rate=77"
    assert invoke(brokers, "config", "set", f"broker/{other}", by_hand).exit_code == 0
    await_rate(brokers, other, "77")
    run = ("reassign", "run", str(tmp_path / "still"), "--throttle", "5", "--wait")
    assert invoke(brokers, *run).exit_code == 0
    await_rate(brokers, leader, UNSET)
    assert rate_of(brokers, other) == "77"
    assert invoke(brokers, "reassign", "run", str(tmp_path / "slow"), "--throttle", "1").exit_code == 0
    assert "slow" in invoke(brokers, "reassign", "status").stdout
    assert invoke(brokers, *run).exit_code == 0
    await_rate(brokers, other, "1")
    await_rate(brokers, leader, "5")
    assert invoke(brokers, "reassign", "cancel", "--file", str(tmp_path / "slow")).exit_code == 0
    for node in (leader, other):
        await_rate(brokers, node, UNSET)
    assert invoke(brokers, "topic", "delete", "slow", "still", "--yes").exit_code == 0
    end = time.monotonic() + 60
    while invoke(brokers, "topic", "list", "--include", "slow|still", "-o", "name").stdout:
        assert time.monotonic() < end
        time.sleep(0.05)
