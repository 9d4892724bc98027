"""Avro payloads as Arrow columns of another schema, compared with fastavro's schema resolution, record by record.

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
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.schemas.avro_compatibility_test import SHAPES, field, named, record, values_of
from tests.schemas.columns_test import expected, written

from ottla.schemas.avro import AvroSchema
from ottla.schemas.columns import resolution
from ottla.schemas.columns.avro import AvroColumns, Verdict
from ottla.schemas.errors import InvalidSchema

pytestmark = pytest.mark.slow  # numba compiles the loops once

UNREADABLE = Verdict.NOT_READABLE


def read_as(writer: Any, reader: Any, *values: Any) -> list[Any]:
    """Values written with one schema and read with another; a verdict for those that cannot be read."""
    columns = AvroColumns(AvroSchema(json.dumps(writer)), AvroSchema(json.dumps(reader)))
    array, verdicts = columns.decode(pa.array(written(writer, *values), pa.binary()))
    array.validate(full=True)
    assert array.type == columns.type
    shown = zip(array.to_pylist(), verdicts, strict=True)
    return [value if verdict == Verdict.READ else Verdict(verdict) for value, verdict in shown]


# -- random pairs ------------------------------------------------------------------------------------------------------

_WIDER = {"int": ["int", "long", "double"], "long": ["long", "double"], "string": ["string", "bytes"],
          "bytes": ["bytes", "string"]}  # fmt: skip


@st.composite
def changed(draw: st.DrawFn, shape: Any) -> Any:
    """A schema that was changed as people change them; now and then so that some values cannot be read."""
    if isinstance(shape, str):
        return draw(st.sampled_from([*_WIDER.get(shape, [shape]), ["null", shape] if shape != "null" else shape]))
    if isinstance(shape, list):
        return draw(st.sampled_from([shape, [*shape, "boolean"] if "boolean" not in shape else shape, shape[:1]]))
    if shape["type"] == "record":
        kept = [each for each in shape["fields"] if draw(st.integers(0, 4))]
        fields = [field(each["name"], draw(changed(each["type"]))) for each in kept]
        return {**shape, "fields": [*fields, *draw(st.sampled_from([[], [field("x", "int", default=5)]]))]}
    member = "items" if shape["type"] == "array" else "values"
    return {**shape, member: draw(changed(shape[member]))}


def named_with_defaults(shape: Any, path: str = "R") -> Any:
    """As `named`, with the defaults of fields."""
    if not isinstance(shape, dict):
        return shape
    if shape["type"] == "record":
        fields = [{**each, "type": named_with_defaults(each["type"], f"{path}_{each['name']}")}
                  for each in shape["fields"]]  # fmt: skip
        return {"type": "record", "name": path, "fields": fields}
    member = "items" if shape["type"] == "array" else "values"
    return {"type": shape["type"], member: named_with_defaults(shape[member], f"{path}_i")}


def is_ambiguous(node: Any) -> bool:
    """Whether a union has two types that read one value: fastavro takes the first, Java and ours the same type."""
    if isinstance(node, list):
        return any(len(family & set(node)) > 1 for family in ({"int", "long", "double"}, {"string", "bytes"}))
    if not isinstance(node, dict):
        return False
    parts = [each["type"] for each in node["fields"]] if node["type"] == "record" else [*map(node.get, _PARTS)]
    return any(map(is_ambiguous, parts))


_PARTS = ("items", "values")


def read_or_refused(writer: Any, reader: Any, *values: Any) -> tuple[list[Any], str]:
    try:
        return read_as(writer, reader, *values), ""
    except InvalidSchema as error:
        return [], str(error)


def fastavro_reads(writer: Any, reader: Any, payload: bytes) -> Any:
    if writer == "bytes":  # a payload is the value itself, but fastavro reads its length in front
        out = io.BytesIO()
        fastavro.schemaless_writer(out, writer, payload)
        payload = out.getvalue()
    try:
        parsed = fastavro.parse_schema(writer), fastavro.parse_schema(reader)
        value = fastavro.schemaless_reader(io.BytesIO(payload), *parsed)
    except (fastavro.read.SchemaResolutionError, UnicodeDecodeError, KeyError):
        return UNREADABLE
    return expected(reader, value)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], deadline=None, max_examples=150)
@given(st.data())
def test_other_schemas_read_what_fastavro_reads(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    writer, reader = named(shape), named_with_defaults(data.draw(changed(shape)))
    assume(not is_ambiguous(reader))
    values = data.draw(st.lists(values_of(writer), min_size=1, max_size=5))
    shown, refusal = read_or_refused(writer, reader, *values)
    if refusal:  # tests/schemas/decoding_test.py
        assert "an array of values that take no bytes" in refusal
        return
    for value, payload, found in zip(values, written(writer, *values), shown, strict=True):
        assert found == fastavro_reads(writer, reader, payload), value


# -- a table -----------------------------------------------------------------------------------------------------------

ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
BYTES_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
INNER = record(field("n", "int"), name="I")


@pytest.mark.parametrize(
    ("writer", "reader", "value", "read"),
    [
        ("int", "float", 3, 3.0),
        ("float", "double", 0.5, 0.5),
        ("bytes", "string", b"\xc3\xa4", "ä"),
        ("bytes", "string", b"\xff", UNREADABLE),
        ("string", "bytes", "ä", "ä".encode()),
        (["null", "int"], "int", None, UNREADABLE),
        (["null", "int"], "int", 3, 3),
        (["null", "int"], ["null", "string"], 3, UNREADABLE),
        (["null", "int"], ["null", "string"], None, None),
        ("null", ["null", "int"], None, None),
        ("null", "int", None, UNREADABLE),
        (["int", "string"], "long", 3, 3),
        (["int", "string"], "long", "a", UNREADABLE),
        (["int", "long", "string"], ["null", "double"], 2**40, float(2**40)),
        ("int", ["string", "long"], 3, {"member0": None, "member1": 3}),
        ("int", ["long", "int"], 3, {"member0": None, "member1": 3}),
        ("bytes", ["string", "bytes"], b"a", {"member0": None, "member1": b"a"}),
        ({**ENUM, "symbols": ["A", "C"]}, ENUM, "C", UNREADABLE),
        ({**ENUM, "symbols": ["A", "C"]}, ENUM, "A", "A"),
        ({**ENUM, "symbols": ["A", "C"]}, {**ENUM, "default": "B"}, "C", "B"),
        (INNER, {**INNER, "name": "J"}, {"n": 1}, UNREADABLE),
        (INNER, {**INNER, "name": "J", "aliases": ["I"]}, {"n": 1}, {"n": 1}),
        (INNER, record(field("m", "int", aliases=["n"]), name="x.I"), {"n": 1}, {"m": 1}),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, b"ab", UNREADABLE),
        ({"type": "array", "items": ["null", "int"]}, {"type": "array", "items": "int"}, [1, None], UNREADABLE),
        ({"type": "array", "items": ["null", "int"]}, {"type": "array", "items": "int"}, [1, 2], [1, 2]),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, {"k": 1}, [("k", 1)]),
        ("int", {"type": "int", "logicalType": "date"}, 1, dt.date(1970, 1, 2)),
        ("bytes", BYTES_DECIMAL, b"\x26\xff", Decimal("99.83")),
        ("bytes", BYTES_DECIMAL, b"\x27\x10", UNREADABLE),
        ("bytes", BYTES_DECIMAL, b"\xd8\xf1", Decimal("-99.99")),
        ("bytes", BYTES_DECIMAL, b"\xd8\xf0", UNREADABLE),
        ("bytes", BYTES_DECIMAL, b"\xff" * 20 + b"\xfe", Decimal("-0.02")),
        ("bytes", BYTES_DECIMAL, b"\x01" + b"\0" * 16, UNREADABLE),
        ("bytes", BYTES_DECIMAL, b"\x80" + b"\0" * 15, UNREADABLE),
        ("bytes", BYTES_DECIMAL, b"", Decimal("0.00")),
    ],
)
def test_resolution(writer: Any, reader: Any, value: Any, read: Any) -> None:
    assert read_as(writer, reader, value) == [read]


@pytest.mark.parametrize(
    ("kind", "default", "read"),
    [
        ("int", 5, 5),
        (["null", "int"], None, None),
        (["null", "int"], 5, 5),
        (["string", "int"], "a", {"member0": "a", "member1": None}),
        ("bytes", "\u00ff", b"\xff"),
        (BYTES_DECIMAL, "\u0005", Decimal("0.05")),
        ({"type": "int", "logicalType": "date"}, 1, dt.date(1970, 1, 2)),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1000, dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)),
        (ENUM, "B", "B"),
        ({"type": "array", "items": "int"}, [1], [1]),
        ({"type": "map", "values": "int"}, {"k": 1}, [("k", 1)]),
        (INNER, {"n": 3}, {"n": 3}),
    ],
)  # fmt: skip
def test_a_field_that_was_not_written_has_its_default(kind: Any, default: Any, read: Any) -> None:
    reader = record(field("a", "int"), field("new", kind, default=default))
    values = [{"a": 1}, {"a": 2}]
    assert read_as(record(field("a", "int")), reader, *values) == [{**value, "new": read} for value in values]


def test_a_field_without_a_default_is_missing() -> None:
    with pytest.raises(InvalidSchema, match="'new' was not written, and has no default"):
        read_as(record(), record(field("new", "int")))


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("int", 2**40),
        ({"type": "array", "items": "int"}, [2**40]),
        (INNER, {"n": 2**40}),
        (BYTES_DECIMAL, "\u007f\u00ff"),
    ],
)
def test_a_default_that_is_none_of_its_type_is_refused_at_once(kind: Any, default: Any) -> None:
    reader = AvroSchema(json.dumps(record(field("new", kind, default=default))))
    with pytest.raises(InvalidSchema, match="is not a default of its type"):
        AvroColumns(AvroSchema(json.dumps(record())), reader)


def test_large_unions_are_not_compared_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolution, "MAX_COMPARISONS", 1_000)
    writer, reader = ([record(name=f"{side}{each}") for each in range(100)] for side in "WR")
    with pytest.raises(InvalidSchema, match="more than 1,000 steps"):
        AvroColumns(AvroSchema(json.dumps(writer)), AvroSchema(json.dumps(reader)))


def test_bad_values_are_nulls_and_others_stay() -> None:
    writer, reader = record(field("a", ["null", "int"]), field("b", "string")), record(field("a", "int"))
    values = [{"a": 1, "b": "x"}, {"a": None, "b": "y"}, {"a": 3, "b": "z"}]
    assert read_as(writer, reader, *values) == [{"a": 1}, UNREADABLE, {"a": 3}]


def test_a_value_that_is_bad_in_a_record_that_is_null_does_not_count() -> None:
    writer = record(field("i", ["null", record(field("n", ["null", "int"]), name="I")]))
    reader = record(field("i", ["null", INNER]))
    values = [{"i": None}, {"i": {"n": 1}}, {"i": {"n": None}}]
    assert read_as(writer, reader, *values) == [{"i": None}, {"i": {"n": 1}}, UNREADABLE]
