"""Which JSON schemas accept all that others accept: a table of changes, and random pairs tried with jsonschema.

Zone: pure. The table has the changes that Confluent's documentation of JSON Schema compatibility lists.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ottla.schemas import json_compatibility
from ottla.schemas.errors import InvalidSchema
from ottla.schemas.json_compatibility import find_json_incompatibilities
from ottla.schemas.json_schema import JsonSchema


def kinds(reader: Any, writer: Any) -> list[str]:
    found = find_json_incompatibilities(JsonSchema(json.dumps(reader)), JsonSchema(json.dumps(writer)))
    return [each.kind for each in found]


def obj(properties: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties or {}, **more}


INT, TEXT = {"type": "integer"}, {"type": "string"}
CLOSED = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        # Anything and nothing.
        ({}, INT, []),
        (True, INT, []),
        (INT, {}, ["TYPE_NARROWED"]),
        (False, INT, ["TYPE_NARROWED"]),
        (INT, False, []),
        # Types.
        ({"type": "number"}, INT, []),
        (INT, {"type": "number"}, ["TYPE_NARROWED"]),
        ({"type": ["string", "null"]}, TEXT, []),
        (TEXT, {"type": ["string", "null"]}, ["TYPE_NARROWED"]),
        (TEXT, INT, ["TYPE_CHANGED"]),
        # What says nothing about values.
        ({**INT, "title": "a", "description": "b", "default": 1}, INT, []),
        # Bounds.
        ({**TEXT, "maxLength": 5}, TEXT, ["MAX_LENGTH_ADDED"]),
        ({**TEXT, "maxLength": 5}, {**TEXT, "maxLength": 6}, ["MAX_LENGTH_DECREASED"]),
        ({**TEXT, "maxLength": 6}, {**TEXT, "maxLength": 5}, []),
        (TEXT, {**TEXT, "maxLength": 5}, []),
        ({**TEXT, "minLength": 2}, {**TEXT, "minLength": 1}, ["MIN_LENGTH_INCREASED"]),
        ({**TEXT, "minLength": 0}, TEXT, []),
        ({**INT, "maximum": 9}, {**INT, "maximum": 10}, ["MAXIMUM_DECREASED"]),
        ({**INT, "minimum": 1}, INT, ["MINIMUM_ADDED"]),
        ({**INT, "exclusiveMinimum": 1}, {**INT, "exclusiveMinimum": 0}, ["EXCLUSIVE_MINIMUM_INCREASED"]),
        ({**INT, "multipleOf": 2}, {**INT, "multipleOf": 4}, []),
        ({**INT, "multipleOf": 4}, {**INT, "multipleOf": 2}, ["MULTIPLE_OF_EXPANDED"]),
        ({**INT, "multipleOf": 3}, {**INT, "multipleOf": 2}, ["MULTIPLE_OF_CHANGED"]),
        ({**TEXT, "pattern": "a"}, TEXT, ["PATTERN_ADDED"]),
        ({**TEXT, "pattern": "a"}, {**TEXT, "pattern": "b"}, ["PATTERN_CHANGED"]),
        (TEXT, {**TEXT, "pattern": "a"}, []),
        # Enums.
        ({"enum": [1, 2]}, {"enum": [1]}, []),
        ({"enum": [1]}, {"enum": [1, 2]}, ["ENUM_ARRAY_NARROWED"]),
        ({"enum": [1]}, {"enum": [2]}, ["ENUM_ARRAY_CHANGED"]),
        ({"enum": [1]}, INT, ["ENUM_ARRAY_ADDED"]),
        ({"enum": [1]}, {"enum": [True]}, ["ENUM_ARRAY_CHANGED"]),
        ({"enum": ["a"]}, {"const": "a"}, []),
        # Objects: required properties.
        (obj({"a": INT}, required=["a"]), obj({"a": INT}), ["REQUIRED_ATTRIBUTE_ADDED"]),
        (obj({"a": {**INT, "default": 1}}, required=["a"]), obj({"a": INT}), []),
        (obj({"a": INT}), obj({"a": INT}, required=["a"]), []),
        # Objects: properties added to and removed from each content model.
        (obj({"a": INT}), obj(), ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
        (obj({"a": {}}), obj(), []),
        (obj(), obj({"a": INT}), []),
        (obj({"a": INT}, **CLOSED), obj(**CLOSED), []),
        (
            obj({"a": INT}, required=["a"], **CLOSED),
            obj(**CLOSED),
            ["REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"],
        ),
        (obj(**CLOSED), obj({"a": INT}, **CLOSED), ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]),
        (obj(**CLOSED), obj({"a": False}, **CLOSED), []),
        (
            obj({"a": INT}, additionalProperties=TEXT),
            obj(additionalProperties=TEXT),
            ["PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"],
        ),
        (obj({"a": TEXT}, additionalProperties=TEXT), obj(additionalProperties=TEXT), []),
        (
            obj(additionalProperties=TEXT),
            obj({"a": INT}, additionalProperties=TEXT),
            ["PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"],
        ),
        (obj(additionalProperties=TEXT), obj({"a": TEXT}, additionalProperties=TEXT), []),
        (obj(**CLOSED), obj(), ["ADDITIONAL_PROPERTIES_REMOVED"]),
        (obj(additionalProperties=TEXT), obj(), ["ADDITIONAL_PROPERTIES_NARROWED"]),
        (obj(), obj(**CLOSED), []),
        (obj({"a": INT}), obj({"a": TEXT}), ["TYPE_CHANGED"]),
        (obj({"ab": INT}, patternProperties={"^a": INT}, **CLOSED), obj(patternProperties={"^a": INT}, **CLOSED), []),
        # Objects: dependencies.
        (obj(dependentRequired={"a": ["b"]}), obj(), ["DEPENDENCY_ARRAY_ADDED"]),
        (obj(dependentRequired={"a": ["b", "c"]}), obj(dependentRequired={"a": ["b"]}), ["DEPENDENCY_ARRAY_EXTENDED"]),
        (obj(dependentRequired={"a": ["b"]}), obj(dependentRequired={"a": ["b", "c"]}), []),
        (obj(dependentSchemas={"a": {"required": ["b"]}}), obj(), ["DEPENDENCY_SCHEMA_ADDED"]),
        # Arrays.
        ({"items": INT}, {"items": {"type": "number"}}, ["TYPE_NARROWED"]),
        ({"items": {"type": "number"}}, {"items": INT}, []),
        ({"uniqueItems": True}, {}, ["UNIQUE_ITEMS_ADDED"]),
        ({"prefixItems": [INT], "items": False}, {"items": False}, []),
        ({"prefixItems": [INT]}, {}, ["ITEM_ADDED_TO_OPEN_CONTENT_MODEL"]),
        ({"items": False}, {"prefixItems": [INT], "items": False}, ["ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL"]),
        ({"prefixItems": [INT], "items": False}, {"prefixItems": [INT]}, ["ADDITIONAL_ITEMS_REMOVED"]),
        # Combined schemas.
        ({"anyOf": [INT, TEXT]}, INT, []),
        ({"anyOf": [INT, TEXT]}, {"anyOf": [TEXT]}, []),
        ({"anyOf": [INT]}, {"anyOf": [INT, TEXT]}, ["SUM_TYPE_NARROWED"]),
        ({"oneOf": [INT, TEXT]}, {"oneOf": [TEXT, INT]}, []),
        ({"anyOf": [INT, TEXT]}, {"type": "null"}, ["COMBINED_TYPE_SUBSCHEMAS_CHANGED"]),
        (INT, {"anyOf": [INT]}, []),
        (INT, {"anyOf": [INT, TEXT]}, ["TYPE_NARROWED"]),
        ({"allOf": [INT]}, {"allOf": [INT, {"minimum": 1}]}, []),
        ({"allOf": [INT, {"minimum": 1}]}, {"allOf": [INT]}, ["PRODUCT_TYPE_EXTENDED"]),
        (INT, {"allOf": [INT, {"minimum": 1}]}, []),
        ({"not": {"maximum": 1, **INT}}, {"not": INT}, []),
        ({"not": INT}, {"not": {"maximum": 1, **INT}}, ["NOT_TYPE_EXTENDED"]),
        ({"not": INT}, {}, ["NOT_TYPE_EXTENDED"]),
    ],
)
def test_changes(reader: Any, writer: Any, expected: list[str]) -> None:
    assert kinds(reader, writer) == expected


def test_references_are_followed() -> None:
    writer = {"$ref": "#/$defs/n", "$defs": {"n": INT}}
    assert kinds({"type": "number"}, writer) == []
    assert kinds(TEXT, writer) == ["TYPE_CHANGED"]
    tree = {"$ref": "#/$defs/t", "$defs": {"t": obj({"left": {"$ref": "#/$defs/t"}})}}
    assert kinds(tree, tree) == []


def test_keywords_beside_a_reference_count_in_drafts_that_say_so() -> None:
    narrower = {"$ref": "#/$defs/n", "maximum": 5, "$defs": {"n": INT}}
    assert kinds(narrower, INT) == []
    newer = {"$schema": "https://json-schema.org/draft/2020-12/schema", **narrower}
    assert kinds(newer, INT) == ["PRODUCT_TYPE_EXTENDED"]
    assert kinds(INT, newer) == []
    deep = {**newer, "properties": {"again": {"$ref": "#", "minProperties": 1}}}
    assert kinds(deep, deep) == []


def test_schemas_that_take_too_long_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_compatibility, "MAX_COMPARISONS", 1_000)
    reader = {"anyOf": [{**INT, "maximum": each} for each in range(100)]}
    writer = {"anyOf": [{**INT, "maximum": 1_000 + each} for each in range(100)]}
    with pytest.raises(InvalidSchema, match="more than 1,000 steps"):
        kinds(reader, writer)


# -- random pairs ------------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 6), st.sampled_from(["", "a", "ab", "abc"])),
    lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(st.sampled_from("abc"), below, max_size=3)),
    max_leaves=6,
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
SMALL = st.integers(0, 4)


def _schemas(below: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keywords = {
        "type": st.one_of(TYPES, st.lists(TYPES, min_size=1, max_size=3, unique=True)),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "maximum": SMALL, "minimum": SMALL, "exclusiveMaximum": SMALL, "exclusiveMinimum": SMALL,
        "multipleOf": st.integers(1, 4), "maxLength": SMALL, "minLength": SMALL,
        "pattern": st.sampled_from(["a", "b$"]),
        "maxItems": SMALL, "minItems": SMALL, "maxProperties": SMALL, "minProperties": SMALL,
        "uniqueItems": st.booleans(), "items": below, "prefixItems": st.lists(below, min_size=1, max_size=2),
        "properties": st.dictionaries(st.sampled_from("abc"), below, max_size=3),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), below, max_size=2),
        "additionalProperties": below, "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
        "dependentRequired": st.dictionaries(st.sampled_from("ab"), st.just(["c"]), max_size=1),
        "dependentSchemas": st.dictionaries(st.sampled_from("ab"), below, max_size=1),
        "anyOf": st.lists(below, min_size=1, max_size=2),  # oneOf: parts that are not exclusive are not judged
        "allOf": st.lists(below, min_size=1, max_size=2), "not": below,
    }  # fmt: skip
    some = st.lists(st.sampled_from(sorted(keywords)), max_size=3, unique=True)
    return some.flatmap(lambda names: st.fixed_dictionaries({name: keywords[name] for name in names}))


SCHEMAS = st.recursive(st.booleans(), _schemas, max_leaves=6)


@settings(max_examples=400)
@given(SCHEMAS, st.data())
def test_what_is_compatible_accepts_what_was_accepted(writer: Any, data: st.DataObject) -> None:
    reader = data.draw(st.one_of(SCHEMAS, _changed(writer)))
    assume(not kinds(reader, writer))
    accepts, accepted = Draft202012Validator(reader), Draft202012Validator(writer)
    for value in data.draw(st.lists(VALUES, min_size=5, max_size=20)):
        if accepted.is_valid(value):
            assert accepts.is_valid(value), value


def _changed(schema: Any) -> st.SearchStrategy[Any]:
    """A schema that differs in a keyword: those are compatible more often than two of their own."""
    if not isinstance(schema, dict):
        return SCHEMAS
    return _schemas(st.booleans()).map(lambda more: {**schema, **more})


@given(SCHEMAS)
def test_a_schema_accepts_what_it_accepted(schema: Any) -> None:
    assert kinds(schema, schema) == []
