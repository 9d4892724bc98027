"""kafka-replica-verification beside Apache Kafka's own, of 3.9 and of 1.0, on three brokers."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from testbench.apache_kafka import packages, tools
from testbench.apache_kafka.tool_shell import ToolShell
from testbench.clients import Confluent, Record
from testbench.cluster import OttlaOnZooKeeper
from testbench.zookeeper import ZooKeeper
from tests.interop.kafka_tools.comparison import Comparison, run_ottla

from ottla.record.batch import batches_of, seal_crc
from ottla.server.embedded import EmbeddedBroker

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

TOOL: Final = "kafka-replica-verification"
TOPICS: Final = ("agreed", "differing", "damaged")
_STAMP: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}: (.*)")
_LAG: Final = re.compile(r"max lag is (\d+) for partition (\w+)-0 at offset (\d+) among (\d) partitions")


@pytest.mark.parametrize("words", ["--topics-include x(", "--topics-include a --topics-include b"])
def test_topics_are_not_chosen_where_there_are_none(kafka_3_shell: ToolShell, words: str) -> None:
    with EmbeddedBroker() as broker:
        given = shlex.split(f"--broker-list {broker.bootstrap} {words}")
        code, text = kafka_3_shell.run(TOOL, *given)
        assert run_ottla(TOOL, given) == (code, text.removeprefix("ERROR - ") + "\n")


def test_wrong_words(both_3: Comparison) -> None:
    brokers = f"--broker-list {both_3.bootstrap}"
    # Neither tool looks at the choice of topics where there are none.
    Confluent().write(both_3.bootstrap, f"{both_3.ottla_prefix}t", [Record(b"k", b"v")])
    both_3.compare(
        TOOL,
        f"""
        --help
        --broker-list
        --broker-list x
        --broker-list x:y
        --broker-list 127.0.0.1:
        --topics-include a
        {brokers} --nonsense
        {brokers} {brokers}
        {brokers} --topics-include x(
        {brokers} --topics-include a --topics-include b
        {brokers} --fetch-size x
        {brokers} --fetch-size 3000000000
        {brokers} --max-wait-ms 1.5
        {brokers} --time now
        {brokers} --report-interval-ms
        """,
    )


def test_a_time_before_1970(both_3: Comparison) -> None:
    topic = f"{both_3.ottla_prefix}t"
    Confluent().write(both_3.bootstrap, topic, [Record(b"k", b"v")])
    line = f"--broker-list {both_3.bootstrap} --topic-white-list {topic} --time -5"
    both_3.compare(TOOL, line, same_words=True)


@pytest.fixture
def cluster(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[OttlaOnZooKeeper]:
    """Three brokers with three topics of five batches. The last broker has other bytes of one batch of two topics."""
    brokers = OttlaOnZooKeeper(tmp_path / "brokers", zookeeper.chroot("/replica-verification"), 3)
    try:
        brokers.start()
        for name in TOPICS:
            words = ["--bootstrap-server", brokers.bootstrap, "--create", "--topic", name]
            assert run_ottla("kafka-topics", [*words, "--replica-assignment", "1:2:3"])[0] == 0
            records = [Record(b"k", b"value %d" % number) for number in range(5)]
            Confluent().write(brokers.bootstrap, name, records, **{"batch.num.messages": "1"})
        last = brokers.brokers[-1]
        last.stop()
        change_batch(last.data / "differing-0", sealed=True)
        change_batch(last.data / "damaged-0", sealed=False)
        last.start()
        yield brokers
    finally:
        brokers.stop()


def change_batch(directory: Path, *, sealed: bool) -> None:
    """Write another last byte of the value in the third batch. sealed: with the checksum of that."""
    (file,) = directory.glob("*.log")
    content = bytearray(file.read_bytes())
    position, header = list(batches_of(memoryview(bytes(content))))[2]
    end = position + header.size
    at = content.rindex(b"value 2", position, end) + len(b"value 2") - 1
    content[at] = ord("X")
    if sealed:
        seal_crc(content, position, end)
    file.write_bytes(content)


def lines_until_agreed(command: Sequence[str]) -> list[str]:
    """What a tool prints, without times, until no replica is behind; then SIGINT ends it."""
    found: list[str] = []
    end = time.monotonic() + 180
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                text = _STAMP.fullmatch(line.rstrip("\n"))
                assert text is not None, line
                found.append(text[1])
                assert time.monotonic() < end, found
                if (lag := _LAG.fullmatch(text[1])) and lag[1] == "0":
                    break
            process.send_signal(signal.SIGINT)
            assert process.wait(180) == 130
        finally:
            process.kill()
    # The lines before are about replicas that did not know the high watermark yet.
    return [line for line in found[:-1] if not _LAG.fullmatch(line)] + found[-1:]


def run_tools(bootstrap: str, topics: str, version: str) -> tuple[list[str], list[str]]:
    """The lines of Apache Kafka's tool and of Ottla's."""
    words = shlex.split(f"--broker-list {bootstrap} --time -2 --report-interval-ms 10 --max-wait-ms 100")
    option = "--topic-white-list" if version.startswith("1.") else "--topics-include"
    words += [option, topics]
    try:
        java_command, *rest = tools.command(version, TOOL, *words)
    except packages.BenchError as error:
        pytest.fail(f"{error} (testbench/setup does it)")
    theirs = lines_until_agreed([java_command, *tools.SHORT_RUN, *rest])
    return theirs, lines_until_agreed([sys.executable, "-m", "ottla.kafka_tools", TOOL, *words])


def test_replicas_that_differ(cluster: OttlaOnZooKeeper) -> None:
    theirs, ours = run_tools(cluster.bootstrap, "|".join(TOPICS), "3.9.1")
    assert theirs[0] == ours[0] == "verification process is started"
    # Partitions with the same lag: Kafka's tool names the first one of a hash table.
    for lines in (theirs, ours):
        lag = _LAG.fullmatch(lines.pop())
        assert lag is not None
        assert lag.groups()[::2] + lag.groups()[3:] == ("0", "5", "3")
    text = (
        r"partition differing-0 has unmatched checksum at offset 2; replica 1's checksum \d+; replica 3's checksum \d+"
    )
    assert len(theirs) == 2
    assert re.fullmatch(text, theirs[1])
    # The same line, and one about bytes that Kafka's tool does not read.
    assert ours[2:] == theirs[1:]
    assert re.fullmatch(text.replace("differing", "damaged"), ours[1])
    # The tool of Kafka 1.0 reads messages of format v1, which have other checksums.
    old, ours = run_tools(cluster.bootstrap, "agreed|differing", "1.0.2")
    assert (old[0], ours[0]) == ("verification process is started.", "verification process is started")
    assert len(old) == len(ours) == 3
    assert re.fullmatch(text, old[1])
    assert old[2].replace("differing", "agreed") == ours[2].replace("differing", "agreed")
    assert _LAG.fullmatch(old[2])
