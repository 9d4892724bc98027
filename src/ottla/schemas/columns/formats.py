"""The types of schemas whose payloads become columns: one row each. A new type is a row here and a module.

Zone: pure. Modules are imported on first use, because each needs packages of its own.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.schemas.errors import InvalidSchema

_MODULES: Final = {"AVRO": "ottla.schemas.columns.avro", "JSON": "ottla.schemas.columns.json",
            "PROTOBUF": "ottla.schemas.columns.protobuf"}  # fmt: skip
"""Each has a function `make_columns`, as below."""
_WRITERS: Final = {
    "AVRO": "ottla.schemas.columns.avro_writing",
    "JSON": "ottla.schemas.columns.json_writing",
    "PROTOBUF": "ottla.schemas.columns.protobuf_writing",
}
"""Each has a function `make_writer`, as below."""


class SchemaText(Protocol):
    """A schema as a registry has it."""

    @property
    def text(self) -> str: ...
    @property
    def type(self) -> str:
        """AVRO, JSON or PROTOBUF."""

    @property
    def references(self) -> tuple[tuple[str, str], ...]:
        """Name and text of the schemas that it refers to, each after those that it refers to itself."""

    @property
    def message(self) -> str:
        """The message of a schema of Protobuf that is read; empty: the first one."""


class ColumnDecoder(Protocol):
    """Decodes payloads of one schema as another one reads them."""

    @property
    def type(self) -> pa.DataType:
        """The type of the arrays."""

    def decode(self, payloads: pa.Array, skipped: int = 0) -> tuple[pa.Array, npt.NDArray[np.uint8]]:
        """Decode payloads (binary), without the first `skipped` bytes of each.

        Returns the rows, and a Verdict for each; those that were not read are nulls. A null is a null. Raises
        TooManyValues.
        """


def make_columns(writer: SchemaText, reader: SchemaText) -> ColumnDecoder:
    """The decoder of a pair of schemas. Raises InvalidSchema: they have no columns, or no payload can be read."""
    if writer.type != reader.type:
        raise InvalidSchema(f"its type is {writer.type}, and that of the reader's schema is {reader.type}")
    if writer.type not in _MODULES:
        raise InvalidSchema(f"schemas of type {writer.type} have no columns; these have: {', '.join(_MODULES)}")
    made: ColumnDecoder = import_module(_MODULES[writer.type]).make_columns(writer, reader)
    return made


class ColumnEncoder(Protocol):
    """Encodes values of one schema."""

    def encode_values(self, values: pa.Array, prefix: bytes = b"") -> pa.Array:
        """The payloads (binary), each with the prefix in front. A null is a null. Raises InvalidValue."""


def make_writer(schema: SchemaText) -> ColumnEncoder:
    """The encoder of a schema. Raises InvalidSchema: its type has none, or its values have no columns."""
    if schema.type not in _WRITERS:
        raise InvalidSchema(f"columns of type {schema.type} are not written; these are: {', '.join(_WRITERS)}")
    made: ColumnEncoder = import_module(_WRITERS[schema.type]).make_writer(schema)
    return made
