"""`retry_later`, from threads and from asyncio, with transactions and without; and with the mover around it.

Zone: real.
"""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.retry.moving import Readers, mover_of, now_ms, turn_until

from ottla.client import Admin, ClientConfig, Cluster, Consumer, NewTopic, Producer, RefusedError, aio, values_of
from ottla.retry import AsyncRetrier, Dead, Later, Retrier, RetryPolicy
from ottla.retry.headers import read_trail

pytestmark = pytest.mark.slow


def source(broker: str, topic: str) -> dict[str, str | int | bool]:
    """Settings of a consumer of the topic."""
    return {"bootstrap.servers": broker, "group.id": topic, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "isolation.level": "read_committed", "fetch.max.wait.ms": 50}  # fmt: skip


def test_an_exactly_once_consumer_gets_its_failures_back_and_the_hopeless_end_with_their_reason(
    broker: str, topic: str
) -> None:
    """Records: good ones, one that succeeds at the third attempt, one that never does, one not worth trying again."""
    values = [b"good", b"third", b"never", b"abort", b"fine"]
    with Producer({"bootstrap.servers": broker}) as producer:
        for value in values:
            producer.send(topic, value, key=value, headers=[("own", b"1")], partition=0)
    policy = RetryPolicy.fixed(["100ms", "200ms"], abort_on=[KeyError])
    attempts: dict[bytes, list[int]] = {value: [] for value in values}
    with (
        Consumer(source(broker, topic)) as consumer,
        Producer({"bootstrap.servers": broker, "transactional.id": topic}) as producer,
        mover_of(broker, topic, policy=policy) as mover,
        Readers(broker, f"{topic}.dead") as dead,
    ):
        producer.init_transactions()
        retrier = Retrier(producer, policy, group="billing")
        consumer.subscribe([topic])

        def finished() -> bool:
            records = consumer.poll(0.02)
            if records:
                with producer.transaction():
                    for record in records:
                        number = read_trail(record.headers).attempts
                        attempts[record.value].append(number)
                        error: Exception | None = None
                        if record.value == b"abort":
                            error = KeyError("price")
                        elif record.value == b"never" or (record.value == b"third" and number < 3):
                            error = ValueError("bad")
                        if error is not None:
                            retrier.retry_later(record, error)
                    producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
            return len(dead.look()) == 2 and len(attempts[b"third"]) == 3

        turn_until(mover, finished)
    assert attempts == {b"good": [1], b"fine": [1], b"third": [1, 2, 3], b"never": [1, 2, 3], b"abort": [1]}
    ends = {each.value: read_trail(each.headers) for each in dead.records}
    never, abort = ends[b"never"], ends[b"abort"]
    assert never.origin is not None
    assert never.failure is not None
    assert abort.failure is not None
    assert (never.failures, never.origin.topic, never.origin.offset, never.origin.group) == (3, topic, 2, "billing")
    assert (never.failure.kind, never.failure.message) == ("builtins.ValueError", "bad")
    assert (abort.failures, abort.failure.kind) == (1, "builtins.KeyError")
    assert all(each.headers[0] == ("own", b"1") and each.key == each.value for each in dead.records)


def test_what_is_retried_in_a_transaction_that_is_aborted_was_never_there(broker: str, topic: str) -> None:
    with Producer({"bootstrap.servers": broker, "transactional.id": f"{topic}-p"}) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"v", partition=0)
        with Readers(broker, topic, f"{topic}.retry.1") as readers:
            assert readers.look(0.5) == [b"v"]
            producer.begin_transaction()
            Retrier(producer, RetryPolicy.fixed(["1s"])).retry_later(readers.records[0], ValueError())
            producer.abort_transaction()
            assert readers.look(0.3) == [b"v"]


def test_topics_that_are_missing_are_made_with_the_partitions_of_the_origin(broker: str) -> None:
    with Cluster(ClientConfig(bootstrap_servers=broker)) as cluster:
        values_of(Admin(cluster).create_topics([NewTopic("makes-topics", 3)]))
        with Producer({"bootstrap.servers": broker}) as producer:
            producer.send("makes-topics", b"v", partition=0).result(180)
            with Readers(broker, "makes-topics") as readers:
                readers.look(0.5)
            retrier = Retrier(producer, RetryPolicy.growing(3))
            assert retrier.retry_later(readers.records[0], "Odd: why not", delay="2s") == Later(
                "makes-topics.retry.1", 2_000
            )
        found = values_of(Admin(cluster).describe_topics(["makes-topics.retry.1", "makes-topics.dead"]))
        assert [len(each.partitions) for each in found.values()] == [3, 3]


def test_a_retry_that_cannot_be_written_is_an_error(broker: str, topic: str) -> None:
    with Producer({"bootstrap.servers": broker, "max.block.ms": 300}) as producer:
        producer.send(topic, b"v" * 900_000, partition=0).result(180)
        with Readers(broker, topic) as readers:
            readers.look(1)
        with Cluster(ClientConfig(bootstrap_servers=broker)) as cluster:
            from ottla.client import ConfigChange, ConfigOp, Resource, ResourceType
            from ottla.client.admin.configs import ConfigAdmin

            change = ConfigChange("max.message.bytes", "1000", ConfigOp.SET)
            values_of(ConfigAdmin(cluster).alter_configs({Resource(ResourceType.TOPIC, f"{topic}.retry.1"): [change]}))
        with pytest.raises(RefusedError, match="MESSAGE_TOO_LARGE"):
            Retrier(producer, RetryPolicy.fixed(["1s"])).retry_later(readers.records[0], ValueError())


def test_the_same_for_asyncio(broker: str, topic: str) -> None:
    async def fail() -> list[Later | Dead]:
        settings = {"bootstrap.servers": broker}
        async with aio.Producer(settings) as producer, aio.Consumer(source(broker, topic)) as consumer:
            await producer.send_and_wait(topic, b"v", key=b"k")
            await consumer.subscribe([topic])
            retrier = AsyncRetrier(producer, RetryPolicy.fixed(["100ms"]))
            async for record in consumer:
                decision = await retrier.retry_later(record, ValueError("no"))
                decisions.append(decision)
                if isinstance(decision, Dead):
                    break
        return decisions

    decisions: list[Later | Dead] = []
    start = now_ms()
    with mover_of(broker, topic) as mover, Readers(broker, f"{topic}.dead") as readers:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=lambda: loop.run_until_complete(fail()))
        thread.start()
        turn_until(mover, lambda: bool(readers.look()))
        thread.join()
        loop.close()
    assert decisions == [Later(f"{topic}.retry.1", 100), Dead(f"{topic}.dead", "failed 2 times")]
    assert readers.records[0].timestamp >= start + 100
