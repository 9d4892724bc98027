"""One row per key in the tables of batches: the last row of each key counts, and each batch once."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import BucketTransform
from tests.tables.batches_test import ROWS, prepare, write
from tests.tables.conftest import Target
from tests.tables.maintenance_test import NOW, maintain

from ottla.tables.batches.batch_table import BatchMaking, BatchTable, commit_batch_files
from ottla.tables.batches.upserts import conform_changes
from ottla.tables.errors import ColumnConflictError, CommitConflict, OffsetsLostError, RowNotReadableError, TableError

pytestmark = pytest.mark.slow
UPSERT, DAILY = BatchMaking(upsert=True), BatchMaking("day", upsert=True)
KINDS = pytest.mark.parametrize("kind", ["iceberg", "delta"])


def changes(*pairs: tuple[str | None, int | None], day: int = 1) -> pa.Table:
    """Keys with new values; a value that is None deletes."""
    times = [dt.datetime(2026, 1, day, tzinfo=dt.UTC)] * len(pairs)
    found = {
        "key": pa.array([key for key, _ in pairs], pa.string()),
        "n": pa.array([n for _, n in pairs], pa.int64()),
        "_deleted": pa.array([n is None for _, n in pairs], pa.bool_()),
        "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
    }
    return pa.table(found)


def stage(table: BatchTable, batch: int, *some: pa.Table, query: str = "q") -> list[str]:
    pieces = [conform_changes(each, table.columns, table.name) for each in some]
    return [name for each in pieces for name in table.write_rows(each, query, batch)]


def pairs_of(target: Target) -> dict[str, int]:
    rows = target.read_arrow().to_pylist()
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: row["n"] for row in rows}


@pytest.mark.parametrize(
    ("kind", "making"), [("iceberg", UPSERT), ("delta", UPSERT), ("iceberg", DAILY), ("delta", DAILY)]
)
def test_the_table_has_the_last_row_of_each_key(make_target: Any, kind: str, making: BatchMaking) -> None:
    target = make_target(kind)
    table = prepare(target, changes().schema, making)
    first = changes(("a", 1), ("b", 1), ("a", 2), ("gone", 1), ("gone", None)), changes(("c", 1), ("b", 2))
    commit_batch_files(table, "q", 0, files := stage(table, 0, *first))
    assert pairs_of(target) == {"a": 2, "b": 2, "c": 1}
    commit_batch_files(table, "q", 0, files)
    for driver in (table, prepare(target, changes(("a", 1)).schema, making)):
        more = changes(("b", None), ("c", 2), ("d", 1), ("never", None), day=2)
        commit_batch_files(driver, "q", 1, stage(driver, 1, more))
    assert pairs_of(target) == {"a": 2, "c": 2, "d": 1}
    # No row changes, but the batch is stored.
    commit_batch_files(table, "q", 2, stage(table, 2, changes(("never", None))))
    assert (pairs_of(target), table.last_batch("q")) == ({"a": 2, "c": 2, "d": 1}, 2)
    commit_batch_files(table, "q", 3, stage(table, 3, changes(("a", 3)).drop_columns(["n"])))
    assert pairs_of(target)["a"] is None, "nothing of the row before is left"


@KINDS
def test_keys_of_a_batch_that_is_added_again_do_not_change(make_target: Any, kind: str) -> None:
    target = make_target(kind)
    table = prepare(target, changes(("a", 1)).schema, UPSERT)
    late = prepare(target, changes(("a", 1)).schema, UPSERT)
    old = stage(table, 0, changes(("a", 1)))
    late.last_batch("q")
    commit_batch_files(table, "q", 0, old)
    commit_batch_files(table, "q", 1, stage(table, 1, changes(("a", 2))))
    # The files are deleted when the table has their rows: a driver that looked before finds them missing.
    with pytest.raises((OffsetsLostError, CommitConflict)):
        late.add_files("q", 0, old)
    late = prepare(target, changes(("a", 1)).schema, UPSERT)

    class Late:
        name, columns, looks = late.name, late.columns, 0

        def last_batch(self, query: str) -> int | None:
            self.looks += 1
            return None if self.looks == 1 else late.last_batch(query)

        def add_files(self, *arguments: Any) -> None:
            late.add_files(*arguments)

    commit_batch_files(Late(), "q", 0, old)  # type: ignore[arg-type]
    assert pairs_of(target) == {"a": 2}
    (missing,) = stage(table, 2, changes(("a", 3)))
    (path,) = [each for each in _folder(target).rglob("*") if missing.rpartition("/")[2] == each.name]
    path.unlink()
    with pytest.raises(OffsetsLostError, match="batch 2"):
        commit_batch_files(table, "q", 2, [missing])


def _folder(target: Target) -> Path:
    return Path(target.properties["warehouse"].removeprefix("file://") if target.properties else target.location)


@KINDS
def test_files_with_changes_are_no_files_of_the_table(make_target: Any, kind: str) -> None:
    target = make_target(kind)
    table = prepare(target, changes(("a", 1)).schema, UPSERT)
    commit_batch_files(table, "q", 0, files := stage(table, 0, changes(("a", 1))))
    assert not [each for each in _folder(target).rglob("*") if files[0].rpartition("/")[2] == each.name]
    # A step that was changed between the decision about a batch and its end.
    other = make_target(kind)._replace(location=target.location + "2")
    plain = prepare(other, changes(("a", 1)).drop_columns(["_deleted"]).schema)
    (left,) = stage(prepare(other, changes(("a", 1)).schema, UPSERT), 0, changes(("a", 1)))
    with pytest.raises(TableError):
        commit_batch_files(plain, "q", 0, [left])
    rows = changes(("a", 1)).drop_columns(["_deleted"])
    with pytest.raises(TableError, match="were written without upsert"):
        commit_batch_files(prepare(other, rows.schema, UPSERT), "q", 0, write(plain, 0, rows=rows))


@KINDS
def test_a_table_keeps_its_mode(make_target: Any, kind: str) -> None:
    target, rows = make_target(kind), changes(("a", 1)).drop_columns(["_deleted"])
    plain, upserts = prepare(target, rows.schema), prepare(target, rows.schema, UPSERT)
    names = write(plain, 0, "p", rows)
    plain.last_batch("p")
    commit_batch_files(upserts, "q", 0, stage(upserts, 0, rows))
    # The writer of all rows began with a table that was empty: the mode is that of the moment of the commit.
    with pytest.raises(TableError, match="has one row per key"):
        commit_batch_files(plain, "p", 0, names)
    with pytest.raises(TableError, match="has one row per key"):
        prepare(target, rows.schema)
    assert pairs_of(target) == {"a": 1}
    other = target._replace(location=target.location + "2")
    plain = prepare(other, ROWS.rename_columns(["n", "key"]).schema)
    commit_batch_files(plain, "p", 0, write(plain, 0, "p", ROWS.rename_columns(["n", "key"])))
    with pytest.raises(TableError, match="has all records"):
        prepare(other, ROWS.rename_columns(["n", "key"]).schema, UPSERT)


def test_a_commit_to_a_delta_table_that_changed_is_not_repeated_without_a_look(make_target: Any) -> None:
    target, rows = make_target("delta"), changes(("a", 1)).drop_columns(["_deleted"])
    plain, upserts = prepare(target, rows.schema), prepare(target, rows.schema, UPSERT)
    names = write(plain, 0, "p", rows)
    plain.last_batch("p")
    commit_batch_files(upserts, "q", 0, stage(upserts, 0, rows))
    with pytest.raises(CommitConflict):
        plain.add_files("p", 0, names)
    assert pairs_of(target) == {"a": 1}


def test_the_mode_and_the_batches_survive_maintenance(make_target: Any) -> None:
    target = make_target("iceberg")
    rows = changes(("a", 1)).schema
    table = prepare(target, rows, UPSERT)
    for batch in range(3):
        commit_batch_files(table, "q", batch, stage(table, batch, changes((f"k{batch}", batch))))
    assert maintain(target, NOW).snapshots_expired
    table = prepare(target, rows, UPSERT)
    assert table.last_batch("q") == 2
    with pytest.raises(TableError, match="has one row per key"):
        prepare(target, changes(("a", 1)).drop_columns(["_deleted"]).schema)


def test_keys_of_a_table_with_hashes_change(make_target: Any) -> None:
    target = make_target("iceberg")
    rows = changes(("a", 1)).schema
    prepare(target, rows, UPSERT)
    with load_catalog("default", **target.properties).load_table(target.location).update_spec() as update:
        update.add_field("key", BucketTransform(4), "bucket")
    table = prepare(target, rows, UPSERT)
    for batch in range(2):
        some = changes(*((f"k{number}", batch) for number in range(10 * batch, 20)))
        commit_batch_files(table, "q", batch, stage(table, batch, some))
    assert pairs_of(target) == {f"k{number}": int(number >= 10) for number in range(20)}


@KINDS
def test_rows_that_are_no_changes_are_refused(make_target: Any, kind: str) -> None:
    target, rows = make_target(kind), changes(("a", 1), (None, 2))
    table = prepare(target, rows.schema, UPSERT)
    with pytest.raises(RowNotReadableError, match="a row has no key"):
        stage(table, 0, rows)
    for wrong in (rows.drop_columns(["key"]), rows.set_column(0, "key", pa.array([1.5, 2.5]))):
        with pytest.raises(ColumnConflictError, match="upsert needs a column key of bytes, text or integers"):
            prepare(target, wrong.schema, UPSERT)
    with pytest.raises(ColumnConflictError, match="the column _deleted is string"):
        prepare(target, rows.set_column(2, "_deleted", pa.array(["a", "b"])).schema, UPSERT)


@KINDS
def test_a_row_without_a_value_deletes(make_target: Any, kind: str) -> None:
    target = make_target(kind)
    rows = pa.table({"key": pa.array([1, 2], pa.int64()), "value": [b"x", b"y"], "n": [1, 2]})
    table = prepare(target, rows.schema, UPSERT)
    commit_batch_files(table, "q", 0, stage(table, 0, rows))
    commit_batch_files(table, "q", 1, stage(table, 1, rows.set_column(1, "value", pa.array([None, b"z"]))))
    assert [(row["key"], row["value"]) for row in target.read_arrow().to_pylist()] == [(2, b"z")]
