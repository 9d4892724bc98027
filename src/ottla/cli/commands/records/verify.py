"""`ottla verify`: write and read numbers, printing an event per line, as Kafka's verifiable producer and consumer.

Zone: real. Names and fields of the events are those of `org.apache.kafka.tools.VerifiableProducer` and
`VerifiableConsumer`, which Kafka's system tests read. SIGTERM and Ctrl-C end it in order, with all events printed.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ottla.cli.clients import make_consumer, make_producer
from ottla.cli.failure import CommandFailed
from ottla.cli.name_options import complete_groups, named_topic, topic_words
from ottla.cli.options import ClientSettings, common_options
from ottla.cli.perf_stats import due_in_s
from ottla.cli.views.output import Json

if TYPE_CHECKING:
    from ottla.client import ClientError, Consumer, ConsumerRecord, OffsetAndMetadata, TopicPartition

_POLL_S = 0.5
_PAUSE_S = 0.1
_SESSION_TIMEOUT_MS = 30_000


class Events:
    """Prints events, from any thread, unbuffered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def write_event(self, name: str, **fields: Json) -> None:
        """Print one event."""
        event = {"timestamp": int(time.time() * 1_000), "name": name, **fields}
        line = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        with self._lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


@contextmanager
def _stop_on_signals(tell: Callable[[], None] = lambda: None) -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set; they then call `tell`."""
    asked = threading.Event()

    def end(*_: object) -> None:
        asked.set()
        tell()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.group()
def verify() -> None:
    """Write and read numbers, printing an event per line, as Kafka's verifiable clients."""


# -- produce -----------------------------------------------------------------------------------------------------------


@verify.command()
@topic_words
@click.option("--max-messages", type=int, default=-1, help="Number of records to write; -1 for no limit.")
@click.option("--throughput", type=float, default=-1, metavar="N", help="Records per second at most; -1: no limit.")
@click.option(
    "--acks", type=click.Choice(["0", "1", "-1", "all"]), default="-1", help="acks; -1, which is all, by default."
)
@click.option(
    "--message-create-time",
    type=int,
    default=-1,
    metavar="MS",
    help="Timestamp of the first record; -1: the present time.",
)
@click.option("--value-prefix", type=int, metavar="N", help="Prefix of the values: N.0, N.1 …")
@click.option("--repeating-keys", type=click.IntRange(min=1), metavar="N", help="Use the keys 0 to N-1, in a cycle.")
@common_options
def produce(
    topic: str | None,
    topic_option: str | None,
    max_messages: int,
    throughput: float,
    acks: str,
    message_create_time: int,
    value_prefix: int | None,
    repeating_keys: int | None,
) -> None:
    """Write 0, 1, 2 … to TOPIC, and print the outcome of each."""
    name = named_topic(topic, topic_option)
    # As Kafka's: no retries, so that every failure is seen; a setting may change that.
    defaults: ClientSettings = {"acks": acks, "retries": 0, "allow.auto.create.topics": True}
    run = _Producing(name, value_prefix, repeating_keys, message_create_time)
    with _stop_on_signals() as asked:
        run.run_producer(defaults, max_messages, throughput, asked)


class _Producing:
    """One run of the producer."""

    def __init__(self, topic: str, prefix: int | None, keys: int | None, create_time: int) -> None:
        self._topic = topic
        self._prefix = "" if prefix is None else f"{prefix}."
        self._keys = keys
        self._create_time = create_time
        self._events = Events()
        self._sent = 0
        self._acked = 0

    def run_producer(self, defaults: ClientSettings, most: int, per_second: float, asked: threading.Event) -> None:
        """Write until there are `most` records, or until `asked` is set."""
        began = time.monotonic()
        with make_producer(defaults) as producer:
            self._events.write_event("startup_complete")
            while not asked.is_set() and (most < 0 or self._sent < most):
                key = None if self._keys is None else str(self._sent % self._keys)
                self._send_value(producer.send, key, f"{self._prefix}{self._sent}", time.monotonic() - began)
                asked.wait(due_in_s(self._sent, per_second, time.monotonic() - began))
        self._events.write_event("shutdown_complete")
        average = self._acked / max(time.monotonic() - began, 1e-9)
        self._events.write_event(
            "tool_data", sent=self._sent, acked=self._acked, target_throughput=int(per_second), avg_throughput=average
        )
        # The producer is closed by now, so every record is decided.
        if self._acked < self._sent:
            raise CommandFailed(
                f"{self._sent - self._acked:,} of {self._sent:,} records were not acknowledged: see producer_send_error"
            )

    def _send_value(self, send: Callable[..., object], key: str | None, value: str, elapsed_s: float) -> None:
        from ottla.client import ClientError

        def decided(metadata: object, error: ClientError | None) -> None:
            self._on_decided(key, value, metadata, error)

        stamp = None if self._create_time < 0 else self._create_time + int(elapsed_s * 1_000)
        # Count before sending: a record that `send` refuses counts as sent and not acknowledged.
        self._sent += 1
        try:
            encoded = None if key is None else key.encode()
            send(self._topic, value.encode(), key=encoded, timestamp=stamp, on_delivery=decided)
        except ClientError as error:
            self._on_decided(key, value, None, error)

    def _on_decided(self, key: str | None, value: str, metadata: object, error: ClientError | None) -> None:
        from ottla.client.producer import RecordMetadata

        if error is not None:
            kind = f"class {type(error).__module__}.{type(error).__qualname__}"
            fields = {"topic": self._topic, "key": key, "value": value, "exception": kind, "message": str(error)}
            self._events.write_event("producer_send_error", **fields)
            return
        assert isinstance(metadata, RecordMetadata)
        self._acked += 1
        self._events.write_event(
            "producer_send_success",
            key=key,
            value=value,
            offset=metadata.offset,
            topic=metadata.topic,
            partition=metadata.partition,
        )


# -- consume -----------------------------------------------------------------------------------------------------------


@verify.command()
@topic_words
@click.option("-g", "--group-id", required=True, shell_complete=complete_groups, help="The consumer group.")
@click.option("--group-instance-id", metavar="ID", help="Be a static member with this name.")
@click.option("--max-messages", type=int, default=-1, help="Number of records to read; -1 for no limit.")
@click.option("--session-timeout", type=click.IntRange(min=1), default=_SESSION_TIMEOUT_MS, metavar="MS",
              show_default=True, help="session.timeout.ms.")  # fmt: skip
@click.option("--verbose", is_flag=True, help="Print also an event for every record.")
@click.option("--enable-autocommit", is_flag=True, help="Commit at intervals, not after every poll.")
@click.option("--reset-policy", default="earliest", show_default=True, help="auto.offset.reset.")
@click.option("--assignment-strategy", default="range", show_default=True, help="An assignor's name, or Kafka's class.")
@common_options
def consume(
    topic: str | None,
    topic_option: str | None,
    group_id: str,
    group_instance_id: str | None,
    max_messages: int,
    session_timeout: int,
    verbose: bool,
    enable_autocommit: bool,
    reset_policy: str,
    assignment_strategy: str,
) -> None:
    """Read TOPIC in a group, and print what is assigned, read and committed."""
    overrides: ClientSettings = {
        "group.id": group_id,
        "session.timeout.ms": session_timeout,
        "enable.auto.commit": enable_autocommit,
        "auto.offset.reset": reset_policy,
        "partition.assignment.strategy": assignment_strategy,
    }
    if group_instance_id is not None:
        overrides["group.instance.id"] = group_instance_id
    run = _Consuming(max_messages, verbose=verbose, commits=not enable_autocommit)
    consumer = make_consumer(overrides=overrides)
    with _stop_on_signals(consumer.wakeup) as asked:
        run.run_consumer(consumer, named_topic(topic, topic_option), asked)


class _Consuming:
    """One run of the consumer."""

    def __init__(self, most: int, *, verbose: bool, commits: bool) -> None:
        self._most = most
        self._verbose = verbose
        self._commits = commits
        self._events = Events()
        self._seen = 0

    @property
    def _is_finished(self) -> bool:
        return 0 <= self._most <= self._seen

    def run_consumer(self, consumer: Consumer, topic: str, asked: threading.Event) -> None:
        """Read until there are enough records, or until `asked` is set."""
        from ottla.client import WakeupError

        try:
            with consumer:
                self._events.write_event("startup_complete")
                consumer.subscribe([topic], on_assigned=self._on_assigned, on_revoked=self._on_revoked)
                while not asked.is_set() and not self._is_finished:
                    records = consumer.poll(_POLL_S)
                    if records:
                        self._report_records(consumer, records)
        except WakeupError:
            if not asked.is_set():
                raise
        finally:
            if asked.is_set():
                self._events.write_event("shutdown_requested")
            self._events.write_event("shutdown_complete")

    def _on_assigned(self, partitions: list[TopicPartition]) -> None:
        self._events.write_event("partitions_assigned", partitions=[_partition_fields(each) for each in partitions])

    def _on_revoked(self, partitions: list[TopicPartition]) -> None:
        self._events.write_event("partitions_revoked", partitions=[_partition_fields(each) for each in partitions])

    def _report_records(self, consumer: Consumer, records: Sequence[ConsumerRecord]) -> None:
        """Print what was read, per partition, and commit it; at most as many records as are wanted."""
        from ottla.client import TopicPartition

        wanted = records if self._most < 0 else records[: self._most - self._seen]
        by_partition: dict[TopicPartition, list[ConsumerRecord]] = {}
        for each in wanted:
            by_partition.setdefault(TopicPartition(each.topic, each.partition), []).append(each)
        self._seen += len(wanted)
        for found in by_partition.values() if self._verbose else ():
            for each in found:
                self._events.write_event("record_data", **_record_fields(each))
        summaries: list[Json] = [_summary_fields(tp, found) for tp, found in by_partition.items()]
        self._events.write_event("records_consumed", count=len(records), partitions=summaries)
        if self._commits:
            self._commit_offsets(consumer, {tp: found[-1].offset + 1 for tp, found in by_partition.items()})

    def _commit_offsets(self, consumer: Consumer, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> None:
        from ottla.client import ClientError, WakeupError

        failed: ClientError | None = None
        try:
            consumer.commit(offsets)
        except WakeupError:  # a signal; it is raised once, and what was read must be committed nevertheless
            consumer.commit(offsets)
        except ClientError as error:
            failed = error
        committed: list[Json] = [{**_partition_fields(tp), "offset": offset} for tp, offset in offsets.items()]
        said: dict[str, Json] = {} if failed is None else {"error": str(failed)}
        self._events.write_event("offsets_committed", offsets=committed, **said, success=failed is None)


def _partition_fields(tp: TopicPartition) -> dict[str, Json]:
    return {"topic": tp.topic, "partition": tp.partition}


def _summary_fields(tp: TopicPartition, found: Sequence[ConsumerRecord]) -> dict[str, Json]:
    return {**_partition_fields(tp), "count": len(found), "minOffset": found[0].offset, "maxOffset": found[-1].offset}


def _record_fields(record: ConsumerRecord) -> dict[str, Json]:
    """A record as JSON; bytes that are not UTF-8 become U+FFFD, as in Java."""

    def text(content: bytes | None) -> str | None:
        return None if content is None else content.decode("utf-8", "replace")

    return {
        "key": text(record.key),
        "value": text(record.value),
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
    }
