"""Payloads of Avro, JSON Schema and Protobuf as Python values.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ottla.schemas.avro import AvroSchema, type_of
from ottla.schemas.avro_values import avro_decoder, parts_of
from ottla.schemas.errors import InvalidSchema
from ottla.schemas.json_documents import decode_json
from ottla.schemas.nesting import MAX_DEPTH
from ottla.schemas.protobuf.decoding import protobuf_decoder
from ottla.schemas.protobuf.schema import ProtobufSchema

Decode = Callable[[bytes], Any]
"""Makes the value of a payload. Raises InvalidPayload."""


def make_decoder(kind: str, text: str, references: Sequence[tuple[str, str]] = ()) -> Decode:
    """The decoder of a schema. references: name and text, each after those that it refers to. Raises InvalidSchema."""
    if kind == "AVRO":
        return _avro_decoder(AvroSchema(text, [each for _, each in references]))
    if kind == "JSON":
        return decode_json
    if kind == "PROTOBUF":
        return protobuf_decoder(ProtobufSchema(text, dict(references)))
    raise InvalidSchema(f"values of schemas of type {kind} cannot be decoded")


def _avro_decoder(schema: AvroSchema) -> Decode:
    refuse_empty_items(schema)
    return avro_decoder(schema)


def refuse_empty_items(schema: AvroSchema) -> None:
    """Refuse arrays of items that take no bytes: a few bytes of payload would make any number of them.

    Raises InvalidSchema.
    """
    left, seen = [schema.root], set()
    known: dict[int, bool] = {}
    while left:
        node = schema.resolve(left.pop())
        if id(node) in seen:
            continue
        seen.add(id(node))
        left += parts_of(node)
        if type_of(node) == "array" and _takes_no_bytes(schema, node["items"], known):
            raise InvalidSchema("it has an array of values that take no bytes; such values are not decoded")


def _takes_no_bytes(schema: AvroSchema, node: Any, known: dict[int, bool], depth: int = 0) -> bool:
    """known: records by identity; one that is being looked at takes no bytes by itself."""
    node = schema.resolve(node)
    if type_of(node) != "record":
        return type_of(node) == "null" or (type_of(node) == "fixed" and node["size"] == 0)
    if depth == MAX_DEPTH:
        raise InvalidSchema(f"its records are nested more than {MAX_DEPTH} levels deep")
    if id(node) not in known:
        known[id(node)] = True
        known[id(node)] = all(_takes_no_bytes(schema, each, known, depth + 1) for each in parts_of(node))
    return known[id(node)]
