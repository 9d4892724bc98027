"""kafka-consumer-groups and kafka-groups beside Apache Kafka's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from testbench.clients import Confluent, Record
from tests.interop.kafka_tools.comparison import Comparison

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

RECORDS = [Record(b"k", b"v%d" % number, (), 1_700_000_000_000 + number) for number in range(9)]


@pytest.fixture
def groups(both: Comparison) -> Iterator[Comparison]:
    """For each side a topic, an idle group at offset 4, and a group with a member."""
    members: list[Consumer] = []

    def make(prefix: str) -> None:
        Confluent().write(both.bootstrap, f"{prefix}t", RECORDS)
        common = {"bootstrap.servers": both.bootstrap, "client.id": f"{prefix}c", "log_level": 0}
        idle = Consumer({**common, "group.id": f"{prefix}idle"})
        idle.commit(offsets=[TopicPartition(f"{prefix}t", 0, 4)], asynchronous=False)
        idle.close()
        member = Consumer({**common, "group.id": f"{prefix}live", "auto.offset.reset": "earliest"})
        member.subscribe([f"{prefix}t"])
        assert len(member.consume(len(RECORDS), 60)) == len(RECORDS)
        member.commit(asynchronous=False)
        members.append(member)

    both.prepare(make)
    yield both
    for member in members:
        member.close()


def test_descriptions(groups: Comparison) -> None:
    groups.compare(
        "kafka-consumer-groups",
        """
        BS --describe --group {name}idle
        BS --describe --group {name}idle --verbose
        BS --describe --group {name}live
        BS --describe --group {name}idle --group {name}live --offsets
        BS --describe --group {name}idle --members
        BS --describe --group {name}live --members
        BS --describe --group {name}live --members --verbose
        BS --describe --group {name}idle --state
        BS --describe --group {name}live --state
        BS --describe --group {name}live --state --verbose
        BS --describe --group {name}nothing
        BS --validate-regex foo.*
        """,
    )
    for line in ("BS --list", "BS --list --state", "BS --list --state Empty", "BS --list --type --state stable"):
        groups.compare("kafka-consumer-groups", line, same_words=True, ordered=False)
    groups.compare("kafka-consumer-groups", "BS --describe --all-groups --state", same_words=True, ordered=False)
    # In the order of a hash table there.
    script = """
        BS --list
        BS --list --consumer
        BS --list --share
        BS --list --streams
        BS --list --group-type Classic
        BS --list --group-type consumer
        BS --list --group-type classic --protocol consumer
        BS --list --group-type classic --protocol other
        BS --list --protocol consumer
        """
    groups.compare("kafka-groups", script, same_words=True, ordered=False)


def test_resets(groups: Comparison) -> None:
    groups.compare(
        "kafka-consumer-groups",
        """
        BS --reset-offsets --group {name}idle --topic {name}t --to-earliest
        BS --reset-offsets --group {name}idle --topic {name}t:0 --to-latest --dry-run
        BS --reset-offsets --group {name}idle --topic {name}t:0 --shift-by 1 --execute
        BS --reset-offsets --group {name}idle --all-topics --to-offset 3 --dry-run --export
        BS --reset-offsets --group {name}idle --all-topics --to-offset 300 --dry-run
        BS --reset-offsets --group {name}idle --all-topics --to-current --dry-run
        BS --reset-offsets --group {name}idle --all-topics --to-datetime 2023-11-14T22:13:20.004 --dry-run
        BS --reset-offsets --group {name}idle --all-topics --by-duration PT1H --dry-run
        BS --reset-offsets --group {name}live --topic {name}t --to-latest --execute
        BS --reset-offsets --group {name}new --topic {name}t --to-earliest --execute
        BS --reset-offsets --group {name}idle --topic {name}nothing --to-earliest --dry-run
        BS --describe --group {name}idle
        BS --delete-offsets --group {name}live --topic {name}t
        BS --delete-offsets --group {name}nothing --topic {name}t
        BS --delete-offsets --group {name}idle --topic {name}nothing
        BS --delete-offsets --group {name}idle --topic {name}t:0
        BS --delete --group {name}live
        BS --delete --group {name}nothing
        BS --delete --group {name}new
        """,
    )


def test_wrong_words_of_groups(both: Comparison) -> None:
    both.compare(
        "kafka-consumer-groups",
        """
        BS
        --list
        BS --nonsense
        BS --describe
        BS --delete
        BS --list --state nonsense
        BS --list --members
        BS --list --verbose
        BS --list --group g
        BS --list --topic t
        BS --describe --group g --type consumer
        BS --describe --group g --topic t
        BS --describe --group g --state stable
        BS --describe --group g --state --members
        BS --delete --group g --offsets
        BS --delete --group g --topic t
        BS --reset-offsets --group g --topic t --to-earliest --dry-run --state
        BS --delete-offsets --group g --topic t --members
        BS --delete-offsets --group g --group h --topic t
        BS --validate-regex x --verbose
        BS --reset-offsets --group g --to-earliest
        BS --reset-offsets --group g --topic t
        BS --reset-offsets --group g --topic t --to-earliest --to-latest
        BS --reset-offsets --group g --all-topics --dry-run
        BS --reset-offsets --group g --all-topics --execute --dry-run --to-latest
        """,
    )
    both.compare(
        "kafka-groups",
        """
        BS
        --list
        BS --list --group-type nothing
        BS --list --group-type unknown
        BS --list --protocol
        BS --list --protocol a --protocol b
        BS --list --consumer --share
        BS --list --consumer --group-type classic
        BS --list --share --protocol x
        BS --list --streams --share
        BS --nonsense
        """,
    )
