"""Consumers that share topics: with one another and with confluent-kafka. `BROKER=kafka` runs it on Apache Kafka."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.client.consumer.conftest import Make, create, read, settle, write

from ottla.client import Admin, Cluster, CommitFailedError, RefusedError, TopicPartition, values_of
from ottla.client.consumer import Consumer, OffsetAndMetadata
from ottla.errors import ErrorCode

pytestmark = [pytest.mark.slow]
STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky")
EACH_STRATEGY = pytest.mark.parametrize("strategy", STRATEGIES)


def shared(topic: str, consumers: Sequence[Consumer], partitions: int = 4) -> Callable[[], bool]:
    """Whether every partition is assigned to one consumer, and each consumer has some."""

    def done() -> bool:
        parts = [each.assignment() for each in consumers]
        everything = {TopicPartition(topic, number) for number in range(partitions)}
        return all(parts) and sum(map(len, parts)) == partitions and set().union(*parts) == everything

    return done


@EACH_STRATEGY
def test_members_share_and_take_over(consumer: Make, cluster: Cluster, topic: str, strategy: str) -> None:
    write(cluster, topic, [str(n) for n in range(100)], None)
    settings = {"partition_assignment_strategy": strategy, "auto_commit_interval_ms": 100}
    first, second = consumer(**settings), consumer(**settings)
    first.subscribe([topic])
    seen = [record.value for record in read(first, 100)]
    assert len(first.assignment()) == 4
    second.subscribe([topic])
    settle([first, second], shared(topic, [first, second]))
    write(cluster, topic, [str(n) for n in range(100, 200)], None)
    deadline = time.monotonic() + 180
    while len(seen) < 200:
        assert time.monotonic() < deadline
        seen += [record.value for each in (first, second) for record in each.poll(0.1)]
    assert sorted(map(int, seen)) == list(range(200))
    second.close()
    settle([first], lambda: len(first.assignment()) == 4)
    write(cluster, topic, [str(n) for n in range(200, 240)], None)
    assert sorted(int(record.value) for record in read(first, 40)) == list(range(200, 240))


@EACH_STRATEGY
def test_listeners_get_added_and_revoked_partitions(consumer: Make, topic: str, strategy: str) -> None:
    told: list[tuple[str, int]] = []

    def tell(what: str) -> Callable[[list[TopicPartition]], None]:
        return lambda partitions: told.append((what, len(partitions)))

    first = consumer(partition_assignment_strategy=strategy)
    first.subscribe([topic], on_assigned=tell("assigned"), on_revoked=tell("revoked"), on_lost=tell("lost"))
    settle([first], lambda: told == [("assigned", 4)])
    second = consumer(partition_assignment_strategy=strategy)
    second.subscribe([topic])
    settle([first, second], shared(topic, [first, second]))
    if strategy == "cooperative-sticky":
        assert [each for each in told if each[1]] == [("assigned", 4), ("revoked", 2)]
    else:
        assert told == [("assigned", 4), ("revoked", 4), ("assigned", 2)]
    first.unsubscribe()
    assert told[-1] == ("revoked", 2)
    assert first.assignment() == set()


def test_positions_can_be_committed_while_partitions_are_given_up(consumer: Make, cluster: Cluster, topic: str) -> None:
    write(cluster, topic, ["x"] * 40, None)
    first = consumer(enable_auto_commit=False)
    first.subscribe([topic], on_revoked=lambda _: first.commit())
    read(first, 40)
    second = consumer(enable_auto_commit=False)
    second.subscribe([topic])
    settle([first, second], shared(topic, [first, second]))
    places = [TopicPartition(topic, number) for number in range(4)]
    assert set(second.committed(places).values()) == {OffsetAndMetadata(10, 0)}


def test_poll_raises_the_error_of_a_listener_after_the_rebalance(consumer: Make, topic: str) -> None:
    def fail(_: list[TopicPartition]) -> None:
        raise RuntimeError("the application's")

    reader = consumer()
    reader.subscribe([topic], on_assigned=fail)
    with pytest.raises(RuntimeError, match="application's"):
        settle([reader], lambda: False)
    assert len(reader.assignment()) == 4
    assert reader.poll(0) == []


def test_a_pattern_takes_topics_that_come_later(consumer: Make, cluster: Cluster, name: str) -> None:
    create(cluster, f"{name}-a", 2)
    create(cluster, f"not-{name}", 1)
    reader = consumer(metadata_max_age_ms=200)
    reader.subscribe(re.compile(f"{name}-.*"))
    settle([reader], lambda: len(reader.assignment()) == 2)
    create(cluster, f"{name}-b", 1)
    settle([reader], lambda: reader.subscription() == {f"{name}-a", f"{name}-b"})


def test_partitions_that_are_added_are_assigned(consumer: Make, cluster: Cluster, topic: str) -> None:
    reader = consumer(metadata_max_age_ms=200)
    reader.subscribe([topic])
    settle([reader], lambda: len(reader.assignment()) == 4)
    values_of({topic: Admin(cluster).create_partitions({topic: 6})[topic] or ""})
    settle([reader], lambda: len(reader.assignment()) == 6)


def test_a_topic_that_is_deleted_is_given_up(consumer: Make, cluster: Cluster, topic: str, name: str) -> None:
    other = create(cluster, f"{name}-other", 1)
    reader = consumer(metadata_max_age_ms=200)
    reader.subscribe([topic, other])
    settle([reader], lambda: len(reader.assignment()) == 5)
    values_of({topic: Admin(cluster).delete_topics([topic])[topic] or ""})
    settle([reader], lambda: reader.assignment() == {TopicPartition(other, 0)})


def test_a_member_that_polls_too_late_comes_back(consumer: Make, cluster: Cluster, topic: str) -> None:
    write(cluster, topic, ["x"])
    told: list[str] = []
    slow = consumer(max_poll_interval_ms=1_000, session_timeout_ms=6000, enable_auto_commit=False)
    slow.subscribe([topic], on_lost=lambda _: told.append("lost"), on_revoked=lambda _: told.append("revoked"))
    read(slow, 1)
    other = consumer(enable_auto_commit=False)
    other.subscribe([topic])
    settle([other], lambda: len(other.assignment()) == 4)
    with pytest.raises(CommitFailedError, match="is not in group"):
        slow.commit()
    settle([slow, other], shared(topic, [slow, other]))
    assert told[0] == "lost"


def test_a_static_member_comes_back_without_a_rebalance(consumer: Make, topic: str) -> None:
    told: list[int] = []
    stays = consumer(group_instance_id="stays")
    stays.subscribe([topic], on_assigned=lambda partitions: told.append(len(partitions)))
    goes = consumer(group_instance_id="goes")
    goes.subscribe([topic])
    settle([stays, goes], shared(topic, [stays, goes]))
    before, had = list(told), goes.assignment()
    goes.close()
    back = consumer(group_instance_id="goes")
    back.subscribe([topic])
    settle([stays, back], lambda: back.assignment() == had)
    assert told == before


def test_a_restarted_leader_notices_added_partitions(consumer: Make, cluster: Cluster, topic: str) -> None:
    """It assigns nothing after its restart, but still checks the topics (KIP-814)."""
    goes = consumer(group_instance_id="goes", metadata_max_age_ms=200)
    goes.subscribe([topic])
    settle([goes], lambda: len(goes.assignment()) == 4)
    goes.close()
    back = consumer(group_instance_id="goes", metadata_max_age_ms=200)
    back.subscribe([topic])
    settle([back], lambda: len(back.assignment()) == 4)
    values_of({topic: Admin(cluster).create_partitions({topic: 6})[topic] or ""})
    settle([back], lambda: len(back.assignment()) == 6)


def test_a_second_instance_of_a_static_member_fences_the_first(consumer: Make, topic: str) -> None:
    first, second = consumer(group_instance_id="one"), consumer(group_instance_id="one")
    first.subscribe([topic])
    settle([first], lambda: len(first.assignment()) == 4)
    second.subscribe([topic])
    with pytest.raises(RefusedError) as fenced:
        settle([first, second], lambda: False)
    assert fenced.value.code is ErrorCode.FENCED_INSTANCE_ID
    settle([second], lambda: len(second.assignment()) == 4)


def test_members_without_a_common_assignor_are_refused(consumer: Make, topic: str) -> None:
    first = consumer(partition_assignment_strategy="range")
    first.subscribe([topic])
    settle([first], lambda: len(first.assignment()) == 4)
    other = consumer(partition_assignment_strategy="sticky")
    other.subscribe([topic])
    with pytest.raises(RefusedError) as refused:
        settle([other], lambda: False)
    assert refused.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_metadata_of_the_group_is_that_of_the_generation(consumer: Make, topic: str) -> None:
    reader = consumer()
    reader.subscribe([topic])
    settle([reader], lambda: len(reader.assignment()) == 4)
    found = reader.group_metadata()
    assert found.generation_id >= 1
    assert found.member_id
    reader.enforce_rebalance()
    settle([reader], lambda: reader.group_metadata().generation_id > found.generation_id)
    settle([reader], lambda: len(reader.assignment()) == 4)


class Other:
    """A member that uses librdkafka."""

    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str) -> None:
        from confluent_kafka import Consumer as Confluent

        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": strategy,
            "heartbeat.interval.ms": 100,
            "session.timeout.ms": 6000,
            "log_level": 3,
        }
        self._consumer = Confluent(settings)
        self._consumer.subscribe([topic])
        self.values: list[bytes] = []

    def poll(self, timeout_s: float) -> list[Any]:
        messages = [each for each in self._consumer.consume(100, timeout_s) if each.error() is None]
        self.values += [each.value() for each in messages]
        return messages

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(each.topic, each.partition) for each in self._consumer.assignment()}

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.interop
@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
@pytest.mark.parametrize("ours_first", [True, False], ids=["ours-leads", "theirs-leads"])
def test_groups_are_shared_with_librdkafka(
    consumer: Make, cluster: Cluster, bootstrap: str, topic: str, name: str, strategy: str, ours_first: bool
) -> None:
    """The first member leads and assigns; no record is missed when one of them joins or leaves."""
    write(cluster, topic, [str(n) for n in range(100)], None)
    members: list[Any] = []
    seen: list[bytes] = []

    def join(ours: bool) -> None:
        if ours:
            reader = consumer(partition_assignment_strategy=strategy)
            reader.subscribe([topic])
            members.append(reader)
        else:
            members.append(Other(bootstrap, name, topic, strategy))

    def poll_until(done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 180
        while not done():
            assert time.monotonic() < deadline, [each.assignment() for each in members]
            for each in members:
                values = [m.value() if isinstance(each, Other) else m.value for m in each.poll(0.05)]
                seen.extend(values)

    join(ours_first)
    poll_until(lambda: len(set(seen)) == 100)
    join(not ours_first)
    poll_until(shared(topic, members))
    write(cluster, topic, [str(n) for n in range(100, 200)], None)
    poll_until(lambda: len(set(seen)) == 200)
    members.pop(0).close()
    poll_until(lambda: len(members[0].assignment()) == 4)
    write(cluster, topic, [str(n) for n in range(200, 240)], None)
    poll_until(lambda: {int(each) for each in seen} == set(range(240)))
    members.pop(0).close()
