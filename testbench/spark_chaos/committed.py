"""What readers of committed records see, by a reader that nobody here wrote: librdkafka.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import Consumer, TopicPartition


def committed(bootstrap: str, topic: str) -> Iterator[str]:
    """All values that a reader of committed records sees, up to where open transactions begin."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "verify", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
    try:
        partitions = consumer.list_topics(topic, 10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        at_end: set[int] = set()
        while len(at_end) < len(partitions):
            for message in consumer.consume(1000, 0.1):
                if message.error():
                    at_end.add(message.partition())
                else:
                    yield message.value().decode()
    finally:
        consumer.close()
