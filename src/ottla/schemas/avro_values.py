"""Python values as payloads of Avro, and back.

Zone: pure. fastavro reads and writes. Its compiled functions recurse in C without a limit, so that a payload of a
schema that contains itself could overflow the stack and end the process. Such schemas are read by fastavro's functions
in Python, which raise RecursionError, and their values are measured before they are written.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

import fastavro
from fastavro import _read_py
from fastavro.read import SchemaResolutionError

from ottla.schemas.avro import AvroSchema, type_of
from ottla.schemas.errors import InvalidPayload
from ottla.schemas.nesting import MAX_DEPTH

_REFUSED: Final = (
    ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, EOFError, MemoryError, RecursionError,
    SchemaResolutionError, struct.error,
)  # fmt: skip
"""The errors that fastavro raises for payloads and values that do not fit their schema."""


def avro_encoder(
    schema: AvroSchema, *, strict: bool = False, strict_allow_default: bool = False
) -> Callable[[Any], bytes]:
    """A function that makes the payload of a value, and raises InvalidPayload.

    strict: a record has the fields of its schema and no others; strict_allow_default: fields with defaults may lack.
    """
    if schema.is_bytes:
        return _check_bytes
    # Both are found once per schema, not per value.
    root = expand_root(schema)
    is_recursive = contains_itself(schema)

    def encode_value(value: Any) -> bytes:
        target = io.BytesIO()
        try:
            # Only values of such schemas can be deep without end; others are as deep as their schema.
            if is_recursive:
                _check_nesting(value)
            fastavro.schemaless_writer(target, root, value, strict=strict, strict_allow_default=strict_allow_default)
        except _REFUSED as error:
            raise InvalidPayload(f"the value does not fit its Avro schema: {_describe_error(error)}") from error
        return target.getvalue()

    return encode_value


def avro_decoder(
    writer: AvroSchema, reader: AvroSchema | None = None, *, return_record_name: bool = False
) -> Callable[[bytes], Any]:
    """A function that makes the value of a payload, and raises InvalidPayload.

    reader: resolve values to this schema. return_record_name: a record of a union is a pair of its name and itself.
    """
    if writer.is_bytes and (reader is None or reader.is_bytes):
        return bytes
    root, reader_root = expand_root(writer), None if reader is None else expand_root(reader)
    is_recursive = contains_itself(writer) or (reader is not None and contains_itself(reader))
    read = _read_py.schemaless_reader if is_recursive else fastavro.schemaless_reader

    def decode_payload(payload: bytes) -> Any:
        source = io.BytesIO(payload)
        try:
            value = read(source, root, reader_root, return_record_name=return_record_name)
        except _REFUSED as error:
            raise InvalidPayload(f"not written with its Avro schema: {_describe_error(error)}") from error
        if source.tell() != len(payload):
            raise InvalidPayload(f"{len(payload) - source.tell()} bytes follow the Avro value")
        return value

    return decode_payload


def contains_itself(schema: AvroSchema) -> bool:
    """Whether one of its named types has a part of the same type."""
    graph = {name: set(_names_in(schema, definition)) for name, definition in schema.names.items()}
    # A schema contains itself if its types cannot be sorted such that each comes after its parts.
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return True
    return False


def expand_root(schema: AvroSchema) -> Any:
    """The root with definitions in place of names: fastavro looks for the names of a root that is a list nowhere."""
    if isinstance(schema.root, list):
        return [schema.resolve(each) for each in schema.root]
    return schema.resolve(schema.root) if isinstance(schema.root, str) else schema.root


def parts_of(node: Any) -> list[Any]:
    """The schemas that the schema of a list, record, array or map has in it."""
    if isinstance(node, list):
        return node
    parts = {"record": lambda: [each["type"] for each in node["fields"]],
             "array": lambda: [node["items"]], "map": lambda: [node["values"]]}  # fmt: skip
    return parts.get(type_of(node), list)()


def _names_in(schema: AvroSchema, definition: Any) -> Iterator[str]:
    left = list(parts_of(definition))
    while left:
        node = left.pop()
        # Avro allows a type around a type: `{"type": {"type": "int"}}`.
        while isinstance(node, dict) and isinstance(node["type"], dict | list):
            node = node["type"]
        name = node if isinstance(node, str) else node.get("name") if isinstance(node, dict) else None
        if name in schema.names:
            yield name
        else:
            left += parts_of(node)


def _check_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidPayload(f"the value does not fit its Avro schema: it is {type(value).__name__}, not bytes")
    return bytes(value)


def _check_nesting(value: Any) -> None:
    """Depth first, so that a value that contains itself is found after few steps. Raises RecursionError."""
    left = [(value, 0)]
    while left:
        node, depth = left.pop()
        if depth > MAX_DEPTH:
            raise RecursionError
        parts = node.values() if isinstance(node, Mapping) else node if isinstance(node, list | tuple) else ()
        left += [(each, depth + 1) for each in parts]


def _describe_error(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return f"{type(error).__name__}: {error}"[:500]
