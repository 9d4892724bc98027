"""One member of a consumer group with a third-party client: `python -m testbench.member LIBRARY …`.

Zone: real. Prints its events, one JSON list per line: ["owns", partitions, generation] (generation -1 when they
are taken away), ["read", partition, offset, value], ["commit failed", why], ["left"]. Arguments: library, bootstrap
address, group, topic, and the instance id of a static member. It commits after every poll, and leaves the group when
its standard input ends; a static member only ends. All libraries assign by range. Members in other languages do the
same: see testbench/programs.py and testbench/java/GroupMember.java.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

SESSION_MS = 6000
STATIC_SESSION_MS = 20_000
"""Session timeout in which a JVM can restart on a busy machine."""
HEARTBEAT_MS = 1000


def tell(*event: Any) -> None:
    """Print one event."""
    print(json.dumps(event), flush=True)


def main() -> None:
    """Run until standard input ends."""
    library, bootstrap, group, topic, *instance = sys.argv[1:]
    over = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    MEMBERS[library](bootstrap, group, topic, instance[0] if instance else None, over)
    tell("left")


def session_ms(instance: str | None) -> int:
    """The session timeout, in milliseconds."""
    return STATIC_SESSION_MS if instance else SESSION_MS


def confluent(bootstrap: str, group: str, topic: str, instance: str | None, over: threading.Event) -> None:
    """confluent-kafka."""
    from confluent_kafka import Consumer, TopicPartition

    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": session_ms(instance),
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "partition.assignment.strategy": "range",
        "log_level": 3,
    }
    if instance:
        settings["group.instance.id"] = instance
    consumer = Consumer(settings)

    def owns(_: Any, partitions: Iterable[TopicPartition]) -> None:
        # librdkafka has the generation only in opaque bytes: CGMDv2:, then the generation.
        (generation,) = struct.unpack_from("=i", consumer.consumer_group_metadata(), 7)
        tell("owns", sorted(each.partition for each in partitions), generation)

    def owns_nothing(*_: Any) -> None:
        tell("owns", [], -1)

    consumer.subscribe([topic], on_assign=owns, on_revoke=owns_nothing, on_lost=owns_nothing)
    while not over.is_set():
        messages = [each for each in consumer.consume(50, 0.2) if each.error() is None]
        for each in messages:
            tell("read", each.partition(), each.offset(), each.value().decode())
        if messages:
            _commit(lambda: consumer.commit(asynchronous=False))
    consumer.close()


def kafka_python(bootstrap: str, group: str, topic: str, instance: str | None, over: threading.Event) -> None:
    """kafka-python."""
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.range import RangePartitionAssignor

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, _: Any) -> None:
            tell("owns", [], -1)

        def on_partitions_assigned(self, assigned: Any) -> None:
            tell("owns", sorted(each.partition for each in assigned), consumer._coordinator._generation.generation_id)

    settings: dict[str, Any] = {"group_instance_id": instance} if instance else {}
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=session_ms(instance),
        heartbeat_interval_ms=HEARTBEAT_MS,
        partition_assignment_strategy=[RangePartitionAssignor],
        **settings,
    )
    # Without them it may assign itself no partition for ever.
    while not consumer.partitions_for_topic(topic) and not over.is_set():
        over.wait(0.05)
    consumer.subscribe([topic], listener=Listener())
    while not over.is_set():
        found = consumer.poll(200, max_records=50)
        for place, messages in found.items():
            for each in messages:
                tell("read", place.partition, each.offset, each.value.decode())
        if found:
            _commit(consumer.commit)
    consumer.close()


def aiokafka(bootstrap: str, group: str, topic: str, instance: str | None, over: threading.Event) -> None:
    """aiokafka."""
    asyncio.run(_aiokafka(bootstrap, group, topic, instance, over))


async def _aiokafka(bootstrap: str, group: str, topic: str, instance: str | None, over: threading.Event) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.errors import KafkaError

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, _: Any) -> None:
            tell("owns", [], -1)

        def on_partitions_assigned(self, assigned: Any) -> None:
            tell("owns", sorted(each.partition for each in assigned), consumer._coordinator.generation)

    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        group_instance_id=instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=session_ms(instance),
        heartbeat_interval_ms=HEARTBEAT_MS,
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    consumer.subscribe([topic], listener=Listener())
    await consumer.start()
    while not over.is_set():
        found = await consumer.getmany(timeout_ms=200, max_records=50)
        for place, messages in found.items():
            for each in messages:
                tell("read", place.partition, each.offset, each.value.decode())
        if found:
            try:
                await consumer.commit()
            except KafkaError as error:
                tell("commit failed", str(error))
    await consumer.stop()


def _commit(commit: Callable[[], Any]) -> None:
    """Report a commit that failed, by a rebalance or a lost coordinator: the records will be read again."""
    try:
        commit()
    except Exception as error:  # the libraries raise different types
        tell("commit failed", str(error))


MEMBERS = {"confluent": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}

if __name__ == "__main__":
    main()
