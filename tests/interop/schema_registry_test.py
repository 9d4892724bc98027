"""Confluent's registry client and serializers with `ottla registry`, on Ottla and on Apache Kafka.

Zone: real. Several registries serve one cluster; one that is killed loses nothing that it has answered.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import Producer
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass
from testbench.apache_kafka.broker import KafkaNode
from testbench.ottla_node import OttlaNode
from testbench.registry import RegistryProcess

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
PERSON = json.dumps(
    {"title": "Person", "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
)


@pytest.fixture(scope="module", params=["ottla", "kafka"])
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker's address."""
    directory = tmp_path_factory.mktemp(request.param)
    node = OttlaNode(directory / "data") if request.param == "ottla" else KafkaNode(directory)
    with node:
        yield node.bootstrap


@pytest.fixture(scope="module")
def registry(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcess]:
    """A registry on the broker."""
    with RegistryProcess(tmp_path_factory.mktemp("registry"), bootstrap) as process:
        yield process


@pytest.fixture
def client(registry: RegistryProcess) -> Iterator[SchemaRegistryClient]:
    """Confluent's client."""
    with client_of(registry) as made:
        yield made


@contextmanager
def client_of(registry: RegistryProcess, **settings: str) -> Iterator[SchemaRegistryClient]:
    """Confluent's client, whose connections are closed afterwards."""
    made = SchemaRegistryClient({"url": registry.url, **settings})
    try:
        yield made
    finally:
        made._rest_client.session.close()


def test_the_client_manages_subjects(client: SchemaRegistryClient) -> None:
    number = client.register_schema("orders-value", Schema(ORDER, "AVRO"))
    assert client.register_schema("orders-value", Schema(ORDER, "AVRO")) == number
    assert json.loads(client.get_schema(number).schema_str) == json.loads(ORDER)
    assert client.get_latest_version("orders-value").version == 1
    assert client.lookup_schema("orders-value", Schema(ORDER, "AVRO")).schema_id == number
    assert "orders-value" in client.get_subjects()
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("orders-value", Schema(ORDER.replace('"long"', '"string"'), "AVRO"))
    assert refused.value.http_status_code == 409
    assert not client.test_compatibility("orders-value", Schema('"int"', "AVRO"))
    client.set_compatibility("orders-value", "NONE")
    assert client.get_compatibility("orders-value") == "NONE"
    assert client.test_compatibility("orders-value", Schema('"int"', "AVRO"))
    basket = Schema(BASKET, "AVRO", [SchemaReference("shop.Order", "orders-value", 1)])
    client.register_schema("baskets-value", basket)
    with pytest.raises(SchemaRegistryError) as refused:
        client.delete_subject("orders-value")
    assert refused.value.error_code == 42206
    for permanent in (False, True):
        assert client.delete_subject("baskets-value", permanent=permanent) == [1]
    assert client.delete_subject("orders-value") == [1]
    with pytest.raises(SchemaRegistryError) as refused:
        client.get_versions("orders-value")
    assert refused.value.error_code == 40401


def test_the_avro_serializers_round_trip(client: SchemaRegistryClient) -> None:
    context = SerializationContext("avro-orders", MessageField.VALUE)
    value = {"id": 7, "note": "x"}
    written = AvroSerializer(client, ORDER)(value, context)
    assert written is not None
    assert written[:1] == b"\0"
    assert AvroDeserializer(client)(written, context) == value
    assert client.get_subjects().count("avro-orders-value") == 1


def test_the_json_serializers_round_trip(client: SchemaRegistryClient) -> None:
    context = SerializationContext("people", MessageField.VALUE)
    written = JSONSerializer(PERSON, client)({"name": "Ada"}, context)
    assert written is not None
    assert JSONDeserializer(PERSON, schema_registry_client=client)(written, context) == {"name": "Ada"}


MONEY = 'syntax = "proto3"; package bank; message Money { int64 cents = 1; }'
INVOICE = """syntax = "proto3"; package shop; import "bank/money.proto"; import "google/protobuf/timestamp.proto";
    message Unused {}
    message Invoice { bank.Money total = 1; google.protobuf.Timestamp at = 2; map<string, int32> pieces = 3;
      message Line { string text = 1; } }"""


def _classes() -> tuple[Any, Any]:
    """The classes of the messages shop.Invoice and shop.Invoice.Line, as protoc would make them."""
    pool = ProtobufSchema(INVOICE, {"bank/money.proto": MONEY}).pool
    names = ("shop.Invoice", "shop.Invoice.Line")
    invoice, line = (GetMessageClass(pool.FindMessageTypeByName(name)) for name in names)
    return invoice, line


def test_the_protobuf_serializers_round_trip(client: SchemaRegistryClient) -> None:
    """References are registered by the serializer; the deserializer asks for the format `serialized`."""
    protobuf = pytest.importorskip("confluent_kafka.schema_registry.protobuf")
    context = SerializationContext("invoices", MessageField.VALUE)
    for made, values in zip(_classes(), ({"total": {"cents": 5}, "pieces": {"a": 1}}, {"text": "x"}), strict=True):
        value = made(**values)
        written = protobuf.ProtobufSerializer(made, client)(value, context)
        read = protobuf.ProtobufDeserializer(made, schema_registry_client=client)(written, context)
        assert read.SerializeToString() == value.SerializeToString()
    assert client.get_latest_version("invoices-value").version == 1
    assert [each.name for each in client.get_latest_version("invoices-value").schema.references] == ["bank/money.proto"]


def test_a_text_is_found_by_the_descriptor_of_a_serializer(client: SchemaRegistryClient) -> None:
    """Schemas are registered as texts by a build; serializers that may not register look for theirs."""
    protobuf = pytest.importorskip("confluent_kafka.schema_registry.protobuf")
    invoice, _ = _classes()
    client.register_schema("bank/money.proto", Schema(MONEY, "PROTOBUF"))
    number = client.get_latest_version("bank/money.proto").version
    reference = SchemaReference("bank/money.proto", "bank/money.proto", number)
    registered = client.register_schema("texts-value", Schema(INVOICE, "PROTOBUF", [reference]))
    assert client.get_schema(registered).schema_str == INVOICE
    serialize = protobuf.ProtobufSerializer(invoice, client, {"auto.register.schemas": False})
    written = serialize(invoice(total={"cents": 1}), SerializationContext("texts", MessageField.VALUE))
    assert written[1:5] == registered.to_bytes(4)
    changed = INVOICE.replace("map<string, int32>", "map<string, string>")
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("texts-value", Schema(changed, "PROTOBUF", [reference]))
    assert refused.value.http_status_code == 409
    assert "FIELD_SCALAR_KIND_CHANGED" in str(refused.value)


def test_consume_shows_messages_of_protobuf(bootstrap: str, registry: RegistryProcess) -> None:
    """With the id in the prefix, and with the guid and the indexes of the message in a header."""
    protobuf = pytest.importorskip("confluent_kafka.schema_registry.protobuf")
    topic = "protobuf-decoded"
    invoice, line = _classes()
    context = SerializationContext(topic, MessageField.VALUE, [])
    with client_of(registry) as client:
        first = protobuf.ProtobufSerializer(invoice, client)(invoice(total={"cents": 7}, pieces={"a": 1}), context)
        in_header = {"schema.id.serializer": header_schema_id_serializer}
        second = protobuf.ProtobufSerializer(line, client, in_header)(line(text="ä"), context)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, first)
    producer.produce(topic, second, headers=context.headers)
    producer.produce(topic, first[:5] + b"\x02\x7fno such message")
    assert producer.flush(180) == 0
    command = [sys.executable, "-m", "ottla", "consume", topic, "-b", bootstrap, "--from-beginning", "--exit-at-end"]
    shown = subprocess.run([*command, "--schema-registry", registry.url], capture_output=True, timeout=180, check=False)
    assert shown.returncode == 0, shown.stderr.decode()
    lines = shown.stdout.splitlines()
    assert [json.loads(each) for each in lines[:2]] == [{"total": {"cents": "7"}, "pieces": {"a": 1}}, {"text": "ä"}]
    assert lines[2].endswith(b"no such message")
    assert b"no message with the indexes" in shown.stderr


def test_registries_take_turns_and_a_killed_one_loses_nothing(bootstrap: str, tmp_path: Path) -> None:
    """Two write at once; each schema has one id, whichever registered it, and both know all of them."""
    with ExitStack() as stack:
        registries = [RegistryProcess(tmp_path, bootstrap, name=f"registry-{each}") for each in range(2)]
        clients = [stack.enter_context(client_of(stack.enter_context(each))) for each in registries]
        found: list[dict[str, int]] = [{}, {}]

        def work(at: int) -> None:
            for number in range(15):
                found[at][f"shared-{number}"] = clients[at].register_schema(f"shared-{number}", _numbered(number))

        threads = [threading.Thread(target=work, args=(at,)) for at in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found[0] == found[1]
        assert len(set(found[0].values())) == 15
        last = clients[0].register_schema("shared-last", _numbered(99))
        registries[0].kill()
        assert clients[1].register_schema("shared-last", _numbered(99)) == last
        registries[0].start()
        with client_of(registries[0]) as after:
            assert {name: after.get_latest_version(name).schema_id for name in found[0]} == found[0]


def _numbered(number: int) -> Schema:
    fields = [{"name": "a", "type": "int"}]
    return Schema(json.dumps({"type": "record", "name": f"Shared{number}", "fields": fields}), "AVRO")


def test_users_log_in_over_tls(bootstrap: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    (tmp_path / "users").write_text("# who may ask\nada:se:cret\n")
    options = ["--tls-cert", str(tmp_path / "server.pem"), "--users", str(tmp_path / "users")]
    with RegistryProcess(tmp_path, bootstrap, options) as process:
        ca = {"ssl.ca.location": str(tmp_path / "ca.pem")}
        with client_of(process, **ca, **{"basic.auth.user.info": "ada:se:cret"}) as known:
            assert isinstance(known.get_subjects(), list)
        for wrong in ("ada:secret", "eve:se:cret"):
            with client_of(process, **ca, **{"basic.auth.user.info": wrong}) as stranger:
                with pytest.raises(SchemaRegistryError) as refused:
                    stranger.get_subjects()
                assert refused.value.http_status_code == 401


def test_consume_shows_what_the_serializers_wrote(bootstrap: str, registry: RegistryProcess) -> None:
    """All three framings: the id in the prefix, the guid in the prefix, the guid in a header."""
    topic = "decoded"
    context = SerializationContext(topic, MessageField.VALUE, [])
    value = {"id": 7, "note": "ä"}
    with client_of(registry) as client:
        by_id = AvroSerializer(client, ORDER)(value, context)
        by_guid = AvroSerializer(client, ORDER, conf={"schema.id.serializer": header_schema_id_serializer})(
            value, context
        )
    assert by_id is not None
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, by_id, key=b"k")
    producer.produce(topic, by_guid, headers=context.headers)
    guid = next(content for name, content in context.headers or [] if name == "__value_schema_id")
    producer.produce(topic, guid + (by_guid or b""))
    producer.produce(topic, b"plain")
    producer.produce(topic, b"\0\0\0\x7f\xffno such schema")
    assert producer.flush(180) == 0
    command = [sys.executable, "-m", "ottla", "consume", topic, "-b", bootstrap, "--from-beginning", "--exit-at-end"]
    shown = subprocess.run([*command, "--schema-registry", registry.url], capture_output=True, timeout=180, check=False)
    assert shown.returncode == 0, shown.stderr.decode()
    decoded = [json.loads(line) for line in shown.stdout.splitlines()[:3]]
    assert decoded == [value, value, value]
    assert shown.stdout.splitlines()[3:] == [b"plain", b"\0\0\0\x7f\xffno such schema"]
    assert b"Schema 32767 not found" in shown.stderr
