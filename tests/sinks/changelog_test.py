"""State is restored exactly from its compacted topic, after kills, replays and compaction."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path

import pytest
from tests.sinks.changelog_job import add, folder, run
from tests.sinks.conftest import RECORDS, Changes

from ottla.client import Admin, ClientConfig, Cluster, Consumer, NewTopic, Producer, TopicPartition
from ottla.client.consumer.record import ConsumerRecord
from ottla.record.batch import BatchHeader, Record, batches_of, encode_batch, records_of
from ottla.server.embedded import EmbeddedBroker
from ottla.sinks.changelog import Changelog, ChangelogBroken, NotCompacted, Superseded, UsageError

JOB = Path(__file__).with_name("changelog_job.py")
_numbers = count()


@pytest.fixture
def topic() -> str:
    return f"state{next(_numbers)}"


def changelog(changes: Changes, topic: str) -> Changelog:
    return Changelog({"bootstrap.servers": changes.bootstrap}, topic, partitions=3)


def totals(state: Changelog) -> Counter[str]:
    return Counter({key.decode(): int(value) for key, value in state.items()})


def one(offset: int, key: bytes | None = b"k", value: bytes | None = b"1") -> ConsumerRecord:
    return ConsumerRecord("source", 0, offset, 0, 0, key, value, (), -1)


def last(_old: bytes | None, record: ConsumerRecord) -> bytes | None:
    value: bytes | None = record.value
    return value


def test_the_state_comes_back_and_a_replay_changes_nothing(changes: Changes, topic: str) -> None:
    with changelog(changes, topic) as first, changes.consumer() as consumer:
        run(first, consumer, changes.topic)
        assert totals(first) == changes.added
    with changelog(changes, topic) as again, changes.consumer() as consumer:
        assert again.restore() == len(changes.added)
        assert totals(again) == changes.added
        assert sum(again.positions.values()) == RECORDS
        consumer.assign(changes.partitions)  # from the beginning
        seen = 0
        while seen < RECORDS:
            records = consumer.poll(0.5)
            seen += len(records)
            assert again.write(map(folder, records), add) == 0
        assert totals(again) == changes.added


@pytest.mark.slow
def test_kills_at_any_moment_leave_the_exact_state(changes: Changes, topic: str) -> None:
    chance = random.Random(6)
    command = [sys.executable, str(JOB), changes.bootstrap, changes.topic, topic]
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as job:
            assert job.stdout is not None
            for _ in range(chance.randint(2, 30)):  # this many batches, and a part of the next one
                assert job.stdout.readline()
            job.kill()
    with changelog(changes, topic) as state, changes.consumer() as consumer:
        state.restore()
        assert 0 < sum(state.positions.values()) < RECORDS
        run(state, consumer, changes.topic)
        assert totals(state) == changes.added


def test_a_zombie_can_write_nothing_any_more(changes: Changes, topic: str) -> None:
    with changelog(changes, topic) as zombie, changelog(changes, topic) as successor:
        zombie.write([one(0, value=b"a")], last)
        assert successor.restore() == 1
        for _ in range(2):  # nor does it take over again by itself
            with pytest.raises(Superseded, match=f"another job named '{topic}' has taken over.*Stop it"):
                zombie.write([one(1, value=b"b")], last)
        successor.write([one(1, value=b"c")], last)
        assert dict(successor.items()) == {b"k": b"c"}
    with changelog(changes, topic) as later:
        assert later.get(b"k") == b"c"
        assert later.positions == {TopicPartition("source", 0): 2}


def test_a_merge_that_raises_changes_nothing(changes: Changes, topic: str) -> None:
    def failing(old: bytes | None, record: ConsumerRecord) -> bytes | None:
        return b"%d" % (1 // (record.offset - 1))

    with changelog(changes, topic) as state:
        state.write([one(0, b"a")], last)
        with pytest.raises(ZeroDivisionError):
            state.write([one(0, b"a"), one(2, b"b"), one(1, b"c")], failing)
        assert dict(state.items()) == {b"a": b"1"}
        assert state.write([one(1, b"c"), one(2, b"c", b"2")], last) == 2
        state.restore()
        assert dict(state.items()) == {b"a": b"1", b"c": b"2"}


def test_keys_that_are_deleted_stay_deleted(changes: Changes, topic: str) -> None:
    with changelog(changes, topic) as state:
        state.write([one(0, b"a"), one(1, b"b")], last)
        state.write([one(2, b"a", None), one(3, b"never", None)], last)
        assert state.restore() == 1
        assert dict(state.items()) == {b"b": b"1"}
        state.write([one(4, b"a", b"again")], last)
        state.restore()
        assert dict(state.items()) == {b"a": b"again", b"b": b"1"}


def cleaned(path: Path) -> None:
    """What the cleaner leaves of a log: the last record of every key, markers, and batches at their offsets."""
    data = path.read_bytes()
    batches = [(header, data[at : at + header.size]) for at, header in batches_of(data)]
    newest = {
        record.key: record.offset
        for header, batch in batches
        if not header.is_control
        for record in records_of(batch, max_bytes=1 << 20)
    }
    out = b""
    for header, batch in batches:
        kept = [each for each in records_of(batch, max_bytes=1 << 20) if newest.get(each.key) == each.offset]
        if header.is_control:
            out += batch
        elif kept:
            out += without(header, kept)
    path.write_bytes(out)
    for index in path.parent.glob(f"{path.stem}.*index"):
        index.unlink()


def without(header: BatchHeader, kept: list[Record]) -> bytes:
    return bytes(
        encode_batch(
            kept,
            base_offset=header.base_offset,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
            leader_epoch=header.leader_epoch,
            last_offset_delta=header.last_offset_delta,
        )
    )


@pytest.mark.slow
def test_a_cleaner_that_has_run_makes_no_difference(tmp_path: Path) -> None:
    records = [one(n, b"key%d" % (n % 7), None if n % 11 == 3 else b"%d" % n) for n in range(200)]
    with EmbeddedBroker(str(tmp_path)) as broker, Changelog({"bootstrap.servers": broker.bootstrap}, "s") as state:
        for start in range(0, 200, 20):
            state.write(records[start : start + 20], last)
        expected = dict(state.items())
    sizes = []
    for path in tmp_path.glob("s*/*.log"):
        sizes.append(path.stat().st_size)
        cleaned(path)
        assert 0 < path.stat().st_size < sizes[-1]
    assert len(sizes) == 2
    (tmp_path / ".kafka_cleanshutdown").unlink()  # the indexes are built again
    with EmbeddedBroker(str(tmp_path)) as broker, Changelog({"bootstrap.servers": broker.bootstrap}, "s") as state:
        assert state.restore() == len(expected)
        assert dict(state.items()) == expected
        assert state.positions == {TopicPartition("source", 0): 200}
        assert state.write(records, last) == 0


CLEANED_SOON = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": "4000",
    "delete.retention.ms": "0",
}


def records_left(bootstrap: str, topic: str) -> int:
    """How many records a reader of the topic is given."""
    with Consumer({"bootstrap.servers": bootstrap, "isolation.level": "read_committed"}) as consumer:
        places = consumer.partitions_for_topic(topic)
        consumer.assign(places)
        consumer.seek_to_beginning(places)
        ends = consumer.end_offsets(places)
        left = 0
        while any(consumer.position(tp) < ends[tp] for tp in places):
            left += len(consumer.poll(1.0))
        return left


@pytest.mark.slow
def test_state_is_exact_after_the_brokers_own_cleaner_ran(tmp_path: Path) -> None:
    records = [one(n, b"key%d" % (n % 23), None if n % 11 == 3 else b"%d" % n) for n in range(900)]
    config = {"log.cleaner.backoff.ms": "100"}
    with EmbeddedBroker(str(tmp_path), config) as broker:
        settings = {"bootstrap.servers": broker.bootstrap}
        with Cluster(ClientConfig.from_mapping(settings)) as cluster:
            Admin(cluster).create_topics([NewTopic(name, 1, 1, CLEANED_SOON) for name in ("s", "s-positions")])
        with Changelog(settings, "s") as state:
            for start in range(0, 900, 20):
                state.write(records[start : start + 20], last)
            expected = dict(state.items())
            deadline = time.monotonic() + 60
            while (left := records_left(broker.bootstrap, "s")) > 300:
                assert time.monotonic() < deadline, f"{left} of 900 records are left"
            assert state.restore() == len(expected)
            assert dict(state.items()) == expected
            assert state.write(records, last) == 0
    with (
        EmbeddedBroker(str(tmp_path), config) as broker,
        Changelog({"bootstrap.servers": broker.bootstrap}, "s") as state,
    ):
        assert state.restore() == len(expected)
        assert dict(state.items()) == expected
        assert state.positions == {TopicPartition("source", 0): 900}


def test_starting_offsets_are_those_of_the_state(changes: Changes, topic: str) -> None:
    with changelog(changes, topic) as state:
        assert json.loads(state.starting_offsets(changes.topic)) == {"changes": {"0": -2, "1": -2}}
        state.write([one(41)._replace(topic=changes.topic, partition=1)], last)
        assert json.loads(state.starting_offsets(changes.topic)) == {"changes": {"0": -2, "1": 42}}


def test_topics_that_would_lose_state_are_refused(changes: Changes, topic: str) -> None:
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": changes.bootstrap})) as cluster:
        admin = Admin(cluster)
        admin.create_topics([NewTopic(topic, 1, 1, {"cleanup.policy": "compact,delete"})])
        with changelog(changes, topic) as state, pytest.raises(NotCompacted, match=r"cleanup\.policy=compact,delete"):
            state.restore()
        admin.delete_topics([topic])
        with changelog(changes, topic) as state:
            state.write([one(0)], last)
        admin.delete_topics([topic])
        with changelog(changes, topic) as state, pytest.raises(ChangelogBroken, match=f"topic {topic} is not the one"):
            state.restore()
        admin.delete_topics([topic, f"{topic}-positions"])
        with changelog(changes, topic) as state:
            assert state.restore() == 0
            state.write([one(0)], last)
        admin.delete_topics([f"{topic}-positions"])
        with (
            changelog(changes, topic) as state,
            pytest.raises(ChangelogBroken, match=r"holds state, and .*no positions"),
        ):
            state.restore()


def test_calls_that_cannot_be_right_are_refused(changes: Changes, topic: str) -> None:
    with changelog(changes, topic) as state:
        with pytest.raises(UsageError, match="a row has no key"):
            state.write([one(0, None)], last)
        with pytest.raises(UsageError, match="cannot be sent to another process"):
            pickle.dumps(state)


def test_records_sent_by_a_killed_job_are_not_state(changes: Changes, topic: str) -> None:
    """Its transaction is open until the successor takes over, and is then aborted."""
    with changelog(changes, topic) as state:
        state.write([one(0)], last)
    settings = {"bootstrap.servers": changes.bootstrap, "transactional.id": f"ottla-changelog-{topic}"}
    with Producer(settings) as killed:
        killed.init_transactions()
        killed.begin_transaction()
        killed.send(topic, b"half", key=b"k").result(180)
        with changelog(changes, topic) as state:
            assert state.restore() == 1
            assert state.get(b"k") == b"1"
        with pytest.raises(Exception, match=r"fenced|FENCED|EPOCH"):
            killed.commit_transaction()
