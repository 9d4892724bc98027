"""The producer against brokers: BROKER=ottla (the default) or kafka, each a process of its own."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.client.producer.bench import MARKS, Bench, trouble

from ottla.client import (
    DeadlineError,
    Producer,
    RefusedError,
    UsageError,
    partition_of_key,
)
from ottla.client.producer.failed_records import to_file, to_topic
from ottla.errors import ErrorCode
from ottla.record.batch import Record

pytestmark = MARKS


def test_a_record_arrives_and_its_future_has_the_offset(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic(retention_ms="-1")  # the timestamp is old
    with producer() as one:
        first = one.send(topic, b"a", key=b"k", headers={"h": b"1"}, timestamp=123).result(180)
        second = one.send(topic, None, headers=[("h", None), ("h", b"2")]).result(180)
    assert (first.topic, first.partition, first.offset, first.timestamp) == (topic, 0, 0, 123)
    assert second.offset == 1
    assert bench.records(topic)[0] == Record(0, 123, b"k", b"a", (("h", b"1"),))
    assert bench.records(topic)[1][2:] == (None, None, (("h", None), ("h", b"2")))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(bench: Bench, producer: Callable[..., Producer], codec: str) -> None:
    topic = bench.topic()
    sent = [b"%d " % n * 50 for n in range(500)]
    with producer(compression_type=codec) as one:
        for value in sent:
            one.send(topic, value)
    assert bench.values(topic) == sent


def test_keys_decide_and_records_without_one_spread(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic(5)
    with producer(linger_ms=50, batch_size=500) as one:
        keyed = {b"key-%d" % n: one.send(topic, b"v", key=b"key-%d" % n) for n in range(50)}
        loose = [one.send(topic, b"%03d" % n) for n in range(1_000)]
        one.flush(180)
    assert all(sent.result(0).partition == partition_of_key(key, 5) for key, sent in keyed.items())
    assert len({sent.result(0).partition for sent in loose}) > 1


def test_round_robin_100(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic(5)
    with producer(partitioner_class="round_robin") as one:
        for _ in range(100):
            one.send(topic, b"v")
    assert [len(bench.values(topic, n)) for n in range(5)] == [20] * 5


def test_a_partitioner_of_the_application(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic(3)
    with producer({"partitioner": lambda _t, key, _v, partitions, _led: partitions[len(key) % 3]}) as one:
        assert one.send(topic, b"v", key=b"xx").result(180).partition == 2
    with producer({"partitioner": lambda *_: 7}) as one, pytest.raises(RefusedError, match="partitions 0 to 2"):
        one.send(topic, b"v", key=b"xx")


def test_serializers_interceptors_and_callbacks(bench: Bench, producer: Callable[..., Producer]) -> None:
    seen: list[object] = []

    class Marks:
        def on_send(self, record: Any) -> Any:
            return record._replace(value=[*record.value, "marked"])

        def on_acknowledgement(self, metadata: Any, error: Any) -> None:
            seen.append(("acknowledged", metadata.offset, error))

    topic = bench.topic()
    to_json: Callable[[Any], bytes] = lambda value: json.dumps(value).encode()  # noqa: E731
    with producer({"value_serializer": to_json, "interceptors": [Marks()]}) as one:
        sent = one.send(topic, ["x"], on_delivery=lambda metadata, _: seen.append(("told", metadata.offset)))
        sent.result(180)
        with pytest.raises(UsageError, match="serializer raised"):
            one.send(topic, [object()])
    assert bench.values(topic) == [b'["x", "marked"]']
    assert seen == [("acknowledged", 0, None), ("told", 0)]


def test_callbacks_that_raise_stop_nothing_and_may_not_wait(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic()
    caught: list[str] = []
    with producer() as one:

        def told(_metadata: object, _error: object) -> None:
            later = one.send(topic, b"from a callback")
            for wait in (later.result, one.flush, lambda: one.send("no-such-topic-yet", b"x")):
                try:
                    wait()
                except UsageError as error:
                    caught.append(error.cause)
            raise ValueError("a callback's own")

        one.send(topic, b"first", on_delivery=told).result(180)
        one.flush(180)
    assert bench.values(topic) == [b"first", b"from a callback"]
    assert len(caught) == 3


def test_size_limits(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic(max_message_bytes="10")
    with producer(max_request_size=20) as one:
        with pytest.raises(RefusedError) as refused:
            one.send(topic, bytes(8)).result(180)  # a record of 15 bytes
        assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
        with pytest.raises(UsageError, match=r"larger than max\.request\.size"):
            one.send(topic, bytes(100))


def test_a_batch_too_large_for_its_topic_is_split(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic(max_message_bytes="1000")
    sent = [b"%03d" % n * 30 for n in range(100)]
    with producer(linger_ms=100) as one:
        futures = [one.send(topic, value) for value in sent]
        assert [future.result(180).offset for future in futures] == list(range(100))
        assert one.metrics()["batch-split-total"] > 0
    assert bench.values(topic) == sent


def test_topics_that_cannot_be(bench: Bench, producer: Callable[..., Producer]) -> None:
    with producer(max_block_ms=3_000, allow_auto_create_topics=False) as one:
        with pytest.raises(DeadlineError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            one.send("nowhere", b"v")
        with pytest.raises(RefusedError) as refused:
            one.send("not a name!", b"v")
        assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
        for name in ("", "x" * 250, "\ud800", 7):
            with pytest.raises(UsageError, match="not the name of a topic"):
                one.send(name, b"v")  # type: ignore[arg-type]  # as an application might
        topic = bench.topic(2)
        assert one.partitions_for(topic) == [0, 1]
        with pytest.raises(RefusedError, match="partitions 0 to 1"):
            one.send(topic, b"v", partition=2)
        for wrong in ({"value": "text"}, {"key": 1}, {"headers": 5}, {"headers": {"h": "x"}}, {"timestamp": -1}):
            with pytest.raises(UsageError):
                one.send(topic, **wrong)
        assert one.send(topic, bytearray(b"v"), partition=0).result(180).offset == 0


def test_nothing_is_accepted_after_close_or_fork(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic()
    one = producer()
    one.send(topic, b"v").result(180)
    child = os.fork()
    if child == 0:
        try:
            one.send(topic, b"child")
        except UsageError as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    one.close()
    one.close()
    for late in (lambda: one.send(topic, b"late"), lambda: one.partitions_for(topic)):
        with pytest.raises(UsageError, match="closed"):
            late()
    assert bench.values(topic) == [b"v"]


def test_full_memory_blocks_until_there_is_room(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic()
    one = producer(buffer_memory=100_000, linger_ms=60_000)
    futures = [one.send(topic, bytes(10_000)) for _ in range(50)]  # five times the memory
    one.flush(180)
    assert all(future.exception(0) is None for future in futures)
    assert one.metrics()["buffer-available-bytes"] == 100_000


def test_full_memory_is_an_error_after_max_block_ms(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic()
    one = producer(buffer_memory=100_000, max_block_ms=2000)
    assert one.send(topic, b"first").result(180).offset == 0
    bench.proxy.hold()
    try:
        accepted = []
        with pytest.raises(DeadlineError, match=r"buffer\.memory"):  # noqa: PT012  one of them raises
            for _ in range(20):
                accepted.append(one.send(topic, bytes(10_000)))
        assert 0 < len(accepted) < 20
    finally:
        bench.proxy.release()
    one.flush(180)
    assert [future.result(0).offset for future in accepted] == list(range(1, len(accepted) + 1))


def test_an_unreachable_cluster_is_named_in_the_error(producer: Callable[..., Producer]) -> None:
    one = producer(bootstrap_servers="127.0.0.1:1", max_block_ms=2000)
    with pytest.raises(DeadlineError, match="cannot connect"):
        one.send("t", b"v")


def test_idempotence_holds_when_connections_are_lost(bench: Bench) -> None:
    topic = bench.topic(2)
    settings = {"bootstrap.servers": bench.bootstrap, "linger.ms": 1, "batch.size": 400, "retry.backoff.ms": 10}
    with Producer(settings) as one:
        one.partitions_for(topic)
        futures = []
        with trouble(bench.proxy):
            for at in range(3_000):
                futures.append(one.send(topic, b"%05d" % at, partition=at % 2))
                if at % 10 == 0:
                    time.sleep(0.005)
        one.flush(180)
        assert one.metrics()["record-retry-total"] > 0
    assert all(future.exception(0) is None for future in futures)
    for partition in (0, 1):
        assert bench.values(topic, partition) == [b"%05d" % at for at in range(partition, 3_000, 2)]


def test_records_that_fail_are_recorded(bench: Bench, producer: Callable[..., Producer], tmp_path: Path) -> None:
    topic, rest = bench.topic(max_message_bytes="200"), bench.topic()
    path = tmp_path / "failed.jsonl"
    with producer({"on_failed": to_file(path)}) as one:
        assert isinstance(one.send(topic, bytes(300), key=b"k").exception(30), RefusedError)
    (line,) = map(json.loads, path.read_text().splitlines())
    assert (line["topic"], base64.b64decode(line["value"])) == (topic, bytes(300))
    assert "MESSAGE_TOO_LARGE" in line["error"]
    other = producer()
    with producer({"on_failed": to_topic(other.send, rest)}) as one:
        other.partitions_for(rest)
        one.send(topic, bytes(300)).exception(30)
    other.flush(180)
    assert dict(bench.records(rest)[0].headers)["ottla.failed.topic"] == topic.encode()


def test_closing_at_once_fails_what_is_left(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic()
    one = producer(linger_ms=60_000)
    one.partitions_for(topic)
    left = one.send(topic, b"v")
    one.close(0)
    assert left.done()
    with pytest.raises(UsageError, match="closed before"):
        left.result(0)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_connection_that_comes_too_late_is_closed(bench: Bench, producer: Callable[..., Producer]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    bench.proxy.hold()
    try:
        one = producer(max_block_ms=300)
        with pytest.raises(DeadlineError):
            one.send("any", b"v")
        connecting = [each for each in threading.enumerate() if each.name.startswith("ottla-connect")]
        one.close(0)
    finally:
        bench.proxy.release()
    assert connecting
    for each in connecting:
        each.join(180)
    ours = {fd for fd in set(os.listdir("/proc/self/fd")) - before if _peer(int(fd)) == bench.proxy.address}
    assert not ours


def _peer(fd: int) -> str | None:
    """The peer of a socket; None for another kind of object."""
    try:
        with socket.socket(fileno=os.dup(fd)) as one:
            host, port = one.getpeername()[:2]
            return f"{host}:{port}"
    except (OSError, ValueError):
        return None


def test_closing_in_a_callback_delivers_the_rest(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic()
    one = producer()
    one.send(topic, b"first", on_delivery=lambda *_: one.close()).result(180)
    one.close()
    with pytest.raises(UsageError, match="closed"):
        one.send(topic, b"late")
    assert bench.values(topic) == [b"first"]


@pytest.mark.parametrize("ending", ["", "del producer", "sys.exit(3)"])
def test_a_program_that_ends_delivers_what_it_sent(bench: Bench, ending: str) -> None:
    topic = bench.topic()
    program = f"""
import sys, warnings
from ottla.client import Producer
warnings.simplefilter("ignore", ResourceWarning)
producer = Producer({{"bootstrap.servers": "{bench.bootstrap}", "linger.ms": 60_000}})
for at in range(100):
    producer.send("{topic}", b"%d" % at)
{ending}
"""
    subprocess.run([sys.executable, "-c", program], check=ending != "sys.exit(3)", timeout=300)
    assert bench.values(topic) == [b"%d" % at for at in range(100)]


def test_a_program_that_cannot_deliver_logs_that(bench: Bench) -> None:
    program = f"""
from ottla.client import Producer
producer = Producer({{"bootstrap.servers": "{bench.bootstrap}", "request.timeout.ms": 300}})
producer.partitions_for("{bench.topic()}")
input(producer.metrics()["connection-count"])
producer.send("topic-{bench._topics}", b"lost")
"""
    words = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=0) as child:
        assert child.stdout is not None
        child.stdout.read(1)  # it is connected
        bench.proxy.hold()
        try:
            _, said = child.communicate("\n", 60)
        finally:
            bench.proxy.release()
    assert "1 batches of records were not delivered" in said


def test_acks_0_and_1(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic()
    with producer(acks="0") as one:
        assert one.send(topic, b"0").result(180).offset == -1
    deadline = time.monotonic() + 180
    while not bench.records(topic):  # it is sent, and may not have arrived
        assert time.monotonic() < deadline
    with producer(acks="1") as one:
        assert one.send(topic, b"1").result(180).offset == 1
