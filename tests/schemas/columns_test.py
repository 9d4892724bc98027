"""Avro payloads as Arrow columns, compared with fastavro, record by record.

Zone: pure.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.schemas.avro_compatibility_test import SHAPES, named, values_of

from ottla.schemas.avro import AvroSchema
from ottla.schemas.columns import arrays, avro
from ottla.schemas.columns.avro import AvroColumns
from ottla.schemas.errors import InvalidSchema

pytestmark = pytest.mark.slow  # numba compiles the loops once


def columns_of(schema: Any) -> AvroColumns:
    return AvroColumns(AvroSchema(json.dumps(schema)))


def written(schema: Any, *values: Any) -> list[bytes]:
    """Payloads as Confluent's serializers write them: values of type bytes are written as they are."""
    if schema == "bytes":
        return list(values)
    parsed = fastavro.parse_schema(schema)
    payloads = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        payloads.append(out.getvalue())
    return payloads


def decoded(schema: Any, payloads: list[bytes | None], skipped: int = 0) -> list[Any]:
    array, bad = columns_of(schema).decode(pa.array(payloads, pa.binary()), skipped)
    array.validate(full=True)
    return ["bad" if is_bad else value for value, is_bad in zip(array.to_pylist(), bad, strict=True)]


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def expected(kind: Any, value: Any) -> Any:
    """A value of fastavro's as the column shows it: maps are lists of pairs, unions of several types are structs."""
    if isinstance(kind, list):
        written_types = [each for each in kind if each != "null"]
        if value is None or not written_types:
            return None
        at = next(at for at, each in enumerate(written_types) if _is_of(each, value))
        if len(written_types) == 1:
            return expected(written_types[0], value)
        return {f"member{each}": value if each == at else None for each in range(len(written_types))}
    name = kind["type"] if isinstance(kind, dict) else kind
    if name == "record":
        return {each["name"]: expected(each["type"], value[each["name"]]) for each in kind["fields"]}
    if name == "array":
        return [expected(kind["items"], each) for each in value]
    if name == "map":
        return [(key, expected(kind["values"], each)) for key, each in value.items()]
    return value


def _is_of(kind: str, value: Any) -> bool:
    types = {"boolean": bool, "int": int, "long": int, "double": float, "string": str, "bytes": bytes}
    if isinstance(value, bool) or kind == "boolean":
        return isinstance(value, bool) and kind == "boolean"
    return isinstance(value, types[kind]) and (kind != "int" or -(2**31) <= value < 2**31)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=60)
@given(SHAPES, st.data())
def test_columns_are_what_fastavro_reads(shape: Any, data: st.DataObject) -> None:
    schema = named(shape)
    values = data.draw(st.lists(values_of(schema), max_size=6))
    payloads: list[bytes | None] = [*written(schema, *values)]
    parsed = fastavro.parse_schema(schema)
    read = values if schema == "bytes" else [fastavro.schemaless_reader(io.BytesIO(p), parsed, None) for p in payloads]
    try:
        shown = decoded(schema, payloads)
    except InvalidSchema:  # an array of nulls, see test_arrays_of_items_without_bytes_are_refused
        return
    assert shown == [expected(schema, value) for value in read]


NESTED = record(
    id="long",
    tags={"type": "array", "items": ["null", "string"]},
    inner=[
        "null",
        {"type": "record", "name": "I", "fields": [{"name": "xs", "type": {"type": "array", "items": "int"}}]},
    ],
    more={"type": "map", "values": {"type": "array", "items": "double"}},
)
GOOD = {"id": 7, "tags": ["a", None], "inner": {"xs": [1, 2]}, "more": {"k": [0.5]}}


FLAT = record(
    id="long",
    note=["null", "string"],
    either=["null", "int", "string", {"type": "record", "name": "E", "fields": [{"name": "x", "type": "double"}]}],
    kind={"type": "enum", "name": "K", "symbols": ["A", "B"]},
    inner=["null", {"type": "record", "name": "I", "fields": [{"name": "x", "type": ["null", "boolean"]}]}],
    raw="bytes",
    key={"type": "fixed", "name": "F", "size": 2},
    ratio="float",
)
FLAT_GOOD = {"id": 7, "note": "ä", "either": "b", "kind": "B", "inner": {"x": True}, "raw": b"r", "key": b"k1",
             "ratio": 0.5}  # fmt: skip
FLAT_SHOWN = {**FLAT_GOOD, "either": {"member0": None, "member1": "b", "member2": None}}


def test_rows_before_and_after_a_bad_one_stay_whole_without_lists() -> None:
    (payload,) = written(FLAT, FLAT_GOOD)
    for end in range(len(payload)):
        assert decoded(FLAT, [payload, payload[:end], payload]) == [FLAT_SHOWN, "bad", FLAT_SHOWN]
    assert decoded(FLAT, [payload + b"\0", payload, None]) == ["bad", FLAT_SHOWN, None]


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=40), st.integers(0, 30))
def test_any_bytes_are_read_or_marked_by_both_loops(payload: bytes, at: int) -> None:
    """A schema without lists is read by another loop than one with lists."""
    (good,) = written(FLAT, FLAT_GOOD)
    payload = good[:at] + payload + good[at + len(payload) :]
    # The list comes first: after the record, bytes that are left of it would be read as items.
    with_list = record(none={"type": "array", "items": "int"}, all={**FLAT, "name": "All"})
    shown = decoded(FLAT, [good, payload, good])
    in_list = decoded(with_list, [b"\0" + each for each in (good, payload, good)])
    assert shown[0] == shown[2] == FLAT_SHOWN
    assert repr(["bad" if each == "bad" else {"none": [], "all": each} for each in shown]) == repr(in_list)


def test_bytes_alone_are_the_whole_payload() -> None:
    """As Confluent's serializers write them."""
    assert decoded("bytes", [b"\x04ab", b"", None]) == [b"\x04ab", b"", None]
    assert decoded("bytes", [b"\0\0\0\0\7\x04", b"\0"], skipped=5) == [b"\x04", "bad"]


def test_truncated_and_longer_payloads_are_marked_and_others_stay_whole() -> None:
    (payload,) = written(NESTED, GOOD)
    good = {**GOOD, "more": [("k", [0.5])]}
    for end in range(len(payload)):
        assert decoded(NESTED, [payload, payload[:end], payload]) == [good, "bad", good]
    assert decoded(NESTED, [payload + b"\0", payload, None]) == ["bad", good, None]


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_marked(payload: bytes) -> None:
    (good,) = written(NESTED, GOOD)
    shown = decoded(NESTED, [good, payload, good])
    assert shown[0] == shown[2] != "bad"
    try:
        source = io.BytesIO(payload)
        value = fastavro.schemaless_reader(source, fastavro.parse_schema(NESTED), None)
        is_whole = source.tell() == len(payload)
    except (EOFError, ValueError, IndexError, OverflowError, TypeError, MemoryError):
        is_whole = False
    if shown[1] != "bad":
        assert is_whole
        assert shown[1] == expected(NESTED, value) or "nan" in repr(value)


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        ("int", b"\xff\xff\xff\xff\x7f"),
        ("long", b"\xff" * 9 + b"\x02"),
        ("long", b"\xff" * 11),
        ("boolean", b"\x02"),
        ("string", b"\x02\xff"),
        ("string", b"\x06\xed\xa0\x80"),
        ("string", b"\x01"),
        ("string", b"\x04a"),
        (["null", "int"], b"\x04"),
        (["null", "int"], b"\x01"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02"),
        ({"type": "fixed", "name": "F", "size": 3}, b"ab"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ({"type": "array", "items": "int"}, b"\x02\x02"),
        ({"type": "array", "items": "int"}, b"\x01"),
    ],
)
def test_values_that_are_none_are_marked(schema: Any, payload: bytes) -> None:
    assert decoded(schema, [payload]) == ["bad"]


def test_blocks_with_their_size_are_read() -> None:
    assert decoded({"type": "array", "items": "int"}, [b"\x03\x04\x02\x04\x02\x06\x00"]) == [[1, 2, 3]]


def test_logical_types() -> None:
    utc, day = dt.UTC, dt.date(2026, 11, 27)
    now = dt.datetime(2026, 11, 27, 12, 30, 1, 250_000, tzinfo=utc)
    kinds: dict[str, tuple[Any, Any]] = {
        "d": ({"type": "int", "logicalType": "date"}, day),
        "tm": ({"type": "int", "logicalType": "time-millis"}, dt.time(1, 2, 3, 4000)),
        "tu": ({"type": "long", "logicalType": "time-micros"}, dt.time(1, 2, 3, 4)),
        "sm": ({"type": "long", "logicalType": "timestamp-millis"}, now),
        "su": ({"type": "long", "logicalType": "timestamp-micros"}, now),
        "lm": ({"type": "long", "logicalType": "local-timestamp-millis"}, now.replace(tzinfo=None)),
        "b": ({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}, Decimal("-12345.67")),
        "f": ({"type": "fixed", "name": "F", "size": 8, "logicalType": "decimal", "precision": 10, "scale": 2},
              Decimal("0.05")),
        "x": ({"type": "long", "logicalType": "something-new"}, 5),
    }  # fmt: skip
    schema = record(**{name: kind for name, (kind, _) in kinds.items()})
    value = {name: each for name, (_, each) in kinds.items()}
    assert decoded(schema, [*written(schema, value)]) == [value]


def test_the_framing_in_front_is_skipped() -> None:
    assert decoded("int", [b"\0\0\0\0\7" + b"\x02", None, b"\0"], skipped=5) == [1, None, "bad"]


def test_recursive_schemas_have_no_columns() -> None:
    with pytest.raises(InvalidSchema, match="contains itself"):
        columns_of(record(next=["null", "R"]))


def nested_records(levels: int, fields: int, leaf: str) -> list[Any]:
    """A union of records, each with fields of the one before."""
    made: list[Any] = [record(x=leaf) | {"name": "R0"}]
    for level in range(1, levels):
        made.append(record(**{f"f{each}": f"R{level - 1}" for each in range(fields)}) | {"name": f"R{level}"})
    return made


def test_records_that_lead_far_are_refused() -> None:
    """Each names the one before: the text is flat."""
    with pytest.raises(InvalidSchema, match="nested more than 100 levels"):
        columns_of(nested_records(5_000, 1, "int"))
    with pytest.raises(InvalidSchema, match="more than 10,000 columns"):
        columns_of(nested_records(50, 2, "int"))


def test_records_without_bytes_are_looked_at_once() -> None:
    """Each has two fields of the one before: looked at again, they would be 2 ** 50."""
    for levels in (50, 5_000):
        with pytest.raises(InvalidSchema):
            columns_of([*nested_records(levels, 2, "null"), {"type": "array", "items": f"R{levels - 1}"}])


def test_few_bytes_do_not_make_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array of nullable records: a byte each, and a null in each of their columns."""
    wide = {"type": "record", "name": "W", "fields": [{"name": f"f{each}", "type": "int"} for each in range(100)]}
    schema = {"type": "array", "items": ["null", wide]}
    (payload,) = written(schema, [None] * 1000)
    assert decoded(schema, [payload]) == [[None] * 1000]
    monkeypatch.setattr(avro, "ROWS_MAX", 100_000)
    with pytest.raises(InvalidSchema, match="decode fewer at a time"):
        decoded(schema, [payload])


@pytest.mark.parametrize(
    "schema", ["string", {"type": "record", "name": "R", "fields": [{"name": "a", "type": "bytes"}]}]
)
def test_texts_beyond_offsets_of_32_bits_are_decoded_too(schema: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    values: list[Any] = ["one", "", "three"] if schema == "string" else [{"a": b"one"}, {"a": b""}, {"a": b"three"}]
    monkeypatch.setattr(arrays, "_OFFSET_MAX", 7)  # two gigabytes would be the real one
    assert decoded(schema, list(written(schema, *values))) == values
