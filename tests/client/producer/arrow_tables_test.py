"""Tables through the producer, against brokers: BROKER=ottla (the default) or kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.client.producer.bench import MARKS, Bench, trouble

from ottla.client import (
    DeadlineError,
    PartlyAcceptedError,
    Producer,
    RefusedError,
    UsageError,
    aio,
    partition_of_key,
)
from ottla.errors import ErrorCode
from ottla.record.batch import Record

pytestmark = MARKS
SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        "partition": pa.int32(),
        "timestamp": pa.int64(),
    }
)


def alternating(rows: int) -> pa.Table:
    """Rows of 1,000 bytes, numbered, for two partitions in turn."""
    values = [b"%06d" % n + bytes(994) for n in range(rows)]
    return pa.table({"value": values, "partition": [n % 2 for n in range(rows)]})


def plain(records: list[Record]) -> list[tuple[Any, ...]]:
    return [(each.timestamp, each.key, each.value, each.headers) for each in records]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_table_arrives_as_its_records_would(bench: Bench, producer: Callable[..., Producer], codec: str) -> None:
    by_row, by_table = (bench.topic(3, retention_ms="-1") for _ in range(2))  # the timestamps are old
    rows = [
        {
            "key": None if n % 5 == 0 else b"key-%d" % (n % 40),
            "value": None if n % 7 == 0 else b"value-%d" % n * (n % 50),
            "headers": [{"key": "h", "value": b"%d" % n}, {"key": "ü", "value": None}] if n % 3 else None,
            "partition": n % 3 if n % 5 == 0 or n % 4 == 0 else None,
            "timestamp": 1_700_000_000_000 + n * (-1) ** n,
        }
        for n in range(5_000)
    ]
    with producer(compression_type=codec, linger_ms=50) as one:
        for row in rows:
            headers = [(each["key"], each["value"]) for each in row["headers"] or ()]
            one.send(by_row, **{**row, "headers": headers})
        sent = one.send_table(by_table, pa.Table.from_pylist(rows, SCHEMA)).result(180)
    for partition in range(3):
        expected = bench.records(by_row, partition)
        assert plain(bench.records(by_table, partition)) == plain(expected)
        assert sent.partitions[partition] == (len(expected), 0, len(expected) - 1)
    assert (sent.topic, sent.rows) == (by_table, 5_000)


def test_other_types_chunks_and_slices(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic(4, retention_ms="-1")
    table = pa.table({
        "value": pa.chunked_array([["x", "a"], [], ["b", None]], pa.large_string()),
        "key": pa.array(["x", "k", "k", "k"]).dictionary_encode(),
        "headers": pa.array([[], [("h", b"1")], None, []], pa.map_(pa.string(), pa.binary())),
        "timestamp": pa.array([0, 1_000_999, None, 3_000_000], pa.timestamp("us", tz="UTC")),
        "partition": pa.array([3, None, None, None], pa.uint8()),
    }).slice(1)  # fmt: skip
    with producer() as one:
        where = one.send_table(topic, table).result(180).partitions
        assert one.send_table(topic, table.slice(0, 0)).result(0).rows == 0
        assert one.send_table(topic, table.to_batches()[0]).result(180).rows == 1
    (partition,) = where
    assert partition == partition_of_key(b"k", 4)
    found = bench.records(topic, partition)
    assert [each.value for each in found] == [b"a", b"b", None, b"a"]
    assert [found[0].timestamp, found[2].timestamp] == [1_000, 3_000]
    assert found[1].timestamp > 1_600_000_000_000
    assert [each.headers for each in found[:3]] == [(("h", b"1"),), (), ()]


def test_rows_without_a_key_are_spread_or_dealt_out_in_turn(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic(4)
    table = pa.table({"value": [b"v"] * 4_002})
    with producer() as one:
        found = one.send_table(topic, table).result(180).partitions
        assert sorted(each.rows // 10 for each in found.values()) == [100] * 4
    keyed = table.slice(0, 10).append_column("key", pa.array([b"same"] * 10))
    with producer(partitioner_class="round_robin") as one:
        found = one.send_table(topic, keyed).result(180).partitions
        assert sorted(each.rows for each in found.values()) == [2, 2, 3, 3]
        assert one.send(topic, b"v").result(180).partition == 10 % 4
    with producer({"partitioner": lambda *_: 0}) as one, pytest.raises(UsageError, match="partitioner"):
        one.send_table(topic, table)


def test_a_table_larger_than_the_memory(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic(2)
    table = pa.table(
        {"value": [b"%06d" % n + bytes(994) for n in range(5_000)], "partition": [n % 2 for n in range(5_000)]}
    )
    one = producer(buffer_memory=400_000)
    before = one.send(topic, b"before", partition=0)
    sent = one.send_table(topic, table)
    after = one.send(topic, b"after", partition=0)
    assert sent.result(180).partitions == {0: (2_500, 1, 2_500), 1: (2_500, 0, 2_499)}
    assert (before.result(0).offset, after.result(180).offset) == (0, 2_501)
    assert one.metrics()["buffer-available-bytes"] == 400_000
    assert one.metrics()["batch-size-avg"] > 50_000
    values = [value[:6] for value in bench.values(topic, 1) if value]
    assert values == [b"%06d" % n for n in range(1, 5_000, 2)]


def test_memory_is_never_overdrawn_and_a_table_may_be_accepted_in_part(
    bench: Bench, producer: Callable[..., Producer]
) -> None:
    topic = bench.topic()
    one = producer(buffer_memory=400_000, max_block_ms=2000)
    one.partitions_for(topic)
    table = pa.table({"value": [bytes(1_000)] * 5_000})
    bench.proxy.hold()
    try:
        with pytest.raises(PartlyAcceptedError, match=r"of 5000 rows were accepted.*buffer\.memory") as failed:
            one.send_table(topic, table)
        assert isinstance(failed.value.__cause__, DeadlineError)
        assert one.metrics()["buffer-available-bytes"] >= 0
        with pytest.raises(DeadlineError):
            one.send_table(topic, table)
    finally:
        bench.proxy.release()
    sent = failed.value.sent
    assert 300 < sent.rows < 400
    assert sent.result(180).rows == sent.rows
    assert len(bench.values(topic)) == sent.rows


def test_a_table_in_batches_too_large_for_its_topic_is_split(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic(max_message_bytes="1000")
    values = [b"%03d" % n * 30 for n in range(100)]
    with producer() as one:
        sent = one.send_table(topic, pa.table({"value": values}))
        assert sent.result(180).partitions == {0: (100, 0, 99)}
        assert one.metrics()["batch-split-total"] > 0
        part = one.send_table(topic, pa.table({"value": [bytes(10), bytes(2_000)]}))
        assert isinstance(part.exception(30), RefusedError)
        with pytest.raises(RefusedError, match="MESSAGE_TOO_LARGE"):
            part.result()
        assert part.appended().partitions == {0: (1, 100, 100)}
    assert bench.values(topic) == [*values, bytes(10)]


def test_tables_are_whole_and_once_when_connections_are_lost(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic(2)
    one = producer(buffer_memory=200_000, retry_backoff_ms=10)
    values = [b"%06d" % n + bytes(300) for n in range(20_000)]
    with trouble(bench.proxy):
        sent = one.send_table(topic, pa.table({"value": values, "partition": [n % 2 for n in range(20_000)]}))
        sent.result(180)
    for partition in (0, 1):
        assert bench.values(topic, partition) == values[partition::2]


def then_fails(_done: object) -> None:
    raise ZeroDivisionError


def test_tables_in_transactions(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic(2)
    one = producer(transactional_id="tables")
    one.init_transactions()
    table = pa.table({"value": [b"%d" % n for n in range(100)], "partition": [n % 2 for n in range(100)]})
    with pytest.raises(UsageError, match="begin_transaction"):
        one.send_table(topic, table)
    with one.transaction():
        one.send_table(topic, table)
    one.begin_transaction()
    unsent = one.send_table(topic, table)
    one.abort_transaction()
    assert unsent.done()
    with pytest.raises(ZeroDivisionError), one.transaction():
        then_fails(one.send_table(topic, table).result(180))
    for partition in (0, 1):
        assert bench.values(topic, partition) == [b"%d" % n for n in range(partition, 100, 2)]


V = {"value": [b"v", b"w"]}


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"key": [b"k"]}, "It needs `value`"),
        ({**V, "offset": [1, 2]}, "'offset' cannot be sent"),
        ({"value": [1, 2]}, "column `value` is int64, which cannot be cast to binary"),
        ({**V, "key": [True, False]}, "column `key` is bool"),
        ({**V, "partition": ["0", "1"]}, "column `partition` is string, not int32"),
        ({**V, "partition": [0, 2**40]}, "column `partition`"),
        ({**V, "timestamp": [1.5, 2.5]}, "column `timestamp` is double"),
        ({**V, "timestamp": [5, -3]}, "timestamp -3 is not"),
        ({**V, "headers": [["h"], []]}, "column `headers`"),
        ({**V, "headers": [b"h", b""]}, "column `headers` is binary"),
        ({**V, "headers": [[{"key": None, "value": b"1"}], None]}, "a header has no key"),
        ({**V, "headers": [[{"name": "h", "value": b"1"}], None]}, "a header has no key"),
        ({"value": [b"v", bytes(2_000)]}, r"a row of 20\d\d bytes is larger than max\.request\.size"),
        ({**V, "headers": [[{"key": "h", "value": bytes(2_000)}], None]}, "larger than"),
    ],
)
def test_an_invalid_table_is_refused_as_a_whole(
    bench: Bench, producer: Callable[..., Producer], columns: dict[str, Any], says: str
) -> None:
    with producer(max_request_size=1_000) as one, pytest.raises(UsageError, match=says):
        one.send_table("never", pa.table(columns))


def test_other_misuse_of_tables(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic(2)
    with producer() as one:
        for wrong in ([b"v"], {"value": [b"v"]}, None):
            with pytest.raises(UsageError, match="not an Arrow table"):
                one.send_table(topic, wrong)
        for partition in (-1, 2):
            with pytest.raises(RefusedError, match="partitions 0 to 1") as refused:
                one.send_table(topic, pa.table({"value": [b"v", b"w"], "partition": [0, partition]}))
            assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(UsageError, match="closed"):
        one.send_table(topic, pa.table(V))
    with producer({"value_serializer": str.encode}) as one, pytest.raises(UsageError, match="serializers"):
        one.send_table(topic, pa.table(V))
    assert bench.values(topic, 0) == []


def test_asyncio_sends_a_table_at_once(bench: Bench) -> None:
    topic = bench.topic()

    async def main() -> None:
        async with aio.Producer({"bootstrap.servers": bench.bootstrap}) as one:
            await one.send_and_wait(topic, b"first")
            # No request is unanswered, so nothing else wakes the sender.
            while not one._sender.asleep:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.001)
            sent = await one.send_table(topic, pa.table(V))
            assert (await asyncio.wait_for(sent, 180)).rows == 2

    asyncio.run(main())


def test_asyncio_sends_tables_without_blocking(bench: Bench) -> None:
    topic = bench.topic(2)
    table = pa.table(
        {"value": [b"%06d" % n + bytes(994) for n in range(2_000)], "partition": [n % 2 for n in range(2_000)]}
    )
    keys = {"bootstrap.servers": bench.bootstrap, "buffer.memory": 400_000}

    async def main() -> None:
        async with aio.Producer(keys) as one:
            await one.send_and_wait(topic, b"first", partition=0)
            bench.proxy.hold()
            task = asyncio.create_task(one.send_table(topic, table))
            while not one._accumulator.memory_waiters:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.001)
            assert not task.done()
            bench.proxy.release()
            assert (await (await task)).partitions == {0: (1_000, 1, 1_000), 1: (1_000, 0, 999)}
        async with aio.Producer({**keys, "transactional.id": "aio-tables"}) as one:
            await one.init_transactions()
            async with one.transaction():
                await one.send_table(topic, table.slice(0, 4))
            await one.begin_transaction()
            await one.send_table(topic, table)
            await one.abort_transaction()

    asyncio.run(main())
    assert len(bench.values(topic, 0)) == 1_003
    assert [value[:6] for value in bench.values(topic, 1) if value][-3:] == [b"001999", b"000001", b"000003"]
