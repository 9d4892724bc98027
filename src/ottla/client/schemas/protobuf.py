"""`ProtobufSerializer` and `ProtobufDeserializer`, for classes that protoc makes.

Zone: real. Imports of a schema are registered under the names of their files, those that every registry knows excepted.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from ottla.client.errors import UsageError
from ottla.client.schemas.contexts import SerializationContext
from ottla.client.schemas.deserializers import SchemaDeserializer
from ottla.client.schemas.registry import RegisteredSchema, Schema, SchemaReference, SchemaRegistry
from ottla.client.schemas.serializer_settings import PROTOBUF_READING, PROTOBUF_WRITING, read_settings
from ottla.client.schemas.serializers import Encode, SchemaSerializer
from ottla.schemas.decoding import Decode
from ottla.schemas.errors import InvalidPayload
from ottla.schemas.protobuf.decoding import find_message_name, message_indexes, read_indexes, write_indexes
from ottla.schemas.protobuf.known_files import find_known_file
from ottla.schemas.protobuf.runtime import import_runtime
from ottla.schemas.protobuf.schema import ProtobufSchema


class ProtobufSerializer(SchemaSerializer):
    """Writes messages of one class.

    Settings: `auto.register.schemas`, `normalize.schemas`, `use.latest.version`, `subject.name.strategy`,
    `subject.name.strategy.type`, `schema.id.serializer`, `skip.known.types`, `reference.subject.name.strategy`.
    """

    def __init__(
        self, msg_type: Any, schema_registry_client: SchemaRegistry, conf: Mapping[str, Any] | None = None
    ) -> None:
        """Raises ConfigError."""
        super().__init__(schema_registry_client, None, PROTOBUF_WRITING, conf)
        self._class = msg_type
        self._descriptor = msg_type.DESCRIPTOR

    def _indexes(self) -> bytes:
        return write_indexes(message_indexes(self._descriptor))

    def _record_name(self) -> str | None:
        return str(self._descriptor.full_name)

    def _own_schema(self, ctx: SerializationContext | None) -> Schema:
        file = self._descriptor.file
        return Schema(_text_of(file), "PROTOBUF", self._find_references(ctx, file, {}))

    def _find_references(
        self, ctx: SerializationContext | None, file: Any, known: dict[str, SchemaReference]
    ) -> tuple[SchemaReference, ...]:
        """The references of a file; `known` has those that were registered already, by their names."""
        names = []
        for each in file.dependencies:
            if self._settings["skip.known.types"] and find_known_file(each.name) is not None:
                continue
            names.append(each.name)
            if each.name not in known:
                known[each.name] = self._find_reference(ctx, each, known)
        return tuple(known[name] for name in names)

    def _find_reference(
        self, ctx: SerializationContext | None, file: Any, known: dict[str, SchemaReference]
    ) -> SchemaReference:
        schema = Schema(_text_of(file), "PROTOBUF", self._find_references(ctx, file, known))
        subject = self._settings["reference.subject.name.strategy"](ctx, file)
        if self._registers:
            self._registry.register_schema(subject, schema)
        return SchemaReference(file.name, subject, self._registry.lookup_schema(subject, schema).version)

    def _own_encoder(self) -> Encode:
        return self._encode_message

    def _latest_encoder(self, _subject: str, _latest: RegisteredSchema) -> Encode:
        return self._encode_message

    def _encode_message(self, value: Any) -> bytes:
        if not isinstance(value, self._class):
            raise InvalidPayload(f"it is {type(value).__name__}, not {self._class.__name__}")
        try:
            return bytes(value.SerializeToString())
        except (import_runtime("message").EncodeError, ValueError, RecursionError) as error:
            raise InvalidPayload(f"{type(error).__name__}: {error}"[:500]) from error


class ProtobufDeserializer(SchemaDeserializer):
    """Reads messages of one class, with which `message_type` need not be that of the writer.

    With a registry, the schema that a record names must be there, and have the message.
    """

    def __init__(
        self,
        message_type: Any,
        conf: Mapping[str, Any] | None = None,
        schema_registry_client: SchemaRegistry | None = None,
    ) -> None:
        """Raises ConfigError."""
        if not hasattr(message_type, "DESCRIPTOR"):
            raise UsageError(f"{message_type!r} is not a class of messages", "Give a class that protoc has made")
        super().__init__("PROTOBUF", schema_registry_client, None)
        read_settings(PROTOBUF_READING, conf)
        self._class = message_type

    def _make_decoder(self, writer: RegisteredSchema | None, _ctx: SerializationContext | None) -> Decode:
        schema = None if writer is None else ProtobufSchema(writer.text, dict(writer.references))
        decode_error = import_runtime("message").DecodeError

        def decode_message(payload: bytes) -> Any:
            indexes, begin = read_indexes(payload)
            if schema is not None:
                find_message_name(schema, indexes)
            message = self._class()
            try:
                message.ParseFromString(bytes(payload[begin:]))
            except (decode_error, ValueError, RecursionError) as error:
                name = self._class.DESCRIPTOR.full_name
                raise InvalidPayload(f"not a message {name}: {type(error).__name__}: {error}"[:500]) from error
            return message

        return decode_message


def _text_of(file: Any) -> str:
    return base64.b64encode(file.serialized_pb).decode()
