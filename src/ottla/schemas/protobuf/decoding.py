"""Decodes messages that begin with the indexes of their type, as Confluent's serializers write them.

Zone: pure. The indexes are zigzag varints: their count, and then the place of the message in the file, of the next one
in that message, and so on. The messages that fields of type map make count as the descriptor has them. A
single byte 0 means the first message of the file.
Source: Confluent's documentation, "Wire format".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ottla.schemas.errors import InvalidPayload, InvalidSchema
from ottla.schemas.protobuf.parser import MAX_LEVELS
from ottla.schemas.protobuf.runtime import import_runtime
from ottla.schemas.protobuf.schema import ProtobufSchema


def protobuf_decoder(schema: ProtobufSchema) -> Callable[[bytes], Any]:
    """A function that makes a dict of a payload, with the fields' names, which raises InvalidPayload.

    Values are those of Protobuf's JSON form: bytes are base64, whole numbers of 64 bits are texts.
    """
    json_format, decode_error = import_runtime("json_format"), import_runtime("message").DecodeError
    make_class = import_runtime("message_factory").GetMessageClass
    refused = (decode_error, json_format.Error, ValueError, TypeError, KeyError, OverflowError, RecursionError)

    def decode(payload: bytes) -> Any:
        indexes, begin = read_indexes(payload)
        message = make_class(schema.pool.FindMessageTypeByName(find_message_name(schema, indexes)))()
        try:
            message.ParseFromString(bytes(payload[begin:]))
            return json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=schema.pool)
        except refused as error:
            raise InvalidPayload(f"not written with its Protobuf schema: {type(error).__name__}: {error}") from error

    return decode


def read_indexes(payload: bytes) -> tuple[list[int], int]:
    """The indexes of a message's type, and where the message begins. Raises InvalidPayload."""
    count, at = _read_varint(payload, 0)
    if not 0 <= count <= MAX_LEVELS:
        raise InvalidPayload(f"the number of message indexes is {count}, and not in 0 to {MAX_LEVELS}")
    indexes = []
    for _ in range(count):
        index, at = _read_varint(payload, at)
        indexes.append(index)
    return indexes or [0], at


def write_indexes(indexes: Sequence[int]) -> bytes:
    """The indexes of a message's type, as they are in front of the message."""
    if list(indexes) == [0]:
        return b"\0"
    return b"".join(_write_varint(each) for each in (len(indexes), *indexes))


def message_indexes(descriptor: Any) -> list[int]:
    """The indexes of a message's type, whose Descriptor is given, in its file."""
    indexes: list[int] = []
    while (parent := descriptor.containing_type) is not None:
        indexes.insert(0, _place_of(descriptor, parent.nested_types))
        descriptor = parent
    return [_place_of(descriptor, descriptor.file.message_types_by_name.values()), *indexes]


def _place_of(descriptor: Any, siblings: Any) -> int:
    return [each.full_name for each in siblings].index(descriptor.full_name)


def _write_varint(number: int) -> bytes:
    """A zigzag varint of a number that is not negative."""
    number, written = number << 1, bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*written, number))


def _read_varint(payload: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint of at most 5 bytes, and the place after it."""
    number = 0
    for shift, byte in zip(range(0, 35, 7), payload[at : at + 5], strict=False):
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise InvalidPayload("the payload does not begin with message indexes")


def find_message(schema: ProtobufSchema, name: str = "") -> Any:
    """The descriptor of a message of the schema, named with or without its package; empty: the first one.

    Raises InvalidSchema.
    """
    found = schema.pool.FindFileByName(schema.file.name).message_types_by_name
    if not name:
        if not schema.file.message_type:
            raise InvalidSchema("the schema has no message")
        return found[schema.file.message_type[0].name]
    first, *others = name.removeprefix(f"{schema.file.package}.").split(".")
    message = found.get(first)
    for each in others:
        message = None if message is None else message.nested_types_by_name.get(each)
    if message is None:
        raise InvalidSchema(f"the schema has no message {name[:200]!r}")
    return message


def find_message_name(schema: ProtobufSchema, indexes: list[int]) -> str:
    """The full name of the message with the indexes. Raises InvalidPayload: there is none."""
    names, messages = [schema.file.package] if schema.file.package else [], schema.file.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            raise InvalidPayload(f"the schema has no message with the indexes {indexes}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)
