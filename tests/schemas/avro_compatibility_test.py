"""Which Avro schemas can read what others wrote: a table of cases, and random pairs tried with fastavro.

Zone: pure. The cases are those of the Avro specification's schema resolution.
"""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.schemas import avro_compatibility
from ottla.schemas.avro import AvroSchema
from ottla.schemas.avro_compatibility import find_avro_incompatibilities
from ottla.schemas.errors import InvalidSchema


def record(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def kinds(reader: Any, writer: Any) -> list[str]:
    found = find_avro_incompatibilities(AvroSchema(json.dumps(reader)), AvroSchema(json.dumps(writer)))
    return [each.kind for each in found]


A, B = field("a", "int"), field("b", "string")
ENUM, SMALLER = ({"type": "enum", "name": "E", "symbols": symbols} for symbols in (["X", "Y"], ["X"]))
FIXED = {"type": "fixed", "name": "F", "size": 4}
PROMOTED = {("long", "int"), ("float", "int"), ("float", "long"), ("double", "int"), ("double", "long"),
            ("double", "float"), ("string", "bytes"), ("bytes", "string")}  # fmt: skip
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


@pytest.mark.parametrize("reader", PRIMITIVES)
@pytest.mark.parametrize("writer", PRIMITIVES)
def test_primitives_are_promoted_as_the_specification_says(reader: str, writer: str) -> None:
    expected = [] if reader == writer or (reader, writer) in PROMOTED else ["TYPE_MISMATCH"]
    assert kinds(reader, writer) == expected


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        # Fields: added ones need a default, removed ones are skipped, others may have had another name.
        (record(A, B), record(A), ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
        (record(A, field("b", "string", default="")), record(A), []),
        (record(A), record(A, B), []),
        (record(field("b", "int", aliases=["a"])), record(A), []),
        (record(field("a", "long")), record(A), []),
        (record(A), record(field("a", "long")), ["TYPE_MISMATCH"]),
        (record(A, field("e", {**ENUM, "default": "X"})), record(A), []),
        # Names: without namespaces, or by an alias.
        (record(A, name="S"), record(A), ["NAME_MISMATCH"]),
        (record(A, name="other.R"), record(A, name="some.R"), []),
        (record(A, name="S", aliases=["R"]), record(A), []),
        (record(A, name="x.S", aliases=["R"]), record(A, name="x.R"), []),
        (record(A, name="x.S", aliases=["R"]), record(A, name="y.R"), ["NAME_MISMATCH"]),
        # Enums and fixed.
        (ENUM, SMALLER, []),
        (SMALLER, ENUM, ["MISSING_ENUM_SYMBOLS"]),
        ({**SMALLER, "default": "X"}, ENUM, []),
        (FIXED, {**FIXED, "size": 8}, ["FIXED_SIZE_MISMATCH"]),
        (FIXED, {**FIXED, "name": "G"}, ["NAME_MISMATCH"]),
        # Unions.
        (["null", "int"], "int", []),
        (["null", "long"], "int", []),
        (["null", "string"], "int", ["MISSING_UNION_BRANCH"]),
        ("int", ["int"], []),
        ("int", ["null", "int"], ["TYPE_MISMATCH"]),
        (["int", "string"], ["string", "int"], []),
        (["int"], ["string", "int"], ["MISSING_UNION_BRANCH"]),
        (["null", record(A, B)], ["null", record(A)], ["MISSING_UNION_BRANCH"]),
        # Arrays and maps.
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, []),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, ["TYPE_MISMATCH"]),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, ["TYPE_MISMATCH"]),
        ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, ["TYPE_MISMATCH"]),
        (record(A), "int", ["TYPE_MISMATCH"]),
        # Logical types do not count.
        ({"type": "int", "logicalType": "date"}, "int", []),
    ],
)
def test_resolution(reader: Any, writer: Any, expected: list[str]) -> None:
    assert kinds(reader, writer) == expected


def test_recursive_types_are_compared_once() -> None:
    node = record(field("next", ["null", "R"]), A)
    assert kinds(node, node) == []
    assert kinds(record(field("next", ["null", "R"]), A, B), node) != []


def test_all_reasons_are_given_with_their_places() -> None:
    reader, writer = record(field("a", "string"), B, field("c", "int")), record(A)
    found = find_avro_incompatibilities(AvroSchema(json.dumps(reader)), AvroSchema(json.dumps(writer)))
    assert [each.path for each in found] == ["/fields/0/type", "/fields/1", "/fields/2"]


def test_schemas_that_take_too_long_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_compatibility, "MAX_COMPARISONS", 1_000)
    reader = [record(field(f"r{each}", "int"), name=f"R{each}") for each in range(100)]
    writer = [record(field(f"w{each}", "int"), name=f"W{each}") for each in range(100)]
    with pytest.raises(InvalidSchema, match="more than 1,000 steps"):
        kinds(reader, writer)


# -- random pairs ------------------------------------------------------------------------------------------------------

LEAVES = st.sampled_from(["null", "boolean", "int", "long", "double", "string", "bytes"])


def _records(below: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.lists(st.tuples(st.sampled_from("abc"), below), unique_by=lambda each: each[0], max_size=3)
    return fields.map(lambda some: {"type": "record", "fields": [field(name, kind) for name, kind in some]})


SHAPES = st.recursive(
    LEAVES,
    lambda below: st.one_of(
        _records(below),
        below.map(lambda items: {"type": "array", "items": items}),
        below.map(lambda values: {"type": "map", "values": values}),
        st.lists(LEAVES, unique=True, min_size=1, max_size=3),
    ),
    max_leaves=8,
)


def named(shape: Any, path: str = "R") -> Any:
    """Records named by their place, so that those of two schemas at one place have one name."""
    if not isinstance(shape, dict):
        return shape
    if shape["type"] == "record":
        fields = [field(each["name"], named(each["type"], f"{path}_{each['name']}")) for each in shape["fields"]]
        return {"type": "record", "name": path, "fields": fields}
    member = "items" if shape["type"] == "array" else "values"
    return {"type": shape["type"], member: named(shape[member], f"{path}_i")}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, list):
        return st.one_of(*map(values_of, kind))
    name = kind["type"] if isinstance(kind, dict) else kind
    if name == "record":
        return st.fixed_dictionaries({each["name"]: values_of(each["type"]) for each in kind["fields"]})
    if name == "array":
        return st.lists(values_of(kind["items"]), max_size=3)
    if name == "map":
        return st.dictionaries(st.text(max_size=3), values_of(kind["values"]), max_size=3)
    return {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "double": st.floats(allow_nan=False),
        "string": st.text(max_size=5),
        "bytes": st.text(max_size=5).map(str.encode),  # what is read as a string must be UTF-8
    }[name]


@given(SHAPES, SHAPES, st.data())
def test_what_is_compatible_fastavro_reads(first: Any, second: Any, data: st.DataObject) -> None:
    reader, writer = named(first), named(second)
    compatible = not kinds(reader, writer)
    value = data.draw(values_of(writer))
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(writer), value)
    written.seek(0)
    if compatible:
        fastavro.schemaless_reader(written, fastavro.parse_schema(writer), fastavro.parse_schema(reader))


@given(SHAPES)
def test_a_schema_reads_what_it_wrote(shape: Any) -> None:
    assert kinds(named(shape), named(shape)) == []
