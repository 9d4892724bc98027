"""The offsets of the source's group in the transaction of the rows, without a broker: when, how far, and when not."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from ottla.client.positions import OffsetAndMetadata
from ottla.spark.errors import BadRows, OffsetsOutside
from ottla.spark.offset_metadata import held_until, mark_held, mark_offsets, may_replace, query_of
from ottla.spark.sink.exactly_once import TaskBatch
from ottla.spark.sink.sink_options import Scope, sink_options
from ottla.spark.source.source_positions import COLUMN, Sources, TaskPosition, check_source_column, next_offsets
from ottla.types import TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
ORIGIN = pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
Row = tuple[str, int, int] | None


def origins(rows: Sequence[Row]) -> pa.Array:
    return pa.array([None if row is None else dict(zip(ORIGIN.names, row, strict=True)) for row in rows], ORIGIN)


def batch(rows: Sequence[Row]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(["v"] * len(rows)), origins(rows)], names=["value", COLUMN])


def sources(notes: Sequence[TaskPosition], scope: Scope = Scope.PARTITION, **options: str) -> Sources:
    once = sink_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", **options}).once
    return Sources(once, scope, lambda: notes, lambda: "here")


def found(given: Sources, rows: Sequence[Row] = (("orders", 0, 1),)) -> dict[str, dict[TopicPartition, int]]:
    list(given.watch_batches([batch(rows)]))
    return given.known_positions()


def test_by_partition_the_end_of_what_the_task_has_read_counts() -> None:
    """Not its last row: the others may have been filtered away."""
    notes = [TaskPosition("here", "shop", P0, 100), TaskPosition("here", "shop", P1, 7)]
    assert found(sources(notes)) == {"shop": {P0: 100, P1: 7}}
    assert found(sources(notes, sourceGroup="shop")) == {"shop": {P0: 100, P1: 7}}
    assert found(sources(notes), []) == {"shop": {P0: 100, P1: 7}}, "all were"


@pytest.mark.parametrize(
    ("notes", "options", "text"),
    [
        ([], {}, "were not read from topics in the task"),
        ([TaskPosition("there", "shop", P0, 9)], {}, "on different clusters"),
        ([TaskPosition(None, "shop", P0, 9)], {}, "on different clusters"),
        ([TaskPosition(None, None, P0, 9)], {}, "by several tasks"),
        ([TaskPosition("here", "shop", P0, 9)], {"sourceGroup": "other"}, "is not the source's"),
        ([TaskPosition("here", "shop", P0, 9), TaskPosition(None, None, P1, 9)], {}, "orders-0 is read"),
    ],
)
def test_where_it_cannot_be_it_is_not_and_where_it_must_be_it_is_refused(
    notes: list[TaskPosition], options: dict[str, str], text: str
) -> None:
    fit = [one for one in notes if one.cluster == "here" and not options]
    assert found(sources(notes, **options)) == ({"shop": {P0: 9}} if fit else {})
    assert found(sources(notes, offsetsInTransaction="false", **options)) == {}
    with pytest.raises(OffsetsOutside, match="offsetsInTransaction=true is impossible"):
        found(sources(notes, offsetsInTransaction="true", **options))
    if len(notes) < 2:
        with pytest.raises(OffsetsOutside, match=text):
            found(sources(notes, offsetsInTransaction="true", **options))


def test_a_task_without_rows_is_nothing_to_refuse() -> None:
    assert found(sources([], offsetsInTransaction="true"), []) == {}


def test_a_whole_batch_counts_up_to_its_last_row_of_each_partition() -> None:
    rows: list[Row] = [("orders", 0, 4), ("orders", 1, 7), None, ("orders", 0, 2), ("refunds", 1, 0)]
    named = {"sourceGroup": "shop"}
    assert found(sources([], Scope.BATCH, **named), rows) == {"shop": {P0: 5, P1: 8, TopicPartition("refunds", 1): 1}}
    assert found(sources([], Scope.BATCH), rows) == {}, "no group was named"
    assert found(sources([], Scope.PARTITION, **named), rows) == {}, "other tasks may have earlier rows of these"
    assert found(sources([TaskPosition("here", "shop", P0, 9)], Scope.BATCH, **named), [None]) == {"shop": {P0: 9}}
    with pytest.raises(OffsetsOutside, match="Keep the column _source"):
        found(sources([], Scope.BATCH, offsetsInTransaction="true", **named), [None])


def test_next_offsets_of_many_rows() -> None:
    rows: list[Row] = [(f"t{n % 3}", n % 7, n) for n in range(10_000)]
    wanted = {TopicPartition(f"t{n % 3}", n % 7): n + 1 for n in range(10_000)}
    assert next_offsets(origins(rows)) == wanted
    assert next_offsets(origins(rows).slice(9_999)) == {TopicPartition("t0", 3): 10_000}
    unmatched = pa.array([{"topic": None, "partition": None, "offset": None}, None], ORIGIN)
    assert next_offsets(pa.concat_arrays([unmatched, origins(rows[:1])])) == {TopicPartition("t0", 0): 1}
    assert next_offsets(unmatched) == next_offsets(origins([])) == next_offsets(origins([None])) == {}


def test_positions_name_their_query_and_never_move_back() -> None:
    ((tp, position),) = mark_offsets(TaskBatch("ottla-", "3f1c", "sink", 4, 2), {P0: 10}).items()
    assert (tp, position) == (P0, OffsetAndMetadata(10, -1, '{"q":"3f1c","b":4}'))
    assert query_of(position) == "3f1c"
    assert [query_of(OffsetAndMetadata(1, -1, text)) for text in ("", "{}", "[1]", '{"q":"x","b":"y"}', "x")] == [
        None
    ] * 5
    assert may_replace(11, position, "3f1c")
    assert not may_replace(10, position, "3f1c")
    assert not may_replace(9, OffsetAndMetadata(10), "3f1c")
    assert may_replace(9, position, "another query, which began elsewhere")
    assert may_replace(0, None, "3f1c")


def test_the_column_is_checked_when_the_query_starts() -> None:
    def check(kinds: dict[str, str] | None, scope: Scope | None = Scope.BATCH, **options: str) -> None:
        def field(name: str, kind: str, fields: Any = ()) -> Any:
            return SimpleNamespace(name=name, dataType=SimpleNamespace(simpleString=lambda: kind, fields=fields))

        some = [field("value", "string")]
        if kinds is not None:
            some.append(field(COLUMN, "struct", [field(*one) for one in kinds.items()]))
        given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "sourceGroup": "shop", **options}
        check_source_column(SimpleNamespace(fields=some), sink_options(given).once, scope)

    good = {"topic": "string", "partition": "int", "offset": "bigint", "key": "binary"}
    check(good)
    check(None)
    check({"topic": "string"}, None)
    check({"topic": "string"}, Scope.PARTITION)
    check({"topic": "string"}, offsetsInTransaction="false")
    with pytest.raises(BadRows, match="topic string, partition int, offset bigint"):
        check({**good, "offset": "int"})
    with pytest.raises(BadRows, match="needs the column _source"):
        check(None, offsetsInTransaction="true")


def test_a_held_position_still_names_its_query() -> None:
    turn = TaskBatch("ottla-", "3f1c", "sink", 4, 0)
    position = mark_offsets(turn, {TopicPartition("t", 0): 10})[TopicPartition("t", 0)]
    held = mark_held(position, 20)
    assert (held.offset, held_until(held), query_of(held)) == (10, 20, "3f1c")
    assert mark_held(held, None) == position
    assert mark_held(OffsetAndMetadata(5, -1, "a person's"), 9) == OffsetAndMetadata(5, -1, '{"until":9}')
    assert held_until(OffsetAndMetadata(5, -1, "[]")) is None
