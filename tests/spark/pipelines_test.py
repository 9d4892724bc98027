"""Pipelines inside Spark: every good record once, poison with its reason in the dead letters, retries when due.

What is written is read as committed, with the plain client.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ottla.client.admin.groups import GroupAdmin, GroupOffset
from ottla.client.cluster import Cluster
from ottla.client.fetching.fetch import fetch_range
from ottla.client.records import records_in
from ottla.client.settings import ClientConfig
from ottla.demo.events import directory_of, load_lines
from ottla.pipeline import BadPipeline, Out, Pipeline, Record, StepFailed, map_batches, map_rows
from ottla.pipeline.queries import without_null_lists
from ottla.record.batch import Record as Stored
from ottla.retry import headers as trails
from ottla.types import TopicPartition

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
]
Committed = Callable[[str], list[Stored]]


@pytest.fixture(scope="module")
def committed(topics: Any) -> Iterator[Committed]:
    """All committed records of a topic."""
    settings = {"bootstrap.servers": topics.bootstrap, "isolation.level": "read_committed"}
    with Cluster(ClientConfig.from_mapping(settings)) as cluster:

        def read(topic: str) -> list[Stored]:
            places = [TopicPartition(topic, number) for number in cluster.topic(topic).partitions]
            ends = topics.admin().list_offsets(dict.fromkeys(places, -1))
            return [
                record
                for tp in places
                for fetched in fetch_range(cluster, tp, 0, ends[tp].offset)
                for record in records_in(fetched)
            ]

        yield read


def values(records: list[Stored]) -> list[str]:
    return sorted((record.value or b"").decode(errors="replace") for record in records)


def reasons(records: list[Stored]) -> list[tuple[str, str]]:
    """(value, kind of the failure)"""
    found = []
    for record in records:
        failure = trails.read_trail(record.headers).failure
        assert failure is not None
        found.append(((record.value or b"").decode(errors="replace"), failure.kind.rpartition(".")[2]))
    return sorted(found)


def stopped_when(running: Any, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The figures of a pipeline's steps, by name, once they are as wanted; then it is stopped."""
    figures: dict[str, Any] = {}
    try:
        until = time.monotonic() + 900
        while not (figures and done(figures)) and time.monotonic() < until:
            time.sleep(0.3)
            if not running.alive:
                running.wait()  # raises what it failed with
            figures = {one.step: one for one in running.progress()}
    finally:
        running.stop()
    return figures


def add_three_steps(p: Pipeline, raw: str, spark: Any) -> None:
    """Enrich, count and double; each fails in its own way for some records."""

    @p.step(raw, to=f"{raw}.enriched", retries=["700ms", "400ms"], required=["key"], abort_on=[AttributeError])
    @map_rows
    def enrich(record: Record) -> Out:
        event = json.loads(record.value or b"")
        if record.offset % 500 == 77 and record.attempt < 3:
            raise OSError("the shop is closed")
        event["directory"] = directory_of(event["path"])
        if event["path"] == "huge":
            event["more"] = "x" * 1_100_000
        return Out(json.dumps(event), key=event["directory"])

    @p.step(f"{raw}.enriched", to=f"{raw}.counted", dead=f"{raw}.odd")
    def count(frame: Any) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        event = F.from_json(F.col("value").cast("string"), "added int, deleted int, path string")
        changed = event.added + event.deleted
        assert spark.version  # a function over DataFrames may use what cannot leave the driver
        odd = F.when(changed > 1000, F.lit("Poison: too many lines"))
        return frame.select("key", changed.cast("string").alias("value"), odd.alias("_error"), "_source")

    @p.step(f"{raw}.counted", to=f"{raw}.doubled")
    @map_batches
    def double(batch: pa.RecordBatch) -> Any:
        number = batch.column(1).cast(pa.string()).cast(pa.int64())
        return {"key": batch.column(0), "value": pc.multiply(number, 2).cast(pa.string())}


def test_real_events_through_three_steps_with_failures_of_every_kind(
    spark: Any, topics: Any, committed: Committed, tmp_path: Path
) -> None:
    lines = load_lines()[:6000]
    raw = topics.make(2)
    poison = [b"not json", b"\xff\xff", b'{"path": 7}', b'{"path": "huge", "added": 0, "deleted": 0}']
    for number in range(2):
        some = lines[number::2]
        topics.put(raw, number, [*some[:2000], *poison[number::2], *some[2000:]], codec=3)
    name = f"{raw}-shop"
    p = Pipeline(name, topics.bootstrap)

    add_three_steps(p, raw, spark)
    events = [json.loads(line) for line in lines]
    changes = [event["added"] + event["deleted"] for event in events]
    usual = [change for change in changes if change <= 1000]
    running = p.start(str(tmp_path), "300ms", spark=spark)
    figures = stopped_when(running, lambda now: now["double"].rows_out >= len(usual) and now["enrich"].dead >= 4)
    assert sorted(values(committed(f"{raw}.doubled")), key=int) == [str(2 * n) for n in sorted(usual)]
    assert reasons(committed(f"{raw}.{name}.dead")) == [
        ("not json", "JSONDecodeError"),
        ('{"path": "huge", "added": 0, "deleted": 0}', "RecordTooLarge"),
        ('{"path": 7}', "AttributeError"),
        ("\ufffd\ufffd", "UnicodeDecodeError"),
    ]
    odd = committed(f"{raw}.odd")
    assert len(odd) == len(changes) - len(usual) > 0
    assert {kind for _, kind in reasons(odd)} == {"Poison"}
    waited = {trails.read_trail(one.headers).origin: one.timestamp for one in committed(f"{raw}.{name}.retry-1")}
    again = {trails.read_trail(one.headers).origin: one.timestamp for one in committed(f"{raw}.{name}.retry-2")}
    assert len(waited) == len(again) == sum(1 for offset in range(3002) if offset % 500 == 77) * 2
    assert all(again[origin] - at >= 700 for origin, at in waited.items()), "none came back too early"
    assert [figures[step].retries for step in ("enrich", "count", "double")] == [2 * len(waited), 0, 0]
    assert [one.dead >= 4 for one in p.status()] == [True, True, False]


def test_a_worker_that_dies_leaves_nothing_half_done(
    spark: Any, topics: Any, committed: Committed, tmp_path: Path
) -> None:
    """After its rows are made, good and failed ones, and before they are committed."""
    source = topics.make()
    topics.put(source, 0, [b"%d" % n for n in range(200)])
    p = Pipeline(f"{source}-dies", topics.bootstrap)
    flag = tmp_path / "died"

    @p.step(source, to=f"{source}.out", retries=["1h"])
    @map_rows
    def work(record: Record) -> bytes:
        if record.offset == 150 and not flag.exists():
            flag.touch()
            os._exit(1)
        if record.offset % 10 == 3:
            raise OSError("later")
        assert record.value is not None
        return record.value

    with pytest.raises(StepFailed, match="step work: "):
        p.run(str(tmp_path / "checkpoint"), spark=spark, progress=False)
    assert committed(f"{source}.out") == committed(f"{source}.{source}-dies.retry-1") == []
    assert p.status()[0].lag == 200
    (figures,) = p.run(str(tmp_path / "checkpoint"), spark=spark, progress=False)
    assert (figures.rows_in, figures.rows_out, figures.retries, figures.lag) == (200, 180, 20, 0)
    assert figures.waiting >= 20
    assert figures.guarantee.startswith("exactly once by partition, with offsets: ")
    found = GroupAdmin(topics.cluster).group_offsets(p.name)[TopicPartition(source, 0)]
    assert isinstance(found, GroupOffset)
    assert (found.offset, '"b":0' in found.metadata) == (200, True), "by the sink, with its rows"
    good = [str(n) for n in range(200) if n % 10 != 3]
    assert values(committed(f"{source}.out")) == sorted(good)
    assert len(committed(f"{source}.{source}-dies.retry-1")) == 20


def test_when_the_dead_letters_cannot_be_written_nothing_is(
    spark: Any, topics: Any, committed: Committed, tmp_path: Path
) -> None:
    source = topics.make()
    topics.put(source, 0, [b"good", b"bad"])
    topics.make_again(f"{source}.graves", 1, {"max.message.bytes": "200"})
    p = Pipeline(f"{source}-full", topics.bootstrap)

    @p.step(source, to=f"{source}.out", dead=f"{source}.graves")
    @map_rows
    def work(record: Record) -> bytes:
        if record.value == b"bad":
            raise ValueError("x" * 300)
        return b"good"

    with pytest.raises(StepFailed, match=r"step work: .*MESSAGE_TOO_LARGE"):
        p.run(str(tmp_path), spark=spark, progress=False)
    assert committed(f"{source}.out") == []
    assert p.status()[0].lag == 2


def test_a_source_that_was_made_again_stops_the_step_by_name(spark: Any, topics: Any, tmp_path: Path) -> None:
    source = topics.make()
    topics.put(source, 0, [b"1"])
    p = Pipeline(f"{source}-again", topics.bootstrap)
    p.step(source, to=f"{source}.out", name="copy")(lambda frame: frame.select("key", "value"))
    p.run(str(tmp_path), spark=spark, progress=False)
    topics.admin().delete_topics([source])
    topics.make_again(source, 1)
    topics.put(source, 0, [b"2"] * 9)
    with pytest.raises(StepFailed, match=f"step copy: DataLoss: topic {source} is not the one .* failOnDataLoss"):
        p.run(str(tmp_path), spark=spark, progress=False)


def test_the_unit_is_chosen_from_the_plan(spark: Any, topics: Any) -> None:
    source = topics.make()
    functions: dict[str, Any] = {
        "plain": lambda frame: frame.selectExpr("key", "upper(CAST(value AS STRING)) AS value").where("value <> 'X'"),
        "exploded": lambda frame: frame.selectExpr("key", "explode(split(CAST(value AS STRING), ' ')) AS value"),
        "python": lambda frame: frame.select("key", "value").mapInArrow(lambda rows: rows, "key binary, value binary"),
        "rows": map_rows(lambda record: record.value),
        "counted": lambda frame: frame.groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value"),
        "dealt": lambda frame: frame.repartition(4),
        "unique": lambda frame: frame.select("key", "value").distinct(),
        "joined": lambda frame: frame.join(
            spark.range(3).selectExpr("encode(CAST(id AS STRING), 'utf-8') AS key"), "key"
        ),
    }
    p = Pipeline(f"{source}-plans", topics.bootstrap)
    for name, function in functions.items():
        p.step(source, to=f"{source}.{name}", name=name)(function)
    plan = p.plan(spark).steps
    assert [one.step for one in plan if one.offsets] == ["plain", "exploded", "python", "rows", "dealt", "joined"]
    assert {one.step: one.scope for one in plan} == {
        "plain": "partition", "exploded": "partition", "python": "partition", "rows": "partition",
        "counted": "batch", "dealt": "batch", "unique": "batch", "joined": "batch",
    }  # fmt: skip


def test_offsets_are_refused_where_they_are_demanded_and_cannot_be(spark: Any, topics: Any) -> None:
    source = topics.make()
    demanded: dict[str, Any] = {"offsets_in_transaction": "true"}
    for function, more, text in (
        (map_rows(lambda record: record.value), {"options": {"minPartitions": "4"}}, "minPartitions splits partitions"),
        (lambda frame: frame.groupBy("value").count().select("value"), {}, "the rows have no column `_source`"),
        (lambda frame: frame.repartition(4), {"exactly_once": "partition"}, "rows change tasks"),
        (lambda frame: frame, {"exactly_once": "off"}, "there is no transaction"),
    ):
        p = Pipeline(f"{source}-demands", topics.bootstrap)
        p.step(source, to=f"{source}.out", name="one", **demanded, **more)(function)
        with pytest.raises(BadPipeline, match=f"step one: offsets_in_transaction cannot be true here: {text}"):
            p.plan(spark)


@pytest.mark.parametrize("kind", ["rows", "frame"])
def test_a_whole_batch_and_its_offsets_are_one(
    spark: Any, topics: Any, committed: Committed, tmp_path: Path, kind: str
) -> None:
    """Results, retries and dead letters of all partitions, and how far the sources were read."""
    source = topics.make(2)
    for number in range(2):
        topics.put(source, number, [b"%d" % n for n in range(50)])
    p = Pipeline(f"{source}-whole", topics.bootstrap)
    arguments: dict[str, Any] = {"to": f"{source}.out", "retries": ["1h"], "exactly_once": "batch"}
    flag = tmp_path / "died"
    if kind == "rows":

        @p.step(source, offsets_in_transaction="true", **arguments)
        @map_rows
        def work(record: Record) -> bytes:
            if record.partition == 1 and record.offset == 40 and not flag.exists():
                flag.touch()
                os._exit(1)
            if record.offset % 10 == 3:
                raise OSError("later")
            return record.value or b""
    else:
        flag.touch()

        @p.step(source, offsets_in_transaction="true", batch_tasks=3, **arguments)
        def frame(rows: Any) -> Any:
            wrong = "CASE WHEN CAST(value AS STRING) LIKE '%3' THEN 'later' END AS _error"
            return rows.repartition(2).selectExpr("value AS key", "value", wrong, "_source")

    if not flag.exists():
        with pytest.raises(StepFailed):
            p.run(str(tmp_path / "checkpoint"), spark=spark, progress=False)
        assert (committed(f"{source}.out"), p.status()[0].lag) == ([], 100)
    (figures,) = p.run(str(tmp_path / "checkpoint"), spark=spark, progress=False)
    assert figures.guarantee.startswith("exactly once by batch, with offsets: ")
    good = [str(n) for n in range(50) if n % 10 != 3]
    assert values(committed(f"{source}.out")) == sorted(good * 2)
    assert len(committed(f"{source}.{p.name}.retry-1")) == 10
    found = GroupAdmin(topics.cluster).group_offsets(p.name)
    for number in range(2):
        at = found[TopicPartition(source, number)]
        assert isinstance(at, GroupOffset)
        assert (at.offset, '"b":0' in at.metadata) == (50, True)


def test_a_batch_is_written_as_a_whole_where_rows_change_tasks(
    spark: Any, topics: Any, committed: Committed, tmp_path: Path
) -> None:
    source = topics.make(2)
    for number in range(2):
        topics.put(source, number, [b"%d" % (n % 7) for n in range(70)])
    p = Pipeline(f"{source}-counts", topics.bootstrap)

    @p.step(source, to=f"{source}.counts", output_mode="complete")
    def count(frame: Any) -> Any:
        return frame.groupBy("value").count().selectExpr("value AS key", "CAST(count AS STRING) AS value")

    (figures,) = p.run(str(tmp_path), spark=spark, progress=False)
    assert figures.guarantee.startswith("exactly once by batch: rows change tasks: Aggregate")
    found = {record.key: record.value for record in committed(f"{source}.counts")}
    assert found == {b"%d" % n: b"20" for n in range(7)}


def test_steps_that_cannot_be_planned_are_refused_by_name(spark: Any, topics: Any, tmp_path: Path) -> None:
    source = topics.make()
    wrong: dict[str, tuple[Any, dict[str, Any], str]] = {
        "nothing": (lambda frame: None, {}, "returned NoneType, not a DataFrame"),
        "other": (lambda frame: frame.select("key"), {}, "no column `value` among key"),
        "typo": (lambda frame: frame.select("valeu"), {}, "its function raised AnalysisException: .*valeu"),
        "bug": (lambda frame: frame.values[7], {}, "its function raised"),
        "lost": (lambda frame: frame.selectExpr("value", "'x' AS _error"), {"dead": "d"}, "keep the column `_source`"),
        "bare": (lambda frame: frame.select("value"), {"dead": "d", "required": ["key"]}, "required=… needs"),
    }
    for name, (function, arguments, text) in wrong.items():
        p = Pipeline(f"{source}-wrong", topics.bootstrap)
        p.step(source, to=f"{source}.out", name=name, **arguments)(function)
        with pytest.raises(BadPipeline, match=f"step {name}: .*{text}"):
            p.run(str(tmp_path), spark=spark)
    p = Pipeline("nowhere", topics.bootstrap)
    p.step("no-such-topic", to="x", name="one")(lambda frame: frame)
    with pytest.raises(BadPipeline, match="topic no-such-topic does not exist: create it"):
        p.run(str(tmp_path), spark=spark)
    with pytest.raises(BadPipeline, match="needs a checkpoint"):
        p.run("", spark=spark)


def test_a_session_of_its_own_has_workers_that_run_this_python(tmp_path: Path) -> None:
    script = """
from ottla.pipeline.pipeline import _get_session
session = _get_session()
print("", session.sparkContext.pythonExec, sep="=")
print("", session.read.format("ottla").option("kafka.bootstrap.servers", "nowhere:1").option("subscribe", "t").load())
"""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK", "VIRT"))
    }
    paths = environment["PATH"].split(os.pathsep)
    environment["PATH"] = os.pathsep.join(each for each in paths if not Path(each, "ottla").exists())
    told = subprocess.run(
        [sys.executable, "-c", script],
        env={**environment, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert f"={sys.executable}" in told.stdout, told.stderr
    assert "DataFrame[key: binary" in told.stdout, told.stderr


def test_no_list_that_is_null_goes_to_python(spark: Any) -> None:
    """Spark's writer of Arrow goes through all null lists of a batch for each row of it."""
    kind = "array<struct<key:string,value:binary>>"
    null, some = f"cast(null as {kind})", "array(struct('h' as key, cast('1' as binary) as value))"
    frame = spark.sql(f"select {null} as headers, struct(1 as offset, {null} as headers) as _source union all select "
                      f"{some}, struct(2 as offset, {some} as headers)")  # fmt: skip
    filled = without_null_lists(frame)
    assert filled.dtypes == frame.dtypes
    rows = [(row.headers, row["_source"].offset, row["_source"].headers) for row in filled.collect()]
    assert rows == [([], 1, []), ([("h", b"1")], 2, [("h", b"1")])]
    plain = spark.sql("select 1 as value")
    assert without_null_lists(plain) is plain
