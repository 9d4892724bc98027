"""Protobuf payloads as an Arrow array: a struct of the fields of one message of a reader's schema.

Zone: pure. The runtime of Protobuf parses each payload; `protobuf_shapes` makes the columns, field by field. As
Protobuf's rules of evolution say, a payload is parsed with the reader's message: fields are found by number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.schemas.columns.formats import SchemaText
from ottla.schemas.columns.protobuf_shapes import Shapes
from ottla.schemas.columns.verdicts import TooManyValues, Verdict
from ottla.schemas.errors import InvalidPayload, InvalidSchema
from ottla.schemas.protobuf.decoding import find_message, find_message_name, read_indexes
from ottla.schemas.protobuf.runtime import import_runtime
from ottla.schemas.protobuf.schema import ProtobufSchema

Verdicts = npt.NDArray[np.uint8]


class ProtobufColumns:
    """Decodes the payloads of one schema, which begin with message indexes, as a message of another one."""

    def __init__(self, writer: ProtobufSchema, reader: ProtobufSchema, message: str = "") -> None:
        """message: its name in the reader's schema, with or without the package; empty: the first one.

        Raises InvalidSchema: there is no such message, or it has no columns.
        """
        descriptor = find_message(reader, message)
        self._writer = writer
        self._name = _local_name(reader, descriptor.full_name)
        self._parse = import_runtime("message_factory").GetMessageClass(descriptor).FromString
        self._decode_error = import_runtime("message").DecodeError
        self._shapes = Shapes()
        self._shape = self._shapes.shape_of(descriptor)
        if not self._shape.type.num_fields:
            raise InvalidSchema(f"the message {descriptor.full_name} has no columns, because it has no fields")
        self._is_first_read = self._verdict_of([0]) == Verdict.READ

    @property
    def type(self) -> pa.DataType:
        """The type of the arrays."""
        return self._shape.type

    def decode(self, payloads: pa.Array, skipped: int = 0) -> tuple[pa.Array, Verdicts]:
        """Decode payloads (binary), without the first `skipped` bytes of each. A null is a null.

        Returns the rows, and a Verdict for each; those that were not read are nulls. Raises TooManyValues.
        """
        self._shapes.reset_values()
        self._shapes.count_values(len(payloads) * self._shape.columns)
        verdicts = np.zeros(len(payloads), np.uint8)
        messages = [
            None if each is None else self._parse_payload(each, skipped, row, verdicts)
            for row, each in enumerate(payloads.to_pylist())
        ]
        return _make_rows(self._shape.make, messages, verdicts), verdicts

    def _parse_payload(self, payload: bytes, skipped: int, row: int, verdicts: Verdicts) -> Any:
        try:
            if self._is_first_read and payload[skipped : skipped + 1] == b"\0":
                return self._parse(payload[skipped + 1 :])
            indexes, begin = read_indexes(payload[skipped:])
            verdicts[row] = self._verdict_of(indexes)
            return None if verdicts[row] else self._parse(payload[skipped + begin :])
        except (InvalidPayload, self._decode_error):
            verdicts[row] = Verdict.NOT_WRITTEN_WITH_IT
            return None

    def _verdict_of(self, indexes: list[int]) -> Verdict:
        """Whether the message that was written is the reader's. Packages may differ, as in the check of versions."""
        try:
            name = find_message_name(self._writer, indexes)
        except InvalidPayload:
            return Verdict.NOT_WRITTEN_WITH_IT
        return Verdict.READ if _local_name(self._writer, name) == self._name else Verdict.NOT_READABLE


def make_columns(writer: SchemaText, reader: SchemaText) -> ProtobufColumns:
    """The decoder of a pair of schemas. Raises InvalidSchema."""
    parsed = _parse(reader)
    return ProtobufColumns(parsed if writer is reader else _parse(writer), parsed, reader.message)


def _parse(schema: SchemaText) -> ProtobufSchema:
    return ProtobufSchema(schema.text, dict(schema.references))


def _local_name(schema: ProtobufSchema, name: str) -> str:
    return name.removeprefix(f"{schema.file.package}.") if schema.file.package else name


def _make_rows(make: Callable[[Sequence[Any]], pa.Array], messages: list[Any], verdicts: Verdicts) -> pa.Array:
    """The array of messages. Those with a value that its type cannot hold are found one by one, and are marked."""
    try:
        return make(messages)
    except TooManyValues:
        raise
    except (ValueError, OverflowError):
        for row, each in enumerate(messages):
            if not _is_held(make, each):
                verdicts[row], messages[row] = Verdict.NOT_READABLE, None
        return make(messages)


def _is_held(make: Callable[[Sequence[Any]], pa.Array], message: Any) -> bool:
    try:
        make([message])
    except TooManyValues:
        raise
    except (ValueError, OverflowError):
        return False
    return True
