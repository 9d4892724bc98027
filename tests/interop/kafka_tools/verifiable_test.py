"""The verifiable producer and consumer beside Apache Kafka's own: events without their times.

Whole processes, because Kafka's tools print their last events when their JVM ends. tests/cli/kafka_records_test.py does
the same with a broker of Apache Kafka.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from testbench.apache_kafka import tools
from testbench.ottla_node import OttlaNode
from tests.interop.kafka_tools.comparison import run_ottla
from tests.interop.kafka_tools.perf_test import form

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

TOOL, READER = "kafka-verifiable-producer", "kafka-verifiable-consumer"
VARYING = {"timestamp", "avg_throughput", "message"}


def shown_events(done: subprocess.CompletedProcess[str], topic: str) -> tuple[int, list[object]]:
    """The exit code and the lines: fields in their order; values that vary only by their types."""
    lines: list[object] = []
    for line in done.stdout.replace(topic, "TOPIC").splitlines():
        if line.startswith("{"):
            fields = json.loads(line).items()
            lines.append([(name, type(field) if name in VARYING else field) for name, field in fields])
        else:
            lines.append(line)
    return done.returncode, lines


def compare_runs(bootstrap: str, topic: str, words: str) -> None:
    """Run both tools at the same time, each with a topic of its own; exit codes and events must be equal."""
    line = ["--bootstrap-server", bootstrap, *words.split(), "--topic"]
    command = [sys.executable, "-m", "ottla.kafka_tools", TOOL, *line, f"o{topic}"]
    with ThreadPoolExecutor() as threads:
        theirs = threads.submit(tools.run, "4.4.0", TOOL, *line, f"k{topic}")
        ours = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert shown_events(ours, f"o{topic}") == shown_events(theirs.result(), f"k{topic}"), words


def compare_readers(bootstrap: str, topic: str, words: str) -> None:
    """Run both consumers at the same time, each in a group of its own; exit codes and events must be equal."""
    run_ottla(TOOL, ["--bootstrap-server", bootstrap, "--topic", topic, "--max-messages", "7", "--repeating-keys", "2"])
    line = ["--bootstrap-server", bootstrap, "--topic", topic, *words.split(), "--group-id"]
    command = [sys.executable, "-m", "ottla.kafka_tools", READER, *line, f"o{topic}"]
    with ThreadPoolExecutor() as threads:
        theirs = threads.submit(tools.run, "4.4.0", READER, *line, f"k{topic}")
        ours = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert shown_events(ours, topic) == shown_events(theirs.result(), topic), words


def end_after_commit(command: list[str], topic: str) -> tuple[int, list[object]]:
    """Run a consumer until its first commit, and end it with a signal; its exit code and events."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = ""
        while '"offsets_committed"' not in text:
            text += process.stdout.readline() or pytest.fail(text)
        process.terminate()
        rest, _ = process.communicate(timeout=60)
    return shown_events(subprocess.CompletedProcess(command, process.returncode, text + rest), topic)


def test_events_of_the_consumer(authorized_node: OttlaNode, topic: str) -> None:
    compare_readers(
        authorized_node.bootstrap, topic[:100], "--max-messages 5 --verbose --group-remote-assignor uniform"
    )


def test_the_end_of_the_consumer(authorized_node: OttlaNode, topic: str) -> None:
    bootstrap, topic = authorized_node.bootstrap, topic[:100]
    run_ottla(TOOL, ["--bootstrap-server", bootstrap, "--topic", topic, "--max-messages", "3"])
    line = ["--bootstrap-server", bootstrap, "--topic", topic, "--session-timeout", "10000", "--group-id"]
    command = [sys.executable, "-m", "ottla.kafka_tools", READER, *line, f"o{topic}"]
    with ThreadPoolExecutor() as threads:
        theirs = threads.submit(end_after_commit, tools.short_command("4.4.0", READER, *line, f"k{topic}"), topic)
        ours = end_after_commit(command, topic)
    assert ours == theirs.result()
    assert ours[0] == 143


def test_events(bootstrap: str, topic: str, tmp_path: Path) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text("max.block.ms=20\nbootstrap.servers=127.0.0.1:1\n")
    topic = topic[:100]
    compare_runs(bootstrap, topic, "--max-messages 5 --value-prefix -7 --repeating-keys 2 --acks 1 --throughput 100")
    compare_runs(bootstrap, topic, f"--max-messages 2 --producer.config {settings}")


CONSUMER = "--bootstrap-server x:1 --topic x --group-id x"


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (TOOL, "--topic x"),
        (TOOL, "--bootstrap-server x:1 --topic x --acks 7"),
        (TOOL, "--bootstrap-server x:1 --topic x --value-prefix x"),
        (TOOL, "--bootstrap-server x:1 --topic x --producer.config a --command-config b"),
        (READER, "--bootstrap-server x:1 --topic x"),
        (READER, f"{CONSUMER} --session-timeout x"),
        (READER, f"{CONSUMER} --group-protocol x --consumer.config a --command-config b"),
        (READER, f"{CONSUMER} --reset-policy x"),
    ],
)
def test_wrong_words(tool: str, words: str) -> None:
    theirs = tools.run("4.4.0", tool, *words.split())
    code, text = run_ottla(tool, words.split())
    # Java's own words before an exception that the tool does not catch.
    shown = (theirs.stdout + theirs.stderr).removeprefix('Exception in thread "main" ')
    assert (code, form(text, progress=False)) == (theirs.returncode, form(shown, progress=False))
