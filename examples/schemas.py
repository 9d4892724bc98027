"""Write and read records whose schema is in a registry: run `ottla up`, `ottla registry`, and then this."""

import os

from ottla.client import Consumer, Producer, TopicPartition
from ottla.client.schemas import AvroDeserializer, AvroSerializer, SchemaRegistry

BROKERS = os.environ.get("OTTLA_BROKERS", "localhost:9092")
TEA = (
    '{"type": "record", "name": "Tea", "fields": [{"name": "sort", "type": "string"}, {"name": "cups", "type": "int"}]}'
)

registry = SchemaRegistry(os.environ.get("OTTLA_SCHEMA_REGISTRY", "http://localhost:8081"))
with Producer({"bootstrap.servers": BROKERS}, value_serializer=AvroSerializer(registry, TEA)) as producer:
    producer.send("teas", {"sort": "Assam", "cups": 2}).result()

with Consumer({"bootstrap.servers": BROKERS, "value.deserializer": AvroDeserializer(registry)}) as consumer:
    consumer.assign([TopicPartition("teas", 0)])
    consumer.seek(TopicPartition("teas", 0), 0)
    print(next(iter(consumer)).value)
