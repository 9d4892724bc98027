"""The measurements of `ottla perf`: send records, read them, or time each one from end to end.

Zone: real. Prints only progress, in a terminal.
"""

from __future__ import annotations

import random
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from ottla.cli.clients import make_consumer, make_producer
from ottla.cli.options import ClientSettings
from ottla.cli.perf_stats import Latencies, due_in_s
from ottla.cli.views.output import Json
from ottla.cli.views.progress import Progress
from ottla.utf8 import encode_text

if TYPE_CHECKING:
    from ottla.client import ClientError, Consumer, Producer, TopicPartition

_MIB = 1 << 20
_DRAWN_BYTES = 16 * _MIB
_SLEEP_FROM_S = 0.001
"""Pauses shorter than this are not slept: the next one is longer by them."""
_POLL_S = 0.2


class Load(NamedTuple):
    """What to send."""

    topic: str
    records: int
    values: Iterator[bytes]
    per_second: float
    """At most; ≤ 0: no limit."""
    warmup: int
    """How many first records are sent without being counted."""
    transaction_s: float | None
    """How long a transaction lasts; None: no transactions."""


@dataclass
class Sent:
    """How sending went."""

    size: int = 0
    """Bytes of the values that were counted."""
    seconds: float = 0.0
    cpu_s: float = 0.0
    """Of this process, from the first counted record on."""
    latencies: Latencies = field(default_factory=Latencies)
    failed: int = 0
    error: ClientError | None = None
    """The first one."""
    metrics: dict[str, float] = field(default_factory=dict)

    def document(self) -> dict[str, Json]:
        """As JSON."""
        seconds = max(self.seconds, 1e-9)
        return {
            "records": self.latencies.count,
            "failed": self.failed,
            "bytes": self.size,
            "seconds": round(self.seconds, 6),
            "records_per_s": round(self.latencies.count / seconds, 1),
            "mib_per_s": round(self.size / _MIB / seconds, 3),
            "cpu_s": round(self.cpu_s, 6),
            "latency_ms": self.latencies.document(),
        }


def make_payloads(size: int, file: str | None, delimiter: str, *, monotonic: bool) -> Iterator[bytes]:
    """Values without end. Raises click.UsageError for a file without any."""
    if monotonic:
        return (b"%d" % number for number in _count_up())
    # A fixed seed: two runs send the same values, which compress equally well.
    draw = random.Random(0)
    if file is None:
        letters = range(65, 91)
        # Drawing letters is slow, so a limited number of values is drawn before the run and repeated.
        some = max(1, min(1_000, _DRAWN_BYTES // size))
        return cycle([bytes(draw.choices(letters, k=size)) for _ in range(some)])
    parts = [part for part in Path(file).read_bytes().split(_unescape_delimiter(delimiter)) if part]
    if not parts:
        raise click.UsageError(f"{file} holds no value")
    return iter(lambda: draw.choice(parts), None)


def _count_up() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def _unescape_delimiter(text: str) -> bytes:
    if not text:
        raise click.UsageError("the delimiter is empty")
    return encode_text(text.replace("\\n", "\n").replace("\\t", "\t"))


# -- produce -----------------------------------------------------------------------------------------------------------


def send_all(load: Load, settings: ClientSettings, transactional_id: str | None) -> Sent:
    """Send the records, and wait for every response. Raises ClientError when sending itself fails."""
    if load.transaction_s is not None:
        settings = {**settings, "transactional.id": transactional_id or f"performance-producer-{uuid.uuid4()}"}
    sent = Sent()
    with make_producer(overrides=settings) as producer, Progress("sent", shown=not sys.stdout.isatty()) as progress:
        if load.transaction_s is None:
            _send_records(producer, load, sent, progress)
        else:
            producer.init_transactions()
            _send_in_transactions(producer, load, sent, progress, load.transaction_s)
        sent.metrics = producer.metrics()
    return sent


def _send_records(producer: Producer, load: Load, sent: Sent, progress: Progress) -> None:
    for _ in _paced_numbers(load, sent, producer):
        progress.add_progress(1, _send_one(producer, load, sent))
    producer.flush()
    _stop_clock(sent)


def _send_in_transactions(producer: Producer, load: Load, sent: Sent, progress: Progress, transaction_s: float) -> None:
    until = 0.0
    for number in _paced_numbers(load, sent, producer):
        if time.monotonic() >= until:
            if number:
                producer.commit_transaction()
            producer.begin_transaction()
            until = time.monotonic() + transaction_s
        progress.add_progress(1, _send_one(producer, load, sent))
    producer.commit_transaction()
    _stop_clock(sent)


def _paced_numbers(load: Load, sent: Sent, producer: Producer) -> Iterator[int]:
    """The numbers of the records, each when it is due; the clock starts after the warm-up."""
    began = time.monotonic()
    _start_clock(sent)
    for number in range(load.records):
        # Wait for the warm-up's acknowledgements: later ones would count into the measured latencies.
        if number and number == load.warmup:
            producer.flush()
            sent.latencies, sent.size = Latencies(), 0
            _start_clock(sent)
        pause_s = due_in_s(number, load.per_second, time.monotonic() - began)
        if pause_s >= _SLEEP_FROM_S:
            time.sleep(pause_s)
        yield number


def _send_one(producer: Producer, load: Load, sent: Sent) -> int:
    value = next(load.values)
    began = time.perf_counter_ns()

    def decided(_: object, error: ClientError | None) -> None:
        if error is None:
            sent.latencies.add_latency((time.perf_counter_ns() - began) // 1_000)
        else:
            sent.failed += 1
            sent.error = sent.error or error

    producer.send(load.topic, value, on_delivery=decided)
    sent.size += len(value)
    return len(value)


def _start_clock(sent: Sent) -> None:
    # `_stop_clock` adds the time of the end: the difference remains.
    sent.seconds, sent.cpu_s = -time.monotonic(), -time.process_time()


def _stop_clock(sent: Sent) -> None:
    sent.seconds += time.monotonic()
    sent.cpu_s += time.process_time()


# -- consume -----------------------------------------------------------------------------------------------------------


@dataclass
class Consumed:
    """How reading went."""

    began_s: float
    """Seconds since 1970."""
    records: int = 0
    size: int = 0
    """Bytes of keys and values."""
    seconds: float = 0.0
    cpu_s: float = 0.0
    joining_s: float = 0.0
    """Time without assigned partitions: before the first assignment, and during each rebalance."""

    def document(self) -> dict[str, Json]:
        """As JSON."""
        seconds = max(self.seconds, 1e-9)
        fetching = max(self.seconds - self.joining_s, 1e-9)
        return {
            "records": self.records,
            "bytes": self.size,
            "seconds": round(self.seconds, 6),
            "records_per_s": round(self.records / seconds, 1),
            "mib_per_s": round(self.size / _MIB / seconds, 3),
            "rebalance_ms": round(self.joining_s * 1_000, 3),
            "fetch_records_per_s": round(self.records / fetching, 1),
            "fetch_mib_per_s": round(self.size / _MIB / fetching, 3),
            "cpu_s": round(self.cpu_s, 6),
        }


def read_all(topic: str, count: int, settings: ClientSettings, patience_s: float, *, table: bool) -> Consumed:
    """Read `count` records; or stop when, with partitions assigned, none came for `patience_s`.

    Raises ClientError.
    """
    settings.setdefault("group.id", f"perf-consumer-{random.randrange(100_000)}")
    seen = Consumed(time.time())
    began, cpu = time.monotonic(), time.process_time()
    absent: float | None = began

    def revoked(_: list[TopicPartition]) -> None:
        nonlocal absent
        absent = time.monotonic()

    def assigned(_: list[TopicPartition]) -> None:
        nonlocal absent
        seen.joining_s += 0 if absent is None else time.monotonic() - absent
        absent = None

    with make_consumer(overrides=settings) as consumer, Progress("read", shown=not sys.stdout.isatty()) as progress:
        consumer.subscribe([topic], on_assigned=assigned, on_revoked=revoked)
        last = time.monotonic()
        while seen.records < count and time.monotonic() < last + patience_s:
            records, size = (_read_table if table else _read_records)(consumer)
            seen.records += records
            seen.size += size
            progress.add_progress(records, size)
            # Time without partitions, as in a rebalance, does not count against the patience.
            last = time.monotonic() if records or absent is not None else last
        seen.seconds, seen.cpu_s = time.monotonic() - began, time.process_time() - cpu
    return seen


def _read_records(consumer: Consumer) -> tuple[int, int]:
    """The number of records, and their bytes, of one poll."""
    records = consumer.poll(_POLL_S)
    return len(records), sum(len(each.key or b"") + len(each.value or b"") for each in records)


def _read_table(consumer: Consumer) -> tuple[int, int]:
    import pyarrow.compute as pc

    table = consumer.poll_table(_POLL_S)
    sizes = [pc.sum(pc.binary_length(table[name])).as_py() or 0 for name in ("key", "value")]
    return table.num_rows, sum(sizes)


# -- end to end --------------------------------------------------------------------------------------------------------


def pass_all(
    topic: str, records: int, size: int, acks: str, per_second: float, warmup: int, patience_s: float
) -> Latencies:
    """Time each record from `send` until it is read, one after the other. Raises ClientError, click.ClickException."""
    latencies = Latencies()
    values = make_payloads(size, None, "\\n", monotonic=False)
    with make_producer({"linger.ms": 0, "acks": acks}) as producer, make_consumer() as consumer:
        consumer.assign(consumer.partitions_for_topic(topic))
        consumer.seek_to_end()
        # Resolve the end offsets now: the first record must not be sent before the consumer knows where it begins.
        for tp in consumer.assignment():
            consumer.position(tp)
        began = time.monotonic()
        for number in range(records):
            time.sleep(due_in_s(number, per_second, time.monotonic() - began))
            us = _pass_record(producer, consumer, topic, next(values), patience_s)
            if number >= warmup:
                latencies.add_latency(us)
    return latencies


def _pass_record(producer: Producer, consumer: Consumer, topic: str, value: bytes, patience_s: float) -> int:
    """Microseconds from `send` until the record was read."""
    began = time.perf_counter_ns()
    sent = producer.send(topic, value)
    sent.result()
    until = time.monotonic() + patience_s
    while not (records := consumer.poll(_POLL_S)):
        if time.monotonic() > until:
            raise click.ClickException(f"the record was written, but not read within {patience_s:g} s")
    us = (time.perf_counter_ns() - began) // 1_000
    where = sent.result()
    read = [(each.partition, each.offset, each.value) for each in records]
    if read != [(where.partition, where.offset, value)]:
        raise click.ClickException(
            f"the record that was read is not the one written: use another topic than {topic}, without other producers"
        )
    return us
