"""JSON payloads as Arrow columns: which column a schema has, and which values it takes.

Zone: pure.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.schemas.columns import json as json_columns
from ottla.schemas.columns.json import JsonColumns
from ottla.schemas.columns.verdicts import Verdict
from ottla.schemas.errors import InvalidSchema
from ottla.schemas.json_schema import JsonSchema

BAD = Verdict.NOT_READABLE


def columns(schema: Any) -> JsonColumns:
    return JsonColumns(JsonSchema(json.dumps(schema)))


def read(schema: Any, *values: Any) -> list[Any]:
    payloads = pa.array([each if isinstance(each, bytes | None) else json.dumps(each).encode() for each in values])
    array, verdicts = columns(schema).decode(payloads.cast(pa.binary()))
    array.validate(full=True)
    shown = zip(array.to_pylist(), verdicts, strict=True)
    return [value if verdict == Verdict.READ else Verdict(verdict) for value, verdict in shown]


def thing(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "value", "found"),
    [
        ({"type": "integer"}, 5, 5),
        ({"type": "integer"}, 5.0, 5),
        ({"type": "integer"}, 5.5, BAD),
        ({"type": "integer"}, 2**63, BAD),
        ({"type": "integer"}, True, BAD),
        ({"type": "number"}, 5, 5.0),
        ({"type": "number"}, 10**400, BAD),
        ({"type": "string"}, "a", "a"),
        ({"type": "string"}, 1, BAD),
        ({"type": "string"}, b"null", BAD),
        ({"type": ["null", "string"]}, b"null", None),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, b"null", None),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, "a", "a"),
        ({"type": ["integer", "string"]}, 5, "5"),
        ({"enum": ["a", "b"]}, "a", "a"),
        ({"const": 7}, 7, 7),
        ({}, {"any": [1, None]}, '{"any":[1,null]}'),
        (True, 5, "5"),
        (thing(a={"type": "integer"}), {"a": 1, "more": 2}, {"a": 1}),
        (thing(a={"type": "integer"}), {}, {"a": None}),
        ({**thing(a={"type": "integer"}), "required": ["a"]}, {}, BAD),
        (thing(a={"type": "integer"}), [], BAD),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"k": 1}, [("k", 1)]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"k": "v"}, BAD),
        ({"type": "object"}, {"k": "v"}, '{"k":"v"}'),
        ({"type": "object"}, "text", BAD),
        ({"type": "array", "items": {"type": "integer"}}, [1, 2], [1, 2]),
        ({"type": "array", "items": {"type": "integer"}}, [1, None], BAD),
        ({"type": "array"}, [1, "a"], ["1", '"a"']),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, ["a", 1], ['"a"', "1"]),
    ],
)
def test_columns_of_schemas(schema: Any, value: Any, found: Any) -> None:
    assert read(schema, value) == [found]


def test_a_schema_that_contains_itself_is_text_there() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": "#/$defs/node",
        "$defs": {"node": thing(n={"type": "integer"}, next={"$ref": "#/$defs/node"})},
    }
    assert read(schema, {"n": 1, "next": {"n": 2}}) == [{"n": 1, "next": '{"n":2}'}]


def test_payloads_that_are_not_json_are_marked_and_others_stay() -> None:
    deep = b"[" * 100_000
    found = read({"type": "integer"}, 1, b"{", b"\xff", b"NaN", deep, None, 2)
    assert found == [1, *[Verdict.NOT_WRITTEN_WITH_IT] * 4, None, 2]


@pytest.mark.parametrize(
    "payload",
    [b'"\\ud800"', b'{"\\uD800": 1}', b'"\xed\xa0\x80"', '"a"'.encode("utf-16"), b'"\xff"'],
)
def test_what_is_no_text_costs_its_own_row(payload: bytes) -> None:
    for schema in ({"type": "string"}, {}, {"type": "object", "additionalProperties": {"type": "integer"}}):
        (found,) = read(schema, payload)
        assert found is Verdict.NOT_WRITTEN_WITH_IT
    assert read({"type": "string"}, b'"\\ud83d\\ude00"') == ["\U0001f600"]


def test_deep_values_cost_their_own_row() -> None:
    """Each depth about the one that can just be read, and not be written any more."""
    for depth in range(800, 1000):
        (found, other) = read({}, b"[" * depth + b"]" * depth, b"1")
        assert other == "1"
        assert found in ("[" * depth + "]" * depth, BAD, Verdict.NOT_WRITTEN_WITH_IT)


def test_definitions_that_lead_far_are_text_from_there() -> None:
    chain = {f"d{n}": thing(x={"$ref": f"#/definitions/d{n + 1}"}) for n in range(2000)}
    schema = {"definitions": {**chain, "d2000": {"type": "integer"}}, "$ref": "#/definitions/d0"}
    assert read(schema, {"x": {"x": {}}})[0]["x"]["x"] == {"x": None}


def test_schemas_of_too_many_columns_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_columns, "MAX_COLUMNS", 10)
    with pytest.raises(InvalidSchema, match="more than 10 columns"):
        columns(thing(**{f"p{each}": {"type": "integer"} for each in range(11)}))


def test_references_to_references_do_not_make_a_column_per_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each definition uses the next one twice: the columns double with each."""
    monkeypatch.setattr(json_columns, "MAX_COLUMNS", 1_000)
    step = {f"d{n}": thing(l={"$ref": f"#/definitions/d{n + 1}"}, r={"$ref": f"#/definitions/d{n + 1}"})
            for n in range(40)}  # fmt: skip
    with pytest.raises(InvalidSchema, match="columns"):
        columns({"definitions": {**step, "d40": {"type": "integer"}}, "$ref": "#/definitions/d0"})


SCHEMAS = st.recursive(
    st.sampled_from(
        [{"type": each} for each in ("integer", "number", "string", "boolean")] + [{"type": ["null", "integer"]}, {}]
    ),
    lambda below: st.one_of(
        st.dictionaries(st.sampled_from("abc"), below, max_size=3).map(lambda some: thing(**some)),
        below.map(lambda items: {"type": "array", "items": items}),
        below.map(lambda values: {"type": "object", "additionalProperties": values}),
    ),
    max_leaves=6,
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(-1e15, 1e15), st.text(max_size=3)),
    lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(st.sampled_from("abcd"), below, max_size=3)),
    max_leaves=6,
)


@settings(deadline=None, max_examples=300)
@given(SCHEMAS, VALUES)
def test_a_value_is_read_if_jsonschema_accepts_it(schema: Any, value: Any) -> None:
    (found,) = read(schema, json.dumps(value).encode())
    assert (found is BAD) == (not jsonschema.Draft202012Validator(schema).is_valid(value))
