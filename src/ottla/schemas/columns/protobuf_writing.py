"""Rows of Arrow arrays as Protobuf payloads with the indexes of their message in front.

Zone: pure. The inverse of `protobuf`: enums are texts, maps are pairs, Timestamp and Duration are times.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from ottla.schemas.columns.avro_writing import InvalidValue
from ottla.schemas.columns.formats import SchemaText
from ottla.schemas.columns.protobuf_shapes import TIMES, Shapes, is_map, is_repeated, scalar_name
from ottla.schemas.protobuf.decoding import find_message, message_indexes, write_indexes
from ottla.schemas.protobuf.runtime import import_runtime
from ottla.schemas.protobuf.schema import ProtobufSchema

Convert = Callable[[Any], Any]
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_MASKS: Final = {"UINT32": 2**32 - 1, "FIXED32": 2**32 - 1, "UINT64": 2**64 - 1, "FIXED64": 2**64 - 1}
_REFUSED: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


class ProtobufWriter:
    """Encodes structs of one message."""

    def __init__(self, schema: ProtobufSchema, message: str = "") -> None:
        """message: as of `ProtobufColumns`. Raises InvalidSchema: there is no such message, or it has no columns."""
        descriptor = find_message(schema, message)
        Shapes().shape_of(descriptor)
        self._name = descriptor.full_name
        self._indexes = write_indexes(message_indexes(descriptor))
        self._convert = _message_converter(descriptor)

    def encode_values(self, values: pa.Array, prefix: bytes = b"") -> pa.Array:
        """The payloads (binary), each with the prefix in front. A null is a null. Raises InvalidValue."""
        begin = prefix + self._indexes
        return pa.array(
            [None if each is None else self._encode_value(each, begin) for each in values.to_pylist()], pa.binary()
        )

    def _encode_value(self, value: Any, begin: bytes) -> bytes:
        try:
            return begin + bytes(self._convert(value).SerializeToString())
        except (*_REFUSED, import_runtime("message").EncodeError) as error:
            raise InvalidValue(f"{value!r:.200} is not a value of the message {self._name}: {error}") from error


def make_writer(schema: SchemaText) -> ProtobufWriter:
    """The encoder of a schema. Raises InvalidSchema."""
    return ProtobufWriter(ProtobufSchema(schema.text, dict(schema.references)), schema.message)


def _message_converter(message: Any) -> Convert:
    """A function that makes a message of a dict of its fields. Fields that are None are not written."""
    make = import_runtime("message_factory").GetMessageClass(message)
    parts = {each.name: _field_converter(each) for each in message.fields}
    oneofs = [[each.name for each in oneof.fields] for oneof in message.oneofs if len(oneof.fields) > 1]

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError("it is not a struct")
        for names in oneofs:
            written = [name for name in names if value.get(name) is not None]
            if len(written) > 1:
                raise ValueError(f"{' and '.join(written)} are of one oneof, which holds one value")
        return make(**{
            name: parts[name](each) if name in parts else each for name, each in value.items() if each is not None
        })  # fmt: skip

    return convert


def _field_converter(field: Any) -> Convert:
    if is_map(field):
        part = _value_converter(field.message_type.fields_by_name["value"])
        return lambda value: {key: part(each) for key, each in (value.items() if isinstance(value, dict) else value)}
    part = _value_converter(field)
    return (lambda value: [part(each) for each in value]) if is_repeated(field) else part


def _value_converter(field: Any) -> Convert:
    name = scalar_name(field)
    if name in _MASKS:
        return lambda value: value & _MASKS[name]
    if name != "MESSAGE":
        return _same
    if field.message_type.full_name in TIMES:
        return _to_seconds
    # A message without fields has no column, so no value of it is given.
    return _message_converter(field.message_type) if field.message_type.fields else _same


def _same(value: Any) -> Any:
    return value


def _to_seconds(value: Any) -> dict[str, int]:
    """A time, or an interval, as the fields of Timestamp or Duration."""
    interval = value if isinstance(value, dt.timedelta) else _utc(value) - _EPOCH
    micros = interval // _MICROSECOND
    if isinstance(value, dt.timedelta) and micros < 0:  # both parts of a Duration have one sign
        return {"seconds": -(-micros // 1_000_000), "nanos": -(-micros % 1_000_000) * 1000}
    return {"seconds": micros // 1_000_000, "nanos": micros % 1_000_000 * 1000}


def _utc(value: dt.datetime) -> dt.datetime:
    return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value
