"""JSON schemas: what is one, and where references lead.

Zone: pure.
"""

from __future__ import annotations

import json

import pytest

from ottla.schemas.errors import InvalidSchema
from ottla.schemas.json_schema import JsonSchema


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("5", "an object, true or false, not int"),
        ('{"type": "text"}', "is not valid under any"),
        ('{"properties": []}', "is not of type 'object'"),
        ('{"maximum": "9"}', "is not of type 'number'"),
        ('{"$ref": "#/definitions/missing"}', "leads to nothing"),
        ('{"$ref": "http://example.org/other.json"}', "not named in the references"),
        ('{"$ref": "#/definitions/a", "definitions": {"a": {"$ref": "#/definitions/a"}}}', "more than 100 references"),
        ('{"items":' * 200 + "1" + "}" * 200, "levels deep"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        JsonSchema(text)


def test_references_lead_within_a_document_and_to_others() -> None:
    schema = JsonSchema(
        json.dumps(
            {
                "$id": "http://shop/basket.json",
                "properties": {
                    "a": {"$ref": "#/$defs/number"},
                    "b": {"$ref": "order.json"},
                    "c": {"$ref": "http://shop/order.json#/properties/id"},
                    "d": {"$ref": "#there"},
                },
                "$defs": {"number": {"type": "number"}, "x": {"$anchor": "there", "type": "null"}},
            }
        ),
        {"http://shop/order.json": '{"properties": {"id": {"type": "integer"}}}'},
    )
    found = {name: schema.resolve(each) for name, each in schema.root["properties"].items()}
    assert found == {
        "a": {"type": "number"},
        "b": {"properties": {"id": {"type": "integer"}}},
        "c": {"type": "integer"},
        "d": {"$anchor": "there", "type": "null"},
    }
