"""Records that are written with the schemas of a registry: serializers and deserializers of confluent-kafka's shape.

Zone: real.

    registry = SchemaRegistry("http://localhost:8081")
    with Producer(settings, value_serializer=AvroSerializer(registry, schema)) as producer: ...
    with Consumer({**settings, "value.deserializer": AvroDeserializer(registry)}) as consumer: ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.lazy_imports import names_on_demand

if TYPE_CHECKING:
    from ottla.client.errors import SerializationError
    from ottla.client.schemas.contexts import MessageField, RecordDeserializer, RecordSerializer, SerializationContext
    from ottla.client.schemas.deserializers import AvroDeserializer, JSONDeserializer
    from ottla.client.schemas.protobuf import ProtobufDeserializer, ProtobufSerializer
    from ottla.client.schemas.registry import RegistryRequestError, Schema, SchemaReference, SchemaRegistry
    from ottla.client.schemas.serializers import AvroSerializer, JSONSerializer
    from ottla.client.schemas.subject_names import (
        header_schema_id_serializer,
        prefix_schema_id_serializer,
        record_subject_name_strategy,
        reference_subject_name_strategy,
        topic_record_subject_name_strategy,
        topic_subject_name_strategy,
    )

_HOMES: Final = {
    "ottla.client.errors": "SerializationError",
    "ottla.client.schemas.contexts": "MessageField RecordDeserializer RecordSerializer SerializationContext",
    "ottla.client.schemas.deserializers": "AvroDeserializer JSONDeserializer",
    "ottla.client.schemas.protobuf": "ProtobufDeserializer ProtobufSerializer",
    "ottla.client.schemas.registry": "RegistryRequestError Schema SchemaReference SchemaRegistry",
    "ottla.client.schemas.serializers": "AvroSerializer JSONSerializer",
    "ottla.client.schemas.subject_names": (
        "header_schema_id_serializer prefix_schema_id_serializer record_subject_name_strategy "
        "reference_subject_name_strategy topic_record_subject_name_strategy topic_subject_name_strategy"
    ),
}

__all__ = [
    "AvroDeserializer",
    "AvroSerializer",
    "JSONDeserializer",
    "JSONSerializer",
    "MessageField",
    "ProtobufDeserializer",
    "ProtobufSerializer",
    "RecordDeserializer",
    "RecordSerializer",
    "RegistryRequestError",
    "Schema",
    "SchemaReference",
    "SchemaRegistry",
    "SerializationContext",
    "SerializationError",
    "header_schema_id_serializer",
    "prefix_schema_id_serializer",
    "record_subject_name_strategy",
    "reference_subject_name_strategy",
    "topic_record_subject_name_strategy",
    "topic_subject_name_strategy",
]

__getattr__, __dir__ = names_on_demand(globals(), _HOMES)
