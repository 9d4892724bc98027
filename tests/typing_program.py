"""A program that uses the public API, for the type checker: tests/typing_test.py. It is never run.

A line that ends in `type: ignore` contains a mistake that the checker must find: an unused ignore is an error.
"""

from __future__ import annotations

from typing import assert_type

from ottla.client import (
    Admin,
    ClientConfig,
    ClientError,
    Cluster,
    Consumer,
    NewTopic,
    Producer,
    RecordMetadata,
    TopicCreated,
    TopicPartition,
    aio,
)
from ottla.client.consumer import ConsumerRecord
from ottla.retry import Retrier, RetryPolicy


def produce(bootstrap: str) -> None:
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        sent = producer.send("orders", b"tea", key=b"anna", headers={"shop": b"7"})
        assert_type(sent.result(10), RecordMetadata)
        assert_type(sent.result(10).offset, int)
        producer.send(b"orders", b"tea")  # type: ignore[arg-type]
        producer.send_all("orders")  # type: ignore[attr-defined]


def consume(bootstrap: str) -> None:
    with Consumer({"bootstrap.servers": bootstrap, "group.id": "billing"}) as consumer:
        consumer.subscribe(["orders"])
        for record in consumer:
            assert_type(record, ConsumerRecord)
            assert_type(record.offset, int)
        assert_type(consumer.poll(1.0), list[ConsumerRecord])
        assert_type(consumer.partitions_for_topic("orders"), list[TopicPartition])
        consumer.subscribe(7)  # type: ignore[arg-type]


def administrate(bootstrap: str) -> None:
    with Cluster(ClientConfig(bootstrap_servers=bootstrap)) as cluster:
        created = Admin(cluster).create_topics([NewTopic("orders", partitions=3)])["orders"]
        if isinstance(created, TopicCreated):
            assert_type(created.partitions, int)
        else:
            assert isinstance(created, ClientError)
        NewTopic(3)  # type: ignore[arg-type]


def retry(producer: Producer, record: ConsumerRecord) -> None:
    retrier = Retrier(producer, RetryPolicy.fixed(["1s", "5m"]), group="kitchen")
    retrier.retry_later(record, TimeoutError("busy"))


async def use_asyncio(bootstrap: str) -> None:
    async with aio.Producer({"bootstrap.servers": bootstrap}) as producer:
        assert_type(await producer.send_and_wait("letters", b"a"), RecordMetadata)
