"""kafka-share-groups beside Apache Kafka's own, whose jars are those of 4.3.1: on Apache Kafka 4.4 with members of real
share groups, and on Ottla, which does not serve share groups."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from confluent_kafka import ShareConsumer
from testbench.apache_kafka.broker import KafkaNode
from testbench.apache_kafka.tool_shell import ToolShell
from testbench.clients import Confluent, Record
from tests.interop.kafka_tools.comparison import Comparison, run_ottla

from ottla.client import ClientConfig, Cluster
from ottla.client.admin import ShareGroupAdmin
from ottla.client.admin.share_groups import ShareOffset

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

TOOL = "kafka-share-groups"
RECORDS = [Record(b"k", b"v%d" % number, (), 1_700_000_000_000 + number) for number in range(9)]
ANSWER_S = 60


@pytest.fixture(scope="module")
def admin(kafka: KafkaNode) -> Iterator[ShareGroupAdmin]:
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": kafka.bootstrap})) as cluster:
        yield ShareGroupAdmin(cluster)


class Member(NamedTuple):
    """A member of a share group, and the records that it is to read."""

    group: str
    consumer: ShareConsumer
    records: int


def join(bootstrap: str, prefix: str, group: str, *topics: str) -> Member:
    """A new member, which joins with its first poll."""
    owner = ["--entity-type", "groups", "--entity-name", f"{prefix}{group}"]
    change = ["--bootstrap-server", bootstrap, "--alter", *owner, "--add-config", "share.auto.offset.reset=earliest"]
    assert run_ottla("kafka-configs", change)[0] == 0
    common = {"bootstrap.servers": bootstrap, "client.id": f"{prefix}c", "log_level": 0}
    consumer = ShareConsumer({**common, "group.id": f"{prefix}{group}"})
    consumer.subscribe([f"{prefix}{topic}" for topic in topics])
    return Member(f"{prefix}{group}", consumer, len(topics) * len(RECORDS))


def read_all(members: Sequence[Member]) -> None:
    """Read all records, in turn: members wait for their partitions side by side."""
    left = {member: member.records for member in members}
    end = time.monotonic() + ANSWER_S
    while any(left.values()):
        assert time.monotonic() < end, left
        for member in members:
            left[member] -= len(member.consumer.poll(0.1))
    for member in members:
        member.consumer.commit_sync()


def await_done(admin: ShareGroupAdmin, members: Sequence[Member]) -> None:
    """Wait until the broker counts all records as done."""
    end = time.monotonic() + ANSWER_S
    for member in members:
        wanted = [0] * (member.records // len(RECORDS))
        while lags(admin, member.group) != wanted:
            assert time.monotonic() < end, member.group
            time.sleep(0.05)


def lags(admin: ShareGroupAdmin, group: str) -> list[int]:
    return [each.lag for each in admin.share_group_offsets(group).values() if isinstance(each, ShareOffset)]


@pytest.fixture
def groups(
    kafka: KafkaNode, shell: ToolShell, admin: ShareGroupAdmin, request: pytest.FixtureRequest
) -> Iterator[Comparison]:
    """For each side two topics, a group whose member has read them, and a group whose member has left."""
    stem = f"{zlib.crc32(request.node.name.encode()) % 100_000:05}"
    both = Comparison(shell, kafka.bootstrap, stem)
    live: list[Member] = []
    idle: list[Member] = []

    def make(prefix: str) -> None:
        for topic in ("t", "u"):
            Confluent().write(kafka.bootstrap, f"{prefix}{topic}", RECORDS)
        live.append(join(kafka.bootstrap, prefix, "live", "t", "u"))
        idle.append(join(kafka.bootstrap, prefix, "idle", "t"))

    both.prepare(make)
    read_all([*live, *idle])
    for member in idle:
        member.consumer.close()
    await_done(admin, [*live, *idle])
    yield both
    for member in live:
        member.consumer.close()


def test_share_groups(groups: Comparison, admin: ShareGroupAdmin) -> None:
    names = [f"{prefix}live" for prefix in (groups.kafka_prefix, groups.ottla_prefix)]
    ids = [member.member_id for name in names for member in admin.describe_share_group(name).members]
    groups.compare(
        TOOL,
        """
        BS --describe --group {name}live
        BS --describe --group {name}live --verbose
        BS --describe --group {name}idle --group {name}live --offsets
        BS --describe --group {name}nothing --group {name}live
        BS --describe --group {name}live --members
        BS --describe --group {name}live --members --verbose
        BS --describe --group {name}idle --group {name}live --members
        BS --describe --group {name}idle --state
        BS --describe --group {name}live --state
        BS --describe --group {name}live --state --verbose
        BS --describe --group {name}nothing --state
        """,
        hidden=ids,
    )
    for line in (
        "BS --list",
        "BS --list --state",
        "BS --list --state empty,Dead",
        "BS --describe --all-groups --state",
    ):
        groups.compare(TOOL, line, same_words=True, ordered=False)
    groups.compare(
        TOOL,
        """
        BS --reset-offsets --group {name}idle --topic {name}t --to-earliest --dry-run
        BS --reset-offsets --group {name}idle --topic {name}t:0 --to-earliest --execute
        BS --reset-offsets --group {name}idle --all-topics --to-datetime 2023-11-14T22:13:20.004 --dry-run
        BS --reset-offsets --group {name}idle --topic {name}t --to-datetime 2123-11-14T22:13:20.004 --dry-run
        BS --reset-offsets --group {name}idle --topic {name}u --all-topics --to-latest --execute
        BS --reset-offsets --group {name}live --topic {name}t --to-earliest --execute
        BS --reset-offsets --group {name}new --topic {name}t --to-earliest --execute
        BS --reset-offsets --group {name}fresh --all-topics --to-latest --execute
        BS --reset-offsets --group {name}idle --topic {name}nothing --to-earliest --dry-run
        BS --reset-offsets --group {name}idle --topic {name}nothing:0 --to-earliest --dry-run
        BS --reset-offsets --group {name}idle --topic {name}t:7,0,8 --to-earliest --dry-run
        BS --reset-offsets --group {name}idle --topic {name}t --to-datetime x --dry-run
        BS --reset-offsets --group {name}idle --topic {name}t --to-datetime xTx+ --dry-run
        BS --describe --group {name}idle --verbose
        BS --describe --group {name}new
        BS --delete-offsets --group {name}live --topic {name}t
        BS --delete-offsets --group {name}nothing --topic {name}t
        BS --delete-offsets --group {name}idle --topic {name}t --topic {name}nothing
        BS --describe --group {name}idle
        BS --delete --group {name}live
        BS --delete --group {name}nothing
        BS --delete --group {name}new --group {name}live
        BS --delete --group {name}idle
        BS --describe --group {name}idle --members
        """,
    )


def test_share_groups_of_a_broker_without_them(both: Comparison) -> None:
    both.compare(
        TOOL,
        """
        BS --list
        BS --list --state
        BS --describe --group g
        BS --describe --group g --members
        BS --describe --all-groups
        BS --reset-offsets --group g --topic t --to-earliest --dry-run
        BS --delete-offsets --group g --topic t --topic u
        BS --delete --group g
        BS --delete --all-groups
        """,
    )


def test_wrong_words_of_share_groups(both: Comparison) -> None:
    both.compare(
        TOOL,
        """
        BS
        --list
        BS --nonsense
        BS --list --describe --all-groups
        BS --list --state nonsense
        BS --list --state Empty,PreparingRebalance
        BS --list --group g
        BS --list --topic t
        BS --list --members
        BS --list --members --offsets --verbose
        BS --delete --all-groups --state
        BS --list --timeout x
        BS --list --timeout
        BS --describe
        BS --describe --members --state --group g
        BS --describe --state Empty --group g
        BS --describe --group g --all-groups
        BS --describe --topic t --group g
        BS --delete
        BS --delete --group g --all-groups
        BS --delete --group g --topic t
        BS --delete-offsets --group g
        BS --delete-offsets --all-groups --topic t
        BS --delete-offsets --group g --group h --topic t
        BS --delete-offsets --group g --topic t --list
        BS --reset-offsets --group g --topic t --to-latest
        BS --reset-offsets --group g --topic t --to-latest --dry-run --execute
        BS --reset-offsets --topic t --to-latest --dry-run
        BS --reset-offsets --all-groups --to-latest --dry-run
        BS --reset-offsets --group g --to-latest --dry-run
        BS --reset-offsets --group g --topic t --dry-run
        BS --reset-offsets --group g --topic t --to-latest --to-earliest --dry-run
        BS --reset-offsets --group g --group h --topic t --to-latest --dry-run
        """,
    )
