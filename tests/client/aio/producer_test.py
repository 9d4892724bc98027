"""The asyncio producer against brokers: BROKER=ottla (the default) or kafka."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.producer.bench import MARKS, Bench, trouble

from ottla.client import DeadlineError, GroupMetadata, RefusedError, TopicPartition, UsageError
from ottla.client.admin.groups import GroupAdmin
from ottla.client.aio import Producer
from ottla.errors import ErrorCode

pytestmark = MARKS
Run = Callable[[Any], Any]


def producer(bench: Bench, **keys: Any) -> Producer:
    settings = {"bootstrap.servers": bench.bootstrap, **{key.replace("_", "."): value for key, value in keys.items()}}
    arguments = {key: settings.pop(key) for key in list(settings) if callable(settings[key]) or key == "interceptors"}
    return Producer(settings, **{key.replace(".", "_"): value for key, value in arguments.items()})


def test_records_arrive_in_order_and_futures_have_their_offsets(bench: Bench, run: Run) -> None:
    topic = bench.topic(retention_ms="-1")  # the timestamps are old

    async def main() -> None:
        async with producer(bench, linger_ms=1) as one:
            metadata = await one.send_and_wait(topic, b"0", key=b"k", headers={"h": b"1"}, timestamp=123)
            assert metadata == (topic, 0, 0, 123)
            futures = [await one.send(topic, b"%d" % n) for n in range(1, 20_000)]
            assert [each.offset for each in await asyncio.gather(*futures)] == list(range(1, 20_000))
            assert one.metrics()["record-send-total"] == 20_000

    run(main())
    assert bench.records(topic)[0][2:] == (b"k", b"0", (("h", b"1"),))
    assert bench.values(topic) == [b"%d" % n for n in range(20_000)]


def test_sending_needs_no_thread(bench: Bench, run: Run) -> None:
    topic = bench.topic()
    before = set(threading.enumerate())

    async def main() -> None:
        async with producer(bench) as one:
            for _ in range(100):
                await one.send(topic, b"v")
            await one.flush()
            ours = {each.name for each in set(threading.enumerate()) - before if each.name.startswith("ottla")}
            assert not {name for name in ours if not name.startswith("ottla-connect")}

    run(main())


def test_errors_are_raised_by_send_or_set_in_futures(bench: Bench, run: Run) -> None:
    topic = bench.topic(2, max_message_bytes="200")

    async def main() -> None:
        async with producer(bench, max_block_ms=3000, allow_auto_create_topics="false") as one:
            refused = await one.send(topic, bytes(300))
            with pytest.raises(RefusedError) as error:
                await refused
            assert error.value.code is ErrorCode.MESSAGE_TOO_LARGE
            with pytest.raises(RefusedError, match="partitions 0 to 1"):
                await one.send(topic, b"v", partition=2)
            with pytest.raises(DeadlineError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                await one.send("nowhere", b"v")
            for wrong in ({"value": "text"}, {"timestamp": -1}, {"headers": 5}):
                with pytest.raises(UsageError):
                    await one.send(topic, **wrong)  # type: ignore[arg-type]  # as an application might
            assert await one.partitions_for(topic) == [0, 1]
        with pytest.raises(UsageError, match="closed"):
            await one.send(topic, b"late")
        await one.close()

    run(main())


def test_serializers_and_interceptors(bench: Bench, run: Run) -> None:
    topic = bench.topic()
    seen: list[Any] = []

    class Marks:
        def on_send(self, record: Any) -> Any:
            return record._replace(value=record.value + "!")

        def on_acknowledgement(self, metadata: Any, error: Any) -> None:
            seen.append((metadata.offset, error))

    async def main() -> None:
        async with producer(bench, value_serializer=str.encode, interceptors=[Marks()]) as one:
            assert (await one.send_and_wait(topic, "text")).offset == 0

    run(main())
    assert seen == [(0, None)]
    assert bench.values(topic) == [b"text!"]


def test_sends_wait_for_a_full_buffer_in_order(bench: Bench, run: Run) -> None:
    topic = bench.topic()
    size = 10_000

    async def main() -> None:
        async with producer(bench, buffer_memory=100_000, linger_ms=60_000) as one:
            await one.partitions_for(topic)
            tasks = [asyncio.create_task(one.send(topic, b"%06d" % n + bytes(size))) for n in range(100)]
            futures = await asyncio.gather(*tasks)
            assert one.metrics()["buffer-available-bytes"] < 100_000
            await one.flush(180)
            assert [(await each).offset for each in futures] == list(range(100))
            assert one.metrics()["buffer-available-bytes"] == 100_000

    run(main())
    assert [value[:6] for value in bench.values(topic) if value] == [b"%06d" % n for n in range(100)]


def test_a_buffer_that_stays_full_is_an_error_and_a_cancelled_send_is_not_accepted(bench: Bench, run: Run) -> None:
    topic = bench.topic()

    async def main() -> int:
        async with producer(bench, buffer_memory=100_000, max_block_ms=3000) as one:
            await one.send_and_wait(topic, b"first")
            bench.proxy.hold()
            accepted: list[Any] = []
            try:
                with pytest.raises(DeadlineError, match=r"buffer\.memory"):  # noqa: PT012  one of them raises
                    for _ in range(20):
                        accepted.append(await one.send(topic, bytes(10_000)))
                waiting = [asyncio.create_task(one.send(topic, b"x" * 10_000)) for _ in range(3)]
                while one._in_line < 3:  # noqa: ASYNC110 - seen from outside
                    await asyncio.sleep(0.001)
                for each in waiting[:2]:
                    each.cancel()
                await asyncio.wait(waiting[:2])
                assert [each.cancelled() for each in waiting] == [True, True, False]
            finally:
                bench.proxy.release()
            last = await asyncio.wait_for(waiting[2], 180)
            await asyncio.gather(*accepted, last)
            return len(accepted)

    accepted = run(main())
    assert bench.values(topic) == [b"first", *[bytes(10_000)] * accepted, b"x" * 10_000]


def test_a_cancelled_wait_for_metadata_stops_requesting_it(bench: Bench, run: Run) -> None:
    async def main() -> None:
        async with producer(bench, allow_auto_create_topics="false") as one:
            task = asyncio.create_task(one.send("nowhere", b"v"))
            while not one._core.metadata.wanted:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not one._core.metadata.wanted

    run(main())


def test_cancelling_a_future_does_not_cancel_its_record(bench: Bench, run: Run) -> None:
    topic = bench.topic()

    async def main() -> None:
        async with producer(bench, linger_ms=50) as one:
            (await one.send(topic, b"v")).cancel()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(await one.send(topic, b"w"), 0.001)

    run(main())
    assert bench.values(topic) == [b"v", b"w"]


def test_close_delivers_pending_records_or_fails_them_in_time(bench: Bench, run: Run) -> None:
    topic = bench.topic()

    async def main() -> None:
        one = producer(bench, linger_ms=60_000)
        pending = [await one.send(topic, b"%d" % n) for n in range(100)]
        await one.close()
        assert [each.result().offset for each in pending] == list(range(100))
        other = producer(bench, linger_ms=60_000)
        await other.partitions_for(topic)
        left = await other.send(topic, b"never")
        await other.close(0)
        assert isinstance(left.exception(), UsageError)
        await producer(bench).close()

    run(main())
    assert bench.values(topic) == [b"%d" % n for n in range(100)]


def test_order_holds_when_connections_are_lost(bench: Bench, run: Run) -> None:
    topic = bench.topic()

    async def main() -> None:
        async with producer(bench, linger_ms=1, batch_size=400, retry_backoff_ms=10) as one:
            await one.partitions_for(topic)
            for n in range(1_500):
                await one.send(topic, b"%05d" % n)
                if n % 10 == 0:
                    await asyncio.sleep(0.005)
            await one.flush(180)
            assert one.metrics()["record-retry-total"] > 0

    with trouble(bench.proxy):
        run(main())
    assert bench.values(topic) == [b"%05d" % n for n in range(1_500)]


def test_transactions_commit_and_abort_on_errors_and_cancellations(bench: Bench, run: Run) -> None:
    topic = bench.topic()
    tp = TopicPartition(topic, 0)

    async def failing(one: Producer) -> None:
        async with one.transaction():
            await one.send_and_wait(topic, b"aborted")
            await one.send_offsets_to_transaction({tp: 99}, "aio")
            raise ZeroDivisionError

    async def abandoned(one: Producer) -> None:
        async with one.transaction():
            await one.send_and_wait(topic, b"cancelled")
            await asyncio.sleep(60)

    async def main() -> None:
        async with producer(bench, transactional_id="aio") as one:
            await one.init_transactions()
            for n in range(3):
                async with one.transaction():
                    await one.send(topic, b"%d" % n)
                    await one.send_offsets_to_transaction({tp: n}, GroupMetadata("aio"))
            with pytest.raises(ZeroDivisionError):
                await failing(one)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(abandoned(one), 0.5)
            assert not one.in_transaction
            async with one.transaction():
                await one.send(topic, b"last")
            with pytest.raises(UsageError, match="begin_transaction"):
                await one.send(topic, b"outside")

    run(main())
    assert bench.values(topic) == [b"0", b"1", b"2", b"last"]
    found = GroupAdmin(bench.cluster).group_offsets("aio")[tp]
    assert found.offset == 2  # type: ignore[union-attr]  # an error would fail the test as well


def test_a_cancelled_commit_runs_to_its_end(bench: Bench, run: Run) -> None:
    topic = bench.topic()

    async def main() -> None:
        async with producer(bench, transactional_id="aio-cut", linger_ms=200) as one:
            await one.init_transactions()
            await one.begin_transaction()
            await one.send(topic, b"kept")
            commit = asyncio.create_task(one.commit_transaction())
            await asyncio.sleep(0)
            commit.cancel()
            with pytest.raises(asyncio.CancelledError):
                await commit
            async with one.transaction():
                await one.send(topic, b"next")

    run(main())
    assert bench.values(topic) == [b"kept", b"next"]


def test_a_failed_record_fails_the_transaction(bench: Bench, run: Run) -> None:
    small = bench.topic(max_message_bytes="200")

    async def main() -> None:
        async with producer(bench, transactional_id="aio-failing") as one:
            await one.init_transactions()
            with pytest.raises(UsageError, match="MESSAGE_TOO_LARGE"):
                async with one.transaction():
                    await one.send(small, bytes(1_000))
            async with one.transaction():
                await one.send(small, b"kept")

    run(main())
    assert bench.values(small) == [b"kept"]


def test_a_producer_belongs_to_one_loop(bench: Bench, run: Run) -> None:
    topic = bench.topic()
    one = producer(bench)

    async def main() -> None:
        await one.send_and_wait(topic, b"v")
        with pytest.raises(UsageError, match="another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(one.send(topic, b"w")))
        await one.close()

    run(main())
