"""Standard output and standard error of whole processes, beside Apache Kafka's own: scripts read one of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from confluent_kafka import Consumer, TopicPartition
from testbench.apache_kafka import tools
from testbench.clients import Confluent, Record
from tests.interop.kafka_tools.comparison import normalized

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "kafka-console-consumer",
            "--partition 0 --offset earliest --max-messages 1 --property print.key=true --topic",
        ),
        ("kafka-topics", "--describe --topic nothing-"),
        ("kafka-consumer-groups", "--describe --group nothing-"),
        ("kafka-consumer-groups", "--describe --group idle-"),
        ("kafka-acls", "--list --topic"),
        ("kafka-get-offsets", "--topic nothing-"),
        ("kafka-configs", "--alter --add-config nonsense=1 --topic"),
        ("kafka-delete-records", "--offset-json-file /nothing-"),
    ],
)
def test_streams(bootstrap: str, topic: str, name: str, words: str) -> None:
    Confluent().write(bootstrap, topic, [Record(b"k", b"v")])
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"idle-{topic}"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    *rest, last = words.split()
    last = f"{last}{topic}" if last.endswith("-") and last[0] != "-" else last
    line = ["--bootstrap-server", bootstrap, *rest, *([last] if last.endswith(topic) else [last, topic])]
    theirs = tools.run("4.4.0", name, *line)
    command = [sys.executable, "-m", "ottla.kafka_tools", name, *line]
    ours = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ours.returncode == theirs.returncode
    assert normalized(ours.stdout, topic) == normalized(theirs.stdout, topic)
    assert normalized(ours.stderr, topic) == normalized(theirs.stderr, topic)
