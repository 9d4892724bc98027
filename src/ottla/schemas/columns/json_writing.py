"""Rows of Arrow arrays as JSON payloads.

Zone: pure. The inverse of `json`: maps are pairs, and JSON text stands for a value of more than one type.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ottla.schemas.columns.avro_writing import InvalidValue
from ottla.schemas.columns.formats import SchemaText
from ottla.schemas.columns.json import shape_of, write_value
from ottla.schemas.errors import InvalidPayload
from ottla.schemas.json_documents import encode_json, json_validator
from ottla.schemas.json_schema import JsonSchema


class JsonWriter:
    """Encodes values that a schema accepts."""

    def __init__(self, schema: SchemaText) -> None:
        """Raises InvalidSchema."""
        references = dict(schema.references)
        self._shape = shape_of(JsonSchema(schema.text, references))
        self._check_value = json_validator(schema.text, references)

    def encode_values(self, values: pa.Array, prefix: bytes = b"") -> pa.Array:
        """The payloads (binary), each with the prefix in front. A null is a null. Raises InvalidValue."""
        return pa.array(
            [None if each is None else prefix + self._encode_value(each) for each in values.to_pylist()], pa.binary()
        )

    def _encode_value(self, value: Any) -> bytes:
        try:
            found = write_value(self._shape, value)
            self._check_value(found)
            return encode_json(found)
        except (TypeError, ValueError, RecursionError, InvalidPayload) as error:
            raise InvalidValue(f"{value!r:.200} is not a value of the JSON schema: {error}") from error


def make_writer(schema: SchemaText) -> JsonWriter:
    """The encoder of a schema. Raises InvalidSchema."""
    return JsonWriter(schema)
