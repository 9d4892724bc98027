"""Rows of Arrow arrays as Avro payloads.

Zone: pure. The inverse of `avro`: maps are pairs, a union of several types is a struct of which one member is set.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Final

import fastavro
import pyarrow as pa

from ottla.schemas.avro import AvroSchema, type_of
from ottla.schemas.columns.formats import SchemaText
from ottla.schemas.columns.types import members_of

Convert = Callable[[Any], Any]


class InvalidValue(ValueError):
    """A value that is none of its schema."""


class AvroWriter:
    """Encodes values of one schema."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema
        self._convert = _converter(schema, schema.root)

    def encode_values(self, values: pa.Array, prefix: bytes = b"") -> pa.Array:
        """The payloads (binary), each with the prefix in front. A null is a null. Raises InvalidValue."""
        return pa.array(
            [None if each is None else self._encode_value(each, prefix) for each in values.to_pylist()], pa.binary()
        )

    def _encode_value(self, value: Any, prefix: bytes) -> bytes:
        out = io.BytesIO()
        try:
            fastavro.schemaless_writer(out, self._schema.root, self._convert(value))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, ArithmeticError) as error:
            raise InvalidValue(f"{value!r:.200} is not a value of the Avro schema: {error}") from error
        content = out.getvalue()
        return prefix + (_without_length(content) if self._schema.is_bytes else content)


def make_writer(schema: SchemaText) -> AvroWriter:
    """The encoder of a schema. Raises InvalidSchema."""
    return AvroWriter(AvroSchema(schema.text, [text for _, text in schema.references]))


def _without_length(content: bytes) -> bytes:
    """Encoded bytes without the varint in front, the last byte of which is below 128."""
    return content[next(at for at, byte in enumerate(content) if byte < 0x80) + 1 :]


def _converter(schema: AvroSchema, node: Any) -> Convert:
    """A function that makes fastavro's value of Arrow's."""
    node = schema.resolve(node)
    make = _CONVERTERS.get(type_of(node))
    return _same if make is None else make(schema, node)


def _same(value: Any) -> Any:
    return value


def _record_converter(schema: AvroSchema, node: Any) -> Convert:
    parts = {each["name"]: _converter(schema, each["type"]) for each in node["fields"]}
    if all(each is _same for each in parts.values()):
        return _same

    def convert(value: Any) -> Any:
        # A field that is missing stays missing: fastavro writes its default.
        return {name: parts[name](each) if name in parts else each for name, each in value.items()}

    return convert


def _array_converter(schema: AvroSchema, node: Any) -> Convert:
    part = _converter(schema, node["items"])
    return _same if part is _same else lambda value: [part(each) for each in value]


def _map_converter(schema: AvroSchema, node: Any) -> Convert:
    part = _converter(schema, node["values"])
    return lambda value: {key: part(each) for key, each in (value.items() if isinstance(value, dict) else value)}


def _union_converter(schema: AvroSchema, node: Any) -> Convert:
    members = members_of(schema, node)
    parts = [_converter(schema, each) for each in members]
    if len(members) == 1:
        (only,) = parts
        return _same if only is _same else lambda value: None if value is None else only(value)
    names = [f"member{at}" for at in range(len(members))]
    types = [_name_of(schema, each) for each in members]

    def convert(value: Any) -> Any:
        if value is None:
            return None
        at = next((at for at, name in enumerate(names) if value.get(name) is not None), None)
        return None if at is None else (types[at], parts[at](value[names[at]]))

    return convert


def _name_of(schema: AvroSchema, node: Any) -> str:
    """The name by which fastavro's writer chooses a branch."""
    node = schema.resolve(node)
    return str(node.get("name", node["type"])) if isinstance(node, dict) else str(node)


_CONVERTERS: Final[dict[str, Callable[[AvroSchema, Any], Convert]]] = {
    "record": _record_converter,
    "array": _array_converter,
    "map": _map_converter,
    "union": _union_converter,
}
