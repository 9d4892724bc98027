"""The workloads of a peer whose CPU is measured. Every function returns plain numbers."""

from __future__ import annotations

import json
import statistics
import struct
import subprocess
import threading
import time
from bisect import bisect
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers import HOST, Cpu, Observed, Peer, rss_mib
from ottla.record.batch import Record, encode_batch
from ottla.wire.codec import encode_bytes
from ottla.wire.header import encode_request_header
from ottla.wire.messages import FetchRequest, ProduceRequest

PRODUCE_VERSION = 7
FETCH_VERSION = 11
TOPIC = "bench"
PARTITIONS = 4


def make_topic(port: int, name: str, partitions: int = PARTITIONS, config: dict[str, str] | None = None) -> None:
    """Create a topic and wait until it can be used."""
    admin = AdminClient({"bootstrap.servers": f"{HOST}:{port}"})
    for future in admin.create_topics([NewTopic(name, partitions, 1, config=config or {})]).values():
        future.result(30)


def delete_topic(port: int, name: str) -> None:
    """Delete a topic, and so its records in memory."""
    admin = AdminClient({"bootstrap.servers": f"{HOST}:{port}"})
    for future in admin.delete_topics([name]).values():
        future.result(30)


def produce_frame(topic: str, acks: int, records: int, size: int, partition: int = 0) -> bytes:
    """A whole Produce request with its length prefix."""
    batch = encode_batch([Record(i, 1_700_000_000_000 + i, None, b"x" * size, ()) for i in range(records)])
    data = ProduceRequest.PartitionProduceData(index=partition, records=memoryview(bytes(batch)))
    request = ProduceRequest(
        acks=acks, timeout_ms=30_000, topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    )
    frame = encode_request_header(0, PRODUCE_VERSION, 7, "bench") + encode_bytes(request, PRODUCE_VERSION)
    return struct.pack(">i", len(frame)) + frame


def fetch_frame(topic: str, offset: int, size: int) -> bytes:
    """A whole Fetch request, with its length prefix, for up to `size` bytes of partition 0."""
    wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=size)
    asked = FetchRequest.FetchTopic(topic=topic, partitions=[wanted])
    request = FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=50 << 20, session_epoch=-1, topics=[asked])
    frame = encode_request_header(1, FETCH_VERSION, 7, "bench") + encode_bytes(request, FETCH_VERSION)
    return struct.pack(">i", len(frame)) + frame


def load(program: Path, peer: Peer, frame: Path, connections: int, depth: int, requests: int) -> dict[str, float]:
    """Run the C load generator; adds the peer's CPU as `broker_cpu` seconds."""
    command = [str(program), str(peer.port), str(connections), str(depth), str(requests), str(frame)]
    with Cpu(peer.pid) as cpu:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    result["broker_cpu"] = cpu.seconds
    return result


def client_produce(peer: Peer, topic: str, size: int, batch: int, total_bytes: int, acks: str) -> float:
    """Produce with librdkafka; CPU seconds of the broker per GB of values."""
    bootstrap = f"{HOST}:{peer.port}"
    return cpu_of_produce(bootstrap, (peer.pid,), topic, size=size, batch=batch, total_bytes=total_bytes, acks=acks)


def cpu_of_produce(
    bootstrap: str,
    pids: Sequence[int],
    topic: str,
    *,
    size: int,
    batch: int,
    total_bytes: int,
    acks: str,
    settings: Mapping[str, object] = MappingProxyType({}),
) -> float:
    """Produce with librdkafka; CPU seconds of these processes per GB of values."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "batch.size": batch,
            "batch.num.messages": 1_000_000,
            "linger.ms": 5 if batch <= 65536 else 50,
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 64 * 1024,
            "message.max.bytes": 1_048_576,
            **settings,
        }
    )
    value = b"x" * size
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    with Cpu(*pids) as cpu:
        for _ in range(total_bytes // size):
            while True:
                try:
                    producer.produce(topic, value, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.01)
            producer.poll(0)
        producer.flush(60)
    assert not failed, failed[0]
    return cpu.seconds / total_bytes * 1e9


DEFAULTS: Mapping[str, object] = {}
EAGER: Mapping[str, object] = {"fetch.queue.backoff.ms": 1, "queued.min.messages": 1_000_000, "check.crcs": False}
"""Settings of a consumer that fetches as soon as it can. With its own settings it pauses for a second when it has
100,000 records buffered, which is nearly always with small records."""


def client_fetch(peer: Peer, topic: str, size: int, total_bytes: int, settings: Mapping[str, object]) -> float:
    """Consume with librdkafka by assigned partitions; CPU seconds of the broker per GB of values."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": f"{HOST}:{peer.port}",
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **settings,
        }
    )
    wanted = total_bytes // size
    got = 0
    with Cpu(peer.pid) as cpu:
        consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        deadline = time.monotonic() + 120
        while got < wanted:
            messages = consumer.consume(10_000, 1.0)
            got += len(messages)
            assert time.monotonic() < deadline, f"only {got} of {wanted} records came back"
    consumer.close()
    return cpu.seconds / (got * size) * 1e9


def end_to_end(peer: Peer, acks: str, rate: int, messages: int) -> float:
    """Median latency from produce() to poll(), in ms, at `rate` messages a second."""
    return statistics.median(came - left for left, came in journeys(peer, acks, rate, messages)) * 1e3


def journeys(peer: Peer, acks: str, rate: int, messages: int) -> list[tuple[float, float]]:
    """Times at which messages were passed to produce() and returned by poll(), in seconds, without the warm-up."""
    topic = f"latency-{time.monotonic_ns()}"
    make_topic(peer.port, topic, 1)
    producer = confluent_kafka.Producer({"bootstrap.servers": f"{HOST}:{peer.port}", "linger.ms": 0, "acks": acks})
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": f"{HOST}:{peer.port}", "group.id": "bench", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    seen: list[tuple[float, float]] = []
    warmup = messages // 8

    def read() -> None:
        deadline = time.monotonic() + messages / rate + 30
        while len(seen) < messages + warmup and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                seen.append((struct.unpack("d", message.value()[:8])[0], time.perf_counter()))

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.5)
    for _ in range(messages + warmup):
        at = time.perf_counter()
        producer.produce(topic, struct.pack("d", at) + b"x" * 92, partition=0)
        producer.poll(0)
        while (left := at + 1 / rate - time.perf_counter()) > 0:
            producer.poll(left)
    producer.flush(10)
    reader.join()
    consumer.close()
    assert len(seen) == messages + warmup, f"only {len(seen)} of {messages + warmup} messages arrived"
    return seen[warmup:]


def outside(peer: Observed, acks: str, rate: int, messages: int) -> float:
    """Median latency outside the broker in ms: until the broker wakes, and from its answer to the reader."""
    trips = journeys(peer, acks, rate, messages)
    notes = peer.notes()
    times = [when for _, when in notes]
    found: list[float] = []
    for left, came in trips:
        during = notes[bisect(times, left) : bisect(times, came)]
        woke = next((when for what, when in during if what == "wake"), None)
        sent = next((when for what, when in during if what == "send"), None)
        if woke is not None and sent is not None:
            found.append(woke - left + came - sent)
    assert len(found) > messages // 2, "the broker noted too little"
    return statistics.median(found) * 1e3


def idle(peer: Peer, seconds: float) -> dict[str, float]:
    """Memory, and CPU in percent of a core, of an idle broker."""
    with Cpu(peer.pid) as cpu:
        time.sleep(seconds)
    return {"rss_mib": rss_mib(peer.pid), "cpu_percent": cpu.seconds / seconds * 100}
