"""Deserializers of confluent-kafka's shape: `AvroDeserializer`, `JSONDeserializer`.

Zone: real. Each schema is asked for once: records whose schemas are known are read while the registry is away. All
three framings are read. Threads may share a deserializer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final

from ottla.client.errors import SerializationError, UsageError
from ottla.client.schemas.contexts import MessageField, RecordDeserializer, SerializationContext, header_pairs
from ottla.client.schemas.registry import RegisteredSchema, RegistryRequestError, Schema, SchemaRegistry
from ottla.client.schemas.serializer_settings import AVRO_READING, JSON_READING, read_settings, subject_strategy
from ottla.schemas.avro import AvroSchema
from ottla.schemas.avro_values import avro_decoder
from ottla.schemas.decoding import Decode, refuse_empty_items
from ottla.schemas.errors import InvalidPayload, InvalidSchema
from ottla.schemas.framing import Framed, read_framing
from ottla.schemas.json_documents import decode_json, json_validator

_DECODERS_MAX: Final = 1000
"""Most schemas whose decoders are kept; all are dropped when there is one more."""
_MISSING: Final = (404, 40401, 40402, 40403)
"""Error codes: no such subject, version or schema."""

FromDict = Callable[[Any, Any], Any]
"""(value, context) → the application's object."""


class SchemaDeserializer(RecordDeserializer):
    """The part of a deserializer that does not depend on the type of its schema."""

    def __init__(self, kind: str, registry: SchemaRegistry | None, from_dict: FromDict | None) -> None:
        self._type = kind
        self._registry = registry
        self._from_dict = from_dict
        self._decoders: dict[tuple[int | str, str | None], Decode] = {}

    def __call__(self, data: bytes | None, ctx: SerializationContext | None = None) -> Any:
        """The value of a framed payload; None for None.

        Raises SerializationError: it is not framed, names an unknown schema, or was not written with it.
        RegistryRequestError: the registry does not answer (`retriable`), or refuses its user.
        """
        if data is None:
            return None
        framed = _read_frame(data, ctx)
        try:
            value = self._find_decoder(framed.schema, ctx)(framed.payload)
        except InvalidPayload as error:
            raise SerializationError(
                f"{_describe_part(ctx)} cannot be read with schema {framed.schema}, which it names: {error}",
                "Check that it was written for this registry",
            ) from error
        return value if self._from_dict is None else self._from_dict(value, ctx)

    def _find_decoder(self, name: int | str, ctx: SerializationContext | None) -> Decode:
        # A schema of the writer may be read for several topics, and each may have a reader's schema of its own.
        key = (name, self._reader_subject(ctx))
        found = self._decoders.get(key)
        if found is None:
            writer = None if self._registry is None else self._find_writer(self._registry, name, ctx)
            try:
                found = self._make_decoder(writer, ctx)
            except InvalidSchema as error:
                raise SerializationError(f"{_describe_part(ctx)}: schema {name} cannot be used: {error}") from error
            # Bounded: a producer that registers a schema per record must not fill this process.
            if len(self._decoders) >= _DECODERS_MAX:
                self._decoders.clear()
            self._decoders[key] = found
        return found

    def _find_writer(
        self, registry: SchemaRegistry, name: int | str, ctx: SerializationContext | None
    ) -> RegisteredSchema:
        try:
            writer = registry.find_schema(name)
        except (RegistryRequestError, InvalidSchema) as error:
            # An outage, or a refused user, is no fault of the record: it may be read later.
            if isinstance(error, RegistryRequestError) and error.code not in _MISSING:
                raise
            raise SerializationError(
                f"{_describe_part(ctx)} names schema {name}, which cannot be read: {error}",
                "Check that the registry is that of the producer",
            ) from error
        if writer.type != self._type:
            raise SerializationError(
                f"{_describe_part(ctx)} names schema {name}, which is of type {writer.type}, not {self._type}",
                "Use the deserializer of that type",
            )
        return writer

    def _reader_subject(self, _ctx: SerializationContext | None) -> str | None:
        """The subject whose latest version is the reader's schema; None: there is none."""
        return None

    @abstractmethod
    def _make_decoder(self, writer: RegisteredSchema | None, ctx: SerializationContext | None) -> Decode:
        """The function that reads what a schema has written; None: there is no registry. Raises InvalidSchema."""


class _TextDeserializer(SchemaDeserializer):
    """A deserializer whose reader's schema is a text, the latest version of a subject, or that of the writer."""

    def __init__(
        self, kind: str, registry: SchemaRegistry | None, schema: str | Schema | None, from_dict: Any, settings: Any
    ) -> None:
        super().__init__(kind, registry, from_dict)
        self._settings = settings
        self._name_subject = subject_strategy(settings)
        self._reader: RegisteredSchema | None = None
        if schema is not None:
            given = Schema(schema, kind) if isinstance(schema, str) else schema
            texts = registry.find_references(given.references) if registry is not None and given.references else ()
            self._reader = RegisteredSchema(given.schema_str, kind, texts)
        elif registry is None:
            raise UsageError("a deserializer without a registry and without a schema", "Give one of them")

    def _reader_subject(self, ctx: SerializationContext | None) -> str | None:
        if self._reader is not None or not self._settings["use.latest.version"]:
            return None
        return self._name_subject(ctx, None)

    def _find_reader(self, ctx: SerializationContext | None) -> RegisteredSchema | None:
        subject = self._reader_subject(ctx)
        if subject is None or self._registry is None:
            return self._reader
        return self._registry.find_latest(subject)[1]


class AvroDeserializer(_TextDeserializer):
    """Reads Avro as dicts, or as objects that `from_dict(value, ctx)` makes of them.

    schema_str: resolve values to this schema; `use.latest.version`: to the latest one of the subject when a schema of
    the writer is met first. return_record_name: a record of a union is a pair of its name and itself.
    """

    def __init__(
        self,
        schema_registry_client: SchemaRegistry,
        schema_str: str | Schema | None = None,
        from_dict: FromDict | None = None,
        return_record_name: bool = False,
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises InvalidSchema, ConfigError; with references RegistryRequestError."""
        settings = read_settings(AVRO_READING, conf)
        super().__init__("AVRO", schema_registry_client, schema_str, from_dict, settings)
        self._return_record_name = return_record_name
        if self._reader is not None:
            _parse_avro(self._reader)

    def _make_decoder(self, writer: RegisteredSchema | None, ctx: SerializationContext | None) -> Decode:
        assert writer is not None
        parsed, reader = _parse_avro(writer), self._find_reader(ctx)
        # Only the writer's schema matters here: it says how many bytes an item takes.
        refuse_empty_items(parsed)
        target = None if reader is None else _parse_avro(reader)
        return avro_decoder(parsed, target, return_record_name=self._return_record_name)


class JSONDeserializer(_TextDeserializer):
    """Reads JSON as dicts, or as objects that `from_dict(value, ctx)` makes of them.

    Values are compared with `schema_str`, or with the latest schema of the subject (`use.latest.version`), unless
    `validate` is False. They are not compared with the schemas that records name.
    """

    def __init__(
        self,
        schema_str: str | Schema | None,
        from_dict: FromDict | None = None,
        schema_registry_client: SchemaRegistry | None = None,
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises InvalidSchema, ConfigError; with references RegistryRequestError."""
        settings = read_settings(JSON_READING, conf)
        super().__init__("JSON", schema_registry_client, schema_str, from_dict, settings)
        if self._reader is not None:
            json_validator(self._reader.text, dict(self._reader.references))

    def _make_decoder(self, _writer: RegisteredSchema | None, ctx: SerializationContext | None) -> Decode:
        reader = self._find_reader(ctx)
        if reader is None or not self._settings["validate"]:
            return decode_json
        check_value = json_validator(reader.text, dict(reader.references))

        def decode_checked(payload: bytes) -> Any:
            value = decode_json(payload)
            check_value(value)
            return value

        return decode_checked


def _parse_avro(schema: RegisteredSchema) -> AvroSchema:
    return AvroSchema(schema.text, [text for _, text in schema.references])


def _read_frame(data: bytes, ctx: SerializationContext | None) -> Framed:
    headers = () if ctx is None else header_pairs(ctx.headers)
    framed = read_framing(data, headers, is_key=ctx is not None and ctx.field == MessageField.KEY)
    # The first bytes are shown: they tell plain JSON, or another registry's frame, at a glance.
    if framed is None:
        raise SerializationError(
            f"{_describe_part(ctx)} is not framed with the id of a schema: its {len(data)} bytes begin with "
            f"{bytes(data[:5])!r}, and no header names a schema",
            "Read it without this deserializer, or write it with a serializer of the registry",
        )
    return framed


def _describe_part(ctx: SerializationContext | None) -> str:
    return "a payload" if ctx is None else f"the {ctx.field} of a record of {ctx.topic}"
