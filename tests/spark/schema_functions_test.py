"""`ottla.spark.functions`: columns of registered schemas, with a registry and records of Confluent's serializers.

Zone: real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass
from testbench.registry import RegistryProcess
from tests.spark.conftest import Topics

from ottla.client.schemas.registry import RegistryRequestError
from ottla.pipeline import Pipeline
from ottla.record.batch import Record
from ottla.schemas.protobuf.schema import ProtobufSchema
from ottla.spark.errors import BadOption
from ottla.spark.functions import from_avro, from_json_schema, from_protobuf, to_avro, to_json_schema, to_protobuf

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def order(*more: dict[str, Any]) -> str:
    fields = [{"name": "id", "type": "int"}, {"name": "note", "type": ["null", "string"], "default": None}, *more]
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


FIRST = order()
SECOND = order({"name": "paid", "type": "boolean", "default": False})


@pytest.fixture(scope="module")
def registry(topics: Topics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with RegistryProcess(tmp_path_factory.mktemp("registry"), topics.bootstrap) as process:
        yield process.url


@pytest.fixture
def client(registry: str) -> Iterator[SchemaRegistryClient]:
    made = SchemaRegistryClient({"url": registry})
    yield made
    made._rest_client.session.close()


@pytest.fixture
def topic(topics: Topics) -> str:
    return topics.make()


def context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def written(client: SchemaRegistryClient, topic: str, schema: str, *values: dict[str, Any]) -> list[bytes]:
    serialize = AvroSerializer(client, schema)
    return [serialize(each, context(topic)) for each in values]


def rows(frame: Any) -> list[dict[str, Any]]:
    return [each.asDict(recursive=True) for each in frame.collect()]


def loaded(spark: Any, topics: Topics, topic: str, **options: str) -> Any:
    return spark.read.format("ottla").options(**topics.options, subscribe=topic, **options).load()


def test_rows_of_several_schemas_are_read_as_the_latest(
    spark: Any, topics: Topics, topic: str, registry: str, client: SchemaRegistryClient
) -> None:
    first = written(client, topic, FIRST, {"id": 1, "note": "a"}, {"id": 2, "note": None})
    second = written(client, topic, SECOND, {"id": 3, "note": "ü", "paid": True})
    topics.put_records(topic, 0, [Record(n, 1000, None, each) for n, each in enumerate([*first, *second, None])])
    decoded = from_avro("value", schema_registry=registry, subject=f"{topic}-value")
    found = loaded(spark, topics, topic).select(decoded.alias("order")).select("order.*")
    assert found.schema.simpleString() == "struct<id:int,note:string,paid:boolean,_error:string>"
    nothing = dict.fromkeys(("id", "note", "paid", "_error"))
    assert rows(found) == [
        {**nothing, "id": 1, "note": "a", "paid": False},
        {**nothing, "id": 2, "paid": False},
        {**nothing, "id": 3, "note": "ü", "paid": True},
        nothing,
    ]


def test_a_schema_named_in_a_header(
    spark: Any, topics: Topics, topic: str, registry: str, client: SchemaRegistryClient
) -> None:
    serialize = AvroSerializer(client, FIRST, conf={"schema.id.serializer": header_schema_id_serializer})
    headers: list[tuple[str, bytes]] = []
    value = serialize({"id": 7, "note": "h"}, SerializationContext(topic, MessageField.VALUE, headers))
    (plain,) = written(client, topic, FIRST, {"id": 8, "note": "p"})
    topics.put_records(topic, 0, [Record(0, 1000, None, value, tuple(headers)), Record(1, 1000, None, plain)])
    decoded = from_avro("value", schema_registry=registry, subject=f"{topic}-value", headers="headers", mode="FAILFAST")
    found = loaded(spark, topics, topic, includeHeaders="true").select(decoded.alias("order")).select("order.*")
    assert rows(found) == [{"id": 7, "note": "h"}, {"id": 8, "note": "p"}]


def test_bad_rows_say_why_and_others_stay(
    spark: Any, topics: Topics, topic: str, registry: str, client: SchemaRegistryClient
) -> None:
    (good,) = written(client, topic, FIRST, {"id": 1, "note": "a"})
    number = int.from_bytes(good[1:5])
    (other,) = written(client, f"{topic}-other", '"string"', "text")  # type: ignore[arg-type]
    values = [good, good[:-1], b"\0\0\0\xff\xff" + good[5:], b"plain", other, b"", good]
    topics.put(topic, 0, values)
    decoded = from_avro("value", schema_registry=registry, subject=f"{topic}-value")
    reasons = [each["_error"] for each in rows(loaded(spark, topics, topic).select(decoded.alias("o")).select("o.*"))]
    assert reasons[0] is None
    assert reasons[6] is None
    assert reasons[1] == f"it was not written with schema {number}, which it names"
    assert reasons[2].startswith("the registry has no schema 65535")
    assert reasons[3] == reasons[5] == "it is not framed with the id of a schema"
    assert reasons[4] is not None
    failing = from_avro("value", schema_registry=registry, subject=f"{topic}-value", mode="FAILFAST")
    with pytest.raises(Exception, match="a row cannot be read"):
        loaded(spark, topics, topic).select(failing).collect()


def test_bad_rows_of_a_pipeline_become_dead_letters(
    spark: Any, topics: Topics, topic: str, registry: str, client: SchemaRegistryClient, tmp_path: Path
) -> None:
    (good,) = written(client, topic, FIRST, {"id": 1, "note": "a"})
    topics.put(topic, 0, [good, b"plain"])
    out, dead = topics.make(), topics.make()
    pipeline = Pipeline(f"{topic}-schemas", topics.bootstrap)

    @pipeline.step(topic, to=out, dead=dead)
    def orders(frame: Any) -> Any:
        decoded = from_avro("value", schema_registry=registry, subject=f"{topic}-value")
        shown = frame.select(decoded.alias("order"), "_source").select("order.*", "_source")
        return shown.selectExpr("cast(note as binary) as value", "_error", "_source")

    pipeline.run(str(tmp_path / "checkpoint"), spark=spark, progress=False)
    assert topics.values(out) == [b"a"]
    assert topics.values(dead) == [b"plain"]


def test_other_values_than_records(spark: Any, registry: str, client: SchemaRegistryClient, topic: str) -> None:
    frame = spark.createDataFrame([(bytearray(each),) for each in written(client, topic, '"long"', 5)], "value binary")  # type: ignore[arg-type]
    decoded = from_avro("value", schema_registry=registry, schema='"double"')
    assert rows(frame.select(decoded.alias("v")).select("v.*")) == [{"value": 5.0, "_error": None}]
    alone = from_avro("value", schema_registry=registry, schema='"double"', mode="FAILFAST")
    assert rows(frame.select(alone.alias("v"))) == [{"v": 5.0}]


@pytest.mark.parametrize("schema", ['"bytes"', '{"type": "bytes"}'])
def test_bytes_alone_are_written_and_read_as_confluent_does(
    spark: Any, registry: str, client: SchemaRegistryClient, topic: str, schema: str
) -> None:
    value = b"\x04raw"
    (payload,) = written(client, topic, schema, value)  # type: ignore[arg-type]
    frame = spark.createDataFrame([(bytearray(payload), bytearray(value))], "value binary, raw binary")
    decoded = from_avro("value", schema_registry=registry, subject=f"{topic}-value", mode="FAILFAST")
    encoded = to_avro("raw", schema_registry=registry, subject=f"{topic}-value")
    (row,) = frame.select(decoded.alias("decoded"), encoded.alias("encoded")).collect()
    assert (bytes(row.decoded), bytes(row.encoded)) == (value, payload)
    assert AvroDeserializer(client)(bytes(row.encoded), context(topic)) == value


EVERY_TYPE = {
    "type": "record",
    "name": "All",
    "fields": [
        {"name": "b", "type": "boolean"},
        {"name": "f", "type": "float"},
        {"name": "raw", "type": "bytes"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": ["null", "int"]}},
        {"name": "either", "type": ["null", "int", "string", {"type": "record", "name": "I", "fields": []}]},
        {"name": "inner", "type": {"type": "record", "name": "In", "fields": [{"name": "x", "type": "long"}]}},
    ],
}
EVERY_VALUE = """
    struct(true as b, cast(0.5 as float) as f, X'00ff' as raw, date'2026-11-27' as day, 3600000 as time,
           timestamp'2026-11-27 12:00:00.250 UTC' as at, timestamp_ntz'2026-11-27 12:00:00' as local,
           cast(-12.34 as decimal(9, 2)) as price, 'B' as kind, array('x', 'ü') as tags, map('k', 1, 'n', null) as more,
           named_struct('member0', cast(null as int), 'member1', 'text') as either,
           named_struct('x', 5L) as inner) as o
"""


def test_what_to_avro_writes_from_avro_and_confluent_read(
    spark: Any, registry: str, client: SchemaRegistryClient, topic: str
) -> None:
    schema = json.dumps(EVERY_TYPE).replace(', {"type": "record", "name": "I", "fields": []}', "")
    frame = spark.range(2).selectExpr(EVERY_VALUE)
    encoded = frame.select(to_avro("o", schema_registry=registry, subject=topic, schema=schema).alias("value"))
    read = encoded.select(from_avro("value", schema_registry=registry, subject=topic, mode="FAILFAST").alias("o"))
    assert rows(read) == rows(frame)
    value = AvroDeserializer(client)(bytes(encoded.first().value), context(topic))
    assert (value["kind"], value["either"], value["more"]) == ("B", "text", {"k": 1, "n": None})
    again = frame.select(to_avro("o", schema_registry=registry, subject=topic).alias("value"))
    assert rows(again) == rows(encoded)


MONEY = 'syntax = "proto3"; package bank; message Money { int64 cents = 1; }'
INVOICE = """syntax = "proto3"; package shop; import "bank/money.proto"; import "google/protobuf/timestamp.proto";
    message Unused { message Line { string text = 1; } }
    enum Kind { NONE = 0; BOOK = 1; }
    message Invoice { int32 id = 1; bank.Money total = 2; google.protobuf.Timestamp at = 3;
      map<string, int32> pieces = 4; repeated Kind kinds = 5; optional string note = 6; }"""
INVOICE_COLUMNS = (
    "struct<id:int,total:struct<cents:bigint>,at:timestamp,pieces:map<string,int>,kinds:array<string>,note:string,"
    "_error:string>"
)


def message_class(name: str) -> Any:
    """The class of a message, as protoc would make it."""
    pool = ProtobufSchema(INVOICE, {"bank/money.proto": MONEY}).pool
    return GetMessageClass(pool.FindMessageTypeByName(name))


def test_messages_of_confluents_serializer_in_all_framings(
    spark: Any, topics: Topics, topic: str, registry: str, client: SchemaRegistryClient
) -> None:
    invoice, line = message_class("shop.Invoice"), message_class("shop.Unused.Line")
    in_header = {"schema.id.serializer": header_schema_id_serializer}
    headers: list[tuple[str, bytes]] = []
    named = SerializationContext(topic, MessageField.VALUE, headers)
    first = ProtobufSerializer(invoice, client)(invoice(id=1, total={"cents": 5}, pieces={"a": 2}), context(topic))
    second = ProtobufSerializer(invoice, client, in_header)(invoice(id=2, kinds=[1], note=""), named)
    other = ProtobufSerializer(line, client)(line(text="x"), context(topic))
    guid = dict(headers)["__value_schema_id"]
    with_guid = guid + invoice(id=3).SerializeToString()  # a byte 1, the guid, and the indexes of the message
    values = [(first, ()), (second, tuple(headers)), (with_guid, ()), (other, ()), (first[:-1], ()), (None, ())]
    topics.put_records(topic, 0, [Record(n, 1000, None, value, more) for n, (value, more) in enumerate(values)])
    decoded = from_protobuf("value", schema_registry=registry, subject=f"{topic}-value", message="Invoice",
                            headers="headers")  # fmt: skip
    found = loaded(spark, topics, topic, includeHeaders="true").select(decoded.alias("o")).select("o.*")
    assert found.schema.simpleString() == INVOICE_COLUMNS
    shown = rows(found)
    nothing = {"id": 0, "total": None, "at": None, "pieces": {}, "kinds": [], "note": None, "_error": None}
    assert shown[:3] == [
        {**nothing, "id": 1, "total": {"cents": 5}, "pieces": {"a": 2}},
        {**nothing, "id": 2, "kinds": ["BOOK"], "note": ""},
        {**nothing, "id": 3},
    ]
    assert "the reader's schema cannot read this value" in shown[3]["_error"]
    assert "it was not written with schema" in shown[4]["_error"]
    assert set(shown[5].values()) == {None}


def test_messages_that_to_protobuf_writes_confluent_reads(
    spark: Any, registry: str, client: SchemaRegistryClient, topic: str
) -> None:
    invoice = message_class("shop.Invoice")
    ProtobufSerializer(invoice, client)(invoice(), context(topic))  # registers the schema and its reference
    frame = spark.range(1).selectExpr("""
        struct(cast(7 as int) as id, named_struct('cents', 5L) as total, map('k', 1) as pieces, array('BOOK') as kinds,
               timestamp'2026-11-27 12:00:00.250 UTC' as at, cast(null as string) as note) as o""")
    subject = {"schema_registry": registry, "subject": f"{topic}-value", "message": "shop.Invoice"}
    encoded = frame.select(to_protobuf("o", **subject).alias("value"))
    read = ProtobufDeserializer(invoice, schema_registry_client=client)(bytes(encoded.first().value), context(topic))
    assert (read.id, read.total.cents, dict(read.pieces), list(read.kinds)) == (7, 5, {"k": 1}, [1])
    assert (read.at.ToJsonString(), read.HasField("note")) == ("2026-11-27T12:00:00.250Z", False)
    again = encoded.select(from_protobuf("value", mode="FAILFAST", **subject).alias("o"))
    assert rows(again.select("o.*").select("id", "total", "pieces", "kinds", "at", "note")) == rows(
        frame.select("o.*").select("id", "total", "pieces", "kinds", "at", "note")
    )
    schema = 'syntax = "proto3"; message Note { string text = 1; }'
    registered = to_protobuf("o", schema_registry=registry, subject=f"{topic}-notes", schema=schema)
    note = spark.range(1).selectExpr("struct('ü' as text) as o").select(registered.alias("value"))
    shown = from_protobuf("value", schema_registry=registry, subject=f"{topic}-notes", mode="FAILFAST")
    assert rows(note.select(shown.alias("o")).select("o.*")) == [{"text": "ü"}]


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": ["null", "integer"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object", "additionalProperties": {"type": "number"}},
        "any": {},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def test_what_to_json_schema_writes_from_json_schema_and_confluent_read(
    spark: Any, registry: str, client: SchemaRegistryClient, topic: str
) -> None:
    frame = spark.range(2).selectExpr("""
        struct('ü' as name, cast(null as bigint) as age, array('x') as tags, map('k', 0.5D) as more,
               if(id = 0, '{"x":[1,null]}', null) as any) as o""")
    subject = {"schema_registry": registry, "subject": f"{topic}-value"}
    encoded = frame.select(to_json_schema("o", schema=json.dumps(PERSON), **subject).alias("value"))
    read = encoded.select(from_json_schema("value", mode="FAILFAST", **subject).alias("o"))
    assert rows(read) == rows(frame)
    deserialize = JSONDeserializer(json.dumps(PERSON), schema_registry_client=client)
    found = [deserialize(bytes(row.value), context(topic)) for row in encoded.collect()]
    person = {"name": "ü", "tags": ["x"], "more": {"k": 0.5}}
    assert found == [{**person, "any": {"x": [1, None]}}, person]
    nameless = spark.range(1).selectExpr("named_struct('name', cast(null as string)) as o")
    with pytest.raises(Exception, match="is not a value of the JSON schema: null"):
        nameless.select(to_json_schema("o", **subject)).collect()


def test_a_stream_of_both(spark: Any, topics: Topics, topic: str, registry: str, client: SchemaRegistryClient,
                          tmp_path: Path) -> None:  # fmt: skip
    out = topics.make()
    topics.put(topic, 0, written(client, topic, FIRST, {"id": 1, "note": "a"}, {"id": 2, "note": None}))
    source = spark.readStream.format("ottla").options(**topics.options, subscribe=topic, startingOffsets="earliest")
    decoded = from_avro("value", schema_registry=registry, subject=f"{topic}-value", mode="FAILFAST")
    shown = source.load().select(decoded.alias("o"))
    sent = shown.select(to_avro("o", schema_registry=registry, subject=f"{out}-value", schema=SECOND).alias("value"))
    query = sent.writeStream.format("ottla").options(**topics.options, topic=out, checkpointLocation=str(tmp_path))
    query.trigger(availableNow=True).start().awaitTermination()
    deserialize = AvroDeserializer(client)
    read = [deserialize(each, context(out)) for each in topics.values(out)]
    assert read == [{"id": 1, "note": "a", "paid": False}, {"id": 2, "note": None, "paid": False}]


def test_wrong_calls_are_refused(registry: str, client: SchemaRegistryClient, topic: str) -> None:
    written(client, topic, FIRST, {"id": 1, "note": None})
    with pytest.raises(BadOption, match="subject"):
        from_avro("value", schema_registry=registry)
    with pytest.raises(RegistryRequestError, match="not found"):
        from_avro("value", schema_registry=registry, subject="no-such-subject")
    with pytest.raises(BadOption, match="mode"):
        from_avro("value", schema_registry=registry, subject=f"{topic}-value", mode="LENIENT")  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="FAILFAST"):
        from_avro("value", schema_registry=registry, schema=FIRST.replace("note", "_error"))
