"""Serializers of `ottla.client.schemas` and those of confluent-kafka read what the others write.

Zone: real. With `ottla registry`, and with records that our producer and consumer, or theirs, carry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka.schema_registry as theirs
import pytest
from confluent_kafka import Producer as TheirProducer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry import avro as their_avro
from confluent_kafka.schema_registry import json_schema as their_json
from confluent_kafka.serialization import SerializationContext as TheirContext
from google.protobuf.message_factory import GetMessageClass
from testbench.ottla_node import OttlaNode
from testbench.registry import RegistryProcess

from ottla.client import Consumer, DeserializationError, Producer, TopicPartition
from ottla.client import schemas as ours
from ottla.schemas.protobuf.schema import ProtobufSchema

pytestmark = [pytest.mark.interop, pytest.mark.slow]

ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
    }
)
BASKET = json.dumps({"type": "record", "name": "Basket", "fields": [{"name": "first", "type": "shop.Order"}]})
PERSON = json.dumps({"title": "Person", "type": "object", "properties": {"name": {"type": "string"}}})
VALUE = {"id": 7, "note": "payloads of five bytes are too short for theirs"}
MONEY = 'syntax = "proto3"; package bank; message Money { int64 cents = 1; }'
INVOICE = """syntax = "proto3"; package shop; import "bank/money.proto"; import "google/protobuf/timestamp.proto";
    message Unused {}
    message Invoice { bank.Money total = 1; google.protobuf.Timestamp at = 2;
      message Line { string text = 1; } }"""


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with OttlaNode(tmp_path_factory.mktemp("ottla") / "data") as node:
        yield node.bootstrap


@pytest.fixture(scope="module")
def registry(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcess]:
    with RegistryProcess(tmp_path_factory.mktemp("registry"), bootstrap) as process:
        yield process


@pytest.fixture
def client(registry: RegistryProcess) -> Iterator[SchemaRegistryClient]:
    """Confluent's client."""
    made = SchemaRegistryClient({"url": registry.url})
    yield made
    made._rest_client.session.close()


@pytest.fixture
def own(registry: RegistryProcess) -> ours.SchemaRegistry:
    """Our client."""
    return ours.SchemaRegistry(registry.url)


def context(topic: str, field: str = "value") -> TheirContext:
    return TheirContext(topic, field, [])


def own_context(of: TheirContext) -> ours.SerializationContext:
    return ours.SerializationContext(of.topic, of.field, of.headers)


IN_HEADER = {
    "ours": {"schema.id.serializer": ours.header_schema_id_serializer},
    "theirs": {"schema.id.serializer": theirs.header_schema_id_serializer},
}


@pytest.mark.parametrize("framing", ["prefix", "header"])
@pytest.mark.parametrize("field", ["key", "value"])
def test_avro_both_ways(client: SchemaRegistryClient, own: ours.SchemaRegistry, framing: str, field: str) -> None:
    settings = IN_HEADER if framing == "header" else {"ours": {}, "theirs": {}}
    here = context(f"avro-{framing}", field)
    written = ours.AvroSerializer(own, ORDER, conf=settings["ours"])(VALUE, own_context(here))
    assert their_avro.AvroDeserializer(client)(written, here) == VALUE
    there = context(f"avro-{framing}", field)
    expected = their_avro.AvroSerializer(client, ORDER, conf=settings["theirs"])(VALUE, there)
    assert expected == written
    assert there.headers == here.headers
    assert bool(here.headers) == (framing == "header")
    assert ours.AvroDeserializer(own)(expected, own_context(there)) == VALUE


def test_plain_values_of_avro_both_ways(client: SchemaRegistryClient, own: ours.SchemaRegistry) -> None:
    """Bytes are written without a length, as theirs writes them."""
    for number, (schema, value) in enumerate((('"bytes"', b"raw bytes"), ('"string"', "text"), ('["null","long"]', 5))):
        here = context(f"plain-{number}")
        written = ours.AvroSerializer(own, schema)(value, own_context(here))
        expected = their_avro.AvroSerializer(client, schema)(value, here)  # they register {"type": "string"}
        assert expected is not None
        assert written is not None
        assert expected[5:] == written[5:]
        assert their_avro.AvroDeserializer(client)(written, here) == value
        assert ours.AvroDeserializer(own)(expected, own_context(here)) == value


def test_references_of_avro_both_ways(client: SchemaRegistryClient, own: ours.SchemaRegistry) -> None:
    version = own.register_schema("orders-value", ours.Schema(ORDER))
    assert version.id
    reference = ours.SchemaReference("shop.Order", "orders-value", 1)
    here, value = context("baskets"), {"first": VALUE}
    written = ours.AvroSerializer(own, ours.Schema(BASKET, "AVRO", [reference]))(value, own_context(here))
    assert their_avro.AvroDeserializer(client)(written, here) == value
    schema = theirs.Schema(BASKET, "AVRO", [theirs.SchemaReference("shop.Order", "orders-value", 1)])
    assert their_avro.AvroSerializer(client, schema)(value, here) == written
    assert ours.AvroDeserializer(own)(written, own_context(here)) == value
    union = ours.Schema('["null", "shop.Order"]', "AVRO", [reference])
    here = context("unions")
    written = ours.AvroSerializer(own, union)(VALUE, own_context(here))
    assert ours.AvroDeserializer(own)(written, own_context(here)) == VALUE


@pytest.mark.parametrize(("kind", "subject"), [("RECORD", "shop.Order"), ("TOPIC_RECORD", "named-shop.Order")])
def test_names_of_subjects(client: SchemaRegistryClient, own: ours.SchemaRegistry, kind: str, subject: str) -> None:
    conf, here = {"subject.name.strategy.type": kind}, context("named")
    written = ours.AvroSerializer(own, ORDER, conf=conf)(VALUE, own_context(here))
    assert subject in client.get_subjects()
    only_look = {**conf, "auto.register.schemas": False}
    assert their_avro.AvroSerializer(client, ORDER, conf=only_look)(VALUE, here) == written
    assert ours.AvroSerializer(own, ORDER, conf=only_look)(VALUE, own_context(here)) == written


def test_the_latest_version_writes_and_reads(client: SchemaRegistryClient, own: ours.SchemaRegistry) -> None:
    own.register_schema("latest-value", ours.Schema(ORDER))
    here, latest = context("latest"), {"auto.register.schemas": False, "use.latest.version": True}
    first = ours.AvroSerializer(own, conf=latest)(VALUE, own_context(here))
    assert their_avro.AvroSerializer(client, ORDER, conf=latest)(VALUE, here) == first
    wider = ORDER.replace('"fields": [', '"fields": [{"name": "paid", "type": "boolean", "default": false}, ')
    own.register_schema("latest-value", ours.Schema(wider))
    read = ours.AvroDeserializer(own, conf={"use.latest.version": True})(first, own_context(here))
    assert read == {**VALUE, "paid": False}
    assert ours.AvroDeserializer(own, wider)(first, own_context(here)) == read


def test_json_both_ways(client: SchemaRegistryClient, own: ours.SchemaRegistry) -> None:
    here, value = context("people"), {"name": "Ada ä"}
    written = ours.JSONSerializer(PERSON, own)(value, own_context(here))
    assert their_json.JSONDeserializer(PERSON, schema_registry_client=client)(written, here) == value
    expected = their_json.JSONSerializer(PERSON, client)(value, here)
    assert expected is not None
    assert written is not None
    assert expected[:5] == written[:5]
    assert ours.JSONDeserializer(PERSON, schema_registry_client=own)(expected, own_context(here)) == value
    with pytest.raises(ours.SerializationError, match="does not fit its JSON schema: 3 is not of type 'string'"):
        ours.JSONSerializer(PERSON, own)({"name": 3}, own_context(here))


@pytest.mark.parametrize("framing", ["prefix", "header"])
@pytest.mark.parametrize("name", ["shop.Invoice", "shop.Invoice.Line"])
def test_protobuf_both_ways(client: SchemaRegistryClient, own: ours.SchemaRegistry, framing: str, name: str) -> None:
    protobuf = pytest.importorskip("confluent_kafka.schema_registry.protobuf")
    made: Any = GetMessageClass(ProtobufSchema(INVOICE, {"bank/money.proto": MONEY}).pool.FindMessageTypeByName(name))
    value = made(text="x") if name.endswith("Line") else made(total={"cents": 5}, at={"seconds": 3})
    settings = IN_HEADER if framing == "header" else {"ours": {}, "theirs": {}}
    here, there = context(f"invoices-{framing}"), context(f"invoices-{framing}")
    written = ours.ProtobufSerializer(made, own, settings["ours"])(value, own_context(here))
    assert protobuf.ProtobufSerializer(made, client, settings["theirs"])(value, there) == written
    assert there.headers == here.headers
    for read in (
        protobuf.ProtobufDeserializer(made, schema_registry_client=client)(written, here),
        ours.ProtobufDeserializer(made, schema_registry_client=own)(written, own_context(here)),
        ours.ProtobufDeserializer(made)(written, own_context(here)),
    ):
        assert read.SerializeToString() == value.SerializeToString()


def test_our_clients_carry_both_serializers(
    bootstrap: str, client: SchemaRegistryClient, own: ours.SchemaRegistry
) -> None:
    """Our producer names the schema of the value in a header; their producer's records are read by our consumer."""
    topic = "carried"
    serializers: dict[str, Any] = {
        "key_serializer": ours.AvroSerializer(own, '"string"'),
        "value_serializer": ours.AvroSerializer(own, ORDER, conf=IN_HEADER["ours"]),
    }
    with Producer({"bootstrap.servers": bootstrap}, **serializers) as producer:
        producer.send(topic, VALUE, key="a", headers=[("h", b"1")]).result(60)
        producer.send(topic, None, key="a").result(60)
    here = context(topic)
    producer_of_theirs = TheirProducer({"bootstrap.servers": bootstrap})
    key = their_avro.AvroSerializer(client, '"string"')("a", context(topic, "key"))
    producer_of_theirs.produce(topic, their_avro.AvroSerializer(client, ORDER)(VALUE, here), key)
    producer_of_theirs.produce(topic, b"unframed", key)
    assert producer_of_theirs.flush(60) == 0
    read = ours.AvroDeserializer(own)
    settings = {"bootstrap.servers": bootstrap, "key.deserializer": read, "value.deserializer": read}
    with Consumer(settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        found: list[Any] = []
        with pytest.raises(DeserializationError, match="not framed with the id of a schema") as refused:
            found.extend(consumer)
    assert refused.value.offset == 3
    assert [(each.key, each.value) for each in found] == [("a", VALUE), ("a", None), ("a", VALUE)]
    assert [name for name, _ in found[0].headers] == ["h", "__value_schema_id"]
    assert not refused.value.retriable


def test_known_schemas_work_while_the_registry_is_away(bootstrap: str, tmp_path: Path) -> None:
    here = ours.SerializationContext("away", ours.MessageField.VALUE, [])
    other = ours.SerializationContext("away", ours.MessageField.KEY, [])
    with RegistryProcess(tmp_path, bootstrap) as process:
        own = ours.SchemaRegistry(process.url)
        write, read = ours.AvroSerializer(own, ORDER), ours.AvroDeserializer(own)
        write.prepare_subject(here)
        assert read(write(VALUE, here), here) == VALUE
    written = write({"id": 8, "note": None}, here)
    assert written is not None
    assert read(written, here) == {"id": 8, "note": None}
    for call in (lambda: write(VALUE, other), lambda: read(b"\0\0\0\x7f\xff" + written[5:], here)):
        with pytest.raises(ours.RegistryRequestError, match="does not answer") as failed:
            call()
        assert failed.value.retriable
