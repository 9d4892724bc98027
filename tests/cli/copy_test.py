"""`ottla copy` between two brokers: records stay as they are, each is copied once, and interruptions are continued."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count

import pytest
from click.testing import CliRunner, Result

from ottla.cli.main import cli
from ottla.cli.moving.copy_positions import plan_copy, seek_positions
from ottla.cli.moving.topic_copy import TopicCopy
from ottla.cli.views.progress import Progress
from ottla.client import Cluster, Consumer, ConsumerRecord, Producer, TopicPartition
from ottla.client.settings import ClientConfig
from ottla.server.embedded import EmbeddedBroker

pytestmark = [pytest.mark.slow]
_numbers = count()


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[str]:
    """The address of another cluster."""
    with EmbeddedBroker() as broker:
        yield broker.bootstrap


@pytest.fixture
def topic() -> str:
    return f"copied-{next(_numbers)}"


def ottla(brokers: str, *words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "-b", brokers])


def copy(source: str, target: str, *words: str) -> Result:
    return CliRunner().invoke(cli, ["copy", "--from", source, "--to", target, "-o", "json", *words])


def write_records(brokers: str, topic: str, first: int, last: int, **settings: str) -> None:
    """Records by number, in three partitions."""
    with Producer({"bootstrap.servers": brokers, "allow.auto.create.topics": True, **settings}) as producer:
        if settings:
            producer.init_transactions()
            producer.begin_transaction()
        for at in range(first, last):
            value = None if at % 7 == 0 else b"%d" % at
            headers = [("h", b"%d" % at), ("h", None)] if at % 3 == 0 else []
            producer.send(topic, value, key=b"%d" % at, headers=headers, partition=at % 3, timestamp=1_000_000 + at)
        if settings:
            producer.flush()
            producer.abort_transaction()


def read_records(brokers: str, topic: str) -> list[ConsumerRecord]:
    """All committed records, by partition."""
    settings = {"bootstrap.servers": brokers, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    with Consumer(settings) as consumer:
        places = consumer.partitions_for_topic(topic)
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        found: list[ConsumerRecord] = []
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            found += consumer.poll(1)
    return sorted(found, key=lambda record: (record.partition, record.offset))


def contents(records: list[ConsumerRecord], topic: str) -> list[ConsumerRecord]:
    """The records without their offsets and epochs."""
    return [each._replace(topic=topic, offset=0, leader_epoch=0) for each in records]


def test_records_stay_as_they_are_and_only_new_ones_are_copied_later(brokers: str, elsewhere: str, topic: str) -> None:
    ottla(brokers, "topic", "create", topic, "-p", "3", "-c", "retention.ms=-1")
    write_records(brokers, topic, 0, 300)
    shown = copy(brokers, elsewhere, topic)
    assert shown.exit_code == 0, shown.stderr
    assert json.loads(shown.stdout)["records"] == 300
    write_records(brokers, topic, 300, 310)
    write_records(brokers, topic, 310, 320, **{"transactional.id": topic})
    again = json.loads(copy(brokers, elsewhere, topic).stdout)
    assert (again["records"], again["partitions"][0]["from_offset"]) == (10, 100)
    assert contents(read_records(elsewhere, topic), "") == contents(read_records(brokers, topic), "")
    (described,) = json.loads(ottla(elsewhere, "topic", "describe", topic, "-o", "json").stdout)
    assert described["configs"]["retention.ms"]["value"] == "-1"
    (lag,) = json.loads(ottla(brokers, "group", "lag", f"ottla-copy-{topic}-{topic}", "-o", "json").stdout)
    assert lag["lag"] == 0, "the source shows how far the copy is"


@pytest.mark.parametrize("more", [(), ("--at-least-once",)])
def test_a_copy_within_a_cluster(brokers: str, topic: str, more: tuple[str, ...]) -> None:
    write_records(brokers, topic, 0, 30)
    for _ in range(2):
        shown = ottla(brokers, "copy", topic, f"{topic}-copy", *more)
        assert shown.exit_code == 0, shown.stderr
    assert contents(read_records(brokers, f"{topic}-copy"), "") == contents(read_records(brokers, topic), "")
    refused = ottla(brokers, "copy", topic, *more)
    assert (refused.exit_code, "would be copied into itself" in refused.stderr) == (2, True)


def test_killed_at_any_moment_it_copies_each_record_once(brokers: str, elsewhere: str, topic: str) -> None:
    ottla(brokers, "topic", "create", topic, "-p", "3")
    write_records(brokers, topic, 0, 3_000)
    words = ["copy", topic, "--from", brokers, "--to", elsewhere, "--transaction-records", "250", "-q"]
    group = f"ottla-copy-{topic}-{topic}"

    def copied() -> int:
        rows = ottla(elsewhere, "group", "export", group, "-o", "jsonl").stdout.splitlines()
        return sum(json.loads(row)["offset"] for row in rows)

    for _ in range(2):
        before = copied()
        with subprocess.Popen([sys.executable, "-m", "ottla", *words], stderr=subprocess.DEVNULL) as process:
            end = time.monotonic() + 120
            while copied() == before and process.poll() is None:
                assert time.monotonic() < end
            process.kill()
    assert copied() > 0
    assert CliRunner().invoke(cli, words).exit_code == 0
    assert contents(read_records(elsewhere, topic), "") == contents(read_records(brokers, topic), "")


class Stopped(BaseException):
    """Stands for the end of the process."""


class StoppingProducer(Producer):
    """A producer whose process ends before or after a commit."""

    stops: Iterator[str] = iter(())

    def commit_transaction(self) -> None:
        place = next(self.stops)
        if place == "before":
            raise Stopped
        super().commit_transaction()
        if place == "after":
            raise Stopped


@pytest.mark.parametrize("stops", [["before"], ["after"], ["", "before"], ["", "after"], ["", "", "after"]])
def test_stopped_beside_a_commit_it_copies_each_record_once(
    brokers: str, elsewhere: str, topic: str, stops: list[str]
) -> None:
    write_records(brokers, topic, 0, 90)
    ottla(elsewhere, "topic", "create", topic, "-p", "3")
    reading, writing = (Cluster(ClientConfig.from_mapping({"bootstrap.servers": b})) for b in (brokers, elsewhere))
    with reading, writing:
        plan = plan_copy(reading, writing, topic, topic, None)
    settings = {"bootstrap.servers": elsewhere, "transactional.id": plan.group}
    consumed = {"bootstrap.servers": brokers, "group.id": plan.group, "max.poll.records": 10}
    with (
        StoppingProducer(settings) as producer,
        Consumer(consumed) as consumer,
        Progress("copied", shown=False) as seen,
    ):
        producer.stops = iter(stops)
        producer.init_transactions()
        run = TopicCopy(consumer, producer, plan, seen, seek_positions(consumer, plan, {}), per_transaction=20)
        with pytest.raises(Stopped):
            run.copy_records(None)
    assert copy(brokers, elsewhere, topic).exit_code == 0
    assert contents(read_records(elsewhere, topic), "") == contents(read_records(brokers, topic), "")


def test_following(brokers: str, elsewhere: str, topic: str) -> None:
    write_records(brokers, topic, 0, 3)
    words = [sys.executable, "-m", "ottla", "copy", topic, "--from", brokers, "--to", elsewhere, "--follow"]
    with subprocess.Popen(words, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"created with 3 partitions" in process.stderr.readline()
        write_records(brokers, topic, 3, 6)
        while len(read_records(elsewhere, topic)) < 6:
            assert process.poll() is None
        process.send_signal(2)
        assert b"6 records are copied; the same command continues there" in process.stderr.read()
        assert process.wait(60) == 130


def test_a_source_that_was_created_again_is_not_continued(brokers: str, elsewhere: str, topic: str) -> None:
    write_records(brokers, topic, 0, 30)
    copy(brokers, elsewhere, topic)
    ottla(brokers, "topic", "delete", topic, "-y")
    write_records(brokers, topic, 0, 60)
    shown = copy(brokers, elsewhere, topic)
    assert shown.exit_code == 1
    assert "the source was deleted and created again" in shown.stderr
    assert len(read_records(elsewhere, topic)) == 30


def test_a_source_that_is_shorter_than_the_copy_is_not_continued(brokers: str, topic: str) -> None:
    write_records(brokers, topic, 0, 3)
    with Consumer({"bootstrap.servers": brokers, "group.id": topic}) as consumer:
        consumer.commit({TopicPartition(topic, 0): 20})
    shown = ottla(brokers, "copy", topic, f"{topic}-b", "--at-least-once", "--group", topic)
    assert (shown.exit_code, f"{topic}-0 ends at 1, and the copy is at 20" in shown.stderr) == (1, True)


def test_records_that_were_deleted_before_are_named(brokers: str, elsewhere: str, topic: str) -> None:
    write_records(brokers, topic, 0, 30)
    copy(brokers, elsewhere, topic)
    write_records(brokers, topic, 30, 60)
    ottla(brokers, "topic", "delete-records", f"{topic}:1", "--before", "15", "-y")
    shown = copy(brokers, elsewhere, topic)
    assert f"records 10 to 14 of {topic}-1 were deleted before they were copied" in shown.stderr
    assert json.loads(shown.stdout)["records"] == 25


def test_an_earlier_run_is_fenced(brokers: str, elsewhere: str, topic: str) -> None:
    write_records(brokers, topic, 0, 30)
    group = f"ottla-copy-{topic}-{topic}"
    ottla(elsewhere, "topic", "create", topic, "-p", "3")
    with Producer({"bootstrap.servers": elsewhere, "transactional.id": group}) as zombie:
        zombie.init_transactions()
        zombie.begin_transaction()
        zombie.send(topic, b"zombie", partition=0)
        zombie.flush()
        zombie.send_offsets_to_transaction({TopicPartition(topic, 0): 5}, group)
        assert copy(brokers, elsewhere, topic).exit_code == 0
        with pytest.raises(Exception, match=r"(?i)fenced"):
            zombie.commit_transaction()
    assert contents(read_records(elsewhere, topic), "") == contents(read_records(brokers, topic), "")


def test_targets_that_do_not_fit(brokers: str, elsewhere: str, topic: str) -> None:
    write_records(brokers, topic, 0, 3)
    assert copy(brokers, elsewhere, topic, "--no-create").exit_code == 3
    ottla(elsewhere, "topic", "create", topic, "-p", "1")
    shown = copy(brokers, elsewhere, topic)
    assert (shown.exit_code, f"ottla topic alter {topic} -p 3" in shown.stderr) == (1, True)
    assert copy(brokers, elsewhere, f"{topic}-none").exit_code == 3
    assert copy("unknown-context", elsewhere, topic).exit_code == 2
    assert copy(brokers, elsewhere, topic, "-X", "sasl.password=x").exit_code == 2


def test_a_record_that_the_target_refuses_ends_the_copy(brokers: str, elsewhere: str, topic: str) -> None:
    write_records(brokers, topic, 0, 300)
    ottla(elsewhere, "topic", "create", topic, "-p", "3", "-c", "max.message.bytes=50")
    for more in ((), ("--at-least-once", "-g", topic)):
        shown = copy(brokers, elsewhere, topic, *more, "--timeout", "2")
        assert shown.exit_code == 1
        error = json.loads(shown.stderr.splitlines()[-1])["error"]
        assert (error["copied"], "then run the same command" in error["message"]) == (0, True)
        assert error["message"].startswith("produce to partition")
    assert read_records(elsewhere, topic) == []
    ottla(elsewhere, "topic", "alter", topic, "-c", "max.message.bytes=1000000")
    assert copy(brokers, elsewhere, topic).exit_code == 0
    assert len(read_records(elsewhere, topic)) == 300
