"""kafka-share-groups beside Apache Kafka's own, whose jars are those of 4.3.1: on Apache Kafka 4.4 with members of real
share groups, and on Ottla, which does not serve share groups."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import ShareConsumer
from testbench.apache_kafka.broker import KafkaNode
from testbench.apache_kafka.tool_shell import ToolShell
from testbench.clients import Confluent, Record
from tests.interop.kafka_tools.comparison import Comparison, run_ottla

from ottla.cli.main import cli
from ottla.client import ClientConfig, Cluster
from ottla.client.admin import GroupAdmin, ShareGroupAdmin
from ottla.client.admin.share_groups import ShareOffset
from ottla.types import TopicPartition

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

TOOL = "kafka-share-groups"
RECORDS = [Record(b"k", b"v%d" % number, (), 1_700_000_000_000 + number) for number in range(9)]
ANSWER_S = 180


@pytest.fixture(scope="module")
def cluster(kafka_node: KafkaNode) -> Iterator[Cluster]:
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": kafka_node.bootstrap})) as made:
        yield made


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> ShareGroupAdmin:
    return ShareGroupAdmin(cluster)


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


@pytest.fixture(scope="module")
def groups(kafka_node: KafkaNode, shell: ToolShell, cluster: Cluster, admin: ShareGroupAdmin) -> Iterator[Comparison]:
    """For each side two topics, a group whose member has read them, one whose member has left, and one of consumers."""
    both = Comparison(shell, kafka_node.bootstrap, "share")
    live: list[Member] = []
    idle: list[Member] = []

    def make(prefix: str) -> None:
        for topic in ("t", "u"):
            Confluent().write(kafka_node.bootstrap, f"{prefix}{topic}", RECORDS)
        live.append(join(kafka_node.bootstrap, prefix, "live", "t", "u"))
        idle.append(join(kafka_node.bootstrap, prefix, "idle", "t"))
        tp = TopicPartition(f"{prefix}t", 0)
        assert GroupAdmin(cluster).alter_group_offsets(f"{prefix}other", {tp: 4}) == {tp: None}

    both.prepare(make)
    read_all([*live, *idle])
    for member in idle:
        member.consumer.close()
    await_done(admin, [*live, *idle])
    yield both
    for member in live:
        member.consumer.close()


def test_share_groups_are_described_and_listed(groups: Comparison, admin: ShareGroupAdmin) -> None:
    views = [admin.describe_share_group(f"{prefix}live") for prefix in (groups.kafka_prefix, groups.ottla_prefix)]
    members = [view.members[0] for view in views]
    # Epochs count how often a group was looked at until all its partitions were ready. Each is hidden with its column.
    epochs = [f"Stable          {view.group_epoch:<12} {view.assignment_epoch:<17} 1" for view in views]
    epochs += [f" 2            {member.member_epoch:<13} " for member in members]
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
        hidden=[*(member.member_id for member in members), *epochs],
    )
    for line in (
        "BS --list",
        "BS --list --state",
        "BS --list --state empty,Dead",
        "BS --describe --all-groups --state",
    ):
        groups.compare(TOOL, line, same_words=True, ordered=False)


def test_offsets_and_share_groups_are_reset_and_deleted(groups: Comparison) -> None:
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
        BS --describe --group {name}other
        BS --reset-offsets --group {name}other --topic {name}t --to-earliest --execute
        BS --delete-offsets --group {name}other --topic {name}t
        BS --delete --group {name}other
        """,
    )


def test_ottla_group_with_share_groups(groups: Comparison, admin: ShareGroupAdmin, tmp_path: Path) -> None:
    def ottla(*words: str) -> Result:
        env = {"OTTLA_BROKERS": groups.bootstrap, "OTTLA_CONFIG_DIR": str(tmp_path)}
        return CliRunner().invoke(cli, ["group", *words], env=env)

    live, topics = f"{groups.ottla_prefix}live", [f"{groups.ottla_prefix}{name}" for name in "tu"]
    listed = {each["group_id"]: each for each in json.loads(ottla("list", "-o", "json").stdout)}
    assert (listed[live]["kind"], listed[live]["protocol_type"], listed[live]["state"]) == ("share", "share", "Stable")
    assert [live, "Stable", "share", "1"] in [line.split() for line in ottla("list").stdout.splitlines()]
    (found,) = json.loads(ottla("describe", live, "-o", "json").stdout)
    assert (found["protocol_type"], found["state"], found["lag"]) == ("share", "Stable", 0)
    (member,) = found["members"]
    assert (member["client_id"], sorted(member["partitions"])) == (
        f"{groups.ottla_prefix}c",
        [f"{t}-0" for t in topics],
    )
    rows = [(each["topic"], each["log_end_offset"], each["lag"], each["consumer_id"]) for each in found["partitions"]]
    assert rows == [(topic, len(RECORDS), 0, member["consumer_id"]) for topic in topics]
    for words in (("describe", live), ("describe", live, "--members"), ("describe", live, "--state"), ("lag",)):
        shown = ottla(*words)
        assert (shown.exit_code, live in shown.stdout) == (0, True), shown.output
    assert ottla("describe", f"{live}-nothing").exit_code == 3
    refused = ottla("delete", live, "--yes")
    assert (refused.exit_code, "NON_EMPTY_GROUP" in refused.stderr) == (1, True)
    gone = f"{groups.ottla_prefix}gone"
    assert admin.alter_share_group_offsets(gone, {TopicPartition(topics[0], 0): 5}) == {
        TopicPartition(topics[0], 0): None
    }
    (row,) = json.loads(ottla("describe", gone, "-o", "json").stdout)[0]["partitions"]
    assert (row["current_offset"], row["lag"], row["consumer_id"]) == (5, len(RECORDS) - 5, None)
    assert ottla("delete", gone, "--yes").exit_code == 0
    assert gone not in ottla("list", "-o", "name").stdout


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
