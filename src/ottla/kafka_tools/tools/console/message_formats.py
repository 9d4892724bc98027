"""Text of records as the formatters of Kafka's console consumer print it.

Zone: pure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

from ottla.client.consumer.record import ConsumerRecord
from ottla.kafka_tools.options import ToolError

MessageFormat = Callable[[ConsumerRecord], bytes]
_Show = Callable[[bytes], bytes]

_COLUMNS: Final = ("timestamp", "partition", "offset", "delivery", "epoch", "headers", "key", "value")
_STAMPS: Final = ("CreateTime", "LogAppendTime")
_SEPARATORS: Final = {"key.separator": "\t", "line.separator": "\n", "headers.separator": ",", "null.literal": "null"}


def make_format(class_name: str, properties: Mapping[str, str]) -> MessageFormat:
    """A function that makes the text of a record. Raises ToolError for a class or a property that is not known."""
    simple = class_name.rpartition(".")[2].rpartition("$")[2]
    if simple in ("", "DefaultMessageFormatter"):
        return _default_format(properties)
    if simple == "NoOpMessageFormatter":
        return lambda _: b""
    if simple == "LoggingMessageFormatter":
        raise ToolError(f"{class_name} is a formatter that Ottla's tool does not have: use the default one")
    from ottla.cli.views.internal_records import make_formatter
    from ottla.cli.views.record_text import Placed

    try:
        render = make_formatter(class_name)
    except ValueError as error:
        raise ToolError(str(error), "java.lang.ClassNotFoundException") from None
    return lambda record: render(Placed(record.topic, record.partition, record))


def _default_format(properties: Mapping[str, str]) -> MessageFormat:
    known = {*_SEPARATORS, *(f"print.{name}" for name in _COLUMNS)}
    known |= {f"{part}.deserializer" for part in ("key", "value", "headers")}
    if wrong := [key for key in properties if key not in known]:
        raise ToolError(f"{wrong[0]} is not a property of the formatter: use {', '.join(sorted(known))}")
    wanted = [name for name in _COLUMNS if _is_printed(properties, name)]
    separators = {key: properties.get(key, default).encode() for key, default in _SEPARATORS.items()}
    shows = {part: _deserializer(properties.get(f"{part}.deserializer", "")) for part in ("key", "value", "headers")}
    null = separators["null.literal"]

    def show(part: str, content: bytes | None) -> bytes:
        return null if content is None else shows[part](content)

    def column(name: str, record: ConsumerRecord) -> bytes:
        if name == "headers":
            pairs = [key.encode() + b":" + show("headers", text) for key, text in record.headers]
            return separators["headers.separator"].join(pairs) or b"NO_HEADERS"
        if name in ("key", "value"):
            return show(name, getattr(record, name))
        return _PLAIN[name](record).encode()

    def format_record(record: ConsumerRecord) -> bytes:
        cells = [column(name, record) for name in wanted]
        return separators["key.separator"].join(cells) + separators["line.separator"]

    return format_record


def _is_printed(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(f"print.{name}", "true" if name == "value" else "false").strip().lower() == "true"


def _timestamp_text(record: ConsumerRecord) -> str:
    return "NO_TIMESTAMP" if record.timestamp < 0 else f"{_STAMPS[record.timestamp_type]}:{record.timestamp}"


_PLAIN: Final[Mapping[str, Callable[[ConsumerRecord], str]]] = {
    "timestamp": _timestamp_text,
    "partition": lambda record: f"Partition:{record.partition}",
    "offset": lambda record: f"Offset:{record.offset}",
    "delivery": lambda _: "Delivery:NOT_PRESENT",
    "epoch": lambda _: "Epoch:NOT_PRESENT",  # Kafka's console consumer loses it on the way to the formatter
}


def _deserializer(class_name: str) -> _Show:
    simple = class_name.rpartition(".")[2]
    if simple in ("", "StringDeserializer", "ByteArrayDeserializer"):
        return lambda content: content
    if simple in _NUMBERS:
        return _number_show(simple, _NUMBERS[simple])
    raise ToolError(
        f"{class_name} is not a deserializer of this tool: it has StringDeserializer, {', '.join(sorted(_NUMBERS))}",
        "java.lang.ClassNotFoundException",
    )


_NUMBERS: Final = {
    "LongDeserializer": ">q",
    "IntegerDeserializer": ">i",
    "ShortDeserializer": ">h",
    "DoubleDeserializer": ">d",
    "FloatDeserializer": ">f",
}


def _number_show(name: str, layout: str) -> _Show:
    def show(content: bytes) -> bytes:
        if len(content) != struct.calcsize(layout):
            raise ValueError(f"{name} received {len(content)} bytes, not {struct.calcsize(layout)}")
        return str(struct.unpack(layout, content)[0]).encode()

    return show
