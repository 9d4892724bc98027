"""Avro schemas, as the Avro specification 1.12 defines them.

Zone: pure. fastavro parses the schema, `avro_rules` checks the rest; this module keeps the parsed form, in which each
named type is defined once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import fastavro.schema
from fastavro.schema import SchemaParseException, UnknownType

from ottla.schemas.avro_rules import PRIMITIVES, check_rules
from ottla.schemas.errors import InvalidSchema
from ottla.schemas.nesting import canonical_json, parse_json

_PARTS = {"array": "items", "map": "values", "record": "fields", "error": "fields"}
"""The attribute with the schemas of a type's parts."""


class AvroSchema:
    """A parsed Avro schema."""

    def __init__(self, text: str, references: Sequence[str] = ()) -> None:
        """Parse a schema. `references`: texts of schemas whose named types it may use, each after those that it uses.

        Raises InvalidSchema.
        """
        self.names: dict[str, Any] = {}
        """Named types by full name, those of the references included."""
        for reference in references:
            self._parse(parse_json(reference))
        document = parse_json(text)
        self.canonical = canonical_json(_unwrap_types(document))
        """The text without optional spaces, and with `"string"` in place of `{"type": "string"}`, as Apache Avro prints
        it: schemas that differ in no more are equal."""
        self.root: Any = self._parse(document)

    @property
    def is_bytes(self) -> bool:
        """Whether a payload is the value's bytes themselves: Confluent's serializers write no length in front."""
        return type_of(self.resolve(self.root)) == "bytes"

    def _parse(self, document: Any) -> Any:
        check_rules(document)
        try:
            return fastavro.schema.parse_schema(document, named_schemas=self.names)
        except UnknownType as error:
            raise InvalidSchema(f"the type {error.name!r} is not defined") from error
        except SchemaParseException as error:
            raise InvalidSchema(str(error)) from error
        except (TypeError, AttributeError, KeyError, ValueError) as error:  # fastavro trusts the types of members
            raise InvalidSchema(f"not an Avro schema: {type(error).__name__}: {error}") from error

    def resolve(self, node: Any) -> Any:
        """The definition of a node: itself, or that of the named type it refers to."""
        if isinstance(node, str) and node not in PRIMITIVES:
            return self.names[node]
        while isinstance(node, dict) and isinstance(node["type"], dict | list):
            node = node["type"]
        return node


def type_of(node: Any) -> str:
    """The type of a resolved node: a primitive's, a complex type's, or `union`."""
    if isinstance(node, list):
        return "union"
    name = node["type"] if isinstance(node, Mapping) else node
    return "record" if name == "error" else str(name)


def _unwrap_types(node: Any) -> Any:
    """A schema with each `{"type": T}` that says no more as T; defaults and other attributes stay as they are."""
    if isinstance(node, list):
        return [_unwrap_types(each) for each in node]
    if not isinstance(node, dict):
        return node
    if set(node) == {"type"}:
        return _unwrap_types(node["type"])
    part = _PARTS.get(str(node.get("type")), "type")
    return {
        key: _unwrap_fields(value) if key == part == "fields" else _unwrap_types(value) if key == part else value
        for key, value in node.items()
    }


def _unwrap_fields(fields: Any) -> Any:
    if not isinstance(fields, list):
        return fields
    return [
        {key: _unwrap_types(value) if key == "type" else value for key, value in each.items()}
        if isinstance(each, dict)
        else each
        for each in fields
    ]
