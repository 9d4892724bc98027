"""Copies a topic exactly once with a third-party client: `python -m testbench.copier LIBRARY …`.

Zone: real. Arguments: library, bootstrap address, topic to read, topic to write, and the name that is both the group
and the transactional id. Each record goes into the partition of the same number. It ends when its standard input ends,
and with an exit code after a fatal error of the producer; its parent then starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

PER_TRANSACTION = 50
TRANSACTION_MS = 10_000
SESSION_MS = 6_000
WAIT_S = 180
HANGS_S = 45
"""A call of librdkafka that lasts longer hangs: it was told to return after 10 s."""


def main() -> None:
    """Run until standard input ends."""
    library, bootstrap, source, target, name = sys.argv[1:]
    over = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    COPIERS[library](bootstrap, source, target, name, over)


def librdkafka(bootstrap: str, source: str, target: str, name: str, over: threading.Event) -> None:
    """confluent-kafka, as a member of a group, its generation and all in every commit (KIP-447)."""
    from confluent_kafka import Consumer, Producer

    common = {"bootstrap.servers": bootstrap, "log_level": 0}
    settings = {"transactional.id": name, "transaction.timeout.ms": TRANSACTION_MS}
    producer = Producer(common | settings)
    _patiently(producer.init_transactions)
    consumer = Consumer(common | {
        "group.id": name, "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 1_000, "enable.auto.commit": False,
        "auto.offset.reset": "earliest", "isolation.level": "read_committed",
    })  # fmt: skip
    consumer.subscribe([source])
    while not over.is_set():
        group = consumer.consumer_group_metadata()  # before the poll: later it may be a newer one
        messages = [each for each in consumer.consume(PER_TRANSACTION, 0.2) if each.error() is None]
        if messages:
            _move(producer, consumer, group, messages, target)
    consumer.close()


def _move(producer: Any, consumer: Any, group: Any, messages: list[Any], target: str) -> None:
    """Copy one transaction; after an abort the consumer seeks back to its first record."""
    from confluent_kafka import KafkaException, TopicPartition

    places = [TopicPartition(each.topic(), each.partition(), each.offset()) for each in messages]
    ends = {each.partition: TopicPartition(each.topic, each.partition, each.offset + 1) for each in places}
    starts = {each.partition: each for each in reversed(places)}
    try:
        producer.begin_transaction()
        for each in messages:
            producer.produce(target, each.value(), partition=each.partition())
        _patiently(lambda wait_s: producer.send_offsets_to_transaction(list(ends.values()), group, wait_s))
        _patiently(producer.commit_transaction)
    except KafkaException as failed:
        if not failed.args[0].txn_requires_abort():
            raise
        _patiently(producer.abort_transaction)
        owned = {each.partition for each in consumer.assignment()}
        for partition, start in starts.items():
            if partition in owned:
                consumer.seek(start)


def _patiently(call: Callable[[float], Any]) -> None:
    """Retry as long as librdkafka marks the error as retriable: the outcome is unknown until then."""
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            with _end_process_if_hanging():
                call(10)
            return
        except KafkaException as failed:
            if not failed.args[0].retriable() or time.monotonic() > deadline:
                raise


@contextlib.contextmanager
def _end_process_if_hanging() -> Iterator[None]:
    """End the process after HANGS_S; the next one continues from what is committed.

    send_offsets_to_transaction ignores its time-out, and waits for ever for a group coordinator that has left Metadata
    (librdkafka's issues 5456 and 5511).
    """
    hanging = threading.Timer(HANGS_S, os._exit, [3])
    hanging.daemon = True
    hanging.start()
    try:
        yield
    finally:
        hanging.cancel()


def aiokafka(bootstrap: str, source: str, target: str, name: str, over: threading.Event) -> None:
    """aiokafka. It commits offsets without a generation, so it takes all partitions and does not join the group."""
    asyncio.run(_aiokafka(bootstrap, source, target, name, over))


async def _aiokafka(bootstrap: str, source: str, target: str, name: str, over: threading.Event) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=TRANSACTION_MS
    )
    await producer.start()  # ends the open transaction of its predecessor before the offsets are fetched
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=name, enable_auto_commit=False, isolation_level="read_committed"
    )
    await consumer.start()
    parts = [TopicPartition(source, each) for each in sorted(await producer.partitions_for(source))]
    consumer.assign(parts)
    for part in parts:
        consumer.seek(part, await consumer.committed(part) or 0)
    while not over.is_set():
        found = await consumer.getmany(timeout_ms=200, max_records=PER_TRANSACTION)
        if not found:
            continue
        async with producer.transaction():
            for part, messages in found.items():
                for each in messages:
                    await producer.send(target, each.value, partition=part.partition)
            positions = {part: messages[-1].offset + 1 for part, messages in found.items()}
            await producer.send_offsets_to_transaction(positions, name)
    await consumer.stop()
    await producer.stop()


def ottla(bootstrap: str, source: str, target: str, name: str, over: threading.Event) -> None:
    """Ottla's own client, of any release: today's, or the one that PYTHONPATH names."""
    from ottla.client import ClientError, Consumer, Producer

    common = {"bootstrap.servers": bootstrap}
    group = {"group.id": name, "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 1_000}
    reading = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    own = {"transactional.id": name, "transaction.timeout.ms": TRANSACTION_MS}
    with Producer(common | own) as producer, Consumer(common | group | reading) as consumer:
        producer.init_transactions()
        consumer.subscribe([source])
        while not over.is_set():
            records = consumer.poll(0.2)
            try:
                if records:
                    with producer.transaction():
                        for each in records:
                            producer.send(target, each.value, partition=each.partition)
                        producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
            except ClientError as error:
                # Release 0.1 refuses a batch as not of a transaction when the leader's epoch changes while the
                # coordinator is asked. Its producer has to be closed then; the next process continues.
                if "Close it" in str(error):
                    raise
                print(f"a transaction is aborted and repeated: {error}", file=sys.stderr, flush=True)
                for tp, found in consumer.committed(consumer.assignment()).items():
                    consumer.seek(tp, 0 if found is None else found.offset)


COPIERS = {"librdkafka": librdkafka, "aiokafka": aiokafka, "ottla": ottla}

if __name__ == "__main__":
    main()
