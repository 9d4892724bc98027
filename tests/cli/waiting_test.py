"""`ottla consume` says what it waits for when no record comes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import click
import pytest
from tests.cli.conftest import Ottla

from ottla.cli.reading.outage import PatientPoll
from ottla.client import Consumer, Producer


class SilentConsumer:
    """Returns the records that a test has put there."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def poll(self, _: float) -> list[Any]:
        """All of them."""
        found, self.records = self.records, []
        return found


def test_it_is_said_once_after_two_seconds_of_silence(capsys: pytest.CaptureFixture[str]) -> None:
    consumer, clock = SilentConsumer(), [100.0]
    with click.Context(click.Command("consume")):
        patient = PatientPoll(consumer, "t", lambda: "waiting for t", lambda: clock[0])  # type: ignore[arg-type]

        def noted_at(time: float, *records: object) -> bool:
            clock[0], consumer.records = time, list(records)
            patient.poll(0)
            return capsys.readouterr().err == "ottla: waiting for t\n"

        assert not noted_at(101.9)
        assert not noted_at(102.0, "a record")
        assert not noted_at(103.9)
        assert noted_at(104.0)
        assert not noted_at(200.0)


def test_nothing_is_said_where_a_timeout_ends_it(ottla: Ottla) -> None:
    ottla("topic", "create", "silent")
    shown = ottla("consume", "silent", "-n", "1", "--timeout", "2.2")
    assert (shown.exit_code, shown.stderr) == (5, "ottla: no record came for 2.2 s\n")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--from-beginning"], ["--group", "waiting"]])
def test_an_empty_topic_is_waited_for(
    ottla: Ottla, process: Callable[..., subprocess.Popen[bytes]], brokers: str, words: list[str]
) -> None:
    name = f"waited-{len(words)}"
    assert ottla("topic", "create", name, "-p", "1").exit_code == 0
    reader = process("consume", name, "-n", "1", *words)
    assert reader.stderr is not None
    assert reader.stderr.readline().startswith(b"ottla: waiting for new records")
    with Producer({"bootstrap.servers": brokers}) as producer:
        producer.send(name, b"one")
    assert reader.communicate(timeout=60)[0] == b"one\n"
    assert reader.returncode == 0


@pytest.mark.slow
def test_a_member_without_partitions_is_waited_for(
    ottla: Ottla, process: Callable[..., subprocess.Popen[bytes]], brokers: str
) -> None:
    assert ottla("topic", "create", "taken", "-p", "1").exit_code == 0
    with Consumer({"bootstrap.servers": brokers, "group.id": "taken", "session.timeout.ms": 60_000}) as first:
        first.subscribe(["taken"])
        while not first.assignment():
            first.poll(0.05)
        reader = process("consume", "taken", "-n", "1", "--group", "taken")
        assert reader.stderr is not None
        assert reader.stderr.readline().startswith(b"ottla: waiting for partitions")
