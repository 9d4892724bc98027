"""The asyncio consumer and admin client against brokers: BROKER=ottla (the default) or kafka."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.producer.bench import MARKS, Bench

import ottla.client
from ottla.client import (
    NewTopic,
    OffsetAndMetadata,
    RefusedError,
    TopicPartition,
    TopicView,
    UsageError,
    WakeupError,
)
from ottla.client.aio import Admin, Consumer, Producer

pytestmark = MARKS
Run = Callable[[Any], Any]


def consumer(bench: Bench, group: str | None = None, **keys: Any) -> Consumer:
    settings = {"auto.offset.reset": "earliest", "fetch.max.wait.ms": 50, "heartbeat.interval.ms": 100}
    settings |= {key.replace("_", "."): value for key, value in keys.items()}
    named = {"group.id": group} if group else {}
    return Consumer({"bootstrap.servers": bench.bootstrap, **settings, **named})


def filled(bench: Bench, count: int, partitions: int = 1) -> str:
    topic = bench.topic(partitions)
    with ottla.client.Producer({"bootstrap.servers": bench.bootstrap}) as producer:
        for n in range(count):
            producer.send(topic, b"%d" % n, partition=n % partitions)
    return topic


async def some(one: Consumer, count: int) -> list[bytes]:
    """The values of `count` records, read by iteration."""
    found = []
    async for record in one:
        found.append(record.value)
        if len(found) == count:
            break
    return found


async def in_poll(one: Consumer) -> None:
    """Waits until the consumer's thread is in a call."""
    while not one._blocking._guard._owner:  # noqa: ASYNC110 - seen from the loop
        await asyncio.sleep(0.001)


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, last)]


def test_an_iteration_stops_and_continues_anywhere(bench: Bench, run: Run) -> None:
    topic = filled(bench, 1_000)
    tp = TopicPartition(topic, 0)

    async def main() -> None:
        async with consumer(bench) as one:
            await one.assign([tp])
            assert await some(one, 10) == numbers(0, 10)
            assert await one.position(tp) == 10
            assert await one.lag(tp) == 990
            assert await some(one, 600) == numbers(10, 610)
            rest = await one.poll(10)
            assert rest[0].offset == 610
            await one.seek(tp, 5)
            assert await some(one, 2) == numbers(5, 7)
            await one.pause([tp])
            assert await one.poll(0.1) == []
            await one.resume([tp])
            assert await some(one, 1) == numbers(7, 8)

    run(main())


def test_commits_never_skip_records_that_an_iteration_left(bench: Bench, run: Run) -> None:
    topic = filled(bench, 100)
    tp = TopicPartition(topic, 0)

    async def main() -> None:
        async with consumer(bench, "left", enable_auto_commit=False) as one:
            await one.subscribe([topic])
            assert await some(one, 7) == numbers(0, 7)
            assert (await one.positions())[tp] == OffsetAndMetadata(7, 0)
            await one.commit()
            assert await one.committed([tp]) == {tp: OffsetAndMetadata(7, 0)}
            assert await some(one, 3) == numbers(7, 10)
        async with consumer(bench, "left") as one:
            await one.subscribe([topic])
            assert await some(one, 5) == numbers(7, 12)  # close commits
        async with consumer(bench, "left") as one:
            await one.subscribe([topic])
            assert await some(one, 1) == numbers(12, 13)

    run(main())


def test_a_cancelled_poll_loses_nothing(bench: Bench, run: Run) -> None:
    topic = filled(bench, 0)
    tp = TopicPartition(topic, 0)

    async def main() -> None:
        async with consumer(bench) as one, Producer({"bootstrap.servers": bench.bootstrap, "linger.ms": 0}) as writer:
            await one.assign([tp])
            sent, found = 0, []
            for turn in range(60):
                task = asyncio.create_task(one.poll(30))
                await asyncio.sleep(0.002)
                await writer.send_and_wait(topic, b"%d" % sent)
                sent += 1
                await asyncio.sleep(turn % 5 * 0.0005)
                task.cancel()
                await asyncio.wait([task])
                found += [] if task.cancelled() else [each.value for each in task.result()]
            while len(found) < sent:
                found += [each.value for each in await one.poll(30)]
            assert found == numbers(0, sent)

    run(main())


def test_records_of_an_abandoned_poll_are_returned_again(bench: Bench, run: Run) -> None:
    """The thread has the records already when the task that polls is cancelled."""
    topic = filled(bench, 10)
    tp = TopicPartition(topic, 0)

    async def main() -> None:
        async with consumer(bench) as one:
            await one.assign([tp])
            done = threading.Event()
            task = asyncio.create_task(one.poll(30))
            await asyncio.sleep(0)
            one._thread.worker.hand_over(done.set)
            assert done.wait(180)  # blocks the loop, so that the task cannot take the result
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            assert await some(one, 10) == numbers(0, 10)

    run(main())


def test_other_calls_do_not_wait_for_a_poll(bench: Bench, run: Run) -> None:
    topic = filled(bench, 3)
    tp = TopicPartition(topic, 0)

    async def main() -> None:
        async with consumer(bench) as one:
            await one.assign([tp])
            assert await some(one, 3) == numbers(0, 3)
            waiting = asyncio.create_task(one.poll(600))
            await in_poll(one)
            assert await one.end_offsets([tp]) == {tp: 3}
            assert await one.position(tp) == 3
            assert not waiting.done()
            one.wakeup()
            with pytest.raises(WakeupError):
                await waiting
            await one.seek(tp, 1)
            assert await some(one, 2) == numbers(1, 3)

    run(main())


def test_callbacks_of_rebalances_run_in_the_loop_and_may_commit(bench: Bench, run: Run) -> None:
    topic = filled(bench, 40, 4)
    told: list[tuple[str, int]] = []

    async def main() -> None:
        thread = threading.current_thread()
        first, second = consumer(bench, "loop"), consumer(bench, "loop")

        async def revoked(partitions: list[TopicPartition]) -> None:
            assert threading.current_thread() is thread
            await first.commit()
            with pytest.raises(UsageError, match="wait for itself"):
                await first.poll(1)
            told.append(("revoked", len(partitions)))

        async with first:
            await first.subscribe(
                [topic], on_assigned=lambda parts: told.append(("assigned", len(parts))), on_revoked=revoked
            )
            assert len(await some(first, 40)) == 40
            async with second:
                await second.subscribe([topic])
                while not await second.assignment() or len(await first.assignment()) > 2:
                    await asyncio.gather(first.poll(0.1), second.poll(0.1))
                places = [TopicPartition(topic, n) for n in range(4)]
                assert {each and each.offset for each in (await second.committed(places)).values()} == {10}

    run(main())
    assert told[:2] == [("assigned", 4), ("revoked", 4)]


def test_tables(bench: Bench, run: Run) -> None:
    topic = filled(bench, 100)
    tp = TopicPartition(topic, 0)

    async def main() -> None:
        async with consumer(bench) as one:
            await one.assign([tp])
            assert await some(one, 10) == numbers(0, 10)
            table = await one.poll_table(10)
            assert table["value"].to_pylist() == numbers(10, 100)
            assert (await one.poll_table(0.1)).num_rows == 0

    run(main())


def test_closing_ends_a_poll_and_every_thread(bench: Bench, run: Run) -> None:
    topic = filled(bench, 1)
    before = threading.active_count()

    async def main() -> None:
        one = consumer(bench, "closing")
        await one.subscribe([topic])
        assert await some(one, 1) == numbers(0, 1)
        waiting = asyncio.create_task(one.poll(600))
        await in_poll(one)
        await one.close()
        with pytest.raises(UsageError, match="closed"):
            await waiting
        with pytest.raises(UsageError, match="closed"):
            await one.assignment()
        await one.close()

    run(main())
    until = time.monotonic() + 180
    while threading.active_count() > before:
        assert time.monotonic() < until, threading.enumerate()
        time.sleep(0.01)


def test_consume_transform_produce(bench: Bench, run: Run) -> None:
    source, target = filled(bench, 50), bench.topic()

    async def main() -> None:
        keys = {"bootstrap.servers": bench.bootstrap, "transactional.id": "aio-copy"}
        async with consumer(bench, "copy", enable_auto_commit=False) as reader, Producer(keys) as writer:
            await writer.init_transactions()
            await reader.subscribe([source])
            done = 0
            while done < 50:
                records = await reader.poll(1)
                async with writer.transaction():
                    for record in records:
                        await writer.send(target, record.value * 2)
                    await writer.send_offsets_to_transaction(await reader.positions(), await reader.group_metadata())
                done += len(records)
            places = [TopicPartition(source, 0)]
            assert (await reader.committed(places))[places[0]] == OffsetAndMetadata(50, 0)

    run(main())
    assert bench.values(target) == [b"%d" % n * 2 for n in range(50)]


def test_admin(bench: Bench, run: Run) -> None:
    async def main() -> None:
        async with Admin({"bootstrap.servers": bench.bootstrap}) as admin:
            created = await admin.create_topics([NewTopic("aio-admin", 2)])
            assert not isinstance(created["aio-admin"], Exception)
            both = await asyncio.gather(
                admin.describe_topics(["aio-admin", "nowhere"]), admin.create_topics([NewTopic("aio-admin", 2)])
            )
            assert isinstance(both[0]["aio-admin"], TopicView)
            assert isinstance(both[0]["nowhere"], RefusedError)
            assert isinstance(both[1]["aio-admin"], RefusedError)
            assert "aio-admin" in [each.name for each in await admin.list_topics()]
            assert (await admin.list_groups())[1] == {}
            assert (await admin.delete_topics(["aio-admin"])) == {"aio-admin": None}
        with pytest.raises(UsageError, match="closed"):
            await admin.list_topics()
        await admin.close()

    run(main())
