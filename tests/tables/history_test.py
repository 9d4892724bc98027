"""The history in a table: its files and the offsets after them, as of one moment, and the tables that have none."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestWriterV2
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record
from tests.tables.conftest import Target, Topic, sorted_rows
from tests.tables.copying_test import copy_topic
from tests.tables.upsert_test import UPSERT

from ottla.tables.errors import OffsetsLostError, TableError
from ottla.tables.history import history
from ottla.tables.history.history import History, open_history

pytestmark = pytest.mark.slow


def read(target: Target, topic: str) -> History:
    return open_history(target.kind, target.location, topic, properties=target.properties)


def paths(found: History) -> list[str]:
    return [each.removeprefix("file://") for each in found.files]


def test_files_and_offsets_belong_together(topic: Topic, target: Target) -> None:
    for at in (0, 30):
        topic.send(at, 30)
        copy_topic(topic, target)
    found = read(target, topic.name)
    assert found.offsets is not None
    assert found.offsets.next_offsets == {0: 30, 1: 30}
    rows = duckdb.connect().sql("SELECT * FROM read_parquet($1)", params=[paths(found)]).to_arrow_table()
    assert sorted_rows(rows) == topic.rows(60)


def test_a_table_without_rows_has_no_offsets(topic: Topic, target: Target) -> None:
    copy_topic(topic, target)
    found = read(target, topic.name)
    assert (list(found.files), found.offsets) == ([], None)


def test_a_table_that_is_not_there_is_not_made(topic: Topic, target: Target, tmp_path: Path) -> None:
    with pytest.raises(TableError, match="is not there"):
        read(target, topic.name)
    assert not (tmp_path / "table").exists()


def test_a_table_of_another_topic_is_refused(topic: Topic, target: Target) -> None:
    topic.send(0, 4)
    copy_topic(topic, target)
    with pytest.raises(OffsetsLostError):
        read(target, "another")


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_partitions_of_the_table_are_no_columns_of_rows(
    topic: Topic, make_target: Callable[[str], Target], kind: str
) -> None:
    target = make_target(kind)
    topic.send(0, 4)
    copy_topic(topic, target, partition_by="day")
    assert len(read(target, topic.name).files) == 1


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_changes_of_keys_are_no_rows_of_a_table_by_key(
    topic: Topic, make_target: Callable[[str], Target], kind: str
) -> None:
    target = make_target(kind)
    topic.send(0, 4)
    copy_topic(topic, target, layout=UPSERT)
    with pytest.raises(TableError, match="has one row per key"):
        read(target, topic.name)


def test_deletion_vectors_are_refused(topic: Topic, make_target: Callable[[str], Target]) -> None:
    target = make_target("delta")
    topic.send(0, 4)
    copy_topic(topic, target)
    DeltaTable(target.location).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(TableError, match="has deletion vectors"):
        read(target, topic.name)


class DeletesWriter(ManifestWriterV2):
    """Manifests of delete files, which pyiceberg reads and does not write."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class AddDeletes(_FastAppendFiles):
    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriterV2:
        return DeletesWriter(spec, self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression)


def delete_row(table: Table, path: str, position: int) -> None:
    """Delete a row as Spark does with merge-on-read: a file names its position."""
    place = f"{table.location()}/data/deletes.parquet"
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), False, {b"PARQUET:field_id": b"2147483546"}),
            pa.field("pos", pa.int64(), False, {b"PARQUET:field_id": b"2147483545"}),
        ]
    )
    pq.write_table(pa.table({"file_path": [path], "pos": [position]}, schema), place.removeprefix("file://"))
    size = Path(place.removeprefix("file://")).stat().st_size
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=place,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=size,
        lower_bounds={2147483546: path.encode()},
        upper_bounds={2147483546: path.encode()},
    )
    file.spec_id = 0
    with table.transaction() as transaction, AddDeletes(Operation.APPEND, transaction, table.io) as append:
        append.append_data_file(file)


def test_rows_that_delete_files_of_iceberg_delete_are_no_history(
    topic: Topic, make_target: Callable[[str], Target]
) -> None:
    target = make_target("iceberg")
    topic.send(0, 4)
    copy_topic(topic, target)
    table = load_catalog("default", **target.properties).load_table(target.location)
    (task,) = table.scan().plan_files()
    delete_row(table, task.file.file_path, 0)
    assert target.read_arrow().num_rows == 3, "pyiceberg reads the file as a deletion"
    with pytest.raises(TableError, match="has delete files, which another program wrote"):
        read(target, topic.name)


def test_a_list_of_files_that_lacks_one_is_read_again(
    topic: Topic, make_target: Callable[[str], Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make_target("parquet")
    for at in range(3):
        topic.send(at * 2, 2)
        copy_topic(topic, target)
    looks, wrong, listdir = count(1), 2, os.listdir

    def list_while_written(folder: Path) -> list[str]:
        names = sorted(listdir(folder))
        return names if next(looks) > wrong else [each for each in names if f"{1:020d}-{2:020d}" not in each]

    monkeypatch.setattr(os, "listdir", list_while_written)
    found = read(target, topic.name)
    assert len(found.files) == 6
    assert found.offsets is not None
    assert found.offsets.next_offsets == {0: 3, 1: 3}
    looks, wrong = count(1), 100
    with pytest.raises(OffsetsLostError, match="are missing: 1 to 2"):
        read(target, topic.name)
    assert next(looks) == 6, "the files are missing indeed: it does not look forever"


def test_a_missing_file_of_a_folder_is_noticed(topic: Topic, make_target: Callable[[str], Target]) -> None:
    target = make_target("parquet")
    for at in range(3):
        topic.send(at * 2, 2)
        copy_topic(topic, target)
    sorted(Path(target.location).glob(f"{topic.name}-0-*.parquet"))[1].unlink()
    with pytest.raises(OffsetsLostError, match="offsets of partition 0 are missing: 1 to 2"):
        read(target, topic.name)


def test_a_table_of_too_many_files_is_refused(topic: Topic, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_FILES", 0)
    topic.send(0, 4)
    copy_topic(topic, target)
    with pytest.raises(TableError, match="and at most 0 are read"):
        read(target, topic.name)
