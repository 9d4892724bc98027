"""The verifiable producer beside Apache Kafka's own: events without their times.

Whole processes, because Kafka's tool prints its last two events when its JVM ends. tests/cli/kafka_records_test.py does
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
from tests.interop.kafka_tools.comparison import run_ottla
from tests.interop.kafka_tools.perf_test import form

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

TOOL = "kafka-verifiable-producer"
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


def test_events(bootstrap: str, topic: str, tmp_path: Path) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text("max.block.ms=20\nbootstrap.servers=127.0.0.1:1\n")
    topic = topic[:100]
    compare_runs(bootstrap, topic, "--max-messages 5 --value-prefix -7 --repeating-keys 2 --acks 1 --throughput 100")
    compare_runs(bootstrap, topic, f"--max-messages 2 --producer.config {settings}")


@pytest.mark.parametrize(
    "words",
    [
        "--topic x",
        "--bootstrap-server x:1 --topic x --acks 7",
        "--bootstrap-server x:1 --topic x --value-prefix x",
        "--bootstrap-server x:1 --topic x --producer.config a --command-config b",
    ],
)
def test_wrong_words(words: str) -> None:
    theirs = tools.run("4.4.0", TOOL, *words.split())
    code, text = run_ottla(TOOL, words.split())
    assert (code, form(text, progress=False)) == (
        theirs.returncode,
        form(theirs.stdout + theirs.stderr, progress=False),
    )
