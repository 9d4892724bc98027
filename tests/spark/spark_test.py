"""The source and the sink inside Spark, as jobs written for `format("kafka")` with only the name changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.record.batch import Record

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
]
Run = Callable[..., list[dict[str, Any]]]


def read(spark: Any, topics: Any, **options: str) -> Any:
    return spark.read.format("ottla").options(**topics.options, **options).load()


def test_the_guides_batch_examples_run_with_only_the_name_changed(spark: Any, topics: Any) -> None:
    """Structured Streaming + Kafka Integration Guide: write key and value, read them back, cast to strings."""
    topic = topics.make(2)
    frame = spark.range(1000).selectExpr("CAST(id AS STRING) AS key", "concat('v', id) AS value")
    frame.write.format("ottla").options(**topics.options).option("topic", topic).mode("append").save()
    found = read(spark, topics, subscribe=topic).selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")
    assert sorted(map(tuple, found.collect())) == sorted((str(n), f"v{n}") for n in range(1000))
    assert min(map(len, topics.records(topic).values())) > 300


def test_the_columns_are_those_of_sparks_kafka_source(spark: Any, topics: Any) -> None:
    topic = topics.make()
    topics.put_records(topic, 0, [Record(0, 1_700_000_000_000, b"k", b"v", (("h", b"1"), ("n", None)))])
    plain = "key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int"
    assert read(spark, topics, subscribe=topic).schema.simpleString() == f"struct<{plain}>"
    frame = read(spark, topics, subscribe=topic, includeHeaders="true")
    assert frame.schema.simpleString() == f"struct<{plain},headers:array<struct<key:string,value:binary>>>"
    (row,) = frame.collect()
    assert (bytes(row.key), bytes(row.value), row.topic, row.partition, row.offset) == (b"k", b"v", topic, 0, 0)
    assert row.timestamp.timestamp() == 1_700_000_000
    assert [(one.key, one.value and bytes(one.value)) for one in row.headers] == [("h", b"1"), ("n", None)]


def test_sql_finds_the_source_without_registration(spark: Any, topics: Any) -> None:
    topic = topics.make()
    topics.put(topic, 0, [b"x"] * 3)
    options = f"'kafka.bootstrap.servers' '{topics.bootstrap}', subscribe '{topic}'"
    spark.sql(f"CREATE TEMPORARY VIEW seen USING ottla OPTIONS ({options})")
    try:
        assert spark.sql("SELECT count(*) AS n FROM seen").collect()[0].n == 3
    finally:
        spark.catalog.dropTempView("seen")


def test_headers_partitions_and_topics_are_written_by_column(spark: Any, topics: Any) -> None:
    one, two = topics.make(2), topics.make()
    spark.sql(f"""
        SELECT 'k' AS key, 'a' AS value, '{one}' AS topic, 1 AS partition,
               array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))) AS headers
        UNION ALL SELECT NULL, NULL, '{two}', NULL, NULL
    """).write.format("ottla").options(**topics.options).mode("append").save()
    (first,) = topics.records(one)[1]
    assert (first.key, first.value, first.headers) == (b"k", b"a", (("h", b"x"),))
    (second,) = topics.records(two)[0]
    assert (second.key, second.value, second.headers) == (None, None, ())


def test_split_ranges_become_tasks(spark: Any, topics: Any) -> None:
    topic = topics.make(2)
    for number in range(2):
        topics.put(topic, number, [b"x"] * 30)
    frame = read(spark, topics, subscribe=topic, minPartitions="6")
    assert frame.rdd.getNumPartitions() == 6
    assert frame.count() == 60


def test_a_topic_without_records_is_an_empty_frame(spark: Any, topics: Any) -> None:
    assert read(spark, topics, subscribe=topics.make()).collect() == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "set one of subscribe, subscribePattern, assign"),
        ({"subscribe": "a", "startingOffsets": "latest"}, "Option startingOffsets must not be latest"),
        ({"subscribe": "a", "kafka.auto.offset.reset": "earliest"}, "Option kafka.auto.offset.reset is not supported"),
        ({"subscribe": "no-such-topic"}, "no-such-topic: UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_mistakes_are_named_in_sparks_error(spark: Any, topics: Any, options: dict[str, str], text: str) -> None:
    with pytest.raises(Exception, match="(?s)" + text):
        read(spark, topics, **options).count()


def test_mistakes_of_the_sink_are_named_in_sparks_error(spark: Any, topics: Any) -> None:
    def save(expressions: str, mode: str = "append", **options: str) -> None:
        frame = spark.sql(f"SELECT {expressions}")
        frame.write.format("ottla").options(**topics.options, **options).mode(mode).save()

    for expressions, text in (
        ("'a' AS v", "`value` is missing"),
        ("'a' AS value", "set the option topic, or add a column `topic`"),
        ("1 AS value, 't' AS topic", "`value` must be string or binary, not int"),
        ("'a' AS value, CAST(NULL AS STRING) AS topic", "null in the column `topic`"),
    ):
        with pytest.raises(Exception, match=text):
            save(expressions)
    with pytest.raises(Exception, match="must be append"):
        save("'a' AS value, 't' AS topic", "overwrite")
    with pytest.raises(Exception, match="Option sink is missing: exactly once needs jobId"):
        save("'a' AS value, 't' AS topic", exactlyOnce="batch")


def test_a_stream_reads_in_batches_and_writes_every_record(spark: Any, topics: Any, run_stream: Run) -> None:
    source, sink = topics.make(2), topics.make(2)
    for number in range(2):
        topics.put(source, number, [b"%d" % (number * 1000 + n) for n in range(1000)])
    progress = run_stream(source, sink, maxOffsetsPerTrigger="500", minPartitions="3")
    assert [one["numInputRows"] for one in progress] == [500] * 4
    assert json.loads(progress[-1]["sources"][0]["latestOffset"]) == {source: {"0": 1000, "1": 1000}}
    assert sorted(int(value) for value in topics.values(sink)) == list(range(2000))


def test_a_restart_continues_from_the_checkpoint(spark: Any, topics: Any, run_stream: Run) -> None:
    source, sink = topics.make(), topics.make()
    topics.put(source, 0, [b"%d" % n for n in range(10)])
    run_stream(source, sink)
    topics.put(source, 0, [b"%d" % n for n in range(10, 15)])
    run_stream(source, sink)
    assert sorted(int(value) for value in topics.values(sink)) == list(range(15))


@pytest.mark.parametrize("batch", [0, 1])
def test_a_batch_that_was_not_committed_is_run_again_with_the_same_offsets(
    topics: Any, run_stream: Run, tmp_path: Path, batch: int
) -> None:
    """As after a crash of the driver: the offset log knows the batch, the commit log does not. Nothing is lost, nothing
    is written twice."""
    source, sink = topics.make(), topics.make()
    topics.put(source, 0, [b"%d" % n for n in range(10 * (batch + 1))])
    run_stream(source, sink, maxOffsetsPerTrigger="10")
    for name in (str(batch), f".{batch}.crc"):
        os.remove(tmp_path / "checkpoint" / "commits" / name)
    topics.put(source, 0, [b"new"])
    run_stream(source, sink, maxOffsetsPerTrigger="10", startingOffsets="latest")
    assert sorted(topics.values(sink)) == sorted([*(b"%d" % n for n in range(10 * (batch + 1))), b"new"])


DRIVER = """
import os, sys, time
from pathlib import Path
from ottla.spark import java_home
bootstrap, source, sink, checkpoint = sys.argv[1:]
java_home()
from pyspark.sql import SparkSession
settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.local.dir": checkpoint + "-local",
            "spark.sql.shuffle.partitions": "2", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
builder = SparkSession.builder.master("local[2]")
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
frame = spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", source)
frame = frame.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "10").load()
query = frame.select("key", "value").writeStream.format("ottla").option("kafka.bootstrap.servers", bootstrap)
query = query.option("topic", sink).option("checkpointLocation", checkpoint).start()
while query.isActive:
    print(len(list(Path(checkpoint, "commits").glob("[0-9]*"))), flush=True)
    time.sleep(0.02)
"""


def test_a_driver_that_is_killed_writes_everything_once(topics: Any, run_stream: Run, tmp_path: Path) -> None:
    """kill -9 of Python and Java in the middle of a query of many batches; then the query starts again."""
    source, sink = topics.make(2), topics.make()
    for number in range(2):
        topics.put(source, number, [b"%d" % (number * 2000 + n) for n in range(2000)])
    words = [sys.executable, "-c", DRIVER, topics.bootstrap, source, sink, str(tmp_path / "checkpoint")]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, text=True
    ) as driver:
        assert driver.stdout is not None
        committed = next(int(line) for line in driver.stdout if int(line) >= 3)
        os.killpg(driver.pid, signal.SIGKILL)
    before = len(topics.values(sink))
    assert 10 * committed <= before < 4000
    run_stream(source, sink)
    found = [int(value) for value in topics.values(sink)]
    assert sorted(found) == list(range(4000))


def test_a_query_that_fails_in_the_middle_loses_nothing(spark: Any, topics: Any, tmp_path: Path) -> None:
    """A row that cannot be transformed kills the second batch; without it the query continues from the checkpoint."""
    source, sink = topics.make(), topics.make()
    topics.put(source, 0, [b"1", b"2", b"3", b"x", b"5"])

    def run(number: str) -> Any:
        query = (
            spark.readStream.format("ottla")
            .options(**topics.options, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="2")
            .load()
            .selectExpr(f"CAST({number} AS STRING) AS value")
            .writeStream.format("ottla")
            .options(**topics.options, topic=sink, checkpointLocation=str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
        run("CAST(CAST(value AS STRING) AS INT)")
    run("try_cast(CAST(value AS STRING) AS INT)")
    found = topics.values(sink)
    assert set(found) == {b"1", b"2", b"3", None, b"5"}
    assert found.count(b"1") == found.count(b"2") == 1


def test_windows_are_counted_in_a_stream(spark: Any, topics: Any) -> None:
    """The guide's word count by window, into memory."""
    topic = topics.make(2)
    topics.put(topic, 0, [b"a"] * 30, at_ms=0)
    topics.put(topic, 1, [b"b"] * 30, at_ms=590_000)
    stream = spark.readStream.format("ottla").options(**topics.options, subscribe=topic, startingOffsets="earliest")
    counts = stream.load().selectExpr("CAST(value AS STRING) AS word", "window(timestamp, '10 minutes').start AS start")
    query = (
        counts.groupBy("start", "word")
        .count()
        .writeStream.outputMode("complete")
        .format("memory")
        .queryName("words")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = {(row.word, row.start.minute): row["count"] for row in spark.table("words").collect()}
    assert found == {("a", 0): 30, ("b", 0): 30}


def test_after_an_interrupted_call_the_session_is_named_again(spark: Any, topics: Any) -> None:
    """As in docs/pyspark.md; tests Spark's defect, so that the page can be changed when it is fixed."""

    class InterruptedHereError(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise InterruptedHereError

    def write() -> None:
        frame = spark.sql("SELECT 'v' AS value")
        frame.write.format("ottla").options(**topics.options, topic=topic).mode("append").save()

    topic, before = topics.make(), signal.signal(signal.SIGUSR1, interrupt)
    query = spark.readStream.format("rate").load().writeStream.format("noop").start()
    threading.Timer(1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1)).start()
    try:
        with pytest.raises(Exception, match="awaitTermination"):
            query.awaitTermination()
    finally:
        signal.signal(signal.SIGUSR1, before)
    query.stop()
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        write()
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
    write()
    assert topics.values(topic) == [b"v"]
