"""The examples of docs/clients.md, run in their order; BROKER=ottla (the default) or kafka."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from testbench.apache_kafka.broker import KafkaNode
from testbench.ottla_node import OttlaNode
from tests.client.producer.bench import BROKER, MARKS

pytestmark = MARKS
PAGE = Path(__file__).resolve().parents[2] / "docs" / "clients.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
QUICK = {"group.initial.rebalance.delay.ms": "0"}


def examples() -> list[tuple[str, str]]:
    """Program and output."""
    return EXAMPLE.findall(PAGE.read_text())


def test_the_examples_of_the_page(tmp_path: Path) -> None:
    directory = tmp_path / "broker"
    node = KafkaNode(directory, settings=QUICK) if BROKER == "kafka" else OttlaNode(directory, QUICK)
    found = examples()
    assert len(found) >= 12
    with node:
        for program, output in found:
            assert "localhost:9092" in program
            words = [sys.executable, "-W", "error", "-c", program.replace("localhost:9092", node.bootstrap)]
            done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
            assert (done.returncode, done.stderr) == (0, ""), program + done.stderr
            assert _alike(done.stdout) == _alike(output), program


def _alike(output: str) -> str:
    """The two brokers use different texts in errors."""
    return re.sub(r"(TOPIC_ALREADY_EXISTS: ).*?\. ", r"\1", output)
