"""Maintenance of tables: the rows and the offsets stay, whoever commits at the same time."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from tests.tables.conftest import Target, Topic, sorted_rows
from tests.tables.copying_test import copy_topic
from tests.tables.upsert_test import copy_upserts, pairs_of, send

from ottla.cli.main import cli
from ottla.tables.errors import CommitConflict, TableError
from ottla.tables.formats import open_maintainer
from ottla.tables.maintenance.iceberg import IcebergMaintainer
from ottla.tables.maintenance.plan import MaintenanceOptions, MaintenanceReport

pytestmark = pytest.mark.slow

BOTH = pytest.mark.parametrize("kind", ["iceberg", "delta"])
DEFAULT = MaintenanceOptions()
NOW = MaintenanceOptions(older_than_s=0)


def maintain(target: Target, options: MaintenanceOptions = DEFAULT, **given: Any) -> MaintenanceReport:
    maintainer = open_maintainer(target.kind, target.location, properties=target.properties)
    return maintainer.maintain_table(options, given.get("on_compacted", lambda *_: None))


def maintain_all(target: Target, **given: Any) -> MaintenanceReport:
    """Also old snapshots of a table that is new. Delta keeps its versions for a week at least."""
    return maintain(target, NOW if target.kind == "iceberg" else DEFAULT, **given)


def copy_pieces(topic: Topic, target: Target, pieces: int = 3, first: int = 0, **options: Any) -> int:
    """A commit for each piece of four records; returns the number of records that the topic has then."""
    for piece in range(pieces):
        topic.send(first + 4 * piece, 4)
        copy_topic(topic, target, **options)
    return first + 4 * pieces


def iceberg_table(target: Target) -> Table:
    return load_catalog("default", **target.properties).load_table(target.location)


def files_of(target: Target) -> list[str]:
    if target.kind == "delta":
        return DeltaTable(target.location).file_uris()
    return [task.file.file_path for task in iceberg_table(target).scan().plan_files()]


def age_files(folder: Path, days: int = 2) -> None:
    """Make all files older than a day."""
    then = time.time() - days * 86_400
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


@pytest.mark.parametrize(
    ("kind", "by"),
    [("iceberg", "none"), ("iceberg", "hour"), ("iceberg", "bucket[4]"), ("delta", "none"), ("delta", "hour")],
)
def test_the_copy_continues_after_compaction_and_expiry(
    topic: Topic, make_target: Callable[[str], Target], kind: str, by: str
) -> None:
    target = make_target(kind)
    end = copy_pieces(topic, target, partition_by=by)
    before = sorted_rows(target.read_arrow())
    report = maintain_all(target)
    if by == "none":  # the hour may end between the pieces
        assert (report.files_compacted, report.files_written, report.commits) == (3, 1, 1)
        assert len(files_of(target)) == 1
    assert sorted_rows(target.read_arrow()) == sorted_rows(target.read_duckdb()) == before == topic.rows(end)
    if kind == "iceberg" and by == "none":
        assert report.snapshots_expired == 3
        assert len(iceberg_table(target).snapshots()) == 1
    assert copy_topic(topic, target, partition_by=by) == 0
    end = copy_pieces(topic, target, 2, end, partition_by=by)
    maintain_all(target)
    assert sorted_rows(target.read_arrow()) == sorted_rows(target.read_duckdb()) == topic.rows(end)
    assert copy_topic(topic, target, partition_by=by) == 0


@BOTH
def test_a_table_without_small_files_stays_as_it_is(
    topic: Topic, make_target: Callable[[str], Target], kind: str
) -> None:
    target = make_target(kind)
    maintained = copy_pieces(topic, target, 1)
    files = files_of(target)
    assert maintain_all(target).commits == 0
    assert maintain(target, MaintenanceOptions(target_bytes=1)).commits == 0
    assert files_of(target) == files
    assert sorted_rows(target.read_arrow()) == topic.rows(maintained)


@BOTH
def test_rows_with_one_per_key_stay_so(topic: Topic, make_target: Callable[[str], Target], kind: str) -> None:
    target = make_target(kind)
    for step in range(3):
        send(topic, ("a", str(step)), (f"k{step}", "1"))
        copy_upserts(topic, target)
    wanted = pairs_of(target)
    maintain_all(target)
    assert pairs_of(target) == wanted
    assert copy_upserts(topic, target) == 0
    send(topic, ("a", None), ("k1", "2"))
    assert copy_upserts(topic, target) == 2
    assert pairs_of(target) == {b"k0": b"1", b"k1": b"2", b"k2": b"1"}
    with pytest.raises(TableError, match="has one row per key"):
        copy_topic(topic, target)


class OvertakenCatalog(SqlCatalog):
    """A catalog to which another writer commits before each commit."""

    overtake: ClassVar[Callable[[], object]]

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        type(self).overtake()
        return super().commit_table(table, requirements, updates)


def maintain_overtaken(target: Target, overtake: Callable[[], object]) -> MaintenanceReport:
    OvertakenCatalog.overtake = overtake
    name = f"{OvertakenCatalog.__module__}.{OvertakenCatalog.__name__}"
    return maintain(target._replace(properties={**target.properties, "py-catalog-impl": name}))


def test_a_commit_that_a_copy_overtook_has_the_newer_offsets(
    topic: Topic, make_target: Callable[[str], Target]
) -> None:
    target = make_target("iceberg")
    ends = [copy_pieces(topic, target)]

    def overtake() -> None:
        if len(ends) == 1:
            ends.append(copy_pieces(topic, target, 1, ends[0]))

    assert maintain_overtaken(target, overtake).commits == 1
    assert copy_topic(topic, target) == 0
    assert sorted_rows(target.read_arrow()) == sorted_rows(target.read_duckdb()) == topic.rows(ends[1])


def test_files_that_an_earlier_attempt_committed_stay(topic: Topic, make_target: Callable[[str], Target]) -> None:
    target, report = make_target("iceberg"), MaintenanceReport()
    end = copy_pieces(topic, target)
    maintainer = IcebergMaintainer(target.location, "default", target.properties)
    written = list(maintainer._rewrite_files(DEFAULT, report))
    for _ in range(2):
        maintainer._commit_rewritten(written.copy(), report)
    assert copy_topic(topic, target) == 0
    assert sorted_rows(target.read_arrow()) == sorted_rows(target.read_duckdb()) == topic.rows(end)


def test_compaction_of_delta_follows_a_copy(topic: Topic, make_target: Callable[[str], Target]) -> None:
    target = make_target("delta")
    end = copy_pieces(topic, target)
    maintainer = open_maintainer("delta", target.location)
    end = copy_pieces(topic, target, 1, end)  # the maintainer has read an older version
    assert maintainer.maintain_table(DEFAULT, lambda *_: None).commits == 1
    assert copy_topic(topic, target) == 0
    assert sorted_rows(target.read_arrow()) == topic.rows(end)


def test_rows_that_another_writer_changed_are_not_brought_back(
    topic: Topic, make_target: Callable[[str], Target]
) -> None:
    target = make_target("iceberg")
    for step in range(3):
        send(topic, ("a", str(step)), (f"k{step}", "1"))
        copy_upserts(topic, target)

    def change_rows(*_: int) -> None:
        send(topic, ("a", None), ("k0", "2"), ("k1", "2"), ("k2", "2"))
        copy_upserts(topic, target)

    report = maintain(target, on_compacted=change_rows)
    assert report.commits == 0
    assert pairs_of(target) == {b"k0": b"2", b"k1": b"2", b"k2": b"2"}
    assert copy_upserts(topic, target) == 0


def test_conflicts_end(topic: Topic, make_target: Callable[[str], Target]) -> None:
    target = make_target("iceberg")
    end = copy_pieces(topic, target)
    table = iceberg_table(target)

    def overtake() -> None:
        table.refresh().append(table.schema().as_arrow().empty_table())

    with pytest.raises(CommitConflict, match="10 commits of compacted files lost"):
        maintain_overtaken(target, overtake)
    assert sorted_rows(target.read_arrow()) == topic.rows(end)


def test_the_snapshot_with_the_offsets_is_kept(topic: Topic, make_target: Callable[[str], Target]) -> None:
    """Another program's snapshot without offsets is above it, and nothing is left to compact."""
    target = make_target("iceberg")
    end = copy_pieces(topic, target)
    table = iceberg_table(target)
    table.overwrite(table.scan().to_arrow())
    assert maintain(target, NOW).snapshots_expired == 2
    assert copy_topic(topic, target) == 0
    assert sorted_rows(target.read_arrow()) == topic.rows(end)


def test_tags_and_the_table_s_own_settings_are_obeyed(topic: Topic, make_target: Callable[[str], Target]) -> None:
    target = make_target("iceberg")
    copy_pieces(topic, target, 4)
    table = iceberg_table(target)
    first = table.snapshots()[0].snapshot_id
    table.manage_snapshots().create_tag(first, "audit").commit()
    with table.transaction() as transaction:
        transaction.set_properties({"history.expire.min-snapshots-to-keep": "2"})
    assert maintain(target).snapshots_expired == 0  # none is 5 days old
    assert maintain(target, NOW).snapshots_expired == 2
    kept = [each.snapshot_id for each in iceberg_table(target).snapshots()]
    assert kept[0] == first
    assert len(kept) == 3


def test_only_old_files_that_no_snapshot_names_are_deleted(
    topic: Topic, make_target: Callable[[str], Target], tmp_path: Path
) -> None:
    target = make_target("iceberg")
    end = copy_pieces(topic, target)
    folder = tmp_path / "lake" / "orders"
    left = folder / "data" / "00000-0-left.parquet"  # of a writer that was killed
    left.write_bytes(b"PAR1")
    other = folder / "data" / "notes.txt"
    other.write_text("not a file of the table")
    assert maintain(target, NOW).files_deleted == 0, "the files of a commit that is being made are young"
    age_files(folder)
    planned = maintain(target, NOW._replace(is_dry_run=True)).files_deleted
    assert left.exists()
    # Three files of rows, the manifests and lists of three snapshots, and the file that was left.
    assert planned == maintain(target, NOW).files_deleted >= 10
    assert not left.exists()
    assert other.exists()
    assert len(list((folder / "data").glob("*.parquet"))) == 1
    assert sorted_rows(target.read_arrow()) == sorted_rows(target.read_duckdb()) == topic.rows(end)
    assert copy_topic(topic, target) == 0


def test_the_transactions_of_delta_survive_checkpoints(topic: Topic, make_target: Callable[[str], Target]) -> None:
    target = make_target("delta")
    end = copy_pieces(topic, target)
    maintain(target)
    table = DeltaTable(target.location)
    table.create_checkpoint()
    for path in Path(target.location, "_delta_log").glob("*.json"):
        path.unlink()  # as the cleanup of the log does
    assert copy_topic(topic, target) == 0
    assert sorted_rows(target.read_arrow()) == topic.rows(end)


def test_transactions_that_expire_are_refused(topic: Topic, make_target: Callable[[str], Target]) -> None:
    target = make_target("delta")
    copy_pieces(topic, target)
    DeltaTable(target.location).alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 1 hours"}, raise_if_not_exists=False
    )
    with pytest.raises(TableError, match="drops the offsets"):
        maintain(target)
    assert len(files_of(target)) == 3


def ottla(*words: str) -> Result:
    return CliRunner().invoke(cli, ["table", *words])


@BOTH
def test_the_command_shows_what_it_would_do_and_does_it(
    topic: Topic, make_target: Callable[[str], Target], kind: str
) -> None:
    target = make_target(kind)
    end = copy_pieces(topic, target)
    properties = [f"--property={key}={value}" for key, value in target.properties.items()]
    words = ["maintain", target.location, "--format", kind, *properties, "-o", "json"]
    planned = json.loads(ottla(*words, "--dry-run").stdout)
    assert (planned["dry_run"], planned["files_compacted"], planned["files_written"]) == (True, 3, 1)
    assert len(files_of(target)) == 3
    done = json.loads(ottla(*words).stdout)
    assert (done["dry_run"], done["files_compacted"], done["files_written"], done["commits"]) == (False, 3, 1, 1)
    assert planned["bytes_compacted"] == done["bytes_compacted"] > done["bytes_written"] > 0
    assert sorted_rows(target.read_arrow()) == topic.rows(end)
    assert "files compacted    0 to 0" in ottla(*words[:-2]).stdout


def test_what_cannot_be_maintained_is_refused(make_target: Callable[[str], Target]) -> None:
    words = ["--format", "parquet"]
    result = ottla("maintain", "/data/orders", *words)
    assert result.exit_code == 1
    assert "cannot be maintained" in result.stderr
    target = make_target("iceberg")
    properties = [f"--property={key}={value}" for key, value in target.properties.items()]
    assert "is not there" in ottla("maintain", "lake.orders", "--format", "iceberg", *properties).stderr
    target = make_target("delta")
    assert "is not there" in ottla("maintain", target.location, "--format", "delta").stderr
    assert "is not a duration" in ottla("maintain", "x", "--format", "delta", "--older-than", "old").stderr


def test_a_delta_table_keeps_versions_for_its_retention(topic: Topic, make_target: Callable[[str], Target]) -> None:
    target = make_target("delta")
    copy_pieces(topic, target)
    result = ottla("maintain", target.location, "--format", "delta", "--older-than", "1h")
    assert result.exit_code == 1
    assert "168 hours" in result.stderr
