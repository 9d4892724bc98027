"""Replicas move between log directories at the word of Apache Kafka's own tools, while a client writes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from testbench.apache_kafka import packages, tools
from testbench.load import Load, check
from testbench.ottla_node import OttlaNode

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

TOPIC = "moved"


@pytest.fixture(params=["4.4.0", "3.9.1"])
def kafka(request: pytest.FixtureRequest) -> Callable[..., str]:
    """`kafka(bootstrap, tool, words…)`: what it prints."""
    try:
        packages.class_path(request.param, "tools")
    except packages.BenchError as error:
        pytest.fail(f"{error} (testbench/setup does it)")

    def run(bootstrap: str, name: str, *words: str) -> str:
        done = tools.run(request.param, name, *words, "--bootstrap-server", bootstrap)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        return done.stdout

    return run


def until(what: Callable[[], bool], text: str) -> None:
    end = time.monotonic() + 120
    while not what():
        assert time.monotonic() < end, text
        time.sleep(0.2)


def test_a_replica_moves_under_load_and_through_a_restart(kafka, node, tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    first.mkdir()
    second.mkdir()
    broker: OttlaNode = node(log_dirs=f"{first},{second}")
    at = broker.bootstrap
    kafka(at, "kafka-topics", "--create", "--topic", TOPIC, "--partitions", "1", "--config", "segment.bytes=1048576")
    load = Load(at, TOPIC)
    until(lambda: len(load.acknowledged) > 5000, "nothing is written")
    home, other = (first, second) if (first / f"{TOPIC}-0").exists() else (second, first)
    plan = {"topic": TOPIC, "partition": 0, "replicas": [1], "log_dirs": [str(other)]}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"version": 1, "partitions": [plan]}))
    words = ("--reassignment-json-file", str(file))
    said = kafka(at, "kafka-reassign-partitions", "--execute", *words, "--replica-alter-log-dirs-throttle", "50000")
    assert f"Successfully started moving log directory to {other}" in said
    said = kafka(at, "kafka-reassign-partitions", "--verify", *words, "--preserve-throttles")
    assert "is still in progress" in said
    described = json.loads(kafka(at, "kafka-log-dirs", "--describe", "--topic-list", TOPIC).splitlines()[-1])
    found = {each["logDir"]: each["partitions"] for each in described["brokers"][0]["logDirs"]}
    assert [each["isFuture"] for each in found[str(home)]] == [False]
    assert [each["isFuture"] for each in found[str(other)]] == [True]
    assert 0 < found[str(other)][0]["size"] < found[str(home)][0]["size"]
    assert found[str(other)][0]["offsetLag"] > 0
    broker.stop()
    broker.start()
    kafka(at, "kafka-configs", "--alter", "--entity-type", "brokers", "--entity-name", "1", "--add-config",
          "replica.alter.log.dirs.io.max.bytes.per.second=100000000")  # fmt: skip
    until((other / f"{TOPIC}-0").exists, "the move does not come to its end")
    said = kafka(at, "kafka-reassign-partitions", "--verify", *words)
    assert "completed successfully" in said or "is complete" in said, said
    assert not (home / f"{TOPIC}-0").exists()
    load.stop()
    check(at, load, load.acknowledged)
