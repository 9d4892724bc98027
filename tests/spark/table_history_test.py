"""A topic with its history: rows of a table, and then records that only the topic has, each once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tables.conftest import Target, Topic, target_of
from tests.tables.copying_test import copy_topic

from ottla.client import Producer
from ottla.pipeline import BadPipeline, TableTarget, offsets_after_history, topic_with_history
from ottla.tables.errors import OffsetsOutsideTopicError, TopicRecreatedError
from ottla.types import TopicPartition

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def table_of(target: Target) -> TableTarget:
    catalog = "default" if target.kind == "iceberg" else ""
    return TableTarget(target.kind, target.location, catalog, target.properties)


@pytest.fixture
def make(topics: Any, tmp_path: Path) -> Callable[[str], tuple[Topic, Target]]:
    return lambda kind: (Topic(topics.bootstrap, topics.make(2)), target_of(kind, tmp_path / "lake"))


def options(topic: Topic) -> dict[str, str]:
    return {"kafka.bootstrap.servers": topic.bootstrap}


def found(frame: Any) -> list[tuple[int, int, bytes | None, bytes | None]]:
    rows = frame.select("partition", "offset", "key", "value").collect()
    kept = [(row[0], row[1], *(None if each is None else bytes(each) for each in row[2:])) for row in rows]
    return sorted(kept, key=lambda row: row[:2])


@pytest.mark.parametrize("kind", ["iceberg", "delta", "parquet"])
def test_each_record_is_a_row_once(spark: Any, make: Callable[[str], tuple[Topic, Target]], kind: str) -> None:
    topic, target = make(kind)
    table = table_of(target)
    copy_topic(topic, target)  # a table without rows
    topic.send(0, 20)
    assert found(topic_with_history(spark, topic.name, table, options(topic))) == topic.rows(20)
    copy_topic(topic, target)
    assert found(topic_with_history(spark, topic.name, table, options(topic))) == topic.rows(20)
    topic.send(20, 10)
    frame = topic_with_history(spark, topic.name, table, options(topic))
    assert found(frame) == topic.rows(30)
    # A copy and records that come later change nothing of a frame's history.
    topic.send(30, 10)
    copy_topic(topic, target)
    assert found(frame.where("offset < 15")) == topic.rows(30)
    whole = frame.where("partition = 0 AND offset = 0").collect()
    assert [(row["headers"][0]["key"], bytes(row["headers"][0]["value"])) for row in whole] == [("n", b"0")]
    assert len(frame.select("timestamp").distinct().where("timestamp IS NULL").collect()) == 0


def test_aborted_records_are_in_neither(spark: Any, make: Callable[[str], tuple[Topic, Target]]) -> None:
    topic, target = make("iceberg")
    with Producer({"bootstrap.servers": topic.bootstrap, "transactional.id": topic.name}) as producer:
        producer.init_transactions()
        for number, ends in enumerate((producer.commit_transaction, producer.abort_transaction) * 2):
            producer.begin_transaction()
            producer.send(topic.name, b"%d" % number, partition=0)
            ends()
            if number == 1:
                copy_topic(topic, target)
    frame = topic_with_history(spark, topic.name, table_of(target), options(topic))
    assert [row[3] for row in found(frame)] == [b"0", b"2"]


def test_a_stream_begins_where_the_table_ends(spark: Any, make: Callable[[str], tuple[Topic, Target]]) -> None:
    topic, target = make("delta")
    topic.send(0, 10)
    copy_topic(topic, target)
    starts = offsets_after_history(topic.name, table_of(target), options(topic))
    assert json.loads(starts) == {topic.name: {"0": 5, "1": 5}}
    topic.send(10, 4)
    source = spark.readStream.format("ottla").options(**options(topic), subscribe=topic.name, startingOffsets=starts)
    query = source.load().writeStream.format("memory").queryName("after_history").trigger(availableNow=True).start()
    query.awaitTermination()
    assert found(spark.table("after_history")) == topic.rows(14)[5:7] + topic.rows(14)[12:]


def test_a_topic_that_does_not_continue_the_table_is_refused(
    spark: Any, topics: Any, make: Callable[[str], tuple[Topic, Target]]
) -> None:
    topic, target = make("parquet")
    topic.send(0, 10)
    copy_topic(topic, target)
    with pytest.raises(BadPipeline, match="endingOffsets"):
        topic_with_history(spark, topic.name, table_of(target), {**options(topic), "endingOffsets": "latest"})
    topic.send(10, 10)
    topics.admin().delete_records({TopicPartition(topic.name, 0): 7})
    with pytest.raises(OffsetsOutsideTopicError, match="begins at offset 7, the table has it up to 5"):
        topic_with_history(spark, topic.name, table_of(target), options(topic))
    topics.admin().delete_topics([topic.name])
    topics.make_again(topic.name, 2)
    with pytest.raises(TopicRecreatedError):
        topic_with_history(spark, topic.name, table_of(target), options(topic))
