"""Values and keys of records as columns of the schemas that they were written with.

Zone: real. Each record is decoded with its own schema, whichever versions came before: no field is lost, and the same
record is the same row in every run. A registry that cannot be reached ends the copy, because its values may be good.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.schemas.framed_columns import (
    MISSING,
    PAUSE_S,
    UNFRAMED,
    UNKNOWN_S,
    FramedColumns,
    Framing,
    Numbers,
    SchemaSource,
    find_schema,
    group_by_schema,
)
from ottla.client.schemas.registry import RegistryRequestError
from ottla.schemas.errors import InvalidSchema

KINDS: Final = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}
_DECODERS_MAX: Final = 256
"""Most schemas whose decoders are kept."""
_UNKNOWN_MAX: Final = 10_000


class DecodedPart(NamedTuple):
    """The values of some rows, all of one schema."""

    schema: str
    """For messages; empty: of none."""
    rows: Numbers
    values: pa.Array
    reasons: pa.Array
    """Why a row was not read (string); null: it was."""


class SchemaDecoder:
    """Decodes values, or keys, that are framed with schemas of one type."""

    def __init__(
        self, registry: SchemaSource, kind: str, message: str = "", *, is_key: bool = False, pause_s: float = PAUSE_S
    ) -> None:
        """kind: of KINDS. message: of Protobuf; empty: the first one of a schema. pause_s: as of FramedColumns."""
        self._registry = registry
        self._type = KINDS[kind]
        self._message = message
        self._pause_s = pause_s
        self._is_key = is_key
        self._decoders: dict[int | str, FramedColumns | str] = {}
        """By schema; a text: why its values have no columns."""
        self._unknown: dict[int | str, tuple[float, str]] = {}

    def decode_payloads(self, payloads: pa.Array, headers: pa.Array) -> Iterator[DecodedPart]:
        """The values (binary) by schema, in the order of first rows. Raises RegistryRequestError: no answer."""
        groups = group_by_schema(payloads, headers, self._is_key, has_indexes=self._type == "PROTOBUF")
        # In the order of the records: of two schemas that conflict, the first one has the column.
        for framing, rows in sorted(groups, key=lambda group: int(group[1][0])):
            yield self._decode_part(framing, rows, payloads, headers)

    def _decode_part(self, framing: Framing | int, rows: Numbers, payloads: pa.Array, headers: pa.Array) -> DecodedPart:
        if isinstance(framing, int):
            part = "key" if self._is_key else "value"
            reason = f"the {part} is not framed with the id of a schema" if framing == UNFRAMED else None
            return _without_values("", rows, reason)
        name = f"schema {framing.schema}"
        decoder = self._find_decoder(framing.schema)
        if isinstance(decoder, str):
            return _without_values(name, rows, decoder)
        chosen = pa.array(rows)
        found, reasons = decoder.decode(payloads.take(chosen), headers.take(chosen), is_key=self._is_key)
        return DecodedPart(name, rows, found, reasons)

    def _find_decoder(self, name: int | str) -> FramedColumns | str:
        found = self._decoders.get(name)
        if found is not None:
            return found
        since, reason = self._unknown.get(name, (0.0, ""))
        if reason and time.monotonic() - since < UNKNOWN_S:
            return reason
        try:
            made = self._make_decoder(name)
        except RegistryRequestError as error:
            if error.code not in MISSING:
                raise
            return self._remember_unknown(name, f"the registry has no schema {name}: {error}")
        if len(self._decoders) >= _DECODERS_MAX:
            self._decoders.clear()
        self._decoders[name] = made
        return made

    def _make_decoder(self, name: int | str) -> FramedColumns | str:
        try:
            schema = find_schema(self._registry, name, self._pause_s)
            if schema.type != self._type:
                return f"schema {name} is of type {schema.type}, not {self._type}"
            return FramedColumns(self._registry, schema._replace(message=self._message), pause_s=self._pause_s)
        except InvalidSchema as error:
            return f"schema {name} has no columns: {error}"

    def _remember_unknown(self, name: int | str, reason: str) -> str:
        if len(self._unknown) >= _UNKNOWN_MAX:
            self._unknown.clear()
        self._unknown[name] = time.monotonic(), reason
        return reason


class TextDecoder:
    """Decodes keys that are text, without a schema."""

    def decode_payloads(self, payloads: pa.Array, headers: pa.Array) -> Iterator[DecodedPart]:  # noqa: ARG002  # the seam's
        """All keys (binary) as strings."""
        rows = np.arange(len(payloads))
        try:
            yield DecodedPart("", rows, payloads.cast(pa.string()), pa.nulls(len(payloads), pa.string()))
        except pa.ArrowInvalid:
            texts = [_decode_text(each) for each in payloads.to_pylist()]
            is_wrong = pa.array([text is None for text in texts])
            reasons = pc.if_else(pc.and_(is_wrong, payloads.is_valid()), "the key is not text in UTF-8", None)
            yield DecodedPart("", rows, pa.array(texts, pa.string()), reasons)


def _decode_text(payload: bytes | None) -> str | None:
    try:
        return None if payload is None else payload.decode()
    except UnicodeDecodeError:
        return None


def _without_values(schema: str, rows: Numbers, reason: str | None) -> DecodedPart:
    reasons = np.full(len(rows), reason, object)
    return DecodedPart(schema, rows, pa.nulls(len(rows)), pa.array(reasons, pa.string()))
