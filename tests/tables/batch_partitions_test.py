"""Partitions and statistics of the files that batches add to a table, as other readers use them."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType
from tests.tables.batches_test import ROWS, prepare, write
from tests.tables.conftest import Target
from tests.tables.maintenance_test import maintain

from ottla.tables.batches import delta_files
from ottla.tables.batches.batch_table import BatchMaking, commit_batch_files, conform_table
from ottla.tables.batches.upserts import conform_changes
from ottla.tables.errors import ColumnConflictError, TableError

pytestmark = pytest.mark.slow
KINDS = pytest.mark.parametrize("kind", ["iceberg", "delta"])
DAY, HOUR = BatchMaking("day"), BatchMaking("hour")
TIMES = pa.table(
    {
        "n": [1, 2, 3, 4],
        "timestamp": pa.array(
            [
                dt.datetime(2026, 1, 31, 9, tzinfo=dt.UTC),
                dt.datetime(2026, 2, 1, 9, tzinfo=dt.UTC),
                dt.datetime(2026, 1, 31, 10, tzinfo=dt.UTC),
                None,
            ],
            pa.timestamp("us", "UTC"),
        ),
    }
)


def iceberg_table(target: Target) -> Table:
    return load_catalog("default", **target.properties).load_table(target.location)


def files_of(target: Target, by: str) -> dict[Any, list[int]]:
    """The rows of each file, by the partition that the table's log has for the file."""
    if target.kind == "iceberg":
        found = [(task.file.partition[0], task.file.file_path) for task in iceberg_table(target).scan().plan_files()]
    else:
        log = pa.table(DeltaTable(target.location).get_add_actions(flatten=True)).to_pylist()
        found = [(each[f"partition.{by}"], f"{target.location}/{each['path']}") for each in log]
    read = duckdb.connect().sql
    rows: dict[Any, list[int]] = {}
    for value, path in found:
        values = read("SELECT n FROM read_parquet($1, hive_partitioning=false)", params=[path.removeprefix("file://")])
        rows.setdefault(value, []).extend(n for (n,) in values.fetchall())
    return {value: sorted(some) for value, some in rows.items()}


@pytest.mark.parametrize(
    ("kind", "making", "parts"),
    [
        ("delta", DAY, {"2026-01-31": [1, 3], "2026-02-01": [2], None: [4]}),
        ("delta", HOUR, {"2026-01-31-09": [1], "2026-01-31-10": [3], "2026-02-01-09": [2], None: [4]}),
        ("iceberg", DAY, {20484: [1, 3], 20485: [2], None: [4]}),
        ("iceberg", HOUR, {491625: [1], 491626: [3], 491649: [2], None: [4]}),
    ],
)
def test_a_new_table_is_partitioned_by_the_time(
    make_target: Any, kind: str, making: BatchMaking, parts: dict[Any, list[int]]
) -> None:
    target = make_target(kind)
    table = prepare(target, TIMES.schema, making)
    commit_batch_files(table, "q", 0, write(table, 0, rows=TIMES))
    assert files_of(target, making.partition_by or "") == parts
    assert target.read_arrow().sort_by("n").select(["n", "timestamp"]).to_pylist() == TIMES.to_pylist()
    # The same again, and with columns that are new.
    wider = TIMES.append_column("s", pa.array(list("abcd")))
    table = prepare(target, wider.schema, making)
    commit_batch_files(table, "q", 1, write(table, 1, rows=wider))
    assert files_of(target, making.partition_by or "") == {value: sorted(some * 2) for value, some in parts.items()}
    maintain(target)
    assert files_of(target, making.partition_by or "") == {value: sorted(some * 2) for value, some in parts.items()}
    assert len(target.read_arrow()) == 8
    assert table.last_batch("q") == 1
    for other in (BatchMaking("none"), BatchMaking("hour" if making is DAY else "day")):
        with pytest.raises(TableError, match=f"is partitioned by {making.partition_by}, not by {other.partition_by}"):
            prepare(target, TIMES.schema, other)


@KINDS
def test_times_that_the_rows_lack_are_refused(make_target: Any, kind: str) -> None:
    target = make_target(kind)
    for rows in (ROWS, ROWS.rename_columns(["n", "timestamp"])):
        with pytest.raises(ColumnConflictError, match="partition_by=day needs a column timestamp with timestamps"):
            prepare(target, rows.schema, DAY)
    with pytest.raises(ColumnConflictError, match="the column day has the name of the partitions"):
        prepare(target, TIMES.append_column("day", TIMES["n"]).schema, DAY)
    prepare(target, TIMES.schema)
    with pytest.raises(TableError, match="is partitioned by none, not by day"):
        prepare(target, TIMES.schema, DAY)


def test_an_iceberg_table_keeps_its_own_partitions(make_target: Any) -> None:
    target = make_target("iceberg")
    catalog = load_catalog("default", **target.properties)
    catalog.create_namespace("lake")
    table = catalog.create_table(target.location, ROWS.schema)
    with table.update_spec() as update:
        update.add_field("day", IdentityTransform(), "day")
    batches = prepare(target)
    commit_batch_files(batches, "q", 0, files := write(batches, 0))
    assert sorted(name.split("/")[1] for name in files) == ["day=a", "day=b"]
    assert table.refresh().scan("day = 'a'").to_arrow()["n"].to_pylist() == [1, 3]
    long = pa.table({"n": pa.array([7, 8], pa.int32()), "day": ["x" * 200, None]})
    commit_batch_files(batches, "q", 1, write(batches, 1, rows=long))
    commit_batch_files(batches, "q", 2, write(batches, 2, rows=long.select(["n"])))
    assert files_of(target, "day") == {"a": [1, 3], "b": [2], "x" * 200: [7], None: [7, 8, 8]}


@KINDS
def test_columns_may_have_any_names(make_target: Any, kind: str) -> None:
    target = make_target(kind)
    rows = pa.table({"n": [1, 2], "a b": ["x", "y"], "x.y": [{"1 z": 1}, None], "é": [1, 2]})
    table = prepare(target, rows.schema)
    commit_batch_files(table, "q", 0, write(table, 0, rows=rows))
    if kind == "iceberg":
        with iceberg_table(target).update_spec() as update:
            update.add_field("a b", IdentityTransform(), "by name")
    table = prepare(target, rows.schema)
    commit_batch_files(table, "q", 1, write(table, 1, rows=rows))
    assert target.read_arrow().sort_by("n").to_pylist() == [row for row in rows.to_pylist() for _ in range(2)]


def test_an_iceberg_table_is_partitioned_by_a_hash(make_target: Any) -> None:
    target = make_target("iceberg")
    catalog = load_catalog("default", **target.properties)
    catalog.create_namespace("lake")
    table = catalog.create_table(target.location, ROWS.schema)
    batches = prepare(target)
    old = write(batches, 0)
    with table.update_schema() as change:
        change.add_column("later", LongType())
    with table.update_spec() as update:
        update.add_field("n", BucketTransform(4), "bucket")
        update.add_field("later", IdentityTransform(), "later_too")
    # Rows of files that were written before are divided when they are added.
    commit_batch_files(batches, "q", 0, old)
    batches = prepare(target)
    more = pa.table({"n": pa.array(range(10, 40), pa.int32())})
    commit_batch_files(batches, "q", 1, write(batches, 1, rows=more))
    table.refresh()
    wanted: dict[int, list[int]] = {}
    hashed = BucketTransform(4).transform(table.schema().find_type("n"))
    for n in (1, 2, 3, *range(10, 40)):
        wanted.setdefault(hashed(n) or 0, []).append(n)
    assert files_of(target, "bucket") == wanted
    assert sorted(target.read_arrow()["n"].to_pylist()) == [1, 2, 3, *range(10, 40)]


@pytest.mark.parametrize("upsert", [False, True])
def test_a_new_iceberg_table_is_partitioned_by_the_hash_of_the_key(make_target: Any, upsert: bool) -> None:
    target, making = make_target("iceberg"), BatchMaking("bucket[4]", upsert)
    rows = pa.table({"key": pa.array([b"%d" % n for n in range(20)]), "n": range(20)})
    table = prepare(target, rows.schema, making)
    conform = conform_changes if upsert else conform_table
    commit_batch_files(table, "q", 0, table.write_rows(conform(rows, table.columns, table.name), "q", 0))
    hashed = BucketTransform(4).transform(iceberg_table(target).schema().find_type("key"))
    wanted: dict[int, list[int]] = {}
    for n in range(20):
        wanted.setdefault(hashed(b"%d" % n) or 0, []).append(n)
    assert files_of(target, "key") == wanted
    (field,) = iceberg_table(target).spec().fields
    assert (field.name, str(field.transform)) == ("bucket_4", "bucket[4]")
    with pytest.raises(TableError, match=r"is partitioned by bucket_4, not by bucket_8"):
        prepare(target, rows.schema, BatchMaking("bucket[8]", upsert))
    with pytest.raises(ColumnConflictError, match="needs a column key of bytes, text or integers"):
        prepare(target, rows.select(["n"]).schema, making)


def test_a_delta_table_keeps_its_own_partitions(make_target: Any) -> None:
    target = make_target("delta")
    columns = {
        "n": pa.array(range(4), pa.int64()),
        "s": ["a b/é=%", "a b/é=%", "..", None],
        "d": pa.array([dt.date(2026, 1, 31)] * 3 + [None]),
        "t": pa.array(
            [dt.datetime(1969, 12, 31, 23, 59, 59, 999995, tzinfo=dt.UTC)] * 3 + [None], pa.timestamp("us", "UTC")
        ),
        "b": [True, True, False, None],
        "i": pa.array([-5, -5, 6, None], pa.int64()),
    }
    rows, by = pa.table(columns), list(columns)[1:]
    DeltaTable.create(target.location, rows.schema, partition_by=by)
    table = prepare(target, rows.schema)
    commit_batch_files(table, "q", 0, write(table, 0, rows=rows))
    assert target.read_arrow().sort_by("n").select(list(columns)).to_pylist() == rows.to_pylist()
    # delta-rs writes the same texts for the same values.
    write_deltalake(other := target.location + "-other", rows, partition_by=by)
    logs = [pa.table(DeltaTable(each).get_add_actions()) for each in (target.location, other)]
    parts = [sorted(map(str, each["partition"].to_pylist())) for each in logs]
    assert parts[0] == parts[1]
    assert len(parts[0]) == 3
    with pytest.raises(TableError, match="is partitioned by s, which the rows lack"):
        prepare(target, rows.select(["n"]).schema)


def test_partitions_of_delta_that_have_no_certain_text_are_refused(make_target: Any, tmp_path: Path) -> None:
    target = make_target("delta")
    schema = pa.schema([("n", pa.int64()), ("f", pa.float64())])
    DeltaTable.create(target.location, schema, partition_by=["f"])
    with pytest.raises(TableError, match="is partitioned by f, of type double"):
        prepare(target, schema)


def test_rows_of_too_many_partitions_are_refused(make_target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    target = make_target("delta")
    table = prepare(target, TIMES.schema, DAY)
    monkeypatch.setattr(delta_files, "MAX_PARTITIONS", 2)
    with pytest.raises(TableError, match="4 rows have 3 partitions, and at most 2"):
        write(table, 0, rows=TIMES)


VALUES = {
    "n": pa.array([1, -2, None], pa.int64()),
    "s": ["a" * 32, "b", None],
    "d": [dt.date(2026, 1, 31), dt.date(1969, 1, 2), None],
    "t": pa.array([1769817600123000, -5000, None], pa.timestamp("us", "UTC")),
    "local": pa.array([1769817600123000, -5000, None], pa.timestamp("us")),
    "e": pa.array([Decimal("1.10"), Decimal("-99.99"), None], pa.decimal128(10, 2)),
    "st": pa.array([{"a": 1, "deep": {"z": "x"}}, {"a": None, "deep": None}, None]),
    "l": [[1], [2, 3], None],
    "none": pa.nulls(3, pa.string()),
}


def statistics(location: str) -> dict[str, Any]:
    (path,) = [each for each in (Path(location) / "_delta_log").glob("*.json") if '"add"' in each.read_text()]
    (add,) = [line["add"] for line in map(json.loads, path.read_text().splitlines()) if "add" in line]
    found: dict[str, Any] = json.loads(add["stats"])
    return found


def test_the_log_of_delta_has_the_bounds_that_delta_rs_writes(make_target: Any) -> None:
    target = make_target("delta")
    rows = pa.table(VALUES)
    table = prepare(target, rows.schema)
    commit_batch_files(table, "q", 0, write(table, 0, rows=rows))
    write_deltalake(other := target.location + "-other", rows)
    found, wanted = statistics(target.location), statistics(other)
    assert found == wanted
    assert found["minValues"]["t"] == "1969-12-31T23:59:59.995Z"
    skipped = DeltaTable(target.location).to_pyarrow_dataset().get_fragments(pc.field("n") > 1)
    assert not list(skipped)


def test_bounds_of_delta_are_never_narrower_than_the_values(make_target: Any) -> None:
    target = make_target("delta")
    rows = pa.table(
        {
            "t": pa.array([dt.datetime(2026, 1, 31, 9, 0, 0, 123456, tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
            "last": pa.array([dt.datetime.max.replace(tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
            "s": ["\U0010ffff" * 40],
            "b": ["b" * 30 + "\ud7ff\U0010ffff!"],
            "f": [float("nan")],
            "exact": pa.array([Decimal("12345678901234567890.1")], pa.decimal128(38, 1)),
        }
    )
    table = prepare(target, rows.schema)
    commit_batch_files(table, "q", 0, write(table, 0, rows=rows))
    found = statistics(target.location)
    assert found["maxValues"] == {"t": "2026-01-31T09:00:00.124Z", "b": "b" * 30 + "\ue000"}
    assert found["minValues"] == {
        "t": "2026-01-31T09:00:00.123Z",
        "last": "9999-12-31T23:59:59.999Z",
        "s": "\U0010ffff" * 32,
        "b": "b" * 30 + "\ud7ff\U0010ffff",
    }
    assert found["nullCount"] == dict.fromkeys(rows.schema.names, 0)


def test_the_table_chooses_the_columns_with_bounds(make_target: Any) -> None:
    target = make_target("delta")
    rows = pa.table({f"c{number}": [number] for number in range(40)})
    table = prepare(target, rows.schema)
    commit_batch_files(table, "q", 0, write(table, 0, rows=rows))
    assert list(statistics(target.location)["minValues"]) == [f"c{number}" for number in range(32)]
    chosen = {"delta.dataSkippingStatsColumns": "c35, `c1`", "delta.dataSkippingNumIndexedCols": "1"}
    for at, properties in enumerate((chosen, dict([list(chosen.items())[1]]))):
        named = target._replace(location=f"{target.location}-{at}")
        DeltaTable.create(named.location, rows.schema, configuration=properties)
        table = prepare(named, rows.schema)
        commit_batch_files(table, "q", 0, write(table, 0, rows=rows))
        assert list(statistics(named.location)["minValues"]) == [["c1", "c35"], ["c0"]][at]


def test_manifests_of_iceberg_have_the_bounds(make_target: Any) -> None:
    target = make_target("iceberg")
    for making in (BatchMaking(), DAY):
        named = target._replace(location=f"lake.{making.partition_by}")
        table = prepare(named, TIMES.schema, making)
        commit_batch_files(table, "q", 0, write(table, 0, rows=TIMES))
        files = [task.file for task in iceberg_table(named).scan().plan_files()]
        bounds = [from_bytes(LongType(), each[1]) for file in files for each in (file.lower_bounds, file.upper_bounds)]
        assert (min(bounds), max(bounds), sum(file.record_count for file in files)) == (1, 4, 4)
        assert not list(iceberg_table(named).scan("n > 4").plan_files())
