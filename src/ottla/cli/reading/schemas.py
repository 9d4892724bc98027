"""`consume --schema-registry`: keys and values of registered schemas as JSON.

Zone: real. Keys and values that are not framed stay as they are. So do those that cannot be decoded, with one note for
each reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, time
from typing import Any

from ottla.cli.options import print_note
from ottla.cli.reading.decoded import DecodedRecord
from ottla.cli.views.record_text import Headers, Shown, bytes_to_json
from ottla.client.schemas.registry import RegistryRequestError, SchemaRegistry
from ottla.schemas.decoding import Decode, make_decoder
from ottla.schemas.errors import InvalidPayload, InvalidSchema
from ottla.schemas.framing import read_framing


def record_decoder(registry: SchemaRegistry) -> Callable[[Shown], Shown]:
    """A function that decodes records by a registry's schemas."""
    decode = _Decoding(registry)

    def decode_record(record: Shown) -> Shown:
        key = decode.decode_part(record.key, record.headers, is_key=True)
        value = decode.decode_part(record.value, record.headers, is_key=False)
        return DecodedRecord(record.offset, record.timestamp, key, value, record.headers)

    return decode_record


class _Decoding:
    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._decoders: dict[int | str, Decode | None] = {}
        """By schema; None: there is none, as a note has said."""
        self._noted: set[str] = set()

    def decode_part(self, data: bytes | None, headers: Headers, *, is_key: bool) -> bytes | None:
        framed = None if data is None else read_framing(data, headers, is_key=is_key)
        if framed is None:
            return data
        if framed.schema not in self._decoders:
            self._decoders[framed.schema] = self._find_decoder(framed.schema)
        decode = self._decoders[framed.schema]
        if decode is None:
            return data
        try:
            return json.dumps(decode(framed.payload), ensure_ascii=False, default=_to_json).encode(errors="replace")
        except InvalidPayload as error:
            self._note_once(f"records of schema {framed.schema} are shown as they are: {error}")
            return data

    def _find_decoder(self, name: int | str) -> Decode | None:
        try:
            schema = self._registry.find_schema(name)
            return make_decoder(schema.type, schema.text, schema.references)
        except RegistryRequestError as error:
            if not error.code:  # no answer: the command fails, instead of showing bytes
                raise
            self._note_once(f"records of schema {name} are shown as they are: {error}")
        except InvalidSchema as error:
            self._note_once(f"records of schema {name} are shown as they are: {error}")
        return None

    def _note_once(self, text: str) -> None:
        if text not in self._noted and len(self._noted) < 100:
            self._noted.add(text)
            print_note(text)


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return bytes_to_json(value)
    return value.isoformat() if isinstance(value, datetime | date | time) else str(value)
