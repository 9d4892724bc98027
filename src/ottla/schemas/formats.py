"""The types of schemas: one row each. A new type is a row here and a module.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ottla.schemas.avro import AvroSchema
from ottla.schemas.avro_compatibility import find_avro_incompatibilities
from ottla.schemas.errors import Incompatibility, InvalidSchema
from ottla.schemas.json_compatibility import find_json_incompatibilities
from ottla.schemas.json_schema import JsonSchema
from ottla.schemas.protobuf.compatibility import find_protobuf_incompatibilities
from ottla.schemas.protobuf.schema import ProtobufSchema


class ParsedSchema(Protocol):
    """A schema of any type."""

    canonical: str
    """A text that is the same for equal schemas."""


class NamedText(NamedTuple):
    """The text of a schema that another one refers to."""

    name: str
    """The name that it is referred to by."""
    text: str


class Format(NamedTuple):
    """A type of schemas."""

    parse: Callable[[str, Sequence[NamedText]], Any]
    """Parse a text and those that it refers to, each after those that it refers to. Raises InvalidSchema."""
    find_incompatibilities: Callable[[Any, Any], list[Incompatibility]]
    """The reasons why the first, a reader, cannot read what the second has written. Raises InvalidSchema."""
    keeps_text: bool = False
    """Whether the registry keeps the text as it was registered; otherwise the canonical one."""
    serialize: Callable[[Any], str] | None = None
    """Make the text that clients get for the format `serialized`; None: there is no such format."""


def _parse_avro(text: str, references: Sequence[NamedText]) -> AvroSchema:
    return AvroSchema(text, [each.text for each in references])


def _parse_json(text: str, references: Sequence[NamedText]) -> JsonSchema:
    return JsonSchema(text, {each.name: each.text for each in references})


def _parse_protobuf(text: str, references: Sequence[NamedText]) -> ProtobufSchema:
    return ProtobufSchema(text, {each.name: each.text for each in references})


FORMATS: Final[dict[str, Format]] = {
    "AVRO": Format(_parse_avro, find_avro_incompatibilities),
    "JSON": Format(_parse_json, find_json_incompatibilities),
    "PROTOBUF": Format(
        _parse_protobuf, find_protobuf_incompatibilities, keeps_text=True, serialize=ProtobufSchema.serialize
    ),
}


def parse_schema(kind: str, text: str, references: Sequence[NamedText] = ()) -> ParsedSchema:
    """Parse a schema of a type. Raises InvalidSchema, also for a type that is not in FORMATS."""
    found = FORMATS.get(kind)
    if found is None:
        raise InvalidSchema(f"schemas of type {kind} are not supported; these are: {', '.join(FORMATS)}")
    parsed: ParsedSchema = found.parse(text, references)
    return parsed
