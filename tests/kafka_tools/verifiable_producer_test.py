"""kafka-verifiable-producer: its records, its events, and the signals and failures that end it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from testbench.ports import free_port
from testbench.proxy import Proxy

from ottla.client import Consumer
from ottla.kafka_tools.main import load_tool, run_tool
from ottla.kafka_tools.options import ToolError
from ottla.kafka_tools.tools.perf.verifiable_events import EventWriter
from ottla.kafka_tools.tools.perf.verifiable_records import VerifiableRecords
from ottla.server.embedded import EmbeddedBroker
from ottla.types import TopicPartition

TOOL = load_tool("kafka-verifiable-producer")


def events_in(text: str) -> list[dict[str, object]]:
    """The events without their times."""
    events = [json.loads(line) for line in text.splitlines()]
    assert all(event.pop("timestamp") > 0 for event in events)
    return events


def test_keys_and_values() -> None:
    records = VerifiableRecords(prefix=-3, keys=2, create_ms=-1)
    assert [records.next_record(number, 9) for number in range(3)] == [
        ("0", "-3.0", None),
        ("1", "-3.1", None),
        ("0", "-3.2", None),
    ]
    assert VerifiableRecords(prefix=None, keys=None, create_ms=-1).next_record(7, 0) == (None, "7", None)
    # As Apache Kafka's tool: no number of keys ends the count that 0 and negative numbers begin.
    endless = VerifiableRecords(prefix=None, keys=0, create_ms=-1)
    assert [endless.next_record(number, 0).key for number in range(3)] == ["0", "1", "2"]


def test_times() -> None:
    records = VerifiableRecords(prefix=None, keys=None, create_ms=5)
    assert [records.next_record(0, elapsed).timestamp for elapsed in (63, 102, 103)] == [5, 68, 170]
    for impossible in (-5, 2**63):
        with pytest.raises(ToolError, match=f"Invalid timestamp: {impossible}. Timestamp should always be non-neg"):
            VerifiableRecords(prefix=None, keys=None, create_ms=impossible).next_record(0, 0)


def test_output_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    calls: list[str] = []
    events = EventWriter(lambda: calls.append("stop"))
    monkeypatch.setattr(sys, "stdout", Full())
    events.write_event("one")
    events.write_event("two")
    assert calls == ["stop"]
    with pytest.raises(OSError, match="No space left"):
        events.raise_failure()


def test_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = ["--bootstrap-server", "x:1", "--topic", "t"]
    for words, message in (
        (["--acks", "7"], "argument --acks: invalid choice: '7' (choose from {0,1,-1})"),
        (["--producer.config", "a", "--command-config", "a"], "--command-config are mutually exclusive."),
        (["--command-config", str(tmp_path / "missing")], "missing (No such file or directory)"),
    ):
        assert run_tool(TOOL, [*given, *words]) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "verifiable-producer: error: " in shown.err
        assert message in shown.err
    assert run_tool(TOOL, ["--bootstrap-server", "x:y", "--topic", "t"]) == 1
    assert "org.apache.kafka.common.KafkaException: Failed to construct kafka producer: " in capsys.readouterr().err


def test_without_a_broker(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = tmp_path / "client.properties"
    # The file overrides the options, as with Apache Kafka's tool.
    settings.write_text("max.block.ms=20\nbootstrap.servers=127.0.0.1:1\n")
    words = ["--bootstrap-server", "x:1", "--topic", "t", "--max-messages", "1", "--producer.config", str(settings)]
    assert run_tool(TOOL, words) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("Option --producer.config has been deprecated")
    started, failed, ended, data = events_in("\n".join(lines))
    assert (started, ended) == ({"name": "startup_complete"}, {"name": "shutdown_complete"})
    assert str(failed.pop("message")).startswith("Topic t not present in metadata after 20 ms. ")
    assert failed == {
        "name": "producer_send_error",
        "topic": "t",
        "key": None,
        "value": "0",
        "exception": "class org.apache.kafka.common.errors.TimeoutException",
    }
    assert data == {"name": "tool_data", "sent": 1, "acked": 0, "target_throughput": -1, "avg_throughput": 0.0}


@pytest.mark.slow
def test_records_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedBroker() as broker:
        at = ["--bootstrap-server", broker.bootstrap, "--topic", "t", "--max-messages"]
        wanted = ["--value-prefix", "7", "--repeating-keys", "2", "--message-create-time", "5", "--throughput", "50"]
        assert run_tool(TOOL, [*at, "3", *wanted]) == 0
        started, *sent, ended, data = events_in(capsys.readouterr().out)
        assert (started, ended) == ({"name": "startup_complete"}, {"name": "shutdown_complete"})
        assert sent == [
            {
                "name": "producer_send_success",
                "key": str(number % 2),
                "value": f"7.{number}",
                "offset": number,
                "topic": "t",
                "partition": 0,
            }
            for number in range(3)
        ]
        assert (data["sent"], data["acked"], data["target_throughput"]) == (3, 3, 50)
        assert run_tool(TOOL, [*at, "1", "--acks", "0"]) == 0
        assert events_in(capsys.readouterr().out)[1]["offset"] == -1
        # An impossible time ends the run, after the last events.
        assert run_tool(TOOL, [*at, "1", "--message-create-time", "-5"]) == 1
        shown = capsys.readouterr()
        assert events_in(shown.out)[-1]["sent"] == 0
        assert shown.err.startswith("java.lang.IllegalArgumentException: Invalid timestamp: -5.")
        with Consumer({"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            times: list[int] = []
            while len(times) < 3:
                times += [record.timestamp for record in consumer.poll(1)]
        assert times[0] == 5
        assert times == sorted(times)


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ottla.kafka_tools", "kafka-verifiable-producer", "--topic", "t", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals(number: signal.Signals) -> None:
    with EmbeddedBroker() as broker, start("--bootstrap-server", broker.bootstrap, "--throughput", "0") as process:
        assert process.stdout is not None
        # As Apache Kafka's tool: two records, and then it waits.
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(number)
        rest, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (128 + number, "")
    names = [event["name"] for event in events_in("".join(lines) + rest)]
    assert names == ["startup_complete", *["producer_send_success"] * 2, "shutdown_complete", "tool_data"]
    assert '"sent":2,"acked":2,"target_throughput":0' in rest


@pytest.mark.slow
def test_a_signal_while_no_broker_answers() -> None:
    """Well before max.block.ms, a minute, is over."""
    with start("--bootstrap-server", "127.0.0.1:1") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        rest, error = process.communicate(timeout=40)
    assert (process.returncode, error) == (143, "")
    assert [event["name"] for event in events_in(rest)] == ["shutdown_complete", "tool_data"]


@pytest.mark.slow
def test_a_reader_that_goes() -> None:
    with EmbeddedBroker() as broker, start("--bootstrap-server", broker.bootstrap) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == ""


@pytest.mark.slow
def test_memory_that_stays_full(tmp_path: Path) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text("max.block.ms=300\nbuffer.memory=2000\nbatch.size=200\n")
    port = free_port()
    proxy = Proxy("127.0.0.1", port)
    addresses = {"listeners": f"PLAINTEXT://127.0.0.1:{port}", "advertised.listeners": f"PLAINTEXT://{proxy.address}"}
    words = ("--bootstrap-server", proxy.address, "--throughput", "500", "--command-config", str(settings))
    with EmbeddedBroker(config=addresses), start(*words) as process:
        assert process.stdout is not None
        try:
            next(line for line in process.stdout if "producer_send_success" in line)
            proxy.hold()
            failed = json.loads(next(line for line in process.stdout if "producer_send_error" in line))
        finally:
            process.kill()
            proxy.stop()
    assert failed["name"] == "producer_send_error"
    assert failed["exception"] == "class org.apache.kafka.clients.producer.BufferExhaustedException"
    words_of_kafka = "Failed to allocate 200 bytes within the configured max blocking time 300 ms. "
    assert failed["message"].startswith(f"{words_of_kafka}buffer.memory (2000 bytes) was full")
