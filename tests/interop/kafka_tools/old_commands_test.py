"""The commands of books about Kafka 1.0: its own tools and Ottla's, on one broker whose metadata is in ZooKeeper."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from testbench.apache_kafka import packages, tools
from testbench.apache_kafka.tool_shell import ToolShell
from testbench.clients import Confluent, Record
from testbench.cluster import OttlaOnZooKeeper
from testbench.ottla_node import OttlaNode
from testbench.zookeeper import ZooKeeper
from tests.interop.kafka_tools.comparison import run_ottla

from ottla.client.consumer.assignment.java_order import string_hash
from ottla.kafka_tools.java_classes import RUN_CLASS, find_tool

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

VERSION = "1.0.2"
ALONE = {"kafka": ("kafka-console-producer", "kafka-console-consumer"), "ottla": ("kafka-console-producer",)}
"""Tools in a process of their own: one reads standard input, and sends its last records when the JVM ends; the other
counts in a static field."""
SETTINGS = {
    "log.initial.task.delay.ms": "86400000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.replication.factor": "1",
    "inter.broker.protocol.version": "1.0",  # offsets are written in the version that tools of that age read
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


CLOSED = "{dir}/tp_02-0/{closed}"
"""A segment that is not the first and not the last, with batches of up to two records."""
OLD_BATCHES = rf"Dumping {CLOSED}.log\nStarting offset: {{start}}(\nbaseOffset: \d+ lastOffset: \d+ .* CreateTime: \d+ "
OLD_BATCHES += r"isvalid: true size: \d+ magic: 2 compresscodec: NONE crc: \d+)+"
NEW_BATCHES = rf"Dumping {CLOSED}.log\nLog starting offset: {{start}}(\nbaseOffset: \d+ lastOffset: \d+ count: [12] .* "
NEW_BATCHES += r"CreateTime: \d+ size: \d+ magic: 2 compresscodec: none crc: \d+ isvalid: true)+"
OLD_TITLES = "{:<30} {:<10} {:<15} {:<15} {:<10} {:<50}{:<30} CLIENT-ID".format(
    "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST"
)
OLD_OPTION = (
    r"The --new-consumer option is deprecated and will be removed in a future major release.The new consumer is "
)
OLD_OPTION += r"used by default if the --bootstrap-server option is provided.\n"
OLD_NOTE = r"Note: This will not show information about old Zookeeper-based consumers.\n\n"


class Row(NamedTuple):
    """A command, and patterns of all that it prints. `{side}` in both is kafka or ottla: each writes its own topic.

    A named group of a pattern is a word of all later patterns and commands.
    """

    command: str
    shown: str
    ottla: str | None = None
    """The pattern of Ottla's tool, where it prints the text of Kafka 4.4."""
    code: int = 0


OVERRIDDEN = "Topic:tp_{topic}\tPartitionCount:1\tReplicationFactor:1\tConfigs:segment.bytes={bytes}"
DESCRIBED = (
    OVERRIDDEN.format(topic="05_kafka", bytes=104857600) + r"\n"
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
    Row("kafka-topics --zookeeper {zookeeper} --describe --topic tp_05_kafka", DESCRIBED),
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
    Row(f"kafka-dump-log --files {CLOSED}.log", OLD_BATCHES, NEW_BATCHES),
    Row(
        f"kafka-dump-log --files {CLOSED}.index",
        # Brokers after 1.0 index the last offset of a batch, not the first: its tool reports that.
        rf"Dumping {CLOSED}.index(?P<index>(\noffset: \d+ position: \d+)+)\nMismatches in :{CLOSED}.index"
        r"(\n  Index offset: \d+, log offset: \d+)+",
        rf"Dumping {CLOSED}.index{{index}}",
    ),
    Row(
        f"kafka-dump-log --files {CLOSED}.timeindex",
        rf"Dumping {CLOSED}.timeindex(?P<times>(\ntimestamp: 16323902070\d\d offset: \d+)+)",
        rf"Dumping {CLOSED}.timeindex{{times}}",
    ),
    Row(CREATE + "tp_01_{side} --partitions 5", COLLISION + 'Created topic "tp_01_{side}".'),
    # The broker has settings of its own, which the tool of that age does not show.
    Row(
        "kafka-topics --zookeeper {zookeeper} --describe --topics-with-overrides",
        r"\n".join(
            OVERRIDDEN.format(topic=topic, bytes=size)
            for topic, size in (("02", 1048576), ("05_kafka", 104857600), ("05_ottla", 104857600))
        ),
    ),
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
        OLD_NOTE + r"console-consumer-\d+\nconsole-consumer-\d+",
        r"console-consumer-\d+\nconsole-consumer-\d+",
    ),
    Row(
        "kafka-consumer-groups --new-consumer --bootstrap-server {bootstrap} --list",
        OLD_OPTION + OLD_NOTE + r"console-consumer-\d+\nconsole-consumer-\d+",
    ),
    # The other records that the consumer counts are those of groups, for which the formatter prints nothing.
    Row(
        f"kafka-console-consumer --topic __consumer_offsets --bootstrap-server {{bootstrap}} {OFFSETS} "
        "--from-beginning --max-messages 5",
        r"(\[(?P<group>console-consumer-\d+),tp_01_kafka,\d\]::\[OffsetMetadata\[20,NO_METADATA\],CommitTime \d+,"
        r"ExpirationTime -?\d+\]\n){{1,5}}Processed a total of 5 messages",
        # Kafka's consumer, which ran first, has committed offsets of this topic.
        r"(\[[\w-]+,\w+,\d+\]::\[OffsetMetadata\[\d+,NO_METADATA\],CommitTime \d+,ExpirationTime -?\d+\]\n){{1,5}}"
        r"Processed a total of 5 messages",
    ),
    # The first record of the partition is that of the group.
    Row(
        f"kafka-console-consumer --topic __consumer_offsets --partition {{partition}} --bootstrap-server {{bootstrap}} "
        f"{OFFSETS} --from-beginning --max-messages 6",
        r"(\[{group},tp_01_kafka,\d\]::\[OffsetMetadata\[\d+,NO_METADATA\],CommitTime \d+,ExpirationTime -?\d+\]\n)"
        r"{{5}}Processed a total of 6 messages",
    ),
    Row(
        "kafka-consumer-groups --bootstrap-server {bootstrap} --describe --group {group}",
        OLD_NOTE
        + r"Consumer group '{group}' has no active members.\n\n"
        + OLD_TITLES
        + r"(\ntp_01_kafka +\d +20 +20 +0 +- +- +-){{5}}",
        r"Consumer group '{group}' has no active members.\n\n"
        r"GROUP +TOPIC +PARTITION +CURRENT-OFFSET +LOG-END-OFFSET +LAG +CONSUMER-ID +HOST +CLIENT-ID"
        r"(\n{group} +tp_01_kafka +\d +20 +20 +0 +- +- +-){{5}}",
    ),
    Row(
        "kafka-consumer-groups --new-consumer --bootstrap-server {bootstrap} --describe --group {group}",
        OLD_OPTION
        + OLD_NOTE
        + r"Consumer group '{group}' has no active members.\n\n"
        + OLD_TITLES
        + r"(\ntp_01_kafka {{20}}"
        r"\d {{10}}20 {{14}}20 {{14}}0 {{10}}- {{49}}- {{30}}-){{5}}",
    ),
    Row(
        "kafka-consumer-groups --new-consumer --bootstrap-server {bootstrap} --describe --group nonsense",
        OLD_OPTION + OLD_NOTE + "Error: Consumer group 'nonsense' does not exist.",
    ),
)


def old_tool(name: str, *words: str) -> list[str]:
    """The command of a tool of Kafka 1.0 in a JVM of its own."""
    java_command, *rest = tools.command(VERSION, name, *words)
    return [java_command, *tools.SHORT_RUN, *rest]


def run_alone(command: Sequence[str], source: IO[str] | None = None) -> tuple[int, str]:
    """The exit code of a tool in a process of its own, and all that it prints. source: its standard input."""
    done = subprocess.run(
        command,
        stdin=source or subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


def offsets_partition(group: str) -> int:
    """The partition of __consumer_offsets, of 50, that has a group: `Math.abs(group.hashCode()) % 50`."""
    unsigned = string_hash(group)
    return min(unsigned, (1 << 32) - unsigned) % 50


class Bench(NamedTuple):
    """Where the words of the table point to."""

    shell: ToolShell
    places: dict[str, str]
    messages: Path

    def learn(self, words: Mapping[str, str]) -> None:
        self.places.update(words)
        if "group" in words:
            self.places["partition"] = str(offsets_partition(words["group"]))

    def compare_descriptions(self, group: str) -> None:
        """Both sides print the same lines, in any order."""
        command = f"kafka-consumer-groups --new-consumer --bootstrap-server {{bootstrap}} --describe --group {group}"
        (code, theirs), ours = self.run("kafka", command), self.run("ottla", command)
        assert ours[0] == code == 0
        assert sorted(ours[1].split("\n")) == sorted(f"{theirs}\n".split("\n"))

    def run(self, side: str, command: str) -> tuple[int, str]:
        name, *words = shlex.split(command.format(side=side, **self.places))
        if name == RUN_CLASS:
            name, words = find_tool(words)[0], list(find_tool(words)[1])
        if name in ALONE[side]:
            ours = [sys.executable, "-m", "ottla.kafka_tools", name, *words]
            with self.messages.open() as source:
                return run_alone(ours if side == "ottla" else old_tool(name, *words), source)
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
        data = directory / "brokers" / "broker-1"
        closed = write_segments(cluster.bootstrap, data)
        with ToolShell(VERSION) as shell:
            places = {
                "zookeeper": connect,
                "bootstrap": cluster.bootstrap,
                "dir": str(data),
                "closed": closed,
                "start": str(int(closed)),
                "config": str(config),
            }
            yield Bench(shell, places, messages)
    except packages.BenchError as error:
        pytest.fail(f"{error} (testbench/setup does it)")
    finally:
        cluster.stop()


def create_topic(bootstrap: str, name: str, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    admin.create_topics([NewTopic(name, 1, 1, config=config or {})])[name].result(60)


def write_segments(bootstrap: str, directory: Path) -> str:
    """Write a log of three segments; the name of the second one's files."""
    create_topic(bootstrap, "tp_02", {"segment.bytes": "1048576"})
    records = [Record(None, bytes(40_000), (), 1_632_390_207_000 + number) for number in range(60)]
    Confluent().write(bootstrap, "tp_02", records, **{"batch.num.messages": 2})
    first, second, *rest = sorted(directory.glob("tp_02-0/*.log"))
    assert (int(first.stem), bool(rest)) == (0, True)
    return second.stem


def filled(pattern: str, places: Mapping[str, str]) -> str:
    for name, value in places.items():
        pattern = pattern.replace(f"{{{name}}}", value)
    return pattern.replace("{{", "{").replace("}}", "}")


def test_commands_of_kafka_1(bench: Bench) -> None:
    for row in TABLE:
        for side in ("kafka", "ottla"):
            code, text = bench.run(side, row.command)
            pattern = row.shown if side == "kafka" or row.ottla is None else row.ottla
            pattern = filled(pattern, {"side": side, **bench.places})
            found = re.fullmatch(pattern, text.strip("\n"))
            assert (code, found is not None) == (row.code, True), f"{side}: {row.command}\n{code}\n{text}\n{pattern}"
            bench.learn({} if found is None else found.groupdict())


def test_members_of_a_group_in_the_text_of_kafka_1(bench: Bench, authorized_node: OttlaNode) -> None:
    """One member has the only partition, the other none; before and after the first commit."""
    name = "old-commands-members"
    there = bench._replace(places={"bootstrap": authorized_node.bootstrap})
    create_topic(authorized_node.bootstrap, name)
    Confluent().write(authorized_node.bootstrap, name, [Record(None, b"value")])
    settings = {"bootstrap.servers": authorized_node.bootstrap, "group.id": name}
    members = [Consumer({**settings, "client.id": each, "log_level": 3}) for each in ("first", "second")]
    joined: set[Consumer] = set()
    try:
        for member in members:
            member.subscribe([name], on_assign=lambda consumer, _: joined.add(consumer))
        # The group is stable when the later member has its assignment.
        while len(joined) < len(members) or not any(member.assignment() for member in members):
            for member in members:
                member.poll(0.05)
        there.compare_descriptions(name)
        (owner,) = [member for member in members if member.assignment()]
        owner.commit(offsets=[TopicPartition(name, 0, 1)], asynchronous=False)
        there.compare_descriptions(name)
    finally:
        for member in members:
            member.close()


def test_a_reader_of_that_age_needs_an_older_protocol_version(authorized_node: OttlaNode) -> None:
    """Without the setting offsets are written in version 3, which readers before 2.1 refuse."""
    group = "old-commands"
    create_topic(authorized_node.bootstrap, group)
    consumer = Consumer({"bootstrap.servers": authorized_node.bootstrap, "group.id": group, "log_level": 3})
    consumer.commit(offsets=[TopicPartition(group, 0, 20)], asynchronous=False)
    consumer.close()
    partition = str(offsets_partition(group))
    words = shlex.split(OFFSETS.partition(" --consumer.config")[0])
    words += ["--bootstrap-server", authorized_node.bootstrap, "--topic", "__consumer_offsets", "--from-beginning"]
    words += ["--partition", partition, "--timeout-ms", "10000"]
    code, text = run_alone(old_tool("kafka-console-consumer", *words))
    assert (code, "KafkaException: Unknown offset schema version 3" in text) == (1, True), text
    code, text = run_ottla("kafka-console-consumer", [*words, "--max-messages", "1"])
    assert code == 0
    assert re.search(r"\[OffsetMetadata\[\d+,NO_METADATA\],CommitTime \d+,ExpirationTime _\]", text), text
