"""Internal topics, decoded to the JSON that Kafka's tool prints.

Zone: pure. The JSON of messages, and the text for records that cannot be decoded; the layouts are in
`ottla.record.internal`.
"""

from __future__ import annotations

import base64
import json
from typing import Final

from ottla.errors import ApiError
from ottla.record.internal.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from ottla.record.internal.groups import GROUP_RECORDS, ConsumerGroupMemberMetadataValue, GroupMetadataValue
from ottla.record.internal.parsing import RecordTypes, UnknownType, parse_record, parse_versioned
from ottla.record.internal.transactions import TRANSACTION_RECORDS
from ottla.storage.dump.items import Content
from ottla.types import uuid_to_text
from ottla.wire.schema import Field, Message, Struct

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]

CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type whose embedded bytes are decoded as well."""


def as_offsets(offset: int, key: bytes | None, value: bytes | None) -> Content:
    """A record of `__consumer_offsets`."""
    return _decode_record(GROUP_RECORDS, offset, key, value)


def as_transactions(offset: int, key: bytes | None, value: bytes | None) -> Content:
    """A record of `__transaction_state`."""
    return _decode_record(TRANSACTION_RECORDS, offset, key, value)


def _decode_record(types: RecordTypes, offset: int, key: bytes | None, value: bytes | None) -> Content:
    try:
        record = parse_record(types, key, value)
    except UnknownType as error:
        return Content(f"Unknown record type {error.number} at offset {offset}, skipping.", None)
    except ApiError as error:
        return Content(f"Error at offset {offset}, skipping. {error.message}", None)
    shown_key = _json_text({"type": str(record.type), "data": message_as_json(record.key, 0)})
    if record.value is None:
        return Content(shown_key, "<DELETE>")
    data = message_as_json(record.value, record.version)
    if isinstance(record.value, GroupMetadataValue) and record.value.protocol_type == CONSUMER_PROTOCOL:
        _open_members(record.value, data)
    return Content(shown_key, _json_text({"version": str(record.version), "data": data}))


def _json_text(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def message_as_json(message: Message | Struct, version: int) -> dict[str, Json]:
    """The fields that the version has, by Kafka's names; tagged fields only when they are not at their default."""
    shown: dict[str, Json] = {}
    for field in message.FIELDS:
        value = getattr(message, field.name)
        if field.exists_in(version) and (field.tag is None or not _at_default(message, field, value)):
            shown[_camel_case(field.name)] = _value_as_json(field.type, field.of, value, version)
    return shown


def _at_default(message: Message | Struct, field: Field, value: object) -> bool:
    if isinstance(message, ConsumerGroupMemberMetadataValue) and field.name == "classic_member_metadata":
        # Kafka's default here is an empty struct, so null is written, and shown.
        return False
    return value == ([] if field.default == () else field.default)


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _value_as_json(kind: str, of: str, value: object, version: int) -> Json:
    if isinstance(value, list):
        return [_value_as_json(of, "", each, version) for each in value]
    if isinstance(value, Struct):
        return message_as_json(value, version)
    if isinstance(value, bytes):
        return uuid_to_text(value) if kind == "uuid" else base64.b64encode(value).decode()
    assert value is None or isinstance(value, str | int | float)
    return value


def _open_members(value: GroupMetadataValue, data: dict[str, Json]) -> None:
    """Replace the bytes that members embedded by their content, where they can be decoded."""
    shown = data["members"]
    assert isinstance(shown, list)
    for member, fields in zip(value.members, shown, strict=True):
        assert isinstance(fields, dict)
        for name, raw, cls in (
            ("subscription", member.subscription, ConsumerProtocolSubscription),
            ("assignment", member.assignment, ConsumerProtocolAssignment),
        ):
            try:
                version, embedded = parse_versioned(cls, raw)
            except ApiError:
                continue  # Kafka's tool shows the bytes in this case as well
            fields[name] = message_as_json(embedded, version)
