"""A topic as a table: once each, whatever stops the copy; wrong tables and topics are refused by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import BucketTransform
from tests.tables.conftest import Target, Topic, sorted_rows

from ottla.client import Admin, ClientConfig, Cluster, NewTopic, TopicPartition
from ottla.tables.copying import CopyOptions, TopicCopy
from ottla.tables.errors import (
    ConcurrentWriterError,
    OffsetsLostError,
    OffsetsOutsideTopicError,
    TableError,
    TopicRecreatedError,
)
from ottla.tables.formats import open_table
from ottla.tables.offsets import TableOffsets
from ottla.tables.rows import BYTES, BytesRows, Layout
from ottla.tables.writers import Making

pytestmark = pytest.mark.slow


def copy_topic(
    topic: Topic, target: Target, *, partition_by: str = "none", layout: Layout = BYTES, **options: Any
) -> int:
    """Returns the number of new rows."""
    chosen = CopyOptions(exit_at_end=True)._replace(**options)
    properties = dict(target.properties)
    table = open_table(target.kind, target.location, topic.name, Making(layout, partition_by), properties=properties)
    rows = BytesRows(layout)
    with closing(table) as writer, closing(TopicCopy(topic.settings, topic.name, writer, chosen, rows)) as copy:
        copy.copy_records(lambda: False, lambda *_: None)
        return copy.rows


def test_copies_the_topic_and_continues_where_the_table_ends(topic: Topic, target: Target) -> None:
    topic.send(0, 40)
    assert copy_topic(topic, target) == 40
    assert copy_topic(topic, target) == 0
    topic.send(40, 21)
    assert copy_topic(topic, target, commit_bytes=1) == 21
    assert sorted_rows(target.read_arrow()) == sorted_rows(target.read_duckdb()) == topic.rows(61)


def test_headers_and_timestamps_are_columns(topic: Topic, target: Target) -> None:
    topic.send(0, 6)
    copy_topic(topic, target)
    found = {row["key"]: row for row in target.read_arrow().to_pylist()}
    assert found[b"key-5"]["headers"] == [{"key": "n", "value": b"5"}]
    assert not found[b"key-1"]["headers"]
    assert found[b"key-1"]["timestamp"].year >= 2024


def test_files_are_compressed_with_zstd(topic: Topic, target: Target, tmp_path: Path) -> None:
    topic.send(0, 6)
    copy_topic(topic, target)
    files = list(tmp_path.rglob("*.parquet"))
    assert files
    for metadata in map(pq.read_metadata, files):
        assert {metadata.row_group(0).column(at).compression for at in range(metadata.num_columns)} == {"ZSTD"}


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
@pytest.mark.parametrize("by", ["day", "hour"])
def test_partitions_by_the_timestamp(topic: Topic, make_target: Callable[[str], Target], kind: str, by: str) -> None:
    target = make_target(kind)
    topic.send(0, 10)
    copy_topic(topic, target, partition_by=by)
    topic.send(10, 10)
    copy_topic(topic, target, partition_by=by)
    assert sorted_rows(target.read_arrow()) == topic.rows(20)
    with pytest.raises(TableError, match=f"is partitioned by {by}, not by none"):
        copy_topic(topic, target)


def test_an_iceberg_table_is_partitioned_by_the_hash_of_the_key(
    topic: Topic, make_target: Callable[[str], Target]
) -> None:
    target = make_target("iceberg")
    for start in (0, 20):
        topic.send(start, 20)
        copy_topic(topic, target, partition_by="bucket[4]")
    assert sorted_rows(target.read_arrow()) == topic.rows(40)
    table = load_catalog("default", **target.properties).load_table(target.location)
    hashed = BucketTransform(4).transform(table.schema().find_type("key"))
    wanted, files = defaultdict[int | None, set[bytes | None]](set), defaultdict[int | None, set[bytes | None]](set)
    for _partition, _offset, key, _value in topic.rows(40):
        wanted[hashed(key)].add(key)
    for task in table.scan().plan_files():
        rows = pq.read_table(task.file.file_path.removeprefix("file://"))
        files[task.file.partition[0]].update(rows["key"].to_pylist())
    assert files == wanted
    with pytest.raises(TableError, match="is partitioned by bucket_4, not by bucket_8"):
        copy_topic(topic, target, partition_by="bucket[8]")
    with pytest.raises(TableError, match="delta cannot be partitioned by bucket"):
        copy_topic(topic, make_target("delta"), partition_by="bucket[4]")


def test_parquet_is_not_partitioned(topic: Topic, make_target: Callable[[str], Target]) -> None:
    with pytest.raises(TableError, match="cannot be partitioned by day"):
        copy_topic(topic, make_target("parquet"), partition_by="day")


def test_a_second_writer_is_refused(topic: Topic, target: Target) -> None:
    topic.send(0, 4)
    copy_topic(topic, target)
    topic.send(4, 4)
    table = open_table(target.kind, target.location, topic.name, properties=dict(target.properties))
    overtaken = []

    def overtake() -> bool:
        if not overtaken:
            overtaken.append(True)
            copy_topic(topic, target)
        return False

    options = CopyOptions(exit_at_end=True)
    with (
        closing(table) as writer,
        closing(TopicCopy(topic.settings, topic.name, writer, options)) as copy,
        pytest.raises(ConcurrentWriterError),
    ):
        copy.copy_records(overtake, lambda *_: None)
    wanted = 4 if target.kind == "parquet" else 8  # its lock refuses the other writer, before that writes
    assert sorted_rows(target.read_arrow()) == topic.rows(wanted)
    copy_topic(topic, target)
    assert sorted_rows(target.read_arrow()) == topic.rows(8)


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_of_two_commits_at_once_one_is_refused(topic: Topic, make_target: Callable[[str], Target], kind: str) -> None:
    """The second writer has read the offsets before the first commits: the commit itself must fail."""
    from ottla.tables.errors import CommitConflict

    target, properties = make_target(kind), dict(make_target(kind).properties)
    topic.send(0, 4)
    copy_topic(topic, target)
    rows = target.read_arrow()
    first = open_table(kind, target.location, topic.name, properties=properties)
    second = open_table(kind, target.location, topic.name, properties=properties)
    before = first.read_offsets()
    assert before is not None
    assert second.read_offsets() == before
    after = TableOffsets(before.topic_id, {0: 4, 1: 4})
    first.append_rows(rows, before, after)
    with pytest.raises(CommitConflict):
        second.append_rows(rows, before, after)
    assert target.read_arrow().num_rows == 2 * rows.num_rows
    assert second.read_offsets() == after


def recreate(topic: Topic) -> None:
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": topic.bootstrap})) as cluster:
        admin = Admin(cluster)
        admin.delete_topics([topic.name])
        admin.create_topics([NewTopic(topic.name, 2, 1)])


def test_a_topic_that_was_created_again_is_refused(topic: Topic, target: Target) -> None:
    topic.send(0, 4)
    copy_topic(topic, target)
    recreate(topic)
    topic.send(0, 10)
    with pytest.raises(TopicRecreatedError, match="was created again"):
        copy_topic(topic, target)
    assert sorted_rows(target.read_arrow()) == topic.rows(4)


def test_deleted_records_are_skipped_only_on_request(topic: Topic, target: Target) -> None:
    topic.send(0, 4)
    copy_topic(topic, target)
    topic.send(4, 6)
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": topic.bootstrap})) as cluster:
        Admin(cluster).delete_records({TopicPartition(topic.name, 0): 4})
    with pytest.raises(OffsetsOutsideTopicError, match="--skip-deleted"):
        copy_topic(topic, target)
    copy_topic(topic, target, skip_deleted=True)
    wanted = [row for row in topic.rows(10) if row[:2] not in {(0, 2), (0, 3)}]
    assert sorted_rows(target.read_arrow()) == wanted
    assert copy_topic(topic, target) == 0


def test_a_table_of_another_origin_is_refused(topic: Topic, target: Target) -> None:
    topic.send(0, 2)
    copy_topic(topic, target)
    other = topic._replace(name=f"{topic.name}-other")
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": topic.bootstrap})) as cluster:
        Admin(cluster).create_topics([NewTopic(other.name, 2, 1)])
    other.send(0, 2)
    with pytest.raises(OffsetsLostError):
        copy_topic(other, target)
    assert sorted_rows(target.read_arrow()) == topic.rows(2)


def test_a_missing_parquet_file_is_found(topic: Topic, make_target: Callable[[str], Target]) -> None:
    target = make_target("parquet")
    for first in (0, 4, 8):
        topic.send(first, 4)
        copy_topic(topic, target)
    sorted(Path(target.location).glob("*-0-*.parquet"))[1].unlink()
    with pytest.raises(OffsetsLostError, match="offsets of partition 0 are missing: 2 to 4"):
        copy_topic(topic, target)


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_commits_of_others_do_not_hide_the_offsets(
    topic: Topic, make_target: Callable[[str], Target], kind: str
) -> None:
    from deltalake import DeltaTable
    from pyiceberg.catalog import load_catalog

    target = make_target(kind)
    topic.send(0, 4)
    copy_topic(topic, target)
    if kind == "iceberg":
        table = load_catalog("default", **target.properties).load_table(target.location)
        table.overwrite(table.scan().to_arrow())
    else:
        DeltaTable(target.location).optimize.compact()
    topic.send(4, 4)
    assert copy_topic(topic, target) == 4
    assert sorted_rows(target.read_arrow()) == topic.rows(8)
