"""Steps of a pipeline that write tables, inside Spark: each record is in the table or a dead letter, and once.

Drivers and tasks that are killed are in tests/pipeline/table_output_test.py, without Spark.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from testbench.spark_chaos.committed import committed
from tests.tables.conftest import target_of

from ottla.pipeline import Out, Pipeline, Record, StepFailed, delta, iceberg, map_rows, parquet

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_dataframe_has_the_columns_of_the_table_and_may_get_more(spark: Any, topics: Any, tmp_path: Path) -> None:
    target, source = target_of("iceberg", tmp_path / "lake"), topics.make(2)
    dead = f"{source}.dead"
    columns = ["CAST(CAST(value AS STRING) AS SMALLINT) AS n", "timestamp", "named_struct('p', partition) AS place"]

    def run() -> list[str]:
        p = Pipeline(f"{source}-lake", topics.bootstrap)

        @p.step(source, to=iceberg(target.location, properties=target.properties), dead=dead, batch_tasks=2)
        def work(frame: Any) -> Any:
            odd = "CASE WHEN CAST(value AS STRING) LIKE '%3' THEN 'odd' END AS _error"
            return frame.selectExpr(*columns, odd, "_source")

        (planned,) = p.plan().steps
        assert (planned.writes, planned.unit) == ("iceberg lake.orders", "batch")
        (figures,) = p.run(str(tmp_path / "checkpoint"), spark=spark, progress=False)
        assert (figures.rows_in, figures.rows_out, figures.dead) == (20, 18, 2)
        return [str(each.type) for each in target.read_arrow().schema]

    for number in range(2):
        topics.put(source, number, [b"%d" % n for n in range(10)])
    assert run() == ["int32", "timestamp[us, tz=UTC]", "struct<p: int32>"]
    columns.append("CAST(1.5 AS DOUBLE) AS weight")
    for number in range(2):
        topics.put(source, number, [b"%d" % n for n in range(10, 20)])
    assert run()[3] == "double"
    rows = target.read_arrow().sort_by("n").to_pylist()
    assert [row["n"] for row in rows] == [n for n in range(20) if n % 10 != 3 for _ in range(2)]
    assert {(row["n"] >= 10, row["weight"]) for row in rows} == {(False, None), (True, 1.5)}
    assert target.read_duckdb().num_rows == len(rows)
    assert Counter(committed(topics.bootstrap, dead)) == {"3": 2, "13": 2}


def test_a_batch_whose_commit_to_the_table_failed_is_added_by_the_next_run(
    spark: Any, topics: Any, tmp_path: Path
) -> None:
    """It was decided: records that fail in the next run only are in the table, and are no dead letters."""
    source, folder, flag = topics.make(), tmp_path / "table", tmp_path / "was-here"
    topics.put(source, 0, [b"%d" % n for n in range(30)])
    p = Pipeline(f"{source}-files", topics.bootstrap)

    @p.step(source, to=parquet(str(folder)), dead=f"{source}.dead")
    @map_rows
    def work(record: Record) -> bytes:
        if record.offset == 29 and not flag.exists():
            (folder / "_ottla.lock").unlink()
            (folder / "_ottla.lock").mkdir()
            flag.touch()
        if record.offset % 3 == flag.exists():
            raise ValueError("odd")
        return record.value or b""

    with pytest.raises(StepFailed, match="IsADirectoryError"):
        p.run(str(tmp_path / "checkpoint"), spark=spark, progress=False)
    assert not list(folder.glob("*.parquet"))
    (folder / "_ottla.lock").rmdir()
    p.run(str(tmp_path / "checkpoint"), spark=spark, progress=False)
    found = Counter(value.decode() for value in target_of("parquet", tmp_path).read_arrow()["value"].to_pylist())
    assert found + Counter(committed(topics.bootstrap, f"{source}.dead")) == Counter(str(n) for n in range(30))
    assert found == Counter(str(n) for n in range(30) if n % 3)


def test_a_table_has_one_row_per_key_in_the_partitions_of_the_time(spark: Any, topics: Any, tmp_path: Path) -> None:
    """The last record of each key counts, also in two tasks, which find the folder of the catalog by a reference."""
    target, source = target_of("iceberg", tmp_path / "lake"), topics.make(2)
    home = f"${{env:HOME}}/{os.path.relpath(tmp_path, os.environ['HOME'])}"
    hidden = {key: value.replace(str(tmp_path), home) for key, value in target.properties.items()}
    lake = iceberg(target.location, properties=hidden, partition_by="day", upsert=True)
    p = Pipeline(f"{source}-keys", topics.bootstrap)

    @p.step(source, to=lake, dead=f"{source}.dead", batch_tasks=2)
    def work(frame: Any) -> Any:
        number = "CAST(split(CAST(value AS STRING), '-')[1] AS INT)"
        return frame.selectExpr(
            "split(CAST(value AS STRING), '-')[0] AS key",
            f"{number} AS n",
            f"make_timestamp(2026, 1, 1 + {number} % 3, 12, 0, 0, 'UTC') AS timestamp",
            f"{number} % 10 = 4 AS _deleted",
            f"CASE WHEN {number} = 18 THEN 'odd' END AS _error",
            "_source",
        )

    def run(first: int, end: int) -> dict[str, int]:
        for partition in range(2):
            topics.put(source, partition, [f"p{partition}k{n % 7}-{n}".encode() for n in range(first, end)])
        p.run(str(tmp_path / "checkpoint"), spark=spark, progress=False)
        rows = target.read_arrow().to_pylist()
        assert len({row["key"] for row in rows}) == len(rows)
        assert {row["timestamp"].day for row in rows} <= {1, 2, 3}
        return {row["key"]: row["n"] for row in rows}

    def last(end: int) -> dict[str, int]:
        found = {f"p{place}k{n % 7}": n for n in range(end) if n != 18 for place in range(2)}
        return {key: n for key, n in found.items() if n % 10 != 4}

    assert run(0, 1000) == last(1000)
    assert run(1000, 1015) == last(1015)
    assert Counter(committed(topics.bootstrap, f"{source}.dead")) == {"p0k4-18": 1, "p1k4-18": 1}
    tasks = load_catalog("default", **target.properties).load_table(target.location).scan().plan_files()
    assert {task.file.partition[0] for task in tasks} <= {20454, 20455, 20456}


def test_records_and_groups_are_tables_with_one_row_per_key(spark: Any, topics: Any, tmp_path: Path) -> None:
    changes, counts = target_of("delta", tmp_path), target_of("delta", tmp_path)._replace(location=f"{tmp_path}/counts")
    source, other = topics.make(), topics.make()
    p = Pipeline(f"{source}-keys", topics.bootstrap)

    @p.step(source, to=delta(changes.location, upsert=True), batch_tasks=2, required=["key"], dead=f"{source}.dead")
    @map_rows
    def change(record: Record) -> Out:
        key, _, value = (record.value or b"").partition(b"=")
        return Out(value or None, key=key or None)

    @p.step(other, to=delta(counts.location, upsert=True), output_mode="complete")
    def count(frame: Any) -> Any:
        return frame.selectExpr("CAST(value AS STRING) AS key").groupBy("key").count()

    def run(one: list[bytes], two: list[bytes]) -> tuple[dict[bytes, bytes], dict[str, int]]:
        topics.put(source, 0, one)
        topics.put(other, 0, two)
        p.run(str(tmp_path / "checkpoint"), spark=spark, progress=False)
        pairs = {row["key"]: row["value"] for row in changes.read_arrow().to_pylist()}
        return pairs, {row["key"]: row["count"] for row in counts.read_arrow().to_pylist()}

    many = [b"k%d=%d" % (n % 5, n) for n in range(200)]
    found = run([*many, b"k0=", b"=lost"], [b"a", b"b", b"a"])
    assert found == ({b"k%d" % n: b"%d" % (195 + n) for n in range(1, 5)}, {"a": 2, "b": 1})
    found = run([b"k1=", b"k0=back"], [b"b", b"c"])
    assert found == ({b"k0": b"back", b"k2": b"197", b"k3": b"198", b"k4": b"199"}, {"a": 2, "b": 2, "c": 1})
    assert list(committed(topics.bootstrap, f"{source}.dead")) == ["=lost"]
