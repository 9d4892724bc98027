"""Worked examples of Kafka's producer, against brokers: BROKER=ottla (the default) or kafka.

Two more of them, round_robin_100 and size_limits, are in broker_test.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.client.producer.bench import MARKS, Bench

from ottla.client import ClientConfig, Cluster, Producer, TopicPartition, fetch_range
from ottla.record.batch import batches_of

pytestmark = MARKS


def test_hello_world_batches(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic()
    now = time.time_ns() // 1_000_000
    with producer(batch_size=16_384, linger_ms=60_000) as one:
        for _ in range(8_190):
            one.send(topic, b"hello world ", timestamp=now)
    with Cluster(ClientConfig(bootstrap_servers=bench.bootstrap)) as cluster:
        log = b"".join(bytes(part.records) for part in fetch_range(cluster, TopicPartition(topic, 0), 0, 8_190))
    found = list(batches_of(memoryview(log)))
    assert [position for position, _ in found] == [16_377 * at for at in range(10)]
    assert [header.base_offset for _, header in found] == [819 * at for at in range(10)]
    assert {(header.record_count, header.size) for _, header in found} == {(819, 16_377)}


@pytest.mark.parametrize(
    ("in_flight", "idempotent", "log"),
    [(5, False, [b"b", b"a"]), (5, True, [b"a", b"b"]), (1, False, [b"a", b"b"])],
)
def test_retry_reorders(
    bench: Bench, producer: Callable[..., Producer], in_flight: int, idempotent: bool, log: list[bytes]
) -> None:
    topic = bench.topic()
    keys = {"linger_ms": 0, "max_in_flight_requests_per_connection": in_flight, "enable_idempotence": idempotent}
    with producer(**keys) as one:
        one.send(topic, b"first").result(180)  # the first batch of an idempotent producer goes alone
        bench.proxy.damage(b"the a")  # its checksum is wrong then, a retriable error
        bench.proxy.hold(forward=False)
        try:
            sent = one.metrics()["request-total"]
            one.send(topic, b"the a")
            _wait_for(lambda: one.metrics()["request-total"] == sent + 1)
            one.send(topic, b"the b")
            _wait_for(lambda: one.metrics()["request-total"] == sent + min(2, in_flight))
        finally:
            bench.proxy.release()
        one.flush(180)
        assert one.metrics()["record-retry-total"] >= 1
    assert bench.values(topic) == [b"first", *(b"the " + name for name in log)]


def _wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
