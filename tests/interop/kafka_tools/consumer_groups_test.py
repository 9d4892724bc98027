"""kafka-consumer-groups and `ottla group` with groups of the consumer protocol (KIP-848), on Apache Kafka 4.4."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from testbench.apache_kafka.broker import KafkaNode
from testbench.apache_kafka.tool_shell import ToolShell
from testbench.clients import Confluent, Record
from tests.interop.kafka_tools.comparison import Comparison

from ottla.cli.main import cli
from ottla.client import ClientConfig, Cluster, RefusedError
from ottla.client.admin import GroupAdmin
from ottla.client.admin.groups import GroupView

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

TOOL = "kafka-consumer-groups"
RECORDS = [Record(b"k", b"v%d" % number, (), 1_700_000_000_000 + number) for number in range(9)]
PARTITIONS = 5
ANSWER_S = 180


class Member(NamedTuple):
    """A consumer, and its group."""

    group: str
    consumer: Consumer


def join(bootstrap: str, prefix: str, group: str, name: str, **settings: object) -> Member:
    """A new member, which joins with its first poll."""
    common = {"bootstrap.servers": bootstrap, "client.id": f"{prefix}{name}", "enable.auto.commit": False}
    given = {key.replace("_", "."): value for key, value in settings.items()}
    consumer = Consumer({**common, "log_level": 0, "group.id": f"{prefix}{group}", **given})
    consumer.subscribe([f"{prefix}t"])
    return Member(f"{prefix}{group}", consumer)


def await_partitions(admin: GroupAdmin, members: Sequence[Member]) -> None:
    """Poll until all groups are stable, and each of their members has partitions."""
    end = time.monotonic() + ANSWER_S
    for group, count in Counter(member.group for member in members).items():
        while not is_settled(admin, group, count):
            assert time.monotonic() < end, group
            for member in members:
                member.consumer.poll(0.02)


def is_settled(admin: GroupAdmin, group: str, count: int) -> bool:
    try:
        view = admin.describe_group(group)
    except RefusedError:  # no member has joined yet
        return False
    assigned = [len(member.assignment) for member in view.members]
    return view.state == "Stable" and len(assigned) == count and all(assigned) and sum(assigned) == PARTITIONS


@pytest.fixture(scope="module")
def admin(kafka_node: KafkaNode) -> Iterator[GroupAdmin]:
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": kafka_node.bootstrap})) as made:
        yield GroupAdmin(made)


@pytest.fixture(scope="module")
def groups(kafka_node: KafkaNode, shell: ToolShell, admin: GroupAdmin) -> Iterator[Comparison]:
    """For each side a group of two members, one of a new and an old member, and one whose member has left."""
    both = Comparison(shell, kafka_node.bootstrap, "kip848")
    at = kafka_node.bootstrap
    new = {"group_protocol": "consumer"}
    live: list[Member] = []
    idle: list[Member] = []

    def make(prefix: str) -> None:
        client = AdminClient({"bootstrap.servers": at})
        client.create_topics([NewTopic(f"{prefix}t", PARTITIONS, 1)])[f"{prefix}t"].result(ANSWER_S)
        Confluent().write(at, f"{prefix}t", RECORDS)
        live.append(join(at, prefix, "live", "a", group_instance_id="static", **new))
        live.append(join(at, prefix, "mixed", "c", **new))
        idle.append(join(at, prefix, "idle", "d", **new))

    both.prepare(make)
    await_partitions(admin, [*live, *idle])
    for member in [*live, *idle]:
        topic = f"{member.group[: len(both.kafka_prefix)]}t"
        member.consumer.commit(offsets=[TopicPartition(topic, 0, 4), TopicPartition(topic, 1, 0)], asynchronous=False)
    for member in idle:
        member.consumer.close()

    def add_members(prefix: str) -> None:
        live.append(join(at, prefix, "live", "b", **new))
        # An old member beside a new one, as in a group that is being upgraded.
        live.append(join(at, prefix, "mixed", "e", heartbeat_interval_ms=200))

    # Later than the first members, which keep most partitions: so both sides have the same assignments.
    both.prepare(add_members)
    await_partitions(admin, live)
    yield both
    for member in live:
        member.consumer.close()


def epochs_and_ids(view: GroupView) -> list[str]:
    """Words that differ between groups: an epoch counts how often a group changed until it was settled."""
    words = [f" {view.group_epoch:<15} {view.assignment_epoch:<25} ", f" {view.assignment_epoch:<15} "]
    words += [f" {member.member_epoch:<15} " for member in view.members]
    return [*words, *(member.member_id for member in view.members)]


def test_groups_of_the_consumer_protocol(groups: Comparison, admin: GroupAdmin) -> None:
    sides = (groups.kafka_prefix, groups.ottla_prefix)
    views = [admin.describe_group(f"{prefix}{name}") for prefix in sides for name in ("live", "mixed", "idle")]
    hidden = [word for view in views for word in epochs_and_ids(view)]
    groups.compare(
        TOOL,
        """
        BS --describe --group {name}live
        BS --describe --group {name}live --verbose
        BS --describe --group {name}live --state
        BS --describe --group {name}live --state --verbose
        BS --describe --group {name}mixed --group {name}live --offsets
        BS --describe --group {name}idle
        BS --describe --group {name}idle --members
        BS --describe --group {name}idle --state --verbose
        BS --describe --group {name}nothing
        BS --reset-offsets --group {name}live --topic {name}t --to-latest --execute
        BS --reset-offsets --group {name}idle --topic {name}t:0 --to-latest --execute
        BS --describe --group {name}idle --offsets --verbose
        BS --delete-offsets --group {name}live --topic {name}t:0
        BS --delete-offsets --group {name}idle --topic {name}t:0
        BS --delete --group {name}live
        BS --delete --group {name}idle
        BS --describe --group {name}idle
        """,
        hidden=hidden,
    )
    # The broker lists the members in the order of a hash table.
    for line in (
        "BS --describe --group {name}live --members",
        "BS --describe --group {name}live --members --verbose",
        "BS --describe --group {name}mixed --members --verbose",
    ):
        groups.compare(TOOL, line, ordered=False, hidden=hidden)
    groups.compare(TOOL, "BS --list --type consumer --state stable", same_words=True, ordered=False)


def test_ottla_group_with_the_consumer_protocol(groups: Comparison, admin: GroupAdmin, tmp_path: Path) -> None:
    def ottla(*words: str) -> Result:
        env = {"OTTLA_BROKERS": groups.bootstrap, "OTTLA_CONFIG_DIR": str(tmp_path)}
        return CliRunner().invoke(cli, ["group", *words], env=env)

    live, topic = f"{groups.ottla_prefix}live", f"{groups.ottla_prefix}t"
    (found,) = json.loads(ottla("describe", live, "-o", "json").stdout)
    view = admin.describe_group(live)
    assert (found["protocol_type"], found["protocol"], found["state"]) == ("consumer", "uniform", "Stable")
    assert (found["group_epoch"], found["assignment_epoch"]) == (view.group_epoch, view.assignment_epoch)
    members = {each["client_id"][-1]: each for each in found["members"]}
    assert (members["a"]["instance_id"], members["b"]["instance_id"]) == ("static", None)
    assert sorted(name for each in members.values() for name in each["partitions"]) == [
        f"{topic}-{number}" for number in range(PARTITIONS)
    ]
    for each in members.values():
        assert each["target_partitions"] == each["partitions"]
        assert each["member_epoch"] == view.assignment_epoch
    rows = [(each["current_offset"], each["log_end_offset"], each["lag"]) for each in found["partitions"]]
    assert rows == [(4, 9, 5), (0, 0, 0), (None, 0, None), (None, 0, None), (None, 0, None)]
    for words in (("describe", live), ("describe", live, "--members"), ("describe", live, "--state"), ("lag",)):
        shown = ottla(*words)
        assert (shown.exit_code, live in shown.stdout) == (0, True), shown.output
    refused = ottla("delete", live, "--yes")
    assert (refused.exit_code, "in use by 2 members" in refused.stderr) == (1, True), refused.output
    extra = join(groups.bootstrap, groups.ottla_prefix, "extra", "x", group_protocol="consumer")
    await_partitions(admin, [extra])
    removed = ottla("remove-member", extra.group, "--all", "--yes")
    assert (removed.exit_code, admin.describe_group(extra.group).members) == (0, ()), removed.output
    extra.consumer.close()
