"""Serializers and deserializers of schemas: settings, names of subjects, and everything that they refuse.

Zone: real. The registry is one that knows schemas by heart; tests/interop/serializers_test.py has a real one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from ottla.client.consumer.record import ConsumerRecord, Decoder
from ottla.client.errors import ConfigError, DeserializationError, UsageError
from ottla.client.producer.interceptors import InterceptorChain
from ottla.client.schemas import (
    AvroDeserializer,
    AvroSerializer,
    JSONDeserializer,
    JSONSerializer,
    MessageField,
    ProtobufDeserializer,
    ProtobufSerializer,
    RegistryRequestError,
    Schema,
    SchemaRegistry,
    SerializationContext,
    SerializationError,
    header_schema_id_serializer,
)
from ottla.client.schemas.registry import RegisteredSchema, SchemaVersion
from ottla.schemas.errors import InvalidSchema

ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
NODE = '{"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}'
VALUE = SerializationContext("orders", MessageField.VALUE, [])


class Memory(SchemaRegistry):
    """A registry without a network."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.subjects: dict[str, list[int]] = {}
        self.texts: list[Schema] = []
        self.asked = 0
        self.has_guids = True

    def register_schema(self, subject: str, schema: Schema, *, normalize: bool = False) -> SchemaVersion:
        self.asked += 1
        if schema not in self.texts:
            self.texts.append(schema)
        number = self.texts.index(schema) + 1
        versions = self.subjects.setdefault(subject, [])
        versions += [] if number in versions else [number]
        return self._version(number)

    def lookup_schema(self, subject: str, schema: Schema, *, normalize: bool = False) -> SchemaVersion:
        if schema not in self.texts or self.texts.index(schema) + 1 not in self.subjects.get(subject, []):
            raise RegistryRequestError(40403, "Schema not found")
        return self._version(self.texts.index(schema) + 1)

    def find_latest(self, subject: str) -> tuple[SchemaVersion, RegisteredSchema]:
        number = self.subjects[subject][-1]
        return self._version(number), self.find_schema(number)

    def find_references(self, references: Sequence[Any]) -> tuple[tuple[str, str], ...]:
        return ()

    def find_schema(self, name: int | str) -> RegisteredSchema:
        self.asked += 1
        number = name if isinstance(name, int) else uuid.UUID(name).int
        if not 0 < number <= len(self.texts):
            raise RegistryRequestError(40403, "Schema not found")
        found = self.texts[number - 1]
        return RegisteredSchema(found.schema_str, found.schema_type)

    def _version(self, number: int) -> SchemaVersion:
        return SchemaVersion(number, str(uuid.UUID(int=number)) if self.has_guids else None, 1)


@pytest.fixture
def registry() -> Memory:
    return Memory()


def test_a_registry_is_asked_once_per_subject(registry: Memory) -> None:
    write, read = AvroSerializer(registry, ORDER), AvroDeserializer(registry)
    for _ in range(3):
        assert read(write({"id": 1}, VALUE), VALUE) == {"id": 1}
    assert registry.asked == 2
    assert write(None, VALUE) is None
    assert read(None, VALUE) is None


def test_objects_become_dicts_and_dicts_objects(registry: Memory) -> None:
    write = AvroSerializer(registry, ORDER, lambda number, ctx: {"id": number + len(ctx.topic)})
    read = AvroDeserializer(registry, from_dict=lambda value, ctx: value["id"] - len(ctx.topic))
    assert read(write(5, VALUE), VALUE) == 5


def test_headers_may_be_a_dict(registry: Memory) -> None:
    context = SerializationContext("orders", MessageField.KEY, {})
    write = AvroSerializer(registry, ORDER, conf={"schema.id.serializer": header_schema_id_serializer})
    assert write({"id": 1}, context) == b"\x02"
    assert list(context.headers) == ["__key_schema_id"]
    assert AvroDeserializer(registry)(b"\x02", context) == {"id": 1}


@pytest.mark.parametrize("headers", [None, ()])
def test_a_guid_needs_headers_to_be_in(registry: Memory, headers: object) -> None:
    write = AvroSerializer(registry, ORDER, conf={"schema.id.serializer": header_schema_id_serializer})
    with pytest.raises(SerializationError, match="no headers"):
        write({"id": 1}, SerializationContext("orders", MessageField.VALUE, headers))
    registry.has_guids = False
    with pytest.raises(SerializationError, match="no guid"):
        write({"id": 1}, SerializationContext("others", MessageField.VALUE, []))


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"auto.register": True}, "auto.register is not a setting"),
        ({"auto.register.schemas": "yes"}, "not True or False"),
        ({"use.latest.version": True}, "both True"),
        ({"subject.name.strategy.type": "ASSOCIATED"}, "type is ASSOCIATED"),
        ({"subject.name.strategy": "TOPIC"}, "not a function"),
        ({"schema.id.serializer": None}, "not a function"),
    ],
)
def test_settings_that_are_refused(registry: Memory, conf: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AvroSerializer(registry, ORDER, conf=conf)


def test_subjects_without_a_name_or_a_topic(registry: Memory) -> None:
    by_record = {"subject.name.strategy.type": "record"}
    with pytest.raises(UsageError, match="no name"):
        AvroSerializer(registry, '["null", "long"]', conf=by_record)(1, VALUE)
    with pytest.raises(SerializationError, match="topic of the record is unknown"):
        AvroSerializer(registry, ORDER)({"id": 1})
    assert AvroSerializer(registry, ORDER, conf=by_record)({"id": 1}) == b"\0\0\0\0\1\2"
    assert list(registry.subjects) == ["Order"]


def test_a_schema_that_is_not_registered(registry: Memory) -> None:
    with pytest.raises(RegistryRequestError, match="Schema not found") as refused:
        AvroSerializer(registry, ORDER, conf={"auto.register.schemas": False})({"id": 1}, VALUE)
    assert not refused.value.retriable
    with pytest.raises(UsageError, match="without a schema"):
        AvroSerializer(registry)
    with pytest.raises(InvalidSchema):
        AvroSerializer(registry, "{")


@pytest.mark.parametrize("value", [{}, {"id": "x"}, 5, {"id": 2**63}])
def test_values_that_do_not_fit(registry: Memory, value: object) -> None:
    with pytest.raises(SerializationError, match="value of a record for orders cannot be written with schema 1"):
        AvroSerializer(registry, ORDER)(value, VALUE)


def test_strict_records_have_no_other_fields(registry: Memory) -> None:
    assert AvroSerializer(registry, ORDER)({"id": 1, "x": 2}, VALUE)
    with pytest.raises(SerializationError):
        AvroSerializer(registry, ORDER, conf={"validate.strict": True})({"id": 1, "x": 2}, VALUE)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not framed .* 0 bytes"),
        (b"\0\0\0", "not framed"),
        (b'{"id": 1}', "not framed"),
        (b"\0\0\0\0\x09\2", "names schema 9, which cannot be read: Schema not found"),
        (b"\1" + uuid.UUID(int=9).bytes + b"\2", "names schema 00000000-.*9, which cannot be read"),
        (b"\0\0\0\0\1", "cannot be read with schema 1, which it names: not written with its Avro schema"),
        (b"\0\0\0\0\1\x80", "not written with its Avro schema"),
        (b"\0\0\0\0\1\2\2", "1 bytes follow"),
        (b"\0\0\0\0\2{}", "type JSON, not AVRO"),
        (b"\0\0\0\0\3\2", "schema 3 cannot be used"),
    ],
)
def test_payloads_that_are_refused(registry: Memory, data: bytes, message: str) -> None:
    for schema in (Schema(ORDER), Schema("{}", "JSON"), Schema('{"type": "nonsense"}')):
        registry.register_schema("orders-value", schema)
    with pytest.raises(SerializationError, match=message):
        AvroDeserializer(registry)(data, VALUE)


def test_values_that_are_nested_without_end_are_refused(registry: Memory) -> None:
    """fastavro's compiled functions would overflow the stack, which ends the process."""
    registry.register_schema("orders-value", Schema(NODE))
    endless = '{"type": "record", "name": "Endless", "fields": [{"name": "next", "type": "Endless"}]}'
    registry.register_schema("orders-value", Schema(endless))
    read, write = AvroDeserializer(registry), AvroSerializer(registry, NODE)
    assert read(write({"next": {"next": None}}, VALUE), VALUE) == {"next": {"next": None}}
    for payload in (b"\0\0\0\0\1" + b"\2" * 1_000_000 + b"\0", b"\0\0\0\0\2"):
        with pytest.raises(SerializationError, match="nested too deeply"):
            read(payload, VALUE)
    deep: Any = None
    for _ in range(100_000):
        deep = {"next": deep}
    with pytest.raises(SerializationError, match="nested too deeply"):
        write(deep, VALUE)


def test_documents_of_json_that_are_refused(registry: Memory) -> None:
    schema = '{"title": "Person", "type": "object", "properties": {"age": {"type": "integer"}}}'
    write = JSONSerializer(schema, registry)
    for value in ({"age": "x"}, {"x": float("nan")}, {"x": b"bytes"}):
        with pytest.raises(SerializationError):
            write(value, VALUE)
    careless = JSONSerializer(schema, registry, conf={"validate": False})({"age": "x"}, VALUE)
    assert JSONDeserializer(None, schema_registry_client=registry)(careless, VALUE) == {"age": "x"}
    for read in (JSONDeserializer(schema), JSONDeserializer(schema, schema_registry_client=registry)):
        for data in (careless, b"\0\0\0\0\1{", b"\0\0\0\0\1" + b"[" * 100_000):
            with pytest.raises(SerializationError, match="cannot be read with schema 1"):
                read(data, VALUE)
    with pytest.raises(UsageError, match="without a registry and without a schema"):
        JSONDeserializer(None)


def test_references_of_json_are_not_fetched(registry: Memory) -> None:
    with pytest.raises(InvalidSchema, match="not named in the references"):
        JSONSerializer('{"$ref": "http://127.0.0.1:1/other.json"}', registry)


def test_messages_of_protobuf_that_are_refused(registry: Memory) -> None:
    timestamp: Any = pytest.importorskip("google.protobuf.timestamp_pb2").Timestamp
    write = ProtobufSerializer(timestamp, registry)
    with pytest.raises(SerializationError, match="it is dict, not Timestamp"):
        write({}, VALUE)
    read = ProtobufDeserializer(timestamp, schema_registry_client=registry)
    written = write(timestamp(seconds=5), VALUE)
    assert written is not None
    assert read(written, VALUE).seconds == 5
    for data in (written[:5], written[:5] + b"\x02\x7f", written[:6] + b"\x08", written[:6] + b"\xff"):
        with pytest.raises(SerializationError, match="cannot be read with schema 1"):
            read(data, VALUE)
    with pytest.raises(UsageError, match="not a class of messages"):
        ProtobufDeserializer(dict)


def test_a_producer_sends_the_headers_that_a_serializer_adds(registry: Memory) -> None:
    conf = {"schema.id.serializer": header_schema_id_serializer}
    both = InterceptorChain(AvroSerializer(registry, ORDER, conf=conf), AvroSerializer(registry, ORDER, conf=conf), ())
    given = [("h", b"1")]
    prepared = both.prepare_record("orders", {"id": 1}, {"id": 2}, given, None, None, None)
    assert prepared[1:3] == (b"\x02", b"\x04")
    assert [name for name, _ in prepared[3]] == ["h", "__key_schema_id", "__value_schema_id"]
    assert given == [("h", b"1")]
    with pytest.raises(SerializationError):
        both.prepare_record("orders", {"id": "x"}, None, None, None, None, None)


def test_a_consumer_says_whether_the_record_may_be_good(registry: Memory) -> None:
    decode = Decoder(False, None, AvroDeserializer(registry))
    record = ConsumerRecord("orders", 0, 3, 0, 0, None, b"\0\0\0\0\1\2", (), 0)
    with pytest.raises(DeserializationError, match="seek to 4") as refused:
        decode._deserialize_record(record)
    assert not refused.value.retriable
    away = Decoder(False, None, AvroDeserializer(SchemaRegistry("http://127.0.0.1:1")))
    with pytest.raises(DeserializationError, match="Poll again") as refused:
        away._deserialize_record(record)
    assert refused.value.retriable
    registry.register_schema("orders-value", Schema(ORDER))
    assert decode._deserialize_record(record).value == {"id": 1}


def test_the_names_of_avro_schemas(registry: Memory) -> None:
    conf = {"subject.name.strategy.type": "TOPIC_RECORD"}
    order = json.loads(ORDER)
    for schema in ({**order, "namespace": "shop"}, {**order, "name": "a.b.Order"}):
        AvroSerializer(registry, json.dumps(schema), conf=conf)({"id": 1}, VALUE)
    AvroSerializer(registry, '"long"', conf=conf)(1, VALUE)
    assert list(registry.subjects) == ["orders-shop.Order", "orders-a.b.Order", "orders-long"]
