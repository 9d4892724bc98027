"""Decodes the key and value bytes of an internal topic.

Zone: pure. A key begins with an int16 that names the record type, a value with an int16 that is its version. A null
value deletes the key (a tombstone).
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple

from ottla.record.errors import CorruptRecord
from ottla.wire.codec import decode
from ottla.wire.errors import MalformedMessage
from ottla.wire.schema import Message

_INT16 = Struct(">h")


class RecordType(NamedTuple):
    """The classes of a record type; keys have one version, 0."""

    key: type[Message]
    value: type[Message]


RecordTypes = Mapping[int, RecordType]
"""The record types of a topic by the number that begins their keys."""


class UnknownType(Exception):
    """A record type that is not declared: a newer broker wrote the record, and readers skip it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"record type {number}")
        self.number = number


class InternalRecord(NamedTuple):
    """A decoded record."""

    type: int
    key: Message
    version: int
    """Version of the value; -1 without one."""
    value: Message | None


def parse_record(types: RecordTypes, key: bytes | None, value: bytes | None) -> InternalRecord:
    """Decode a record. Raises UnknownType; CorruptRecord for bytes that do not fit their type or version."""
    number = _read_type_number(key, "key")
    record_type = types.get(number)
    if record_type is None:
        raise UnknownType(number)
    assert key is not None
    decoded = _decode_message(record_type.key, 0, key)
    if value is None:
        return InternalRecord(number, decoded, -1, None)
    version = _read_type_number(value, "value")
    return InternalRecord(number, decoded, version, _decode_message(record_type.value, version, value))


def parse_versioned(cls: type[Message], data: bytes) -> tuple[int, Message]:
    """(version, message) of bytes that begin with their version. A newer version is read as the newest known one.

    Raises CorruptRecord.
    """
    version = _read_type_number(data, "message")
    # As Kafka's clients do: a newer version of these messages only adds fields at the end.
    return version, _decode_message(cls, min(version, cls.VERSIONS[-1]), data)


def _read_type_number(data: bytes | None, what: str) -> int:
    if data is None or len(data) < 2:
        raise CorruptRecord(f"the {what} of an internal record has at least 2 bytes")
    number: int = _INT16.unpack_from(data)[0]
    return number


def _decode_message(cls: type[Message], version: int, data: bytes) -> Message:
    if version not in cls.VERSIONS:
        raise CorruptRecord(f"{cls.__name__} of version {version}")
    try:
        return decode(cls, version, data, 2)[0]
    except MalformedMessage as error:
        raise CorruptRecord(str(error)) from error
