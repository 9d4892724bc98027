"""Avro schemas: what is one, and what is refused.

Zone: pure.
"""

from __future__ import annotations

import json

import pytest

from ottla.schemas.avro import AvroSchema
from ottla.schemas.errors import InvalidSchema
from ottla.schemas.nesting import MAX_BYTES

RECORD = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"type": NaN}', "NaN is not a JSON value"),
        ("1", "1 is not a schema"),
        ("null", "None is not a schema"),
        ('"text"', "the type 'text' is not defined"),
        ('{"type": "record"}', "the name of a type 'record' is None"),
        ('{"type": "record", "name": "1R", "fields": []}', "'1R'"),
        ('{"type": "record", "name": "R", "namespace": 5, "fields": []}', "5 is not a namespace"),
        ('{"type": "record", "name": "R", "fields": {}}', "no list of fields"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a"}]}', "is not a field"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a b", "type": "int"}]}', "'a b' is not the name"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}',
            "the field 'a' twice",
        ),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": "x"}]}', "Default value"),
        ('{"type": "record", "name": "R", "aliases": "S", "fields": []}', "aliases are a list"),
        ('{"type": "enum", "name": "E", "symbols": "AB"}', "no list of symbols"),
        ('{"type": "enum", "name": "E", "symbols": ["A", "A"]}', "unique"),
        ('{"type": "enum", "name": "E", "symbols": ["A-B"]}', "'A-B' is not a symbol"),
        ('{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}', "must be in symbols"),
        ('{"type": "fixed", "name": "F", "size": "8"}', "the size of 'F' is '8'"),
        ('{"type": "fixed", "name": "F", "size": -1}', "the size of 'F' is -1"),
        ('{"type": "array"}', "an array has no items"),
        ('{"type": "map"}', "a map has no values"),
        ('["int", "int"]', "contains 'int' twice"),
        ('[["int"]]', "a union contains a union"),
        ('{"type": {"type": "int"}}', "not a name"),
        ("[" * 200 + "]" * 200, "levels deep"),
        ("[" * 100_000, "levels deep"),
        (json.dumps({"type": "string", "doc": "x" * MAX_BYTES}), "characters"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason.replace("(", r"\(").replace("[", r"\[")):
        AvroSchema(text)


def test_equal_schemas_have_equal_texts() -> None:
    assert AvroSchema(json.dumps(RECORD, indent=2)).canonical == AvroSchema(json.dumps(RECORD)).canonical


@pytest.mark.parametrize(
    ("wrapped", "plain"),
    [
        ({"type": "string"}, "string"),
        ([{"type": "null"}, {"type": "int"}], ["null", "int"]),
        ({"type": "array", "items": {"type": "long"}}, {"type": "array", "items": "long"}),
        ({"type": "map", "values": [{"type": "long"}]}, {"type": "map", "values": ["long"]}),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "int"}, "default": 1}]},
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": 1}]},
        ),
    ],
)
def test_a_type_with_no_attributes_is_its_name(wrapped: object, plain: object) -> None:
    assert AvroSchema(json.dumps(wrapped)).canonical == AvroSchema(json.dumps(plain)).canonical


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "enum", "name": "E", "symbols": ["A"], "items": {"type": "of no meaning"}},
        {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": "a", "type": {"type": "map", "values": "string"}, "default": {"type": "x"}},
                {"name": "b", "type": "int", "doc": "d", "unit": {"type": "m"}},
            ],
        },
    ],
)
def test_attributes_and_defaults_are_kept(schema: object) -> None:
    assert json.loads(AvroSchema(json.dumps(schema)).canonical) == schema


def test_a_schema_uses_named_types_of_its_references() -> None:
    basket = {
        "type": "record",
        "name": "Basket",
        "fields": [{"name": "orders", "type": {"type": "array", "items": "shop.Order"}}],
    }
    assert AvroSchema(json.dumps(basket), [json.dumps(RECORD)]).names.keys() == {"shop.Order", "Basket"}
    with pytest.raises(InvalidSchema, match=r"'shop\.Order' is not defined"):
        AvroSchema(json.dumps(basket))


def test_a_recursive_schema_is_one() -> None:
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    assert AvroSchema(json.dumps(node)).names.keys() == {"Node"}
