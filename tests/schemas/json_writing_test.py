"""Arrow columns as JSON payloads: what is written is what is read, and what a schema refuses is not written.

Zone: pure.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.schemas.json_columns_test import SCHEMAS, VALUES, columns, thing

from ottla.schemas.columns.avro_writing import InvalidValue
from ottla.schemas.columns.formats import make_writer


class Text(NamedTuple):
    text: str
    type: str = "JSON"
    references: tuple[tuple[str, str], ...] = ()
    message: str = ""


def encode_one(schema: Any, value: Any) -> Any:
    """The JSON value that is written of a column's value."""
    array = pa.array([value], columns(schema).type)
    (payload,) = make_writer(Text(json.dumps(schema))).encode_values(array, b"prefix").to_pylist()
    assert payload.startswith(b"prefix")
    return json.loads(payload.removeprefix(b"prefix"))


def kept(schema: Any, value: Any) -> Any:
    """What a column keeps of a value: properties that the schema names, as far as they are not null."""
    if schema.get("properties"):
        below = schema["properties"]
        return {key: kept(below[key], each) for key, each in value.items() if key in below and each is not None}
    if schema.get("additionalProperties"):
        return {key: kept(schema["additionalProperties"], each) for key, each in value.items()}
    if schema.get("type") == "array":
        return [kept(schema["items"], each) for each in value]
    return value


@settings(deadline=None, max_examples=300)
@given(SCHEMAS, VALUES)
def test_what_is_read_is_written(schema: Any, value: Any) -> None:
    array, _ = columns(schema).decode(pa.array([json.dumps(value).encode()], pa.binary()))
    (found,) = array.to_pylist()
    if found is not None:
        assert encode_one(schema, found) == kept(schema, value)


@pytest.mark.parametrize(
    ("schema", "value", "written"),
    [
        ({**thing(a={"type": ["null", "string"]}), "required": ["a"]}, {"a": None}, {"a": None}),
        (thing(a={"type": ["null", "string"]}), {"a": None}, {}),
        ({"type": "string"}, 'é"', 'é"'),
        ({}, '{"any": [1, null]}', {"any": [1, None]}),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, [("k", 1)], {"k": 1}),
    ],
)
def test_values_that_are_written(schema: Any, value: Any, written: Any) -> None:
    assert encode_one(schema, value) == written


@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        ({**thing(a={"type": "string"}), "required": ["a"]}, {"a": None}, "null"),
        ({"type": "string", "pattern": "^b"}, "a", "does not match"),
        ({"type": "number"}, float("nan"), "not one of JSON"),
        ({}, "no JSON", "Expecting value"),
        ({"type": "object"}, "[1]", "list, not dict"),
        ({"type": "array", "items": {"type": "integer"}}, [1, None], "null"),
    ],
)
def test_values_that_the_schema_refuses(schema: Any, value: Any, why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        encode_one(schema, value)


def test_fields_that_the_schema_lacks_are_refused() -> None:
    writer = make_writer(Text(json.dumps(thing(a={"type": "integer"}))))
    array = pa.array([{"a": 1, "b": None}])
    assert writer.encode_values(array).to_pylist() == [b'{"a": 1}']
    with pytest.raises(InvalidValue, match="no property b"):
        writer.encode_values(pa.array([{"a": 1, "b": 2}]))
    assert writer.encode_values(pa.array([None], array.type)).to_pylist() == [None]
