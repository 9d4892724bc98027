"""Records through a step's function and to the topics where they belong, without Spark and without a broker."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.pipeline import Out, Pipeline, Poison, Record, StepFailed, map_batches, map_rows
from ottla.pipeline.functions import HEADERS_TYPE
from ottla.pipeline.routing import Router
from ottla.retry import Names
from ottla.retry import headers as trails

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS_TYPE),
    ]
)
Row = dict[str, Any]


def batch(*values: bytes | None, topic: str = "orders", headers: Any = (), keys: Any = None) -> pa.RecordBatch:
    rows = [
        {
            "key": b"k%d" % n if keys is None else keys[n],
            "value": value,
            "topic": topic,
            "partition": 1,
            "offset": 100 + n,
            "timestamp": 5_000_000 + n * 1000,
            "timestampType": 0,
            "headers": [{"key": name, "value": content} for name, content in headers],
        }
        for n, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def route(function: Any, *batches: pa.RecordBatch, keep: bool = False, **step: Any) -> list[Row]:
    """What the step writes."""
    pipeline = Pipeline("shop")
    pipeline.step(**{"source": "orders", "to": "priced", "retries": ["30s", "5m"], "name": "one", **step})(function)
    router = (
        pickle.loads(pickle.dumps(Router(pipeline.steps[0], "shop", keep)))
        if step.get("pickled")
        else Router(pipeline.steps[0], "shop", keep)
    )
    return [row for out in router(batches) for row in out.to_pylist()]


def headers(row: Row) -> trails.Headers:
    return tuple((one["key"], one["value"]) for one in row["headers"] or ())


def fails(record: Record) -> bytes:
    raise OSError("the shop is closed")


# -- rows ----------------------------------------------------------------------------------------------------------


def test_a_function_returns_values_records_several_or_nothing() -> None:
    answers: list[Any] = [
        b"bytes",
        "täxt",
        None,
        Out(None),
        Out("v", key=b"other", headers=[("h", "1")]),
        [b"one", Out(b"two", key=None)],
    ]
    rows = route(map_rows(lambda record: answers[record.offset - 100]), batch(*[b"x"] * 6, headers=[("own", b"1")]))
    assert [(row["key"], row["value"]) for row in rows] == [
        (b"k0", b"bytes"), (b"k1", "täxt".encode()), (b"k3", None), (b"other", b"v"), (b"k5", b"one"), (None, b"two"),
    ]  # fmt: skip
    assert {row["topic"] for row in rows} == {"priced"}
    assert headers(rows[0]) == (("own", b"1"),), "headers of the application are kept"
    assert headers(rows[3]) == (("h", b"1"),)


def test_a_function_sees_the_record() -> None:
    seen: list[Record] = []
    route(map_rows(seen.append), batch(b"v", headers=[("h", None)]))
    assert seen == [Record(b"k0", b"v", "orders", 1, 100, 5000, (("h", None),), 1)]


def test_a_failed_record_goes_to_the_first_retry_topic_as_it_was_read() -> None:
    (row,) = route(map_rows(fails), batch(b"\xff raw", headers=[("own", b"\x00")]))
    assert (row["topic"], row["key"], row["value"]) == ("orders.shop.retry-1", b"k0", b"\xff raw")
    trail = trails.read_trail(headers(row))
    assert trails.without_trail(headers(row)) == (("own", b"\x00"),)
    assert (trail.attempts, trail.first_ms, trail.bad) == (2, 5000, ())
    assert trail.origin == trails.Origin("orders", 1, 100, 5000, "CreateTime", "shop")
    assert trail.failure is not None
    assert (trail.failure.kind, trail.failure.message) == ("builtins.OSError", "the shop is closed")
    assert "in fails" in (trail.failure.stack or "")
    assert trail.due_ms is not None


def test_levels_are_climbed_and_the_origin_stays() -> None:
    (row,) = route(map_rows(fails), batch(b"v"))
    (second,) = route(map_rows(fails), batch(b"v", topic="orders.shop.retry-1", headers=headers(row)))
    assert second["topic"] == "orders.shop.retry-2"
    (last,) = route(map_rows(fails), batch(b"v", topic="orders.shop.retry-2", headers=headers(second)))
    assert last["topic"] == "orders.shop.dead"
    trail = trails.read_trail(headers(last))
    assert (trail.attempts, trail.failures, trail.due_ms) == (4, 3, None)
    assert trail.origin == trails.Origin("orders", 1, 100, 5000, "CreateTime", "shop")
    seen: list[Record] = []
    route(map_rows(seen.append), batch(b"v", topic="orders.shop.retry-2", headers=headers(second)))
    assert (seen[0].topic, seen[0].offset, seen[0].attempt, seen[0].headers) == ("orders", 100, 3, ())


@given(st.lists(st.tuples(st.sampled_from(["retry_topic-attempts", "kafka_dlt-original-topic", "x"]), st.binary())))
def test_with_any_headers_no_record_is_retried_for_ever(found: list[tuple[str, bytes]]) -> None:
    for level, topic in enumerate(["orders", "orders.shop.retry-1", "orders.shop.retry-2"], start=1):
        (row,) = route(map_rows(fails), batch(b"v", topic=topic, headers=found))
        assert row["topic"] == (f"orders.shop.retry-{level}" if level < 3 else "orders.shop.dead")
        assert trails.read_trail(headers(row)).attempts == level + 1


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda record: json.loads("{"), "json.decoder.JSONDecodeError"),
        (lambda record: record.value.decode(), "builtins.UnicodeDecodeError"),
        (lambda record: 17, "ottla.pipeline.errors.BadOutput"),
        (lambda record: Out("v", headers=["h"]), "ottla.pipeline.errors.BadOutput"),
        (lambda record: b"x" * 1_000_001, "ottla.pipeline.errors.RecordTooLarge"),
        (lambda record: Out(b"v", headers=[("h", b"x" * 1_000_001)]), "ottla.pipeline.errors.RecordTooLarge"),
        (lambda record: Out(None), "ottla.pipeline.errors.NullField"),
    ],
)
def test_poison_goes_to_the_dead_letters_at_once(function: Any, kind: str) -> None:
    (row,) = route(map_rows(function), batch(b"\xff"), required=["value"])
    assert row["topic"] == "orders.shop.dead"
    failure = trails.read_trail(headers(row)).failure
    assert failure is not None
    assert failure.kind == kind
    assert failure.message


def test_a_function_can_raise_poison() -> None:
    def judge(record: Record) -> bytes:
        raise Poison("no such customer")

    (row,) = route(map_rows(judge), batch(b"v"))
    assert row["topic"] == "orders.shop.dead"


def test_without_retries_and_dead_letters_an_error_stops_the_step_and_names_the_record() -> None:
    with pytest.raises(StepFailed, match=r"step one: orders-1, offset 100: OSError: the shop is closed"):
        route(map_rows(fails), batch(b"v"), retries=[])


@given(st.lists(st.booleans(), max_size=40))
def test_every_record_goes_to_exactly_one_place(good: list[bool]) -> None:
    def judge(record: Record) -> bytes:
        if record.value == b"bad":
            raise ValueError("bad")
        return b"done"

    def judge_batch(found: pa.RecordBatch) -> Any:
        if b"bad" in found.column(1).to_pylist():
            raise ValueError("bad")
        return {"key": found.column(0), "value": ["done"] * found.num_rows}

    values = [b"good" if one else b"bad" for one in good]
    for function in (map_rows(judge), map_batches(judge_batch)):
        rows = route(function, batch(*values))
        found = Counter((row["key"], row["topic"]) for row in rows)
        assert found == Counter((b"k%d" % n, "priced" if one else "orders.shop.retry-1") for n, one in enumerate(good))


# -- batches -------------------------------------------------------------------------------------------------------


def test_a_batch_function_may_change_the_number_of_rows() -> None:
    rows = route(map_batches(lambda found: pa.table({"value": ["a", "b", "c"]})), batch(b"x"))
    assert [(row["topic"], row["key"], row["value"]) for row in rows] == [
        ("priced", None, b"a"), ("priced", None, b"b"), ("priced", None, b"c"),
    ]  # fmt: skip
    assert route(map_batches(lambda found: {"value": pa.array([], pa.string())}), batch(b"x")) == []


def test_functions_see_null_where_there_are_no_headers_and_spark_gets_no_null_list() -> None:
    """For each row Spark fills the offsets of all null lists of a batch again."""
    seen: list[Any] = []

    def copy(found: pa.RecordBatch) -> Any:
        seen.extend(found.column("headers").to_pylist())
        return {"value": found.column("value")}

    assert [row["headers"] for row in route(map_batches(copy), batch(b"a", b"b"))] == [[], []]
    assert seen == [None, None]
    keeps = map_batches(lambda found: found.select(["value", "headers"]))
    mixed = pa.concat_batches([batch(b"a"), batch(b"b", headers=[("h", b"1")]), batch(b"c")])
    own = [[], [{"key": "h", "value": b"1"}], []]
    assert [row["headers"] for row in route(keeps, mixed.slice(0, 3))] == own
    assert [row["headers"] for row in route(keeps, mixed.slice(1))] == own[1:]


def test_a_null_list_may_have_a_length() -> None:
    pairs = pa.array([{"key": "h", "value": b"1"}] * 2, HEADERS_TYPE.value_type)
    mask = pa.array([True, False])
    by_hand = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pairs, type=HEADERS_TYPE, mask=mask)
    rows = route(map_batches(lambda found: {"value": found.column("value"), "headers": by_hand}), batch(b"a", b"b"))
    assert [row["headers"] for row in rows] == [[], [{"key": "h", "value": b"1"}]]


@pytest.mark.parametrize("marks", [[None, "odd", None], [False, True, False]])
def test_a_batch_function_may_mark_rows(marks: list[Any]) -> None:
    rows = route(map_batches(lambda found: {"value": ["a", "b", "c"], "_error": marks}), batch(b"x", b"y", b"z"))
    assert [(row["topic"], row["value"]) for row in rows] == [
        ("priced", b"a"), ("priced", b"c"), ("orders.shop.retry-1", b"y"),
    ]  # fmt: skip
    failure = trails.read_trail(headers(rows[2])).failure
    assert failure is not None
    assert failure.message == ("odd" if marks[0] is None else "marked by the step")


def test_marks_for_other_rows_than_it_got_are_no_result() -> None:
    (row,) = route(map_batches(lambda found: {"value": ["a", "b"], "_error": [None, None]}), batch(b"x"))
    failure = trails.read_trail(headers(row)).failure
    assert failure is not None
    assert "2 rows with _error for 1" in failure.message


@pytest.mark.parametrize("result", [7, {"v": ["a"]}, {"value": [1.5]}, {"value": ["a"], "_error": [3]}])
def test_a_result_that_is_not_a_batch_fails_every_row(result: Any) -> None:
    rows = route(map_batches(lambda found: result), batch(b"x", b"y"))
    assert [row["topic"] for row in rows] == ["orders.shop.dead"] * 2


def test_a_record_too_large_or_without_what_is_required_is_found_in_a_batch() -> None:
    def grow(found: pa.RecordBatch) -> Any:
        sizes = {b"none": 0, b"l": 1_000_001}
        return {"value": [value * sizes.get(value, 1) or None for value in found.column(1).to_pylist()]}

    rows = route(map_batches(grow), batch(b"x", b"l", b"none", b"y"), required=["value"])
    assert sorted((row["topic"], row["value"]) for row in rows) == [
        ("orders.shop.dead", b"l"), ("orders.shop.dead", b"none"), ("priced", b"x"), ("priced", b"y"),
    ]  # fmt: skip


# -- DataFrames ----------------------------------------------------------------------------------------------------


def frame_rows(*rows: dict[str, Any]) -> pa.RecordBatch:
    """The rows of a DataFrame step: what it made, and each row's record as it was read."""
    source = batch(*(b"raw%d" % n for n in range(len(rows))))
    struct = pa.StructArray.from_arrays(source.columns, fields=list(source.schema))
    made = pa.RecordBatch.from_pylist(list(rows))
    return pa.RecordBatch.from_arrays([*made.columns, struct], names=[*made.schema.names, "_source"])


def test_rows_that_a_dataframe_marks_are_sent_on_as_they_were_read() -> None:
    reasons = (None, "no price", "Poison: no shop")
    rows = route(lambda frame: frame, frame_rows(*({"value": "a", "_error": reason} for reason in reasons)))
    assert [(row["topic"], row["value"]) for row in rows] == [
        ("priced", b"a"), ("orders.shop.retry-1", b"raw1"), ("orders.shop.dead", b"raw2"),
    ]  # fmt: skip
    trail = trails.read_trail(headers(rows[1]))
    assert trail.failure == trails.Failure("no price", "no price")
    assert trail.origin == trails.Origin("orders", 1, 101, 5001, "CreateTime", "shop")


def test_rows_of_a_dataframe_are_held_to_the_limits() -> None:
    found = frame_rows({"value": "a"}, {"value": None}, {"value": "x" * 2000})
    rows = route(lambda frame: frame, found, required=["value"], max_record_bytes=1000)
    assert [(row["topic"], row["value"]) for row in rows] == [
        ("priced", b"a"), ("orders.shop.dead", b"raw1"), ("orders.shop.dead", b"raw2"),
    ]  # fmt: skip


def test_the_headers_are_those_of_spring() -> None:
    (row,) = route(map_rows(fails), batch(b"v"))
    names = {name for name, _ in headers(row)}
    assert {"retry_topic-attempts", "kafka_dlt-original-offset", "kafka_dlt-exception-fqcn"} <= names
    assert dict(headers(row))["retry_topic-attempts"] == (2).to_bytes(4, "big")
    assert all(trails.is_ours(name, Names()) for name in names)


def test_rows_that_change_tasks_after_the_function_keep_their_origin() -> None:
    """Of rows that a function made it is enough to know the batch: all of it is written together."""
    answers: list[Any] = [b"a", [b"b", b"c"], None]

    def work(record: Record) -> Any:
        if record.offset == 103:
            raise OSError("later")
        return answers[record.offset - 100]

    rows = route(map_rows(work), batch(*[b"x"] * 4), keep=True)
    assert [(row["value"], row["_source"]["offset"]) for row in rows] == [
        (b"a", 103), (b"b", 103), (b"c", 103), (b"x", 103),
    ]  # fmt: skip
    assert rows[0]["_source"] == {"topic": "orders", "partition": 1, "offset": 103}


def test_rows_of_a_data_frame_keep_what_each_was_made_of() -> None:
    marks = [None, "wrong", None]
    rows = route(lambda frame: frame, frame_rows(*({"value": "a", "_error": mark} for mark in marks)), keep=True)
    assert [(row["topic"], row["_source"]["offset"]) for row in rows] == [
        ("priced", 100), ("priced", 102), ("orders.shop.retry-1", 101),
    ]  # fmt: skip
    assert route(lambda frame: frame, frame_rows({"value": "a", "_error": None})) == [
        {**{name: value for name, value in rows[0].items() if name != "_source"}}
    ]
