"""All 101,229 real events through source, transformation and sink; checked with librdkafka's consumer."""

from __future__ import annotations

import gzip
import json
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from ottla.demo.events import load_lines

EVENTS = Path(__file__).parent.parent / "data" / "file-changes.jsonl.gz"


def consume(bootstrap: str, topic: str, partitions: int) -> list[tuple[int, bytes | None, bytes]]:
    """(partition, key, value) of every committed record, by librdkafka."""
    settings = {"bootstrap.servers": bootstrap, "group.id": str(uuid.uuid4()), "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False, "check.crcs": True})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found = []
    at_end: set[int] = set()
    try:
        while len(at_end) < partitions:
            for message in consumer.consume(10_000, 1.0):
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    at_end.add(message.partition())
                else:
                    found.append((message.partition(), message.key(), message.value()))
    finally:
        consumer.close()
    return found


def test_the_packaged_excerpt_is_an_even_sample_of_the_events() -> None:
    """As src/ottla/data/README.md describes."""
    lines = gzip.decompress(EVENTS.read_bytes()).splitlines()
    assert len(lines) == 101_229
    assert load_lines() == [lines[number * len(lines) // 20_000] for number in range(20_000)]


@pytest.mark.spark
@pytest.mark.slow
def test_every_event_goes_through_once(spark: Any, topics: Any, tmp_path: Path) -> None:
    lines = gzip.decompress(EVENTS.read_bytes()).splitlines()
    raw, enriched = topics.make(4), topics.make(4)
    text = spark.read.text(str(EVENTS))
    keyed = text.selectExpr("get_json_object(value, '$.commit') AS key", "value")
    keyed.write.format("ottla").options(**topics.options, topic=raw).option("kafka.compression.type", "lz4").mode(
        "append"
    ).save()
    query = (
        spark.readStream.format("ottla")
        .options(**topics.options, subscribe=raw, startingOffsets="earliest", maxOffsetsPerTrigger="30000")
        .load()
        .selectExpr("key", "CAST(value AS STRING) AS event")
        .selectExpr("key", "concat(split_part(get_json_object(event, '$.path'), '/', 1), ' ', event) AS value")
        .writeStream.format("ottla")
        .options(**topics.options, topic=enriched, checkpointLocation=str(tmp_path))
        .option("kafka.compression.type", "zstd")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = consume(topics.bootstrap, enriched, 4)
    expected = Counter(f"{json.loads(line)['path'].split('/')[0]} {line.decode()}".encode() for line in lines)
    assert Counter(value for _, _, value in found) == expected
    places: dict[bytes | None, set[int]] = {}
    for partition, key, value in found:
        assert key == json.loads(value[value.index(b" {") :])["commit"].encode()
        places.setdefault(key, set()).add(partition)
    assert all(len(partitions) == 1 for partitions in places.values())
    assert len(topics.values(raw)) == len(lines)
