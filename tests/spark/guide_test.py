"""Jobs of the Structured Streaming + Kafka Integration Guide, the same for both formats: Spark's own Kafka connector,
which runs unchanged against this broker, and `ottla`, with only the name changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from testbench.apache_kafka.packages import BenchError, connector_jars
from tests.spark.conftest import Topics

from ottla.record.batch import Record

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
]


@pytest.fixture
def connector() -> None:
    """Spark's own connector; a failure names how to install it."""
    try:
        connector_jars()
    except BenchError as missing:
        pytest.fail(str(missing), False)


@pytest.fixture(params=["ottla", pytest.param("kafka", marks=pytest.mark.interop)])
def form(request: pytest.FixtureRequest) -> str:
    if request.param == "kafka":
        request.getfixturevalue("connector")
    return str(request.param)


@pytest.fixture
def read(spark: Any, topics: Topics, form: str) -> Callable[..., Any]:
    def frame(**options: str) -> Any:
        return spark.read.format(form).options(**topics.options, **options).load()

    return frame


@pytest.fixture
def stream(spark: Any, topics: Topics, form: str, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """A query from what the options name into a topic, started; what still runs is stopped at the end."""
    started: list[Any] = []

    def query(sink: str | None, trigger: dict[str, Any], *columns: str, **options: str) -> Any:
        frame = spark.readStream.format(form).options(**topics.options, **options).load()
        writer = frame.selectExpr(*(columns or ("key", "value"))).writeStream.format(form).options(**topics.options)
        if sink is not None:
            writer = writer.option("topic", sink)
        started.append(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(**trigger).start())
        return started[-1]

    yield query
    for each in started:
        each.stop()


def rows(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    found = frame.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", *columns).collect()
    return sorted(tuple(row) for row in found)


def test_batch_jobs_write_and_read(spark: Any, topics: Topics, form: str, read: Callable[..., Any]) -> None:
    one, two = topics.make(2), topics.make(1)
    frame = spark.range(200).selectExpr("CAST(id AS STRING) AS key", "concat('v', id) AS value")
    frame.write.format(form).options(**topics.options).option("topic", one).mode("append").save()
    named = frame.selectExpr(f"'{two}' AS topic", "key", "value").where("CAST(key AS INT) < 10")
    named.write.format(form).options(**topics.options).mode("append").save()
    expected = sorted((str(n), f"v{n}") for n in range(200))
    assert rows(read(subscribe=one)) == expected
    assert sorted((r.key.decode(), r.value.decode()) for part in topics.records(one).values() for r in part) == expected  # type: ignore[union-attr]
    both = read(subscribePattern=f"{one}|{two}", startingOffsets="earliest", endingOffsets="latest")
    assert rows(both, "topic") == sorted(
        [(*row, one) for row in expected] + [(f"{n}", f"v{n}", two) for n in range(10)]
    )
    starting = json.dumps({one: {"0": -2, "1": 3}, two: {"0": 4}})
    ending = json.dumps({one: {"0": 5, "1": -1}, two: {"0": 6}})
    part = read(subscribe=f"{one},{two}", startingOffsets=starting, endingOffsets=ending)
    counts = {where: len(part.where(f"topic = '{where}'").collect()) for where in (one, two)}
    assert counts == {one: 5 + len(topics.records(one)[1]) - 3, two: 2}
    assert [row.offset for row in part.where(f"topic = '{two}'").orderBy("offset").collect()] == [4, 5]
    assert rows(read(assign=json.dumps({two: [0]}), minPartitions="3")) == sorted((f"{n}", f"v{n}") for n in range(10))


def test_headers_and_timestamps_come_through(topics: Topics, read: Callable[..., Any]) -> None:
    topic = topics.make()
    records = [Record(n, 1_000_000 + n, b"k", b"%d" % n, (("h", b"x"), ("h", None)) if n else ()) for n in range(10)]
    topics.put_records(topic, 0, records, codec=4)
    found = read(subscribe=topic, includeHeaders="true").orderBy("offset").collect()
    assert [row.headers and [(h.key, h.value and bytes(h.value)) for h in row.headers] for row in found] == [
        None,
        *[[("h", b"x"), ("h", None)]] * 9,
    ]
    assert [(row.timestamp.timestamp(), row.timestampType) for row in found] == [
        ((1_000_000 + n) / 1000, 0) for n in range(10)
    ]
    later = read(subscribe=topic, startingTimestamp="1000004", endingTimestamp="1000007")
    assert sorted(row.offset for row in later.collect()) == [4, 5, 6]
    by_partition = json.dumps({topic: {"0": 1_000_008}})
    assert read(subscribe=topic, startingOffsetsByTimestamp=by_partition).count() == 2


def test_a_stream_ends_with_what_is_there_in_batches_of_bounded_size(
    topics: Topics, stream: Callable[..., Any]
) -> None:
    source, sink = topics.make(2), topics.make(2)
    for partition in range(2):
        topics.put(source, partition, [b"%d-%d" % (partition, n) for n in range(500)], codec=partition)
    options = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "400"}
    query = stream(sink, {"availableNow": True}, **options)
    query.awaitTermination()
    assert [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]] == [400, 400, 200]
    (last,) = query.recentProgress[-1]["sources"]
    assert _offsets(last["endOffset"]) == {source: {"0": 500, "1": 500}}
    expected = sorted(b"%d-%d" % (partition, n) for partition in range(2) for n in range(500))
    assert sorted(filter(None, topics.values(sink))) == expected


def _offsets(found: Any) -> Any:
    return json.loads(found) if isinstance(found, str) else found


def test_a_stream_over_a_pattern_follows_what_comes(topics: Topics, stream: Callable[..., Any]) -> None:
    """startingOffsets is latest by default, so that earlier records are not read; rows name their topic."""
    source, sink = topics.make(1), topics.make(1)
    topics.put(source, 0, [b"before"])
    query = stream(
        None, {"processingTime": "100 milliseconds"}, "key", "upper(CAST(value AS STRING)) AS value",
        f"'{sink}' AS topic", subscribePattern=f"{source}.*",
    )  # fmt: skip
    deadline = time.monotonic() + 900
    while not query.recentProgress and time.monotonic() < deadline:
        time.sleep(0.05)
    topics.put(source, 0, [b"after"])
    while not topics.values(sink) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert query.exception() is None
    assert topics.values(sink) == [b"AFTER"]


@pytest.mark.interop
@pytest.mark.usefixtures("connector")
def test_a_checkpoint_goes_from_one_format_to_the_other_and_back(spark: Any, topics: Topics, tmp_path: Path) -> None:
    source, sink = topics.make(2), topics.make(1)
    for turn, form in enumerate(["kafka", "ottla", "kafka"]):
        for partition in range(2):
            topics.put(source, partition, [b"%d-%d-%d" % (turn, partition, n) for n in range(50)])
        frame = spark.readStream.format(form).options(**topics.options, subscribe=source, startingOffsets="earliest")
        writer = frame.load().select("key", "value").writeStream.format(form).options(**topics.options, topic=sink)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()
        assert sum(each["numInputRows"] for each in query.recentProgress) == 100
    expected = [b"%d-%d-%d" % (turn, part, n) for turn in range(3) for part in range(2) for n in range(50)]
    assert sorted(filter(None, topics.values(sink))) == sorted(expected)
