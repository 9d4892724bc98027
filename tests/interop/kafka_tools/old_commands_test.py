"""The commands of books about Kafka 1.0: its own tools and Ottla's, on one broker whose metadata is in ZooKeeper."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from testbench.apache_kafka import packages, tools
from testbench.apache_kafka.tool_shell import ToolShell
from testbench.cluster import OttlaOnZooKeeper
from testbench.zookeeper import ZooKeeper
from tests.interop.kafka_tools.comparison import run_ottla

from ottla.kafka_tools.java_classes import RUN_CLASS, find_tool

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

VERSION = "1.0.2"
ALONE = ("kafka-console-producer", "kafka-console-consumer")
"""Tools in a process of their own: one sends its last records when the JVM ends, the other counts in a static field."""
SETTINGS = {
    "log.initial.task.delay.ms": "86400000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.replication.factor": "1",
    "inter.broker.protocol.version": "1.0",  # offsets are written as the consumers of that age read them
}
COUNT = 100
COLLISION = r"WARNING: Due to limitations in metric names, .*\n"
LOG = "{dir}/tp_05_kafka-0/00000000000000000000"
BATCH = (
    r"baseOffset: 0 lastOffset: 99 {count}baseSequence: -1 lastSequence: -1 producerId: -1 producerEpoch: -1 "
    r"partitionLeaderEpoch: 0 isTransactional: false {more}position: 0 CreateTime: \d+ "
)
OLD_BATCH = rf"Dumping {LOG}.log\nStarting offset: 0\n" + BATCH.format(count="", more="")
OLD_BATCH += r"isvalid: true size: \d+ magic: 2 compresscodec: NONE crc: \d+"
NEW_BATCH = rf"Dumping {LOG}.log\nLog starting offset: 0\n" + BATCH.format(
    count="count: 100 ", more="isControl: false deleteHorizonMs: OptionalLong.empty "
)
NEW_BATCH += r"size: \d+ magic: 2 compresscodec: none crc: \d+ isvalid: true"
RECORDS = (
    r"(\n\| offset: \d+ CreateTime: \d+ keySize: -1 valueSize: \d+ sequence: -1 headerKeys: \[\] payload: h.*){100}"
)
OFFSETS = (
    "--formatter kafka.coordinator.group.GroupMetadataManager\\$OffsetsMessageFormatter --consumer.config {config}"
)


class Row(NamedTuple):
    """A command, and patterns of all that it prints. `{side}` in both is kafka or ottla: each writes its own topic."""

    command: str
    shown: str
    ottla: str | None = None
    """The pattern of Ottla's tool, where it prints the text of Kafka 4.4."""
    code: int = 0


DESCRIBED = (
    r"Topic:tp_05_kafka\tPartitionCount:1\tReplicationFactor:1\tConfigs:BROKERsegment.bytes=104857600\n"
    r"\tTopic: tp_05_kafka\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1"
)
CREATE = "kafka-topics --zookeeper {zookeeper} --create --replication-factor 1 --topic "
TABLE = (
    Row(
        CREATE + "tp_05_{side} --partitions 1 --config segment.bytes=104857600",
        COLLISION + 'Created topic "tp_05_{side}".',
    ),
    Row(
        CREATE + "tp_05_{side} --partitions 1 --config segment.bytes=104857600",
        COLLISION + r"Error while executing topic command : Topic 'tp_05_{side}' already exists.\n"
        r"(ERROR - )?org.apache.kafka.common.errors.TopicExistsException: Topic 'tp_05_{side}' already exists.",
        code=1,
    ),
    # With the timeout a slow machine makes one batch of all records too.
    Row("kafka-console-producer --broker-list {bootstrap} --topic tp_05_{side} --timeout 60000", "(>{{101}})?"),
    Row(
        "kafka-topics --zookeeper {zookeeper} --describe --topic tp_05_kafka",
        DESCRIBED.replace("BROKER", ""),
        DESCRIBED.replace("BROKER", "min.insync.replicas=2,"),  # Kafka 4.4's tool also shows the broker's own settings
    ),
    Row(
        f"kafka-run-class kafka.tools.DumpLogSegments --files {LOG}.log --print-data-log",
        OLD_BATCH,
        NEW_BATCH + RECORDS,
    ),
    Row(f"kafka-dump-log --files {LOG}.log", OLD_BATCH, NEW_BATCH),
    Row(
        f"kafka-run-class kafka.tools.DumpLogSegments --files {LOG}.index --print-data-log",
        f"Dumping {LOG}.index",
        rf"Dumping {LOG}.index\n{LOG}.index is empty.",
    ),
    Row(f"kafka-dump-log --files {LOG}.timeindex", f"Dumping {LOG}.timeindex"),
    Row(CREATE + "tp_01_{side} --partitions 5", COLLISION + 'Created topic "tp_01_{side}".'),
    Row("kafka-console-producer --broker-list {bootstrap} --topic tp_01_{side}", "(>{{101}})?"),
    Row(
        "kafka-run-class kafka.tools.GetOffsetShell --broker-list {bootstrap} --topic tp_01_kafka --time -1",
        r"\n".join(f"tp_01_kafka:{partition}:20" for partition in range(5)),
    ),
    Row(
        "kafka-console-consumer --bootstrap-server {bootstrap} --topic tp_01_kafka --from-beginning --max-messages 100",
        r"(hello world \d+\n){{100}}Processed a total of 100 messages",
    ),
    Row(
        "kafka-console-consumer --bootstrap-server {bootstrap}-- topic tp_01_kafka --from-beginning",
        r"Exactly one of whitelist/topic is required.\nOption[\s\S]*",
        r"Exactly one of the following arguments is required: \[topic\], \[include\]\nOption[\s\S]*",
        code=1,
    ),
    Row(
        "kafka-consumer-groups --bootstrap-server {bootstrap} --list",
        # Ottla's console consumer commits nothing, and its group is listed until it expires.
        r"Note: This will not show information about old Zookeeper-based consumers.\n(\nconsole-consumer-\d+){{2}}",
        r"console-consumer-\d+\nconsole-consumer-\d+",
    ),
    # The other records that the consumer counts are those of groups, for which the formatter prints nothing.
    Row(
        f"kafka-console-consumer --topic __consumer_offsets --bootstrap-server {{bootstrap}} {OFFSETS} "
        "--from-beginning --max-messages 5",
        r"(\[console-consumer-\d+,tp_01_kafka,\d\]::\[OffsetMetadata\[20,NO_METADATA\],CommitTime \d+,"
        r"ExpirationTime -?\d+\]\n){{1,5}}Processed a total of 5 messages",
        # Kafka's consumer, which ran first, has committed offsets of this topic.
        r"(\[[\w-]+,\w+,\d+\]::\[OffsetMetadata\[\d+,NO_METADATA\],CommitTime \d+,ExpirationTime -?\d+\]\n){{1,5}}"
        r"Processed a total of 5 messages",
    ),
)


class Bench(NamedTuple):
    """Where the words of the table point to."""

    shell: ToolShell
    places: dict[str, str]
    messages: Path

    def run(self, side: str, command: str) -> tuple[int, str]:
        name, *words = shlex.split(command.format(side=side, **self.places))
        if name == RUN_CLASS:
            name, words = find_tool(words)[0], list(find_tool(words)[1])
        if name in ALONE:
            ours = [sys.executable, "-m", "ottla.kafka_tools", name, *words]
            with self.messages.open() as source:
                done = subprocess.run(
                    ours if side == "ottla" else tools.command(VERSION, name, *words),
                    stdin=source,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=120,
                    check=False,
                )
            return done.returncode, done.stdout
        return run_ottla(name, words) if side == "ottla" else self.shell.run(name, *words)


@pytest.fixture(scope="module")
def bench(zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("old-commands")
    messages = directory / "mess.txt"
    messages.write_text("".join(f"hello world {number}\n" for number in range(1, COUNT + 1)))
    config = directory / "consumer.properties"
    config.write_text("exclude.internal.topics=false\ngroup.id=test-consumer-group\n")
    connect = zookeeper.chroot("/myKafka")
    cluster = OttlaOnZooKeeper(directory / "brokers", connect, 1, settings=SETTINGS)
    try:
        cluster.start()
        with ToolShell(VERSION) as shell:
            places = {
                "zookeeper": connect,
                "bootstrap": cluster.bootstrap,
                "dir": str(directory / "brokers" / "broker-1"),
                "config": str(config),
            }
            yield Bench(shell, places, messages)
    except packages.BenchError as error:
        pytest.fail(f"{error} (testbench/setup does it)")
    finally:
        cluster.stop()


def test_commands_of_kafka_1(bench: Bench) -> None:
    for row in TABLE:
        for side in ("kafka", "ottla"):
            code, text = bench.run(side, row.command)
            pattern = row.shown if side == "kafka" or row.ottla is None else row.ottla
            for name, value in {"side": side, **bench.places}.items():
                pattern = pattern.replace(f"{{{name}}}", value)
            pattern = pattern.replace("{{", "{").replace("}}", "}")
            assert (code, bool(re.fullmatch(pattern, text.strip("\n")))) == (row.code, True), (
                f"{side}: {row.command}\n{code}\n{text}\n{pattern}"
            )
