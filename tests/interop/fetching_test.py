"""What clients rely on besides bytes: long polls, offsets by time, idempotence, long logs."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from testbench.clients import CLIENTS, WAIT_S, Confluent, KafkaPython, Kcat, Record

pytestmark = [pytest.mark.interop, pytest.mark.slow]

BY_NAME = {client.name: client for client in CLIENTS}
HOUR = 3_600_000
START = 1_700_000_000_000
HOURLY = [Record(b"%d" % number, b"hour", (), START + number * HOUR) for number in range(48)]


def consumer_of(bootstrap: str, topic: str, **settings):
    """A confluent-kafka consumer at offset 0 of partition 0."""
    from confluent_kafka import Consumer, TopicPartition

    base = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, "log_level": 3}
    consumer = Consumer({**base, **settings})
    consumer.list_topics(topic, WAIT_S)  # until then librdkafka may ask a bootstrap handle that it then throws away
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def test_a_long_poll_is_answered_when_a_record_comes(bootstrap: str, topic: str) -> None:
    Confluent().write(bootstrap, topic, [Record(b"0", b"first")])
    consumer = consumer_of(bootstrap, topic, **{"fetch.wait.max.ms": 60_000, "fetch.min.bytes": 1})
    assert consumer.poll(WAIT_S).value() == b"first"
    with ThreadPoolExecutor(1) as pool:  # the consumer's fetch now waits in the broker for up to a minute
        waiting = pool.submit(consumer.poll, WAIT_S)
        Confluent().write(bootstrap, topic, [Record(b"1", b"second")])
        assert waiting.result().value() == b"second"
    consumer.close()


def test_an_empty_fetch_comes_back_after_its_wait(bootstrap: str, topic: str) -> None:
    """Clients that get no answer at all believe that their connection has died."""
    Confluent().write(bootstrap, topic, [Record(b"0", b"only")])
    settings = {"fetch.wait.max.ms": 200, "socket.timeout.ms": 1_000, "session.timeout.ms": 1_000}
    errors: list[str] = []
    settings |= {"error_cb": lambda error: errors.append(str(error)), "statistics.interval.ms": 500}
    answered: list[int] = []

    def count(text: str) -> None:
        import json

        brokers = json.loads(text)["brokers"].values()
        answered.append(sum(each["rx"] for each in brokers))

    consumer = consumer_of(bootstrap, topic, **settings, stats_cb=count)
    assert consumer.poll(WAIT_S).value() == b"only"
    deadline = time.monotonic() + WAIT_S
    while (not answered or answered[-1] - answered[0] < 8) and time.monotonic() < deadline:
        assert consumer.poll(0.2) is None
    consumer.close()
    assert answered[-1] - answered[0] >= 8
    assert not errors


def test_a_fetch_waits_for_min_bytes(bootstrap: str, topic: str) -> None:
    Confluent().write(bootstrap, topic, [Record(None, b"x" * 1_000)])
    consumer = consumer_of(bootstrap, topic, **{"fetch.min.bytes": 5_000, "fetch.wait.max.ms": 60_000})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(consumer.consume, 5, WAIT_S)
        for _ in range(4):
            Confluent().write(bootstrap, topic, [Record(None, b"x" * 1_000)])
        assert len(waiting.result()) == 5
    consumer.close()


def test_confluent_finds_offsets_by_time(bootstrap: str, topic: str) -> None:
    from confluent_kafka import OFFSET_END, TopicPartition

    Confluent().write(bootstrap, topic, HOURLY, "lz4")
    consumer = consumer_of(bootstrap, topic)
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), WAIT_S) == (0, 48)
    for asked, expected in ((START, 0), (START + 1, 1), (START + 7 * HOUR, 7), (START + 48 * HOUR, OFFSET_END)):
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, asked)], WAIT_S)
        assert (found.error, found.offset) == (None, expected), asked
    consumer.close()


def test_kafka_python_finds_offsets_by_time(bootstrap: str, topic: str) -> None:
    from kafka import KafkaConsumer, TopicPartition

    KafkaPython().write(bootstrap, topic, HOURLY, "gzip")
    where = TopicPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    found = consumer.offsets_for_times({where: START + 6 * HOUR + 1})[where]
    assert (found.offset, found.timestamp) == (7, START + 7 * HOUR)
    assert consumer.offsets_for_times({where: START + 99 * HOUR})[where] is None
    assert consumer.beginning_offsets([where]) == {where: 0}
    consumer.close()


def test_aiokafka_finds_offsets_by_time(bootstrap: str, topic: str) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    BY_NAME["aiokafka"].write(bootstrap, topic, HOURLY, "snappy")

    async def look() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
        await consumer.start()
        where = TopicPartition(topic, 0)
        found = (await consumer.offsets_for_times({where: START + 6 * HOUR + 1}))[where]
        assert (found.offset, found.timestamp) == (7, START + 7 * HOUR)
        assert (await consumer.end_offsets([where])) == {where: 48}
        await consumer.stop()

    asyncio.run(asyncio.wait_for(look(), WAIT_S))


def test_kcat_finds_offsets_by_time_and_from_the_end(bootstrap: str, topic: str) -> None:
    Confluent().write(bootstrap, topic, HOURLY)
    query = Kcat().run(bootstrap, "-Q", "-t", f"{topic}:0:{START + 7 * HOUR}")
    assert query.decode().split() == [topic, "[0]", "offset", "7"]
    last = Kcat().run(bootstrap, "-C", "-e", "-q", "-t", topic, "-p", "0", "-o", "-2", "-f", "%o %k\n")
    assert last == b"46 46\n47 47\n"
    since = Kcat().run(
        bootstrap, "-C", "-e", "-q", "-t", topic, "-p", "0", "-o", f"s@{START + 46 * HOUR}", "-f", "%o\n"
    )
    assert since == b"46\n47\n"


def test_kcat_lists_brokers_and_topics(bootstrap: str, topic: str) -> None:
    Confluent().write(bootstrap, topic, [Record(b"k", b"v")])
    listed = Kcat().run(bootstrap, "-L", "-t", topic).decode()
    assert "1 brokers:" in listed
    assert bootstrap in listed
    assert f'topic "{topic}" with 1 partitions' in listed
    assert "partition 0, leader 1, replicas: 1, isrs: 1" in listed


IDEMPOTENT = {
    "confluent": {"enable.idempotence": True, "queue.buffering.max.messages": 200_000},
    "kafka-python": {"enable_idempotence": True},
    "aiokafka": {"enable_idempotence": True},
    "kcat": {"enable.idempotence": "true"},
}


@pytest.mark.parametrize("writer", [client.name for client in CLIENTS])
def test_idempotent_producers(broker, bootstrap: str, topic: str, writer: str) -> None:
    count = 3 if writer == "kcat" else 3_000  # a run of kcat per record
    records = [Record(b"%d" % number, b"v" * (number % 50 + 1)) for number in range(count)]
    options = dict(IDEMPOTENT[writer])
    if writer == "confluent":
        options["batch.num.messages"] = 50
    BY_NAME[writer].write(bootstrap, topic, records, **options)
    assert [each[:2] for each in Confluent().read(bootstrap, topic)] == [each[:2] for each in records]
    log = (broker.data / f"{topic}-0" / "00000000000000000000.log").read_bytes()
    producer_id, producer_epoch, first = (
        int.from_bytes(log[at : at + size], "big", signed=True) for at, size in ((43, 8), (51, 2), (53, 4))
    )
    assert (producer_id >= 0, producer_epoch, first) == (True, 0, 0), writer


@pytest.mark.parametrize("reader", [client.name for client in CLIENTS])
def test_a_long_log_of_many_batches(bootstrap: str, topic: str, reader: str) -> None:
    records = [Record(b"%d" % number, b"value %d " % number * 20) for number in range(20_000)]
    Confluent().write(bootstrap, topic, records, "zstd", **{"batch.num.messages": 500})
    assert [each[:2] for each in BY_NAME[reader].read(bootstrap, topic)] == [each[:2] for each in records]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement(bootstrap: str, topic: str, acks: str) -> None:
    records = [Record(b"%d" % number, b"v") for number in range(100)]
    Confluent().write(bootstrap, topic, records, acks=acks)
    assert [each[:2] for each in Confluent().read(bootstrap, topic)] == [each[:2] for each in records]


def test_a_record_that_is_too_large_is_refused_by_name(bootstrap: str, topic: str) -> None:
    from testbench.clients import ClientFailure

    with pytest.raises(ClientFailure, match="MSG_SIZE_TOO_LARGE"):
        Confluent().write(bootstrap, topic, [Record(None, b"x" * 1_200_000)])


def test_an_offset_out_of_range_is_told(bootstrap: str, topic: str) -> None:
    from confluent_kafka import KafkaError, TopicPartition

    Confluent().write(bootstrap, topic, [Record(b"k", b"v")])
    consumer = consumer_of(bootstrap, topic, **{"auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, 0, 999)])
    message = consumer.poll(WAIT_S)
    assert message is not None
    assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
    assert "out of range" in str(message.error()).lower()
    consumer.close()
