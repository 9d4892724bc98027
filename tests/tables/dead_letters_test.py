"""Records that are not rows: an error without a topic for them, else one dead letter each, also after a kill."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from tests.tables.conftest import Target, Topic, sorted_rows

from ottla.client import Admin, ClientConfig, Cluster, Consumer, NewTopic, Producer, TopicPartition
from ottla.client.consumer.record import ConsumerRecord
from ottla.retry.headers import Failure, Trail, read_trail, with_trail
from ottla.tables.copying import CopyOptions, TopicCopy
from ottla.tables.dead_letters import DeadLetters
from ottla.tables.errors import ConcurrentWriterError, RowNotReadableError, TableError
from ottla.tables.formats import open_table
from ottla.tables.rows import BytesRows, Refused, Rows

pytestmark = pytest.mark.slow


class PickyRows(BytesRows):
    """Refuses values that end with an odd digit, or with an even one."""

    def __init__(self, rest: int = 1) -> None:
        super().__init__()
        self._rest = rest

    def make_rows(self, records: pa.Table) -> Rows:
        values = records["value"].to_pylist()
        odd = [row for row, value in enumerate(values) if value is not None and value[-1] % 2 == self._rest]
        good = [row for row in range(len(values)) if row not in odd]
        return Rows(
            super().make_rows(records.take(pa.array(good, pa.int64()))).rows,
            [Refused(row, "a.Kind", "it is odd") for row in odd],
        )


class Killed(Exception):
    """In place of the table's commit."""


@pytest.fixture
def letters(topic: Topic) -> str:
    return make_letters(topic)


def make_letters(topic: Topic) -> str:
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": topic.bootstrap})) as cluster:
        Admin(cluster).create_topics([NewTopic(f"{topic.name}.dead", 2, 1)])
    return f"{topic.name}.dead"


def read_letters(topic: Topic, letters: str) -> list[ConsumerRecord]:
    settings = {**topic.settings, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    found: list[ConsumerRecord] = []
    with Consumer(settings) as consumer:
        partitions = [TopicPartition(letters, number) for number in range(2)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            found += consumer.poll(1.0)
    return found


def copy_picky(
    topic: Topic, target: Target, letters: str | None, *, fails: bool = False, name: str = "", rest: int = 1
) -> TopicCopy:
    table = open_table(target.kind, target.location, topic.name, properties=dict(target.properties))
    dead = None if letters is None else DeadLetters(topic.settings, letters, topic.name, name or table.name)
    if fails:
        table.append_rows = _fail  # type: ignore[method-assign]
    made = TopicCopy(topic.settings, topic.name, table, CopyOptions(exit_at_end=True), PickyRows(rest), dead)
    with closing(table), closing(made) as copy:
        try:
            copy.copy_records(lambda: False, lambda *_: None)
        finally:
            if dead is not None:
                dead.close()
        return copy


def _fail(*_: Any) -> None:
    raise Killed


def places(found: list[ConsumerRecord]) -> list[tuple[int, int]]:
    origins = [read_trail(each.headers).origin for each in found]
    return sorted((each.partition, each.offset) for each in origins if each is not None)


def test_without_a_topic_a_refused_record_is_an_error(topic: Topic, make_target: Callable[[str], Target]) -> None:
    topic.send(0, 6)
    with pytest.raises(
        RowNotReadableError, match=f"{topic.name}-1, offset 0 is not a row of the table: it is odd"
    ) as found:
        copy_picky(topic, make_target("parquet"), None)
    assert "Give --dead-letters TOPIC" in str(found.value)


def test_refused_records_are_letters_and_the_others_rows(topic: Topic, letters: str, target: Target) -> None:
    topic.send(0, 12)
    copy = copy_picky(topic, target, letters)
    assert (copy.rows, copy.dead_letters) == (7, 5)
    found = read_letters(topic, letters)
    assert places(found) == [(1, at // 2) for at in (1, 5, 7, 9, 11)]
    [five] = [each for each in found if each.key == b"key-5"]
    assert (five.value, five.headers[0]) == (b"value-5", ("n", b"5"))
    failure = read_trail(five.headers).failure
    assert failure is not None
    assert (failure.kind, failure.message) == ("a.Kind", "it is odd")
    with Producer(topic.settings) as producer:
        producer.send(topic.name, b"1", partition=1)
    # Without a row the offsets move as well: the next run does not read the letter's record again.
    assert copy_picky(topic, target, letters).dead_letters == 1
    assert copy_picky(topic, target, letters).dead_letters == 0
    assert sorted_rows(target.read_arrow()) == [each for each in topic.rows(12) if not (each[3] or b"0")[-1] % 2]


def test_letters_are_written_once_when_the_commit_of_the_table_is_lost(
    topic: Topic, letters: str, make_target: Callable[[str], Target]
) -> None:
    target = make_target("parquet")
    topic.send(0, 6)
    for _ in range(2):
        with pytest.raises(Killed):
            copy_picky(topic, target, letters, fails=True)
        topic.send(6, 6)
    assert copy_picky(topic, target, letters).rows == 4 + 2 * 3
    assert len(read_letters(topic, letters)) == 2 + 2 * 3


def test_letters_of_another_table_are_not_its_own(
    topic: Topic, letters: str, make_target: Callable[[str], Target]
) -> None:
    target = make_target("parquet")
    topic.send(0, 6)
    for name, rest in (("one", 1), ("other", 0)):
        with pytest.raises(Killed):
            copy_picky(topic, target, letters, fails=True, name=name, rest=rest)
    assert len(read_letters(topic, letters)) == 5
    copy = copy_picky(topic, target, letters, name="one")
    assert (copy.rows, copy.dead_letters) == (4, 0)


def test_a_second_writer_of_letters_is_refused(
    topic: Topic, letters: str, make_target: Callable[[str], Target]
) -> None:
    first = DeadLetters(topic.settings, letters, topic.name, "t")
    second = DeadLetters(topic.settings, letters, topic.name, "t")
    with closing(first), closing(second):
        first.begin_table("id", None)
        second.begin_table("id", None)
        with pytest.raises(ConcurrentWriterError, match="another writer"):
            first.write_letters([_record(topic)], [read_failure()])
    assert not read_letters(topic, letters)


def test_a_record_that_was_sent_back_keeps_its_count(topic: Topic, letters: str) -> None:
    headers = with_trail((("own", b"x"),), Trail(attempts=3, redrives=2))
    record = _record(topic)._replace(headers=headers)
    with closing(DeadLetters(topic.settings, letters, topic.name, "t")) as writer:
        writer.begin_table("id", None)
        writer.write_letters([record], [read_failure()])
    [found] = read_letters(topic, letters)
    trail = read_trail(found.headers)
    assert (trail.attempts, trail.redrives, found.headers[0]) == (4, 2, ("own", b"x"))


def test_the_topic_itself_cannot_have_its_letters(topic: Topic) -> None:
    with pytest.raises(TableError, match="its own dead letters"):
        DeadLetters(topic.settings, topic.name, topic.name, "t")


def _record(topic: Topic) -> ConsumerRecord:
    return ConsumerRecord(topic.name, 0, 0, 0, 0, None, b"x", (), -1)


def read_failure() -> Any:
    return Failure("a.Kind", "it is odd")
