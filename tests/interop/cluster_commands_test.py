"""`ottla config`, `cluster health`, `api-versions` and `doctor` with Apache Kafka 4.4."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from testbench.apache_kafka import tools
from testbench.apache_kafka.broker import KafkaNode
from tests.interop.kafka_tools.comparison import run_ottla

from ottla.cli.main import cli

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

Ottla = Callable[..., Result]


@pytest.fixture
def ottla(kafka_node: KafkaNode, tmp_path: Path) -> Ottla:
    """Runs `ottla WORDS…`."""

    def run(*words: str, stdin: str = "") -> Result:
        env = {"OTTLA_BROKERS": kafka_node.bootstrap, "OTTLA_CONFIG_DIR": str(tmp_path)}
        return CliRunner().invoke(cli, list(words), input=stdin, env=env)

    return run


def settings(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    return {each["name"]: each for each in json.loads(result.stdout)}


def await_true(check: Callable[[], bool]) -> None:
    """Wait until something is so: brokers in KRaft mode follow the controller a little later."""
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end
        time.sleep(0.05)


def await_value(ottla: Ottla, entity: str, key: str, value: str) -> None:
    await_true(lambda: ottla("config", "get", entity, key).stdout == f"{value}\n")


def test_settings_of_every_kind_of_owner(ottla: Ottla) -> None:
    for name in ("one", "two"):
        assert ottla("topic", "create", name).exit_code == 0
    for entity, key, value in (
        ("topic/one", "retention.ms", "1000"),
        ("broker/1", "log.cleaner.backoff.ms", "7"),
        ("broker/default", "log.cleaner.backoff.ms", "8"),
        ("group/g", "consumer.session.timeout.ms", "50000"),
        ("client-metrics/m", "interval.ms", "5000"),
        ("logger/1", "org.apache.kafka.common.network.Selector", "DEBUG"),
    ):
        dry = ottla("config", "set", entity, f"{key}={value}", "--dry-run")
        assert dry.exit_code == 0, dry.output
        done = ottla("config", "set", entity, f"{key}={value}")
        assert done.stdout == f"{entity} altered: {key}\n", done.output
        await_value(ottla, entity, key, value)
    entry = settings(ottla("config", "get", "broker/1", "log.cleaner.backoff.ms", "-o", "json"))
    found = entry["log.cleaner.backoff.ms"]
    assert (found["source"], found["dynamic"]) == ("DYNAMIC_BROKER_CONFIG", True)
    assert [each["value"] for each in found["synonyms"]][:2] == ["7", "8"]
    listed = ottla("config", "list").stdout.split()
    assert {"topic/one", "broker/1", "logger/1", "group/g", "client-metrics/m"} <= set(listed)
    differ = ottla("config", "diff", "topic/one", "topic/two", "-o", "json")
    assert (differ.exit_code, [each["name"] for each in json.loads(differ.stdout)]) == (1, ["retention.ms"])
    for entity, key in (
        ("topic/one", "retention.ms"),
        ("broker/1", "log.cleaner.backoff.ms"),
        ("broker/default", "log.cleaner.backoff.ms"),
        ("logger/1", "org.apache.kafka.common.network.Selector"),
    ):
        assert ottla("config", "unset", entity, key).exit_code == 0
    await_true(lambda: ottla("config", "diff", "topic/one", "topic/two").exit_code == 0)
    await_true(lambda: "log.cleaner.backoff.ms" not in ottla("config", "list", "broker/default").stdout)


def test_lists_and_refusals(ottla: Ottla) -> None:
    assert ottla("topic", "create", "lists").exit_code == 0
    assert ottla("config", "set", "topic/lists", "cleanup.policy+=compact").exit_code == 0
    await_value(ottla, "topic/lists", "cleanup.policy", "delete,compact")
    assert ottla("config", "set", "topic/lists", "cleanup.policy-=delete").exit_code == 0
    await_value(ottla, "topic/lists", "cleanup.policy", "compact")
    for words, code, text in (
        (("set", "topic/lists", "retention.ms=soon"), 1, "INVALID_CONFIG"),
        (("set", "topic/lists", "retention.mss=1"), 1, "INVALID_CONFIG"),
        (("unset", "topic/lists", "retention.mss"), 3, "did you mean retention.ms?"),
        (("get", "topic/nowhere", "retention.ms"), 3, "UNKNOWN_TOPIC_OR_PARTITION"),
        (("list", "broker/9"), 3, "there is no broker 9"),
        (("set", "logger/1", "org.apache.kafka.nowhere=DEBUG"), 3, "no setting"),
        (("set", "logger/1", "root=LOUD"), 1, "LOUD"),
        (("set", "broker/1", "node.id=5"), 1, "INVALID_REQUEST"),
    ):
        result = ottla("config", *words)
        assert (result.exit_code, text in result.stderr) == (code, True), (words, result.output)


def test_health_versions_and_the_doctor(ottla: Ottla, kafka_node: KafkaNode) -> None:
    assert ottla("topic", "create", "read").exit_code == 0
    assert ottla("produce", "read", stdin="a\n").exit_code == 0
    assert ottla("consume", "read", "-g", "g", "--offset", "start", "-n", "1").exit_code == 0
    health = json.loads(ottla("cluster", "health", "-o", "json").stdout)
    assert (health["healthy"], health["controller"], health["problems"]) == (True, 1, [])
    (broker,) = json.loads(ottla("api-versions", "-o", "json").stdout)
    apis = {each["name"]: each for each in broker["apis"]}
    assert [each["key"] for each in broker["apis"] if each["name"] is None] == [], "every API has a name"
    assert apis["Produce"]["used"] is not None
    assert {"metadata.version", "group.version"} <= {each["name"] for each in broker["features"]}
    doctor = ottla("doctor", "-o", "json")
    found = json.loads(doctor.stdout)
    assert doctor.exit_code == 0, found
    assert [each["check"] for each in found] == ["settings", "address", "advertised", "partitions", "clock", "disk"]
    wrong = json.loads(ottla("doctor", "-X", "security.protocol=SSL", "-o", "json").stdout)
    assert "security.protocol=PLAINTEXT" in wrong[-1]["next_step"]
    plain = json.loads(ottla("doctor", "-b", f"{kafka_node.address}:{kafka_node.controller_port}", "-o", "json").stdout)
    assert plain[1]["level"] == "error", "the listener of the controller is not for clients"


def test_kafka_features_beside_apache_kafkas_own(kafka_node: KafkaNode) -> None:
    def shown(text: str) -> list[str]:
        # The broker counts its epoch up all the time. The other tool is of Kafka 4.3, whose table ends before 4.4-IV2.
        return re.sub(r"Epoch: \d+", "Epoch: N", text).replace("UNKNOWN 33", "4.4-IV2   ").splitlines()

    server = ("--bootstrap-server", kafka_node.bootstrap)
    for words in (("describe",), ("downgrade", "--feature", "transaction.version=9", "--feature", "group.version=0")):
        theirs = tools.run(kafka_node.version, "kafka-features", *server, *words)
        code, ours = run_ottla("kafka-features", [*server, *words])
        assert (code, shown(ours)) == (theirs.returncode, shown(theirs.stdout + theirs.stderr))
    change = ["downgrade", "--feature", "transaction.version=1"]
    assert run_ottla("kafka-features", [*server, *change]) == (0, "transaction.version was downgraded to 1.\n")
    change = ["upgrade", "--feature", "transaction.version=2"]
    assert run_ottla("kafka-features", [*server, *change]) == (0, "transaction.version was upgraded to 2.\n")
