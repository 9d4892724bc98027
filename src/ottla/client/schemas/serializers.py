"""Serializers of confluent-kafka's shape: `AvroSerializer`, `JSONSerializer`, `ProtobufSerializer`.

Zone: real. The registry is asked at the first record of a subject, and not again: records are serialized while it is
away. Threads may share a serializer.
"""

from __future__ import annotations

import json
import threading
import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ottla.client.errors import SerializationError, UsageError
from ottla.client.schemas.contexts import RecordSerializer, SerializationContext
from ottla.client.schemas.registry import RegisteredSchema, Schema, SchemaRegistry, SchemaVersion
from ottla.client.schemas.serializer_settings import AVRO_WRITING, JSON_WRITING, read_settings, subject_strategy
from ottla.client.schemas.subject_names import SchemaId
from ottla.schemas.avro import AvroSchema
from ottla.schemas.avro_values import avro_encoder
from ottla.schemas.errors import InvalidPayload
from ottla.schemas.json_documents import encode_json, json_validator

ToDict = Callable[[Any, Any], Any]
"""(object, context) → the value to serialize."""
Encode = Callable[[Any], bytes]
"""Makes the payload of a value. Raises InvalidPayload."""


class _Writer(NamedTuple):
    """How the records of one subject are written."""

    schema_id: SchemaId
    encode: Encode


class SchemaSerializer(RecordSerializer):
    """The part of a serializer that does not depend on the type of its schema."""

    def __init__(
        self, registry: SchemaRegistry, to_dict: ToDict | None, defaults: Mapping[str, Any], conf: Any
    ) -> None:
        self._registry = registry
        self._to_dict = to_dict
        self._settings = read_settings(defaults, conf)
        self._name_subject = subject_strategy(self._settings)
        self._write_id = self._settings["schema.id.serializer"]
        self._writers: dict[str, _Writer] = {}
        self._lock = threading.Lock()

    def __call__(self, obj: Any, ctx: SerializationContext | None = None) -> bytes | None:
        """The framed payload of an object; None for None.

        Raises SerializationError: the object does not fit. RegistryRequestError: the registry refuses the schema, or
        does not answer (`retriable`).
        """
        if obj is None:
            return None
        writer = self._find_writer(ctx)
        try:
            payload = writer.encode(obj if self._to_dict is None else self._to_dict(obj, ctx))
        except InvalidPayload as error:
            part = "object" if ctx is None else f"{ctx.field} of a record for {ctx.topic}"
            raise SerializationError(
                f"the {part} cannot be written with schema {writer.schema_id.id}: {error}"
            ) from error
        framed: bytes = self._write_id(payload, ctx, writer.schema_id)
        return framed

    def prepare_subject(self, ctx: SerializationContext | None = None) -> None:
        """Ask the registry now for all that the records of a topic need, so that serializing them does not wait.

        Raises as a call does.
        """
        self._find_writer(ctx)

    def _find_writer(self, ctx: SerializationContext | None) -> _Writer:
        subject = self._name_subject(ctx, self._record_name())
        if subject is None:
            raise UsageError(
                "the schema has no name, which its subject should have", "Name it, or use topic_subject_name_strategy"
            )
        # Looked up without the lock first: after the first record of a subject no thread waits for another one.
        found = self._writers.get(subject)
        if found is None:
            with self._lock:
                # Another thread may have asked the registry while this one waited.
                found = self._writers.get(subject)
                if found is None:
                    found = self._writers[subject] = self._make_writer(subject, ctx)
        return found

    def _make_writer(self, subject: str, ctx: SerializationContext | None) -> _Writer:
        if self._settings["use.latest.version"]:
            # 1. The latest version, whatever schema was given. 2. The given schema, registered. 3. The same, looked up:
            #    with `auto.register.schemas` off, an unknown schema is an error of the record.
            version, latest = self._registry.find_latest(subject)
            return _Writer(self._schema_id(version), self._latest_encoder(subject, latest))
        schema, normalize = self._own_schema(ctx), self._settings["normalize.schemas"]
        ask = self._registry.register_schema if self._registers else self._registry.lookup_schema
        return _Writer(self._schema_id(ask(subject, schema, normalize=normalize)), self._own_encoder())

    @property
    def _registers(self) -> bool:
        return bool(self._settings["auto.register.schemas"])

    def _schema_id(self, version: SchemaVersion) -> SchemaId:
        return SchemaId(version.id, None if version.guid is None else uuid.UUID(version.guid), self._indexes())

    def _indexes(self) -> bytes:
        return b""

    @abstractmethod
    def _record_name(self) -> str | None:
        """The name of the schema."""

    @abstractmethod
    def _own_schema(self, ctx: SerializationContext | None) -> Schema:
        """The schema that was given."""

    @abstractmethod
    def _own_encoder(self) -> Encode:
        """The function that writes with the schema that was given."""

    @abstractmethod
    def _latest_encoder(self, subject: str, latest: RegisteredSchema) -> Encode:
        """The function that writes with the latest schema of a subject."""


class TextSerializer(SchemaSerializer):
    """A serializer whose schema is a text."""

    _type: str

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | Schema | None,
        to_dict: ToDict | None,
        defaults: Mapping[str, Any],
        conf: Any,
    ) -> None:
        super().__init__(registry, to_dict, defaults, conf)
        self._schema = Schema(schema, self._type) if isinstance(schema, str) else schema
        if self._schema is None:
            if not self._settings["use.latest.version"]:
                raise UsageError("a serializer without a schema", "Give a schema, or set use.latest.version")
            self._encode_own: Encode | None = None
        else:
            # Compiled now, so that a schema that is wrong fails where the serializer is made, not at the first record.
            texts = self._registry.find_references(self._schema.references)
            self._encode_own = self._make_encoder(RegisteredSchema(self._schema.schema_str, self._type, texts))
        self._name = None if self._schema is None else self._find_name(self._schema.schema_str)

    def _record_name(self) -> str | None:
        return self._name

    def _own_schema(self, _ctx: SerializationContext | None) -> Schema:
        assert self._schema is not None
        return self._schema

    def _own_encoder(self) -> Encode:
        assert self._encode_own is not None
        return self._encode_own

    def _latest_encoder(self, subject: str, latest: RegisteredSchema) -> Encode:
        # A subject whose type was changed: its schemas are of no use to this serializer.
        if latest.type != self._type:
            raise SerializationError(
                f"the latest schema of {subject} is of type {latest.type}, not {self._type}",
                "Use the serializer of that type, or another topic",
            )
        return self._make_encoder(latest)

    @abstractmethod
    def _make_encoder(self, schema: RegisteredSchema) -> Encode:
        """The function that writes with a schema. Raises InvalidSchema."""

    @abstractmethod
    def _find_name(self, text: str) -> str | None:
        """The name of a schema, which was parsed already."""


class AvroSerializer(TextSerializer):
    """Writes dicts, or objects that `to_dict(obj, ctx)` makes dicts of, as Avro.

    Settings: `auto.register.schemas`, `normalize.schemas`, `use.latest.version`, `subject.name.strategy`,
    `subject.name.strategy.type`, `schema.id.serializer`, `validate.strict`, `validate.strict.allow.default`.
    """

    _type = "AVRO"

    def __init__(
        self,
        schema_registry_client: SchemaRegistry,
        schema_str: str | Schema | None = None,
        to_dict: ToDict | None = None,
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises InvalidSchema, ConfigError; with references RegistryRequestError."""
        super().__init__(schema_registry_client, schema_str, to_dict, AVRO_WRITING, conf)

    def _make_encoder(self, schema: RegisteredSchema) -> Encode:
        parsed = AvroSchema(schema.text, [text for _, text in schema.references])
        allow_default = self._settings["validate.strict.allow.default"]
        return avro_encoder(parsed, strict=self._settings["validate.strict"], strict_allow_default=allow_default)

    def _find_name(self, text: str) -> str | None:
        document = json.loads(text)
        if isinstance(document, dict) and "name" in document:
            name, namespace = document["name"], document.get("namespace")
            return f"{namespace}.{name}" if namespace and "." not in name else str(name)
        kind = document.get("type") if isinstance(document, dict) else document
        return kind if isinstance(kind, str) else None


class JSONSerializer(TextSerializer):
    """Writes dicts, or objects that `to_dict(obj, ctx)` makes dicts of, as JSON that its schema accepts.

    Settings: those of AvroSerializer, with `validate` in place of the strict ones.
    """

    _type = "JSON"

    def __init__(
        self,
        schema_str: str | Schema | None,
        schema_registry_client: SchemaRegistry,
        to_dict: ToDict | None = None,
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises InvalidSchema, ConfigError; with references RegistryRequestError."""
        super().__init__(schema_registry_client, schema_str, to_dict, JSON_WRITING, conf)

    def _make_encoder(self, schema: RegisteredSchema) -> Encode:
        check_value = json_validator(schema.text, dict(schema.references))
        # Parsed above in any case: a schema that is wrong is refused, though its values are not compared.
        if not self._settings["validate"]:
            return encode_json

        def encode_checked(value: Any) -> bytes:
            check_value(value)
            return encode_json(value)

        return encode_checked

    def _find_name(self, text: str) -> str | None:
        document = json.loads(text)
        title = document.get("title") if isinstance(document, dict) else None
        return title if isinstance(title, str) else None
