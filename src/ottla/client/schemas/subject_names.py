"""The subject of a schema, and the place of its id: in front of the payload, or in a header.

Zone: pure. The functions have the arguments that those of confluent-kafka have, so that either can be given.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ottla.client.errors import SerializationError
from ottla.client.schemas.contexts import MessageField, SerializationContext
from ottla.schemas.framing import KEY_HEADER, VALUE_HEADER, write_framing

SubjectNameStrategy = Callable[[Any, str | None], str | None]
"""(context, name of the schema) → subject."""


class SchemaId(NamedTuple):
    """The id and the guid of a schema."""

    id: int
    guid: uuid.UUID | None
    indexes: bytes = b""
    """The indexes of a message's type; empty for other schemas than those of Protobuf."""

    def id_to_bytes(self) -> bytes:
        """The bytes in front of a payload."""
        return write_framing(self.id, self.indexes)

    def guid_to_bytes(self) -> bytes:
        """The value of the header. Raises SerializationError: the registry gave no guid."""
        # Older registries have no guids, and no client would read an id in a header.
        if self.guid is None:
            raise SerializationError(
                f"the registry gave no guid for schema {self.id}, so a header cannot name it",
                "Use prefix_schema_id_serializer, or a newer registry",
            )
        return write_framing(str(self.guid), self.indexes)


def topic_subject_name_strategy(ctx: SerializationContext | None, _record_name: str | None) -> str | None:
    """TOPIC-key or TOPIC-value."""
    return f"{_context_of(ctx).topic}-{_context_of(ctx).field}"


def record_subject_name_strategy(_ctx: SerializationContext | None, record_name: str | None) -> str | None:
    """The full name of the record; None: the schema has no name."""
    return record_name


def topic_record_subject_name_strategy(ctx: SerializationContext | None, record_name: str | None) -> str | None:
    """TOPIC-NAME, with the full name of the record; None: the schema has no name."""
    return None if record_name is None else f"{_context_of(ctx).topic}-{record_name}"


def reference_subject_name_strategy(_ctx: SerializationContext | None, schema_ref: Any) -> str | None:
    """The name of an imported file of Protobuf."""
    return str(schema_ref.name)


def prefix_schema_id_serializer(payload: bytes, _ctx: SerializationContext | None, schema_id: SchemaId) -> bytes:
    """The payload with the id of its schema in front of it."""
    return schema_id.id_to_bytes() + payload


def header_schema_id_serializer(payload: bytes, ctx: SerializationContext | None, schema_id: SchemaId) -> bytes:
    """The payload as it is; the guid of its schema is added to the headers.

    Raises SerializationError: the context has no headers.
    """
    context = _context_of(ctx)
    name = KEY_HEADER if context.field == MessageField.KEY else VALUE_HEADER
    # As confluent-kafka takes headers: a dictionary, or a list of pairs.
    if isinstance(context.headers, dict):
        context.headers[name] = schema_id.guid_to_bytes()
    elif isinstance(context.headers, list):
        context.headers.append((name, schema_id.guid_to_bytes()))
    else:
        raise SerializationError("the context has no headers to name the schema in", "Give it a list or a dict")
    return payload


STRATEGIES: Final[Mapping[str, SubjectNameStrategy]] = {
    "TOPIC": topic_subject_name_strategy,
    "RECORD": record_subject_name_strategy,
    "TOPIC_RECORD": topic_record_subject_name_strategy,
}
"""By the value of `subject.name.strategy.type`."""


def _context_of(ctx: SerializationContext | None) -> SerializationContext:
    if ctx is None:
        raise SerializationError(
            "the topic of the record is unknown", "Give a SerializationContext, or use record_subject_name_strategy"
        )
    return ctx
