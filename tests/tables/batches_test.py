"""Batches of a query in a table: each is added once, by whichever driver, while others commit to the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from tests.tables.conftest import Target
from tests.tables.maintenance_test import NOW, maintain

from ottla.tables.batches.batch_table import (
    MAKING,
    BatchMaking,
    BatchTable,
    commit_batch_files,
    conform_table,
    has_batch,
)
from ottla.tables.batches.formats import open_batch_table, prepare_batch_table
from ottla.tables.errors import ColumnConflictError, CommitConflict, OffsetsLostError, RowNotReadableError, TableError

pytestmark = pytest.mark.slow
ROWS = pa.table({"n": pa.array([1, 2, 3], pa.int32()), "day": ["a", "b", "a"]})


def prepare(target: Target, rows: pa.Schema = ROWS.schema, making: BatchMaking = MAKING) -> BatchTable:
    prepare_batch_table(target.kind, target.location, rows, making, catalog="default", properties=target.properties)
    return open_batch_table(target.kind, target.location, making, catalog="default", properties=target.properties)


def numbers(target: Target) -> list[int]:
    return sorted(target.read_arrow()["n"].to_pylist())


def write(table: BatchTable, batch: int, query: str = "q", rows: pa.Table = ROWS) -> list[str]:
    return table.write_rows(conform_table(rows, table.columns, table.name), query, batch)


def test_a_batch_is_added_once(target: Target) -> None:
    table = prepare(target)
    files = write(table, 4)
    assert not has_batch(table, "q", 4)
    for driver in (table, prepare(target)):
        commit_batch_files(driver, "q", 4, files)
        commit_batch_files(driver, "q", 3, write(driver, 3))
    commit_batch_files(table, "other", 0, write(table, 0, "other"))
    commit_batch_files(table, "q", 5, [])
    assert numbers(target) == [1, 1, 2, 2, 3, 3]
    assert [table.last_batch(query) for query in ("q", "other", "third")] == [4, 0, None]


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_commit_that_lost_looks_for_the_batch_again(make_target: Any, kind: str) -> None:
    target = make_target(kind)
    table, other = prepare(target), prepare(target)
    files = write(table, 0)
    table.last_batch("q")
    commit_batch_files(other, "q", 0, files)
    with pytest.raises(CommitConflict):
        table.add_files("q", 0, files)

    class Overtaken:
        name, columns = table.name, table.columns
        overtakes = True

        def last_batch(self, query: str) -> int | None:
            found = table.last_batch(query)
            if self.overtakes:
                self.overtakes = False
                commit_batch_files(other, "other", 0, write(other, 0, "other"))
            return found

        def add_files(self, *arguments: Any) -> None:
            table.add_files(*arguments)

    commit_batch_files(Overtaken(), "q", 1, write(table, 1))  # type: ignore[arg-type]
    assert numbers(target) == [1] * 3 + [2] * 3 + [3] * 3
    assert (table.last_batch("q"), table.last_batch("other")) == (1, 0)


def test_the_batches_survive_compaction_and_the_expiry_of_snapshots(make_target: Any) -> None:
    target = make_target("iceberg")
    table = prepare(target)
    for batch in range(3):
        for query in ("q", "other") if not batch else ("q",):
            commit_batch_files(table, query, batch, write(table, batch, query))
    report = maintain(target, NOW)
    assert (report.files_compacted, report.snapshots_expired) == (4, 4)
    assert [table.last_batch(query) for query in ("q", "other")] == [2, 0]
    assert len(numbers(target)) == 12
    for _ in range(2):
        load_catalog("default", **target.properties).load_table(target.location).append(ROWS)
    report = maintain(target, NOW._replace(target_bytes=1))
    assert (report.files_compacted, report.snapshots_expired) == (0, 0), "that with the batches stays"
    assert [table.last_batch(query) for query in ("q", "other")] == [2, 0]


def test_columns_are_added_and_widened(target: Target) -> None:
    table = prepare(target)
    commit_batch_files(table, "q", 0, write(table, 0))
    more = pa.table({"N2": pa.array([1.5]), "n": pa.array([1 << 40]), "none": pa.nulls(1)})
    table = prepare(target, more.schema)
    commit_batch_files(table, "q", 1, write(table, 1, rows=more))
    rows = sorted((row["n"], row["day"], row["N2"]) for row in target.read_arrow().to_pylist())
    assert rows == [(1, "a", None), (2, "b", None), (3, "a", None), (1 << 40, None, 1.5)]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ({"n": pa.string()}, "column n is string, the table has int"),
        ({"N": pa.int32()}, "N differs only in case from n"),
        ({"a": pa.int32(), "A": pa.int32()}, "is there twice"),
        ({"none": pa.null()}, "no column with a type"),
    ],
)
def test_columns_that_do_not_fit_are_refused(target: Target, rows: dict[str, pa.DataType], text: str) -> None:
    prepare(target)
    with pytest.raises(ColumnConflictError, match=text):
        prepare(target, pa.schema(list(rows.items())))


def test_names_that_iceberg_reserves_are_refused(make_target: Any) -> None:
    with pytest.raises(ColumnConflictError, match="_file is reserved"):
        prepare(make_target("iceberg"), pa.schema([("_file", pa.int32())]))


def test_values_that_a_column_cannot_hold_are_named(target: Target) -> None:
    late = pa.table({"at": pa.array([400_000_000_000_000_000], pa.timestamp("us", "UTC"))})
    table = prepare(target, late.schema)
    with pytest.raises(RowNotReadableError, match="the column at cannot hold a value"):
        write(table, 0, rows=late)
    with pytest.raises(TableError, match="has lost its column n"):
        write(table, 0)


def test_a_file_that_was_deleted_before_it_was_added_is_named(target: Target) -> None:
    table = prepare(target)
    (name,) = write(table, 0)
    (path,) = [each for each in _folder(target).rglob("*") if name.rpartition("/")[2] in each.name]
    path.unlink()
    with pytest.raises(OffsetsLostError, match="batch 0"):
        commit_batch_files(table, "q", 0, [name])
    assert table.last_batch("q") is None


def _folder(target: Target) -> Path:
    return Path(target.properties["warehouse"].removeprefix("file://") if target.properties else target.location)


def test_tables_of_other_kinds_are_refused_by_name(make_target: Any, tmp_path: Path) -> None:
    ruled = make_target("delta")._replace(location=str(tmp_path / "ruled"))
    DeltaTable.create(ruled.location, ROWS.schema).alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(TableError, match=r"a rule that batches do not check: delta\.constraints\.positive"):
        prepare(ruled)
    strict = ruled._replace(location=str(tmp_path / "strict"))
    DeltaTable.create(strict.location, pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    with pytest.raises(TableError, match="a rule that batches do not check: n"):
        prepare(strict, pa.schema([("n", pa.int64())]))
    with pytest.raises(TableError, match="has no namespace"):
        prepare(make_target("iceberg")._replace(location="orders"))
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "_ottla.json").touch()
    with pytest.raises(TableError, match="is a copy of a topic"):
        prepare(Target("parquet", str(tmp_path / "copy"), {}))
    for kind in ("iceberg", "delta", "parquet"):
        missing = make_target(kind)._replace(location="lake.gone" if kind == "iceberg" else str(tmp_path / "gone"))
        with pytest.raises(TableError, match="is not there any more"):
            open_batch_table(kind, missing.location, catalog="default", properties=missing.properties)


def test_files_that_were_not_decided_leave_a_parquet_folder_with_the_next_batch(make_target: Any) -> None:
    target = make_target("parquet")
    table = prepare(target)
    write(table, 0)
    kept = write(table, 1)
    other = write(table, 0, "other")
    commit_batch_files(table, "q", 0, write(table, 0))
    hidden = [path.name for path in Path(target.location).glob(".*.parquet.tmp")]
    assert sorted(hidden) == sorted(f".{name}.tmp" for name in (*kept, *other))
