"""Small batches that the driver reads (`maxRecordsOnDriver`): what it plans and hands over, without Spark around it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import SparkFiles, TaskContext
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from tests.spark.planning import logged

from ottla.spark.errors import DataLoss
from ottla.spark.offsets import PLAN
from ottla.spark.options import source_options
from ottla.spark.source import driver_reading
from ottla.spark.source.driver_reading import DriverReader
from ottla.spark.source.readers import Part, StreamReader, WholeBatch
from ottla.spark.source.source import OttlaSource
from ottla.spark.tasks import notes_directory, read_notes
from ottla.types import TopicPartition

Offset = Mapping[str, Any]


@contextmanager
def reader_of(topics: Any, topic: str, **options: str) -> Iterator[StreamReader]:
    given = {**topics.options, "subscribe": topic, "startingOffsets": "earliest", **options}
    reader = pickle.loads(pickle.dumps(OttlaSource(given).streamReader(None)))
    try:
        yield reader
    finally:
        reader.stop()


def next_end(reader: StreamReader, start: Offset) -> Offset:
    return logged(reader.latestOffset(start, reader.getDefaultReadLimit()))


def first_end(reader: StreamReader) -> tuple[Offset, Offset]:
    start = logged(reader.initialOffset())
    return start, next_end(reader, start)


def values(batches: Iterable[pa.RecordBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


@pytest.fixture
def topic(topics: Any) -> str:
    name = topics.make(2)
    topics.put(name, 0, [b"a", b"b"])
    topics.put(name, 1, [b"c"])
    return str(name)


def test_a_small_batch_is_one_part_with_its_rows(topics: Any, topic: str) -> None:
    with reader_of(topics, topic, maxRecordsOnDriver="3") as reader:
        assert isinstance(reader, DriverReader)
        assert isinstance(reader, _SimpleStreamReaderWrapper)  # where Spark takes rows
        start, end = first_end(reader)
        assert end[PLAN]["onDriver"] is True
        (part,) = reader.partitions(start, end)
        assert isinstance(part, WholeBatch)
        assert [one.size for one in part.ranges] == [2, 1]
        rows = reader.getCache(start, end)
        assert rows is not None
        assert values(rows) == [b"a", b"b", b"c"]


def test_a_larger_batch_is_read_by_tasks(topics: Any, topic: str) -> None:
    with reader_of(topics, topic, maxRecordsOnDriver="2") as reader:
        start, end = first_end(reader)
        assert "onDriver" not in end[PLAN]
        assert [type(part) for part in reader.partitions(start, end)] == [Part, Part]
        assert reader.getCache(start, end) is None
        # Decided for each batch.
        topics.put(topic, 0, [b"d"])
        later = next_end(reader, end)
        assert later[PLAN] == {"onDriver": True}
        assert values(reader.getCache(end, later) or ()) == [b"d"]


def test_a_batch_without_records_is_not_read(topics: Any) -> None:
    with reader_of(topics, topics.make(), maxRecordsOnDriver="9") as reader:
        start, end = first_end(reader)
        assert "onDriver" not in end[PLAN]
        assert reader.getCache(start, end) is None


def test_a_batch_that_is_run_again_is_the_same_part_whatever_the_options_are(topics: Any, topic: str) -> None:
    """The units of an exactly-once sink depend on the number of tasks, and the checkpoint alone decides about it."""
    with reader_of(topics, topic, maxRecordsOnDriver="3") as reader:
        start, end = first_end(reader)
        first = [part.ranges for part in reader.partitions(start, end)]
    topics.put(topic, 0, [b"later"] * 9)
    for options in ({}, {"maxRecordsOnDriver": "1"}, {"minPartitions": "4", "kafka.group.id": "driver-again"}):
        with reader_of(topics, topic, **options) as reader:
            (part,) = reader.partitions(start, end)
            assert [part.ranges] == first
            # The task has them where no driver passes rows.
            assert values(reader.read(pickle.loads(pickle.dumps(part)))) == [b"a", b"b", b"c"]
    with reader_of(topics, topic) as reader:
        _, end = first_end(reader)
    with reader_of(topics, topic, maxRecordsOnDriver="99") as reader:
        assert len(reader.partitions(start, end)) == 2
        assert reader.getCache(start, end) is None


def test_tasks_read_a_batch_of_too_many_bytes(topics: Any, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_reading, "DRIVER_BYTES", 100)
    with reader_of(topics, topic, maxRecordsOnDriver="99") as reader:
        _, end = first_end(reader)
        topics.put(topic, 0, [b"x" * 200])
        later = next_end(reader, end)
        assert isinstance(reader.partitions(end, later)[0], WholeBatch)
        assert reader.getCache(end, later) is None


def test_a_task_that_reads_such_a_batch_leaves_no_notes(
    topics: Any, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With notes the unit of the sink would depend on who has read: the driver leaves none in the task."""
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    TaskContext()._taskAttemptId = 7  # the constructor sets the context of the process
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    notes = notes_directory(tmp_path, None)
    with reader_of(topics, topic, maxRecordsOnDriver="9") as reader:
        (part,) = reader.partitions(*first_end(reader))
        assert len(values(reader.read(part))) == 3
        assert read_notes(notes, 7) == []
        assert len(values(reader.read(Part(part.ranges[0])))) == 2
        assert len(read_notes(notes, 7)) == 1


def test_the_ordinary_way_is_used_where_spark_has_no_such_class(
    topics: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_reading, "_Prefetching", object)
    with reader_of(topics, topic, maxRecordsOnDriver="99") as reader:
        start, end = first_end(reader)
        assert "onDriver" not in end[PLAN]
        assert len(reader.partitions(start, end)) == 2


def test_lost_records_stop_the_plan_as_they_stop_a_task(topics: Any, topic: str) -> None:
    with reader_of(topics, topic, maxRecordsOnDriver="9") as reader:
        start, end = first_end(reader)
        topics.admin().delete_records({TopicPartition(topic, 0): 1})
        with pytest.raises(DataLoss, match=f"{topic}-0 begins at offset 1"):
            reader.getCache(start, end)
    with reader_of(topics, topic, maxRecordsOnDriver="9", failOnDataLoss="false") as reader:
        assert values(reader.getCache(start, end) or ()) == [b"b", b"c"]


def test_without_the_option_nothing_changes(topics: Any, topic: str) -> None:
    with reader_of(topics, topic) as reader:
        assert type(reader) is StreamReader
        assert not isinstance(reader, _SimpleStreamReaderWrapper)
    assert source_options({**topics.options, "subscribe": topic}, streaming=True).max_records_on_driver == 0


@pytest.mark.spark
@pytest.mark.slow
def test_a_query_has_one_task_and_the_rows_of_all_partitions(
    spark: Any, topics: Any, topic: str, tmp_path: Path
) -> None:
    found: list[tuple[int, list[str]]] = []

    def see(frame: Any, _: int) -> None:
        rows = frame.selectExpr("CAST(value AS STRING) AS value", "spark_partition_id() AS task").collect()
        found.append((len({row.task for row in rows}), sorted(row.value for row in rows)))

    def run() -> None:
        source = spark.readStream.format("ottla").options(**topics.options, subscribe=topic, maxRecordsOnDriver="3")
        writer = source.option("startingOffsets", "earliest").load().writeStream.foreachBatch(see)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()

    run()
    topics.put(topic, 0, [b"d"] * 2)
    topics.put(topic, 1, [b"e"] * 2)
    run()
    assert found == [(1, ["a", "b", "c"]), (2, ["d", "d", "e", "e"])]
    last = json.loads((tmp_path / "offsets" / "0").read_text().splitlines()[-1])
    assert last[PLAN]["onDriver"] is True
