"""kafka-verifiable-consumer: its events, and the signals and failures that end it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ottla.client import Admin, ClientConfig, Cluster, ConfigChange, Producer, Resource, ResourceType
from ottla.kafka_tools.main import load_tool, run_tool
from ottla.server.embedded import EmbeddedBroker

NAME = "kafka-verifiable-consumer"
TOOL = load_tool(NAME)
ASSIGNED = {"name": "partitions_assigned", "partitions": [{"topic": "t", "partition": 0}]}
REVOKED = {"name": "partitions_revoked", "partitions": [{"topic": "t", "partition": 0}]}
STARTED, ENDED, REQUESTED = ({"name": name} for name in ("startup_complete", "shutdown_complete", "shutdown_requested"))
QUICK = {"group.initial.rebalance.delay.ms": "0"}


def events_in(text: str) -> list[dict[str, object]]:
    """The events without their times."""
    events = [json.loads(line) for line in text.splitlines()]
    assert all(event.pop("timestamp") > 0 for event in events)
    return events


def write_records(bootstrap: str, *values: bytes, key: bytes | None = None) -> None:
    """In one batch."""
    with Producer({"bootstrap.servers": bootstrap, "linger.ms": 60_000}) as producer:
        for value in values:
            producer.send("t", value, key=key)


@contextmanager
def start(*words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "ottla.kafka_tools", NAME, "--topic", "t", "--group-id", "g", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], name: str) -> list[dict[str, object]]:
    """The next events, up to one of this name."""
    assert process.stdout is not None
    lines = ""
    for line in process.stdout:
        lines += line
        if f'"name":"{name}"' in line:
            break
    return events_in(lines)


def test_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = ["--bootstrap-server", "x:1", "--topic", "t", "--group-id", "g"]
    for words, message in (
        (["--consumer.config", "a", "--command-config", "a"], "--command-config are mutually exclusive."),
        (["--command-config", str(tmp_path / "missing")], "missing (No such file or directory)"),
        (["--max-messages", "x"], "argument --max-messages: could not convert 'x' to Integer"),
    ):
        assert run_tool(TOOL, [*given, *words]) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "verifiable-consumer: error: " in shown.err
        assert message in shown.err
    for words, message in (
        (["--group-protocol", "x"], "IllegalArgumentException: No enum constant org.apache.kafka.clients.consumer."),
        (["--group-protocol", "consumer"], "--group-protocol consumer: Ottla's consumer has the classic protocol."),
        (["--reset-policy", "x"], "config.ConfigException: Invalid value x for configuration auto.offset.reset: "),
        (["--assignment-strategy", "x"], "common.KafkaException: Failed to construct kafka consumer: partition."),
        (["--session-timeout", "1"], "common.KafkaException: Failed to construct kafka consumer: heartbeat."),
    ):
        assert run_tool(TOOL, [*given, *words]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_events_of_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = tmp_path / "client.properties"
    # The options override the file, as with Apache Kafka's tool.
    settings.write_text("group.id=other\nauto.offset.reset=latest\nenable.auto.commit=true\n")
    place = {"topic": "t", "partition": 0}
    with EmbeddedBroker(config=QUICK) as broker:
        write_records(broker.bootstrap, b"0", b"\xff", key=b"\xc3\xa9")
        write_records(broker.bootstrap, b"2")
        words = ["--bootstrap-server", broker.bootstrap, "--topic", "t", "--group-id", "g", "--max-messages"]
        assert run_tool(TOOL, [*words, "2", "--verbose", "--consumer.config", str(settings)]) == 0
        first, *lines = capsys.readouterr().out.splitlines()
        assert first.startswith("Option --consumer.config has been deprecated")
        assert events_in("\n".join(lines)) == [
            STARTED,
            ASSIGNED,
            {"name": "record_data", "key": "é", "value": "0", **place, "offset": 0},
            {"name": "record_data", "key": "é", "value": "\ufffd", **place, "offset": 1},
            # The count is that of the poll.
            {
                "name": "records_consumed",
                "count": 3,
                "partitions": [{**place, "count": 2, "minOffset": 0, "maxOffset": 1}],
            },
            {"name": "offsets_committed", "offsets": [{**place, "offset": 2}], "success": True},
            REVOKED,
            ENDED,
            REQUESTED,
        ]
        assert run_tool(TOOL, [*words, "1", "--enable-autocommit"]) == 0
        consumed = {
            "name": "records_consumed",
            "count": 1,
            "partitions": [{**place, "count": 1, "minOffset": 2, "maxOffset": 2}],
        }
        assert events_in(capsys.readouterr().out) == [STARTED, ASSIGNED, consumed, REVOKED, ENDED, REQUESTED]
        assert run_tool(TOOL, [*words, "0"]) == 0
        assert events_in(capsys.readouterr().out) == [STARTED, ENDED, REQUESTED]
        # An error ends it in order, and with exit code 0.
        assert run_tool(TOOL, [*words, "1", "--session-timeout", "3001"]) == 0
        shown = capsys.readouterr()
        assert events_in(shown.out) == [STARTED, ENDED, REQUESTED]
        first, second = shown.err.splitlines()
        assert first == "Error during processing, terminating consumer process: "
        assert second.startswith("org.apache.kafka.common.errors.InvalidSessionTimeoutException: ")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals(number: signal.Signals) -> None:
    with EmbeddedBroker(config=QUICK) as broker:
        write_records(broker.bootstrap, b"0")
        with start("--bootstrap-server", broker.bootstrap) as process:
            events = read_until(process, "offsets_committed")
            process.send_signal(number)
            rest, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (128 + number, "")
    assert events[:2] == [STARTED, ASSIGNED]
    assert events_in(rest) == [REQUESTED, REVOKED, ENDED]


@pytest.mark.slow
def test_a_signal_while_no_broker_answers() -> None:
    with start("--bootstrap-server", "127.0.0.1:1") as process:
        read_until(process, "startup_complete")
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=40)
    assert process.returncode == 143
    assert events_in(rest) == [REQUESTED, ENDED]


@pytest.mark.slow
def test_a_reader_that_goes() -> None:
    with EmbeddedBroker(config=QUICK) as broker, start("--bootstrap-server", broker.bootstrap) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        read_until(process, "partitions_assigned")
        process.stdout.close()
        write_records(broker.bootstrap, b"0")
        assert process.wait(60) == 141
        assert process.stderr.read() == ""


@pytest.mark.slow
@pytest.mark.parametrize("heartbeat_ms", [100, 40_000], ids=["found by a heartbeat", "found by a commit"])
def test_a_member_that_replaces_another(tmp_path: Path, heartbeat_ms: int) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text(f"heartbeat.interval.ms={heartbeat_ms}\n")
    with EmbeddedBroker(config=QUICK) as broker:
        write_records(broker.bootstrap, b"0")
        words = ("--bootstrap-server", broker.bootstrap, "--group-instance-id", "i", "--command-config", str(settings))
        with start(*words) as old:
            read_until(old, "offsets_committed")
            with start(*words) as new:
                assert read_until(new, "partitions_assigned") == [STARTED, ASSIGNED]
                write_records(broker.bootstrap, b"1")
                rest, error = old.communicate(timeout=60)
    assert old.returncode == 0
    # What it read before it knew is not reported as committed.
    ended = [event for event in events_in(rest) if event["name"] != "records_consumed"]
    assert ended == [REVOKED, ENDED, REQUESTED]
    assert "\norg.apache.kafka.common.errors.FencedInstanceIdException: " in error


@pytest.mark.slow
def test_a_commit_that_fails() -> None:
    with EmbeddedBroker(config=QUICK) as broker, start("--bootstrap-server", broker.bootstrap) as process:
        read_until(process, "partitions_assigned")
        # The group's members are in the log now; no further commit fits into a batch.
        offsets_topic = Resource(ResourceType.TOPIC, "__consumer_offsets")
        with Cluster(ClientConfig.from_mapping({"bootstrap.servers": broker.bootstrap})) as cluster:
            assert Admin(cluster).alter_configs({offsets_topic: [ConfigChange("max.message.bytes", "60")]}) == {
                offsets_topic: None
            }
        write_records(broker.bootstrap, b"0")
        *_, failed = read_until(process, "offsets_committed")
        # It reads on, as Apache Kafka's tool.
        write_records(broker.bootstrap, b"1")
        *_, again = read_until(process, "offsets_committed")
    place = {"topic": "t", "partition": 0}
    error = "commit of t-0: INVALID_COMMIT_OFFSET_SIZE"
    assert failed == {
        "name": "offsets_committed",
        "offsets": [{**place, "offset": 1}],
        "error": error,
        "success": False,
    }
    assert again["offsets"] == [{**place, "offset": 2}]


@pytest.mark.slow
def test_a_broker_that_comes_back(tmp_path: Path) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text("default.api.timeout.ms=2000\n")
    with ExitStack() as tools:
        with EmbeddedBroker(tmp_path / "data", QUICK) as broker:
            address = broker.bootstrap
            write_records(address, b"0")
            words = ("--bootstrap-server", address, "--command-config", str(settings), "--verbose")
            process = tools.enter_context(start(*words))
            read_until(process, "offsets_committed")
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith("WARN "))
        with EmbeddedBroker(tmp_path / "data", {**QUICK, "listeners": f"PLAINTEXT://{address}"}):
            write_records(address, b"1")
            while read_until(process, "record_data")[-1]["value"] != "1":
                pass
