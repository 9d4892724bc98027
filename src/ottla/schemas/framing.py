"""Which schema a record was written with: the three framings of Confluent's serializers.

Zone: pure. In front of the payload: a byte 0 and the id as int32 (big endian), or a byte 1 and the 16 bytes of the
guid. Or the same bytes in the record header `__key_schema_id` or `__value_schema_id`, and the payload alone in the
record. With Protobuf, the header has the indexes of the message after the guid, which are in front of the payload
otherwise.
Source: Confluent's documentation, "Wire format".
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Final, NamedTuple

KEY_HEADER: Final = "__key_schema_id"
VALUE_HEADER: Final = "__value_schema_id"
_ID, _GUID = 0, 1
_ID_BYTES, _GUID_BYTES = 4, 16


class Framed(NamedTuple):
    """A payload and the name of its schema: an id or a guid. The payload of Protobuf begins with message indexes."""

    schema: int | str
    payload: bytes


def read_framing(data: bytes, headers: Iterable[tuple[str, bytes | None]], *, is_key: bool) -> Framed | None:
    """The payload of a key or value with its schema; None: it is not framed."""
    name = KEY_HEADER if is_key else VALUE_HEADER
    for header, content in headers:
        if header == name and content is not None and (found := _read_name(content)) is not None:
            return _join_framing(*found, content, data)
    found = _read_name(data)
    return None if found is None else Framed(found[0], data[found[1] :])


def _join_framing(schema: int | str, end: int, content: bytes, data: bytes) -> Framed | None:
    """A value whose header names the schema up to `end`. After a guid, indexes of a message may follow."""
    if end == len(content):
        return Framed(schema, data)
    return Framed(schema, content[end:] + data) if isinstance(schema, str) else None


def write_framing(schema: int | str, payload: bytes) -> bytes:
    """The framed payload, for a schema's id or guid."""
    if isinstance(schema, int):
        return bytes((_ID,)) + schema.to_bytes(_ID_BYTES) + payload
    return bytes((_GUID,)) + uuid.UUID(schema).bytes + payload


def _read_name(data: bytes) -> tuple[int | str, int] | None:
    """The schema's id or guid, and the number of bytes it takes."""
    if len(data) > _ID_BYTES and data[0] == _ID:
        return int.from_bytes(data[1 : 1 + _ID_BYTES]), 1 + _ID_BYTES
    if len(data) > _GUID_BYTES and data[0] == _GUID:
        return str(uuid.UUID(bytes=bytes(data[1 : 1 + _GUID_BYTES]))), 1 + _GUID_BYTES
    return None
