"""Guarantees of flush, close, send and their arguments: BROKER=ottla (the default) or kafka."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from tests.client.producer.bench import MARKS, Bench

from ottla.client import (
    Consumer,
    GroupMetadata,
    Producer,
    TopicPartition,
    TransactionFailedError,
    UsageError,
    WrongTypeError,
)
from ottla.client.admin.transactions import TransactionAdmin
from ottla.client.aio import Producer as AioProducer
from ottla.client.producer.transaction import State

pytestmark = MARKS
AT = 1_700_000_000_000


def state_of(bench: Bench, transactional_id: str) -> str:
    return str(TransactionAdmin(bench.cluster).describe_transaction(transactional_id).state)


def aio(bench: Bench, **keys: Any) -> AioProducer:
    words = {key.replace("_", "."): value for key, value in keys.items()}
    return AioProducer({"bootstrap.servers": bench.bootstrap, **words})


def test_flush_returns_after_the_callbacks(bench: Bench, producer: Callable[..., Producer]) -> None:
    one, topic, told = producer(linger_ms=1_000), bench.topic(), []

    def slow(metadata: object, _error: object) -> None:
        time.sleep(0.05)
        told.append(metadata)

    for _ in range(5):
        one.send(topic, b"v", on_delivery=slow)
    one.flush()
    assert len(told) == 5


def test_flush_waits_for_callbacks_of_records_that_are_decided_already(
    bench: Bench, producer: Callable[..., Producer]
) -> None:
    one, topic = producer(linger_ms=0), bench.topic()
    called, over, flushed = threading.Event(), threading.Event(), threading.Event()

    def held(_metadata: object, _error: object) -> None:
        called.set()
        over.wait(60)

    one.send(topic, b"v", on_delivery=held)
    assert called.wait(60)
    thread = threading.Thread(target=lambda: (one.flush(), flushed.set()))
    thread.start()
    assert not flushed.wait(0.1)
    over.set()
    assert flushed.wait(60)
    thread.join()


def test_flush_waits_for_the_callbacks_of_the_halves_of_a_batch(
    bench: Bench, producer: Callable[..., Producer]
) -> None:
    topic, told = bench.topic(max_message_bytes="2000"), []
    one = producer(linger_ms=1_000)
    for _ in range(10):
        one.send(topic, bytes(1_000), on_delivery=lambda metadata, _error: told.append(metadata.offset))  # type: ignore[union-attr]
    one.flush()
    assert sorted(told) == list(range(10))


def test_flush_waits_for_the_last_callback_of_a_batch_that_was_split(
    bench: Bench, producer: Callable[..., Producer]
) -> None:
    topic = bench.topic(max_message_bytes="2000")
    one = producer(linger_ms=1_000)
    called, over, flushed = threading.Event(), threading.Event(), threading.Event()

    def held(_metadata: object, _error: object) -> None:
        called.set()
        over.wait(60)

    sent = [one.send(topic, bytes(1_000), on_delivery=held if number == 9 else None) for number in range(10)]
    thread = threading.Thread(target=lambda: (one.flush(), flushed.set()))
    thread.start()
    assert called.wait(60)
    assert all(each.done() for each in sent)
    assert not flushed.wait(0.1)
    over.set()
    assert flushed.wait(60)
    thread.join()


@pytest.mark.parametrize("ending", ["close", "with", "error"])
def test_closing_aborts_the_open_transaction(bench: Bench, ending: str) -> None:
    topic, name = bench.topic(), f"closing-{ending}"
    one = Producer({"bootstrap.servers": bench.bootstrap, "transactional.id": name})
    one.init_transactions()
    one.begin_transaction()
    sent = one.send(topic, b"taken back")
    sent.result(60)
    if ending == "close":
        one.close()
    elif ending == "with":
        with one:
            pass
    else:
        with pytest.raises(ZeroDivisionError), one:
            raise ZeroDivisionError
    assert "ABORT" in state_of(bench, name).upper()
    assert bench.values(topic) == []
    one.close()


def test_closing_with_asyncio_aborts_the_open_transaction(bench: Bench) -> None:
    topic = bench.topic()

    async def main() -> None:
        async with aio(bench, transactional_id="closing-aio") as one:
            await one.init_transactions()
            await one.begin_transaction()
            await one.send_and_wait(topic, b"taken back")

    asyncio.run(main())
    assert "ABORT" in state_of(bench, "closing-aio").upper()


def test_no_transaction_begins_while_close_aborts(bench: Bench) -> None:
    """A transaction that began then would stay open, because close would not abort it."""
    topic = bench.topic()
    one = Producer({"bootstrap.servers": bench.bootstrap, "transactional.id": "closing-late", "max.block.ms": 60_000})
    one.init_transactions()
    one.begin_transaction()
    one.send(topic, b"v").result(60)
    bench.proxy.hold()
    closing = threading.Thread(target=one.close)
    try:
        closing.start()
        while one._transactional._state.state is not State.ABORTING:  # type: ignore[union-attr]
            time.sleep(0.001)
        with pytest.raises(UsageError, match="closed"):
            one.begin_transaction()
        with pytest.raises(UsageError, match="closed"):
            one.send(topic, b"v")
    finally:
        bench.proxy.release()
    closing.join()


def test_no_transaction_begins_while_asyncio_close_aborts(bench: Bench) -> None:
    topic = bench.topic()

    async def main() -> None:
        one = aio(bench, transactional_id="closing-late-aio", max_block_ms=60_000)
        await one.init_transactions()
        await one.begin_transaction()
        await one.send_and_wait(topic, b"v")
        bench.proxy.hold()
        closing = asyncio.create_task(one.close())
        try:
            while one._transactional._state.state is not State.ABORTING:  # type: ignore[union-attr]  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            with pytest.raises(UsageError, match="closed"):
                await asyncio.wait_for(one.begin_transaction(), 60)
            with pytest.raises(UsageError, match="closed"):
                await one.send(topic, b"v")
        finally:
            bench.proxy.release()
        await closing

    asyncio.run(main())


def test_an_abort_that_is_not_possible_does_not_stop_closing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    topic = bench.topic()
    one = Producer({"bootstrap.servers": bench.bootstrap, "transactional.id": "unreachable"})
    one.init_transactions()
    one.begin_transaction()
    one.send(topic, b"v").result(60)
    bench.proxy.refuse()
    bench.proxy.cut()
    try:
        with caplog.at_level(logging.WARNING):
            one.close(0.3)
    finally:
        bench.proxy.refuse(refusing=False)
    assert "could not abort the transaction" in caplog.text


REFUSED: list[dict[str, Any]] = [
    {"value": b"x" * 3_000_000},
    {"value": "text"},
    {"value": b"v", "headers": {"a": 1}},
    {"value": b"v", "timestamp": 1.5},
    {"value": b"v", "partition": 7},
    {"value": b"v", "key": 5},
]


@pytest.mark.parametrize("record", REFUSED, ids="-".join)
def test_a_record_refused_here_leaves_the_transaction_as_it_was(bench: Bench, record: dict[str, Any]) -> None:
    topic = bench.topic()
    with Producer({"bootstrap.servers": bench.bootstrap, "transactional.id": f"refused-{topic}"}) as one:
        one.init_transactions()
        for kept in (b"", b"kept"):
            with one.transaction():
                with pytest.raises(Exception, match=r".+"):
                    one.send(topic, **record)
                if kept:
                    one.send(topic, kept)
        assert bench.values(topic) == [b"kept"]


def test_a_record_refused_here_leaves_an_asyncio_transaction_as_it_was(bench: Bench) -> None:
    topic = bench.topic()

    async def main() -> None:
        async with aio(bench, transactional_id="refused-aio") as one:
            await one.init_transactions()
            for record in REFUSED:
                async with one.transaction():
                    with pytest.raises(Exception, match=r".+"):
                        await one.send(topic, **record)
            async with one.transaction():
                await one.send(topic, b"kept")

    asyncio.run(main())
    assert bench.values(topic) == [b"kept"]


def test_positions_that_the_group_refuses_leave_a_transaction_that_can_be_aborted(
    bench: Bench, producer: Callable[..., Producer]
) -> None:
    topic = bench.topic()
    one = producer(transactional_id="refused-positions")
    one.init_transactions()
    one.begin_transaction()
    with pytest.raises(Exception, match=r"UNKNOWN_MEMBER_ID|ILLEGAL_GENERATION"):
        one.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, GroupMetadata("no-such-group", 5, "who"))
    with pytest.raises(TransactionFailedError):
        one.send(topic, b"v")
    one.abort_transaction()
    with one.transaction():
        one.send(topic, b"kept")
    assert bench.values(topic) == [b"kept"]


TAKEN = [AT, np.int64(AT), datetime.fromtimestamp(AT / 1000, UTC)]


def test_timestamps_of_any_whole_type_are_sent(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic(retention_ms="-1")
    one = producer()
    found = [one.send(topic, b"v", timestamp=each).result(60).timestamp for each in TAKEN]
    assert found == [AT] * 3
    with pytest.raises(WrongTypeError, match="float"):
        one.send(topic, b"v", timestamp=float(AT))  # type: ignore[arg-type]

    async def main() -> None:
        async with aio(bench) as other:
            assert [(await other.send_and_wait(topic, b"v", timestamp=each)).timestamp for each in TAKEN] == [AT] * 3
            with pytest.raises(WrongTypeError, match="float"):
                await other.send(topic, b"v", timestamp=float(AT))  # type: ignore[arg-type]

    asyncio.run(main())
    with Consumer({"bootstrap.servers": bench.bootstrap}) as consumer:
        tp = TopicPartition(topic, 0)
        assert [consumer.offsets_for_times({tp: each})[tp] for each in TAKEN] == [0, 0, 0]  # type: ignore[dict-item]
        with pytest.raises(WrongTypeError):
            consumer.offsets_for_times({tp: 1.5})  # type: ignore[dict-item]


@pytest.mark.parametrize("forever", [float("inf"), 1e300, 2**80, 1e15])
def test_infinite_and_huge_timeouts_are_for_ever(bench: Bench, forever: float) -> None:
    topic = bench.topic()
    one = Producer({"bootstrap.servers": bench.bootstrap, "max.block.ms": 2**63 - 1, "linger.ms": 1})
    sent = one.send(topic, b"v")
    one.flush(forever)
    assert sent.result(forever).offset == 0
    one.send(topic, b"v")
    one.close(forever)
    with Consumer({"bootstrap.servers": bench.bootstrap, "auto.offset.reset": "earliest"}) as consumer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        assert consumer.position(tp, forever) == 0
        assert consumer.poll(forever)
        assert consumer.end_offsets([tp], forever) == {tp: 2}
        consumer.seek(tp, np.int64(1))  # type: ignore[arg-type]
        assert len(consumer.poll(forever)) == 1
        consumer.close(forever)

    async def main() -> None:
        other = aio(bench, max_block_ms=2**63 - 1)
        await other.send(topic, b"v")
        await other.flush(forever)
        await other.close(forever)

    asyncio.run(main())


def test_positions_may_be_whole_numbers_of_any_type(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic()
    tp = TopicPartition(topic, 0)
    with Consumer({"bootstrap.servers": bench.bootstrap, "group.id": f"any-{topic}"}) as consumer:
        consumer.commit({tp: np.int64(3)})  # type: ignore[dict-item]
        assert consumer.committed([tp])[tp].offset == 3  # type: ignore[union-attr]
        for wrong, kind in ((1.5, WrongTypeError), ("1", WrongTypeError), (-1, UsageError)):
            with pytest.raises(kind, match=topic):
                consumer.commit({tp: wrong})  # type: ignore[dict-item]
