"""One row per key: the last record's; a record without a value deletes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.tables.conftest import Target, Topic
from tests.tables.copying_test import copy_topic

from ottla.client import Producer
from ottla.tables.errors import RowNotReadableError, TableError
from ottla.tables.rows import BYTES

pytestmark = pytest.mark.slow

UPSERT = BYTES._replace(is_upsert=True)


def send(topic: Topic, *pairs: tuple[str | None, str | None]) -> None:
    with Producer(topic.settings) as producer:
        for key, value in pairs:
            encoded = [None if each is None else each.encode() for each in (key, value)]
            producer.send(topic.name, encoded[1], key=encoded[0], partition=0)


def copy_upserts(topic: Topic, target: Target, by: str = "none") -> int:
    return copy_topic(topic, target, partition_by=by, layout=UPSERT)


def pairs_of(target: Target) -> dict[bytes, bytes | None]:
    rows = target.read_arrow().to_pylist()
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: row["value"] for row in rows}


@pytest.mark.parametrize(
    ("kind", "by"),
    [("iceberg", "none"), ("delta", "none"), ("iceberg", "day"), ("delta", "day"), ("iceberg", "bucket[4]")],
)
def test_the_table_has_the_last_value_of_each_key(
    topic: Topic, make_target: Callable[[str], Target], kind: str, by: str
) -> None:
    target = make_target(kind)
    send(topic, ("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("gone", "1"), ("gone", None))
    assert copy_upserts(topic, target, by) == 6
    assert pairs_of(target) == {b"a": b"2", b"b": b"1", b"c": b"1"}
    send(topic, ("b", None), ("c", "2"), ("d", "1"), ("never", None))
    copy_upserts(topic, target, by)
    assert pairs_of(target) == {b"a": b"2", b"c": b"2", b"d": b"1"}
    send(topic, ("never", None))
    assert copy_upserts(topic, target, by) == 1
    # Nothing changed, but the offsets are stored: the tombstone is not read again.
    assert copy_upserts(topic, target, by) == 0
    assert pairs_of(target) == {b"a": b"2", b"c": b"2", b"d": b"1"}


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_table_keeps_its_mode(topic: Topic, make_target: Callable[[str], Target], kind: str) -> None:
    target = make_target(kind)
    send(topic, ("a", "1"))
    copy_upserts(topic, target)
    with pytest.raises(TableError, match="has one row per key"):
        copy_topic(topic, target)


def test_records_without_a_key_are_refused(topic: Topic, make_target: Callable[[str], Target]) -> None:
    send(topic, ("a", "1"), (None, "2"))
    with pytest.raises(RowNotReadableError, match="offset 1 is not a row of the table: an upsert needs a key"):
        copy_upserts(topic, make_target("delta"))


def test_files_of_a_folder_are_never_changed(topic: Topic, make_target: Callable[[str], Target]) -> None:
    with pytest.raises(TableError, match="cannot have one row per key"):
        copy_upserts(topic, make_target("parquet"))
