"""What a task of the sink writes, without Spark around it; read back with the plain client."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from ottla.client.errors import ClientError
from ottla.client.partitioner import partition_of_key
from ottla.record.batch import Record
from ottla.spark.errors import BadRows
from ottla.spark.sink.sink_options import sink_options
from ottla.spark.sink.writing import write_batches

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def write(topics: Any, columns: dict[str, pa.Array | list], **options: str) -> int:
    options = {key.replace("__", "."): value for key, value in options.items()}
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    return write_batches(sink_options({**topics.options, **options}), [batch])


def content(records: dict[int, list[Record]]) -> list[tuple[bytes | None, bytes | None]]:
    return sorted((record.key, record.value) for some in records.values() for record in some)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_rows_arrive_with_every_codec(topics: Any, codec: str) -> None:
    topic = topics.make(2)
    keys = [f"k{number}" for number in range(500)]
    assert write(topics, {"key": keys, "value": keys}, topic=topic, kafka__compression__type=codec) == 500
    found = topics.records(topic)
    assert content(found) == sorted((key.encode(), key.encode()) for key in keys)
    for number, records in found.items():
        assert all(partition_of_key(record.key, 2) == number for record in records if record.key is not None)


def test_binary_values_nulls_and_headers_arrive(topics: Any) -> None:
    topic = topics.make()
    headers = pa.array([[{"key": "h", "value": b"x"}, {"key": "h", "value": None}], None, []], HEADERS)
    values = pa.array([b"\x00\xff", None, b""], pa.binary())
    write(topics, {"key": pa.array([b"k"] * 3), "value": values, "headers": headers}, topic=topic)
    found = topics.records(topic)[0]
    assert [record.value for record in found] == [b"\x00\xff", None, b""]
    assert [record.headers for record in found] == [(("h", b"x"), ("h", None)), (), ()]


def test_rows_of_a_partition_keep_their_order(topics: Any) -> None:
    topic = topics.make(3)
    rows = 4000
    columns = {"key": [f"{number % 7}" for number in range(rows)], "value": [f"{number}" for number in range(rows)]}
    write(topics, columns, topic=topic, kafka__batch__size="3000")
    for records in topics.records(topic).values():
        numbers = [int(record.value or b"") for record in records]
        assert numbers == sorted(numbers)
    assert len(topics.values(topic)) == rows


def test_rows_without_a_key_spread_over_all_partitions(topics: Any) -> None:
    topic = topics.make(4)
    write(topics, {"value": ["x"] * 4000}, topic=topic)
    assert sorted(len(records) for records in topics.records(topic).values()) == [1000] * 4


def test_small_batches_of_rows_without_a_key_take_turns(topics: Any) -> None:
    topic = topics.make(2)
    rows = [pa.record_batch([pa.array(["x"])], names=["value"])] * 4
    write_batches(sink_options({**topics.options, "topic": topic}), rows)
    assert [len(records) for records in topics.records(topic).values()] == [2, 2]


def test_keys_are_ignored_with_partitioner_ignore_keys(topics: Any) -> None:
    topic = topics.make(4)
    columns = {"key": ["same"] * 4000, "value": ["x"] * 4000}
    write(topics, columns, topic=topic, kafka__partitioner__ignore__keys="true")
    assert sorted(len(records) for records in topics.records(topic).values()) == [1000] * 4


def test_the_column_partition_beats_the_key(topics: Any) -> None:
    topic = topics.make(3)
    partitions = pa.array([2, 0, None], pa.int32())
    write(topics, {"key": ["k"] * 3, "value": ["a", "b", "c"], "partition": partitions}, topic=topic)
    found = topics.records(topic)
    by_value = {record.value: number for number, records in found.items() for record in records}
    assert by_value == {b"a": 2, b"b": 0, b"c": partition_of_key(b"k", 3)}


@pytest.mark.parametrize("number", [-1, 3, 1000])
def test_a_partition_that_does_not_exist_is_refused(topics: Any, number: int) -> None:
    topic = topics.make(3)
    with pytest.raises(BadRows, match=f"partition {number} of {topic}, which has 3 partitions"):
        write(topics, {"value": ["a"], "partition": pa.array([number], pa.int32())}, topic=topic)


def test_the_option_topic_beats_the_column(topics: Any) -> None:
    one, two = topics.make(), topics.make()
    write(topics, {"value": ["a", "b"], "topic": pa.array([two, None], pa.string())}, topic=one)
    assert (topics.values(one), topics.values(two)) == ([b"a", b"b"], [])


def test_rows_go_to_the_topics_they_name(topics: Any) -> None:
    one, two = topics.make(), topics.make(2)
    columns = {"value": ["a", "b", "c"], "topic": [two, one, two], "partition": pa.array([0, 0, 1], pa.int32())}
    write(topics, columns)
    assert (topics.values(one), topics.values(two)) == ([b"b"], [b"a", b"c"])


def test_a_row_without_a_topic_is_refused(topics: Any) -> None:
    with pytest.raises(BadRows, match="null in the column `topic`"):
        write(topics, {"value": ["a", "b"], "topic": pa.array([topics.make(), None])})


def test_no_rows_write_nothing(topics: Any) -> None:
    topic = topics.make()
    assert write(topics, {"value": pa.array([], pa.string())}, topic=topic) == 0
    assert write_batches(sink_options({**topics.options, "topic": topic}), []) == 0
    assert topics.values(topic) == []


def test_a_record_that_is_too_large_fails_by_name(topics: Any) -> None:
    topic = topics.make()
    with pytest.raises(ClientError, match=r"max\.request\.size"):
        write(topics, {"value": [b"x" * 2_000_000]}, topic=topic)
    with pytest.raises(ClientError, match=r"max\.message\.bytes"):
        write(topics, {"value": [b"x" * 2_000_000]}, topic=topic, kafka__max__request__size="3000000")


def test_batches_carry_a_producer_only_with_idempotence(topics: Any) -> None:
    topic = topics.make()
    write(topics, {"value": ["a"]}, topic=topic, kafka__acks="1")
    write(topics, {"value": ["b"]}, topic=topic)
    write(topics, {"value": ["c"]}, topic=topic)
    plain, first, second = topics.headers(topic)
    assert plain.producer_id == plain.base_sequence == -1
    assert first.producer_id >= 0
    assert second.producer_id >= 0
    assert first.producer_id != second.producer_id
    assert (first.base_sequence, second.base_sequence) == (0, 0)
