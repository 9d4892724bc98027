"""The items that the dump tool prints: each as Kafka's line of text, and as a JSON object.

Zone: pure. Formatting only. The text is that of Apache Kafka 4.4's kafka-dump-log; the JSON keys are taken from it.
"""

from __future__ import annotations

import base64
from typing import NamedTuple, Protocol

from ottla.record.batch import BatchHeader
from ottla.record.compression import CODEC_NAMES

Json = dict[str, object]


class Item(Protocol):
    """A thing found in a file."""

    def text(self) -> str:
        """Kafka's line, without the line end."""
        ...

    def json(self) -> Json:
        """The same as an object; its first key, `type`, has its kind."""
        ...


def codec_name(codec: int) -> str:
    """Name of a codec number, also of one that does not exist."""
    return CODEC_NAMES[codec] if codec < len(CODEC_NAMES) else f"unknown({codec})"


def java_boolean(value: bool) -> str:
    """The text that Java prints for a boolean."""
    return "true" if value else "false"


def more_line(limit: int) -> str:
    """The last line of a report that has as many lines as it may have."""
    return f"  There may be more: only the first {limit} are listed."


class Words(NamedTuple):
    """A remark between the items."""

    words: str

    def text(self) -> str:
        return self.words

    def json(self) -> Json:
        return {"type": "remark", "text": self.words}


class OptionalLong(NamedTuple):
    """A number that may be missing."""

    value: int | None

    def __str__(self) -> str:
        return "OptionalLong.empty" if self.value is None else f"OptionalLong[{self.value}]"


class Fields(NamedTuple):
    """A line of `name: value` pairs."""

    kind: str
    fields: tuple[tuple[str, int | str | OptionalLong], ...]

    def text(self) -> str:
        return " ".join([f"{name}: {_value_text(value)}" for name, value in self.fields])

    def json(self) -> Json:
        plain = {name: each.value if isinstance(each, OptionalLong) else each for name, each in self.fields}
        return {"type": self.kind, **plain}


class Batch(NamedTuple):
    """A batch of format v2."""

    header: BatchHeader
    position: int
    valid: bool

    def text(self) -> str:
        h = self.header
        return (
            f"baseOffset: {h.base_offset} lastOffset: {h.last_offset} count: {h.record_count} "
            f"baseSequence: {h.base_sequence} lastSequence: {h.last_sequence} producerId: {h.producer_id} "
            f"producerEpoch: {h.producer_epoch} partitionLeaderEpoch: {h.leader_epoch} "
            f"isTransactional: {java_boolean(h.is_transactional)} isControl: {java_boolean(h.is_control)} "
            f"deleteHorizonMs: {OptionalLong(h.delete_horizon_ms)} "
            f"position: {self.position} {stamp_name(h)}: {h.max_timestamp} size: {h.size} magic: {h.magic} "
            f"compresscodec: {codec_name(h.codec)} crc: {h.crc} isvalid: {java_boolean(self.valid)}"
        )

    def json(self) -> Json:
        h = self.header
        return {
            "type": "batch",
            "baseOffset": h.base_offset,
            "lastOffset": h.last_offset,
            "count": h.record_count,
            "baseSequence": h.base_sequence,
            "lastSequence": h.last_sequence,
            "producerId": h.producer_id,
            "producerEpoch": h.producer_epoch,
            "partitionLeaderEpoch": h.leader_epoch,
            "isTransactional": h.is_transactional,
            "isControl": h.is_control,
            "deleteHorizonMs": h.delete_horizon_ms,
            "position": self.position,
            stamp_name(h): h.max_timestamp,
            "size": h.size,
            "magic": h.magic,
            "compresscodec": codec_name(h.codec),
            "crc": h.crc,
            "isvalid": self.valid,
        }


def stamp_name(header: BatchHeader) -> str:
    """The timestamp type of a batch."""
    return "LogAppendTime" if header.is_append_time else "CreateTime"


class Content(NamedTuple):
    """A record's key and value as they are printed: decoded, or bytes as text; None where missing."""

    key: str | None
    payload: str | None


class RecordLine(NamedTuple):
    """A record, with its metadata, its content, or both."""

    offset: int
    stamp: str
    """CreateTime, LogAppendTime or NoTimestampType."""
    timestamp: int
    key: bytes | None
    value: bytes | None
    rest: tuple[tuple[str, object], ...]
    """More metadata, by format: sequence and header keys, or checksum and its validity, or the control record."""
    content: Content | None
    """None when contents are not printed."""
    metadata: bool = True

    def text(self) -> str:
        # Scripts cut these lines at fixed words: order and spaces are those of Kafka's tool.
        parts: list[str] = []
        if self.metadata:
            parts.append(
                f"offset: {self.offset} {self.stamp}: {self.timestamp} "
                f"keySize: {_field_size(self.key)} valueSize: {_field_size(self.value)}"
            )
            parts += [f"{name}: {_value_text(value)}" for name, value in self.rest]
        if self.content is not None and self.content.key is not None:
            parts.append(f"key: {self.content.key}")
        if self.content is not None and self.content.payload is not None:
            parts.append(f"payload: {self.content.payload}")
        # A line without words is empty: Kafka's tool prints the sign with the first word.
        return " ".join(["|", *parts]) if parts else ""

    def json(self) -> Json:
        item: Json = {"type": "record", "offset": self.offset}
        if self.metadata:
            item |= {self.stamp: self.timestamp, "keySize": _field_size(self.key), "valueSize": _field_size(self.value)}
            item |= dict(self.rest)
        if self.content is not None:
            item |= _json_field("key", self.key, self.content.key)
            item |= _json_field("payload", self.value, self.content.payload)
        return item


def _field_size(field: bytes | None) -> int:
    return -1 if field is None else len(field)


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return java_boolean(value)
    if isinstance(value, tuple) and not isinstance(value, OptionalLong):
        return f"[{','.join(value)}]"
    return str(value)


def _json_field(name: str, raw: bytes | None, shown: str | None) -> Json:
    """Bytes that are text as text, others in base64 under another name: JSON has no bytes."""
    if raw is not None and shown is not None and "\ufffd" in shown:
        return {f"{name}Base64": base64.b64encode(raw).decode()}
    return {name: shown}
