"""What a task of the source reads, without Spark around it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from testbench.proxy import Proxy

from ottla.client.columns.columnar import Columns
from ottla.client.connections.address import parse_addresses
from ottla.client.errors import values_of
from ottla.record.batch import Record
from ottla.spark.connection_cache import cached_connections
from ottla.spark.errors import DataLoss
from ottla.spark.offsets import Range
from ottla.spark.options import source_options
from ottla.spark.source import reading
from ottla.spark.source.reading import read_range, to_arrow
from ottla.types import TopicPartition


def address_of(topics: Any) -> tuple[str, int]:
    (address,) = parse_addresses(topics.bootstrap)
    return address.host, address.port


def rows(topics: Any, topic: str, start: int, end: int, **options: str) -> list[dict[str, Any]]:
    chosen = source_options({**topics.options, "subscribe": topic, **options}, streaming=True)
    batches = list(read_range(chosen, Range(TopicPartition(topic, 0), start, end)))
    assert all(batch.validate(full=True) is None for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def test_columns_are_those_of_sparks_source(topics: Any) -> None:
    topic = topics.make()
    topics.put_records(topic, 0, [Record(0, 1_700_000_000_123, b"k", b"v"), Record(1, 1, None, None)])
    first, second = rows(topics, topic, 0, 2)
    assert list(first) == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert (first["key"], first["value"], first["topic"]) == (b"k", b"v", topic)
    assert (first["partition"], first["offset"], first["timestampType"]) == (0, 0, 0)
    assert first["timestamp"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert (second["key"], second["value"], second["offset"]) == (None, None, 1)


@pytest.mark.parametrize("codec", range(5))
def test_every_codec_is_read(topics: Any, codec: int) -> None:
    topic = topics.make()
    values = [b"%d" % number * 20 for number in range(300)]
    topics.put(topic, 0, values, codec=codec)
    assert [row["value"] for row in rows(topics, topic, 0, 300)] == values


def test_a_range_begins_and_ends_within_batches(topics: Any) -> None:
    topic = topics.make()
    for first in range(0, 30, 10):
        topics.put(topic, 0, [b"%d" % (first + number) for number in range(10)])
    assert [row["offset"] for row in rows(topics, topic, 7, 23)] == list(range(7, 23))


def test_headers_are_shown_when_asked_for(topics: Any) -> None:
    topic = topics.make()
    headers = (("a", b"1"), ("a", None))
    topics.put_records(topic, 0, [Record(0, 1, b"k", b"v", headers), Record(1, 1, b"k", b"v")])
    found = [row["headers"] for row in rows(topics, topic, 0, 2, includeHeaders="true")]
    assert found == [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None]


def test_log_append_time_is_distinguished(topics: Any) -> None:
    topic = topics.make(message_timestamp_type="LogAppendTime")
    topics.put(topic, 0, [b"a"], at_ms=5)
    (row,) = rows(topics, topic, 0, 1)
    assert row["timestampType"] == 1
    assert row["timestamp"].year > 2000


def test_many_fetches_give_every_record_once(topics: Any) -> None:
    topic = topics.make()
    for first in range(0, 200, 20):
        topics.put(topic, 0, [b"%d" % (first + number) + bytes(500) for number in range(20)])
    found = rows(topics, topic, 0, 200, **{"kafka.max.partition.fetch.bytes": "15000"})
    assert [row["offset"] for row in found] == list(range(200))


def test_large_answers_are_cut_for_spark(topics: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ROWS", 7)
    monkeypatch.setattr(reading, "COMPRESSED_BYTES", 1)
    topic = topics.make()
    topics.put(topic, 0, [b"x"] * 20, codec=1)
    topics.put(topic, 0, [b"y"] * 3, codec=1)
    chosen = source_options({**topics.options, "subscribe": topic}, streaming=True)
    sizes = [batch.num_rows for batch in read_range(chosen, Range(TopicPartition(topic, 0), 0, 23))]
    assert sizes == [7, 7, 6, 3]


def test_records_removed_before_they_were_read_are_a_loss(topics: Any) -> None:
    topic = topics.make()
    for number in range(3):
        topics.put(topic, 0, [b"%d" % number])
    topics.admin().delete_records({TopicPartition(topic, 0): 2})
    with pytest.raises(DataLoss, match=f"{topic}-0 begins at offset 2, and the query expects offset 0"):
        rows(topics, topic, 0, 3)
    assert [row["offset"] for row in rows(topics, topic, 0, 3, failOnDataLoss="false")] == [2]
    assert rows(topics, topic, 0, 2, failOnDataLoss="false") == []
    assert [row["offset"] for row in rows(topics, topic, 2, 3)] == [2]


def test_a_topic_that_was_deleted_is_a_loss(topics: Any) -> None:
    """Between the plan and the task: what is left is the checkpoint."""
    topic = topics.make()
    topics.put(topic, 0, [b"a"])
    topics.admin().delete_topics([topic])
    with pytest.raises(DataLoss, match=f"{topic}-0 no longer exists"):
        rows(topics, topic, 0, 1, **{"kafka.retry.backoff.ms": "1", "kafka.retry.backoff.max.ms": "2"})
    assert rows(topics, topic, 0, 1, failOnDataLoss="false", **{"kafka.retry.backoff.ms": "1"}) == []


def test_records_that_never_come_are_a_loss_after_the_poll_timeout(topics: Any) -> None:
    """The checkpoint is ahead of the log: the topic was made again, or the broker lost its disk."""
    topic = topics.make()
    topics.put(topic, 0, [b"a"])
    patience = {"kafkaConsumer.pollTimeoutMs": "50", "kafka.fetch.max.wait.ms": "10"}
    with pytest.raises(DataLoss, match="returned no record at offset 1, and the query expects 9"):
        rows(topics, topic, 0, 9, **patience)
    found = rows(topics, topic, 0, 9, failOnDataLoss="false", **patience)
    assert [row["offset"] for row in found] == [0]


def test_a_range_far_beyond_the_log_is_a_loss(topics: Any) -> None:
    topic = topics.make()
    topics.put(topic, 0, [b"a"])
    with pytest.raises(DataLoss, match="begins at offset 0, and the query expects offset 100"):
        rows(topics, topic, 100, 109)
    assert rows(topics, topic, 100, 109, failOnDataLoss="false") == []


def test_timestamps_beyond_sparks_range_are_cut_not_wrapped() -> None:
    none = pa.Array.from_buffers(pa.binary(), 3, [None, pa.py_buffer(bytes(16)), pa.py_buffer(b"")])
    times = np.array([2**62, -(2**62), -1], np.int64)
    batch = to_arrow(Columns(np.arange(3), times, np.zeros(3, np.int32), none, none, None), "t", 0)
    micros = batch.column("timestamp").cast(pa.int64()).to_pylist()
    assert micros[0] > 2**62
    assert micros[1] < -(2**62)
    assert micros[2] == -1000


def through(proxy: Proxy, topic: str, offset: int) -> list[bytes]:
    options = source_options({"kafka.bootstrap.servers": proxy.address, "subscribe": topic}, streaming=True)
    batches = read_range(options, Range(TopicPartition(topic, 0), offset, offset + 1))
    return [row["value"] for batch in batches for row in batch.to_pylist()]


def test_a_task_uses_the_connections_of_the_one_before(topics: Any) -> None:
    topic = topics.make()
    topics.put(topic, 0, [b"a", b"b"])
    proxy = Proxy(*address_of(topics))
    try:
        assert through(proxy, topic, 0) == [b"a"]
        proxy.refuse()
        proxy.cut()
        assert through(proxy, topic, 1) == [b"b"]
    finally:
        proxy.stop()


def test_a_topic_that_was_made_again_is_read_as_it_is_now(topics: Any) -> None:
    """Cached connections have the metadata of the deleted topic."""
    topic = topics.make()
    topics.put(topic, 0, [b"old"])
    assert [row["value"] for row in rows(topics, topic, 0, 1)] == [b"old"]
    values_of(topics.admin().delete_topics([topic]))
    topics.make_again(topic, 1, {"retention.ms": "-1"})
    topics.put(topic, 0, [b"new"])
    assert [row["value"] for row in rows(topics, topic, 0, 1)] == [b"new"]


def test_connections_on_which_an_answer_is_still_due_are_not_kept(topics: Any) -> None:
    """The next task would get its first response after that one: half a second later by default."""
    topic = topics.make()
    topics.put(topic, 0, [b"a"])
    options = {"failOnDataLoss": "false", "kafkaConsumer.pollTimeoutMs": "50", "kafka.fetch.max.wait.ms": "40"}
    config = source_options({**topics.options, "subscribe": topic, **options}, streaming=True).client
    with cached_connections(config) as before:
        pass
    assert [row["value"] for row in rows(topics, topic, 0, 1, **options)] == [b"a"]
    with cached_connections(config) as behind_a_whole_answer:
        assert behind_a_whole_answer is before
    assert rows(topics, topic, 1, 9, **options) == []
    with cached_connections(config) as behind_what_never_came:
        assert behind_what_never_came is not before


@pytest.mark.slow
def test_modules_are_frozen_before_the_collection_after_each_task() -> None:
    """PySpark's, which took more CPU than the tasks of a small batch."""
    program = """
import gc, importlib.util, sys
import pyspark_ottla
assert gc.get_freeze_count() == 0, "a driver's memory is its user's"
sys.modules["__main__"].__spec__ = importlib.util.find_spec("pyspark.daemon")
looked_for = importlib.reload(pyspark_ottla).DefaultSource
assert gc.get_freeze_count() > 20_000
frozen = gc.get_freeze_count()
looked_for({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}).reader(None)
assert gc.get_freeze_count() > frozen, "modules loaded to plan a read are frozen"

from ottla.client.settings import ClientConfig
from ottla.spark.sink import writers
from ottla.spark.connection_cache import cached_connections
def task():
    with cached_connections(ClientConfig(bootstrap_servers="127.0.0.1:1")):
        pass
task()
frozen, made = gc.get_freeze_count(), [[] for _ in range(1000)]
assert frozen > 20_000, frozen
assert len(gc.get_objects()) < 3_000, len(gc.get_objects())
task()
assert gc.get_freeze_count() <= frozen, "what a task makes is collected"
import wave
task()
assert gc.get_freeze_count() > frozen, "a module loaded later is frozen as well"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
def test_workers_do_not_import_pandas(topics: Any) -> None:
    """It would cost every worker a quarter of a second where it is installed."""
    topic = topics.make()
    program = f"""
import sys
from ottla.record.batch import Record
from ottla.spark.offsets import Range
from ottla.spark.options import source_options
from ottla.spark.source.reading import read_range
from ottla.spark.sink.sink_options import sink_options
from ottla.spark.sink.writing import write_batches
from ottla.types import TopicPartition
import pyarrow as pa
rows = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bytes(4) + b"\\2\\0\\0\\0"), pa.py_buffer(b"ab")])
batch = pa.RecordBatch.from_arrays([rows, rows], schema=pa.schema([("key", pa.binary()), ("value", pa.binary())]))
assert write_batches(sink_options({{**{topics.options!r}, "topic": {topic!r}}}), [batch]) == 1
options = source_options({{**{topics.options!r}, "subscribe": {topic!r}, "includeHeaders": "true"}}, streaming=True)
(found,) = read_range(options, Range(TopicPartition({topic!r}, 0), 0, 1))
assert found.num_rows == 1
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
