"""kafka-metadata-quorum beside Apache Kafka's own, whose jars are those of 4.3.1. Offsets and times vary."""

from __future__ import annotations

import re

import pytest
from testbench.apache_kafka.broker import KafkaNode
from testbench.apache_kafka.tool_shell import ToolShell
from testbench.ottla_node import OttlaNode
from tests.interop.kafka_tools.comparison import normalized, run_ottla

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

TOOL = "kafka-metadata-quorum"
_VARYING = (
    (re.compile(r"\d{13}"), "TIME"),
    (re.compile(r"\d+ ms ago"), "AGO"),
    (re.compile(r"(?<=HighWatermark:          )\d+"), "OFFSET"),
)


def form(text: str) -> list[list[str]]:
    """The cells of each line without what varies. Of words that do not fit, only the message."""
    shown = normalized(text, "")
    if shown and shown[0].startswith("usage: "):
        return [[" ".join(text.split()).partition("error: ")[2]]]
    for pattern, name in _VARYING:
        shown = [pattern.sub(name, line) for line in shown]
    rows = [[cell.strip() for cell in line.split("\t")] for line in shown]
    # The third cell of a replica is the end of its log.
    return [[*row[:2], "OFFSET", *row[3:]] if row[0].isdigit() else row for row in rows]


def compare(shell: ToolShell, bootstrap: str, script: str) -> None:
    for line in script.strip().splitlines():
        words = line.replace("BS", f"--bootstrap-server {bootstrap}").split()
        theirs, ours = shell.run(TOOL, *words), run_ottla(TOOL, words)
        assert (ours[0], form(ours[1])) == (theirs[0], form(theirs[1])), line


def test_quorum(kafka_node: KafkaNode, shell: ToolShell) -> None:
    compare(
        shell,
        kafka_node.bootstrap,
        """
        BS describe --status
        BS describe --replication
        BS describe --replication --human-readable
        BS describe --rep --hum
        """,
    )
    code, shown = run_ottla(TOOL, ["--bootstrap-server", kafka_node.bootstrap, "describe", "--status"])
    endpoint = f"CONTROLLER://{kafka_node.address}:{kafka_node.controller_port}"
    assert (code, f'CurrentVoters:          [{{"id": 1, "endpoints": ["{endpoint}"]}}]\n' in shown) == (0, True), shown


def test_a_cluster_without_a_quorum(authorized_node: OttlaNode, shell: ToolShell) -> None:
    compare(shell, authorized_node.bootstrap, "BS describe --status\nBS describe --replication")


def test_wrong_words_of_the_quorum(authorized_node: OttlaNode, shell: ToolShell) -> None:
    compare(
        shell,
        authorized_node.bootstrap,
        """
        BS
        BS describe
        BS describe --status --replication
        BS describe --status --human-readable
        BS describe --human-readable
        BS describe --nonsense
        BS describe x
        describe BS --status
        """,
    )
