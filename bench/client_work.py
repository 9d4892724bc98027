"""Runs one client in a separate process, so that only the CPU of its threads counts.

Zone: real. `python bench/client_work.py TASK BOOTSTRAP TOPIC RECORDS` runs a task and prints a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VALUE = b"v" * 100
WARM_UP = 2_000
"""Records before the clock starts: connections, metadata, imports."""
FAST_WARM_UP = 40_000
"""Records before the clock starts with the extra `fast`: numba is imported at the first read."""
PER_SECOND = 200
Measured = dict[str, float]


def clocked(work: Callable[[], int]) -> Measured:
    """CPU of this process in µs per record, records per second, and the maximum growth of its memory."""
    before = _memory_mib("VmRSS")
    cpu, wall = time.process_time(), time.perf_counter()
    records = work()
    spent, took = time.process_time() - cpu, time.perf_counter() - wall
    grown = max(0.0, _memory_mib("VmHWM") - before)
    return {"cpu_us": spent * 1e6 / records, "rate": records / took, "grown_mib": grown}


def _memory_mib(name: str) -> float:
    """Memory of this process: VmRSS now, VmHWM at its peak (getrusage's peak includes the process before exec)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise ValueError(name)


# -- send --------------------------------------------------------------------------------------------------------------


def ottla_send(bootstrap: str, topic: str, records: int) -> Measured:
    from ottla.client import Producer

    with Producer({"bootstrap.servers": bootstrap}) as producer:

        def some(count: int) -> int:
            send = producer.send
            for _ in range(count):
                send(topic, VALUE)
            producer.flush()
            return count

        some(WARM_UP)
        return clocked(lambda: some(records))


def kafka_python_send(bootstrap: str, topic: str, records: int) -> Measured:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=5)

    def some(count: int) -> int:
        for _ in range(count):
            producer.send(topic, VALUE)
        producer.flush()
        return count

    some(WARM_UP)
    found = clocked(lambda: some(records))
    producer.close()
    return found


def aiokafka_send(bootstrap: str, topic: str, records: int) -> Measured:
    from aiokafka import AIOKafkaProducer

    async def run() -> Measured:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=5, enable_idempotence=True)
        await producer.start()

        async def some(count: int) -> None:
            for _ in range(count):
                await producer.send(topic, VALUE)
            await producer.flush()

        await some(WARM_UP)
        cpu, wall = time.process_time(), time.perf_counter()
        await some(records)
        spent, took = time.process_time() - cpu, time.perf_counter() - wall
        await producer.stop()
        return {"cpu_us": spent * 1e6 / records, "rate": records / took}

    return asyncio.run(run())


def confluent_produce(bootstrap: str, topic: str, records: int) -> Measured:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})

    def some(count: int) -> int:
        for _ in range(count):
            while True:
                try:
                    producer.produce(topic, VALUE)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.flush()
        return count

    some(WARM_UP)
    return clocked(lambda: some(records))


def ottla_send_table(bootstrap: str, topic: str, records: int) -> Measured:
    import pyarrow as pa

    from ottla.client import Producer

    tables = {count: pa.table({"value": pa.array([VALUE] * count, pa.binary())}) for count in (WARM_UP, records)}
    with Producer({"bootstrap.servers": bootstrap}) as producer:

        def some(count: int) -> int:
            producer.send_table(topic, tables[count])
            producer.flush()
            return count

        some(WARM_UP)
        return clocked(lambda: some(records))


# -- poll --------------------------------------------------------------------------------------------------------------


def _ottla_consumer(bootstrap: str, topic: str) -> Any:
    from ottla.client import Consumer

    consumer = Consumer({"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"})
    consumer.assign(consumer.partitions_for_topic(topic))
    return consumer


def _ottla_poll(bootstrap: str, topic: str, records: int, warm_up: int) -> Measured:
    with _ottla_consumer(bootstrap, topic) as consumer:

        def some(count: int) -> int:
            read = 0
            while read < count:
                read += len(consumer.poll(1.0))
            return read

        some(warm_up)
        return clocked(lambda: some(records - warm_up - 1_000))


def ottla_poll(bootstrap: str, topic: str, records: int) -> Measured:
    sys.modules["numba"] = None  # type: ignore[assignment]  # as if the extra were not installed
    return _ottla_poll(bootstrap, topic, records, WARM_UP)


def ottla_poll_fast(bootstrap: str, topic: str, records: int) -> Measured:
    import numba  # noqa: F401  # fails if the extra is missing

    return _ottla_poll(bootstrap, topic, records, FAST_WARM_UP)


def kafka_python_poll(bootstrap: str, topic: str, records: int) -> Measured:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None)
    consumer.assign([TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)])

    def some(count: int) -> int:
        read = 0
        while read < count:
            read += sum(map(len, consumer.poll(timeout_ms=1_000).values()))
        return read

    some(WARM_UP)
    found = clocked(lambda: some(records - WARM_UP - 1_000))
    consumer.close()
    return found


def ottla_poll_table(bootstrap: str, topic: str, records: int) -> Measured:
    with _ottla_consumer(bootstrap, topic) as consumer:

        def some(count: int) -> int:
            read = 0
            while read < count:
                read += consumer.poll_table(1.0).num_rows
            return read

        # The records of an answer are read in one piece: the first answers are the warm-up.
        warm = some(1)
        return clocked(lambda: some(records - warm))


def confluent_consume_table(bootstrap: str, topic: str, records: int) -> Measured:
    import pyarrow as pa
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest"})
    numbers = consumer.list_topics(topic).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in numbers])

    def table() -> pa.Table:
        found = consumer.consume(10_000, 1.0)
        return pa.table(
            {
                "topic": [each.topic() for each in found],
                "partition": pa.array([each.partition() for each in found], pa.int32()),
                "offset": pa.array([each.offset() for each in found], pa.int64()),
                "timestamp": pa.array([each.timestamp()[1] for each in found], pa.int64()),
                "key": pa.array([each.key() for each in found], pa.binary()),
                "value": pa.array([each.value() for each in found], pa.binary()),
            }
        )

    def some(count: int) -> int:
        read = 0
        while read < count:
            read += table().num_rows
        return read

    warm = some(WARM_UP)
    found = clocked(lambda: some(records - warm))
    consumer.close()
    return found


# -- latency: from send to the answer, acks all, while the main thread does nothing else -----------------------------


def _latency(took: list[float]) -> Measured:
    return {"p50_ms": statistics.median(took[len(took) // 10 :]) * 1_000}


def ottla_latency(bootstrap: str, topic: str, records: int) -> Measured:
    from ottla.client import Producer

    took: list[float] = []
    with Producer({"bootstrap.servers": bootstrap, "linger.ms": 0}) as producer:
        for _ in range(records):
            began = time.perf_counter()
            producer.send(topic, VALUE, on_delivery=lambda *_, at=began: took.append(time.perf_counter() - at))
            time.sleep(1 / PER_SECOND)
        producer.flush()
    return _latency(took)


def ottla_aio_latency(bootstrap: str, topic: str, records: int) -> Measured:
    from ottla.client.aio import Producer

    took: list[float] = []

    async def run() -> None:
        async with Producer({"bootstrap.servers": bootstrap, "linger.ms": 0}) as producer:
            for _ in range(records):
                began = time.perf_counter()
                sent = await producer.send(topic, VALUE)
                sent.add_done_callback(lambda _, at=began: took.append(time.perf_counter() - at))
                await asyncio.sleep(1 / PER_SECOND)
            await producer.flush()

    asyncio.run(run())
    return _latency(took)


def confluent_latency(bootstrap: str, topic: str, records: int) -> Measured:
    from confluent_kafka import Producer

    took: list[float] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True})
    for _ in range(records):
        began = time.perf_counter()
        producer.produce(topic, VALUE, on_delivery=lambda *_, at=began: took.append(time.perf_counter() - at))
        until = began + 1 / PER_SECOND
        while (left := until - time.perf_counter()) > 0:
            producer.poll(left)  # callbacks of answers run in here
    producer.flush()
    return _latency(took)


TASKS: dict[str, Callable[[str, str, int], Measured]] = {
    each.__name__: each
    for each in (
        ottla_send,
        kafka_python_send,
        aiokafka_send,
        ottla_send_table,
        confluent_produce,
        ottla_poll,
        ottla_poll_fast,
        kafka_python_poll,
        ottla_poll_table,
        confluent_consume_table,
        ottla_latency,
        ottla_aio_latency,
        confluent_latency,
    )
}


if __name__ == "__main__":
    task, bootstrap, topic, records = sys.argv[1:]
    print(json.dumps(TASKS[task](bootstrap, topic, int(records))))
