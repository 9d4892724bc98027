"""kafka-verifiable-consumer: read a topic in a group, and print an event in JSON for what is assigned, read, committed.

Zone: real. `verifiable_events` prints, and ends the consumer when a signal comes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ottla.client import Consumer
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.consumer.reset import parse_reset
from ottla.client.consumer.settings import CONSUMER_KEYS
from ottla.client.errors import ClientError, ConfigError, DeadlineError, RefusedError, WakeupError
from ottla.errors import ErrorCode
from ottla.kafka_tools.argument_parser import ArgumentRules, parse_arguments, wrong_argument
from ottla.kafka_tools.connection import client_settings
from ottla.kafka_tools.java_errors import error_message, error_text
from ottla.kafka_tools.options import Option, Options, Tool, ToolError, WordsReport, flag, value
from ottla.kafka_tools.tools.perf.verifiable_events import EventWriter, Stopper
from ottla.types import TopicPartition

_RULES: Final = ArgumentRules(
    "verifiable-consumer",
    ("topic", "group-id"),
    {"max-messages": "Integer", "session-timeout": "Integer"},
    ("bootstrap-server",),
)
_OLD, _NEW = "consumer.config", "command-config"
_GIVEN: Final = {
    "bootstrap-server": "bootstrap.servers",
    "group-id": "group.id",
    "group-instance-id": "group.instance.id",
    "session-timeout": "session.timeout.ms",
}
_RANGE: Final = "org.apache.kafka.clients.consumer.RangeAssignor"
_POLL_S: Final = 1.0
_PAUSE_S: Final = 0.1
"""How long to wait after an error that may pass."""


def run_verifiable_consumer(options: Options) -> int:
    """Read the records; the exit code is 128 and its number after a signal."""
    settings = _consumer_settings(options)
    try:
        consumer = Consumer(settings)
    except ConfigError as error:
        raise ToolError(
            f"Failed to construct kafka consumer: {error}", "org.apache.kafka.common.KafkaException"
        ) from None
    run = _Run(consumer, options)
    with run.stopper as stopper:
        run.events.write_event("startup_complete")
        run.read_topic(options.value_of("topic"))
        run.events.write_event("shutdown_complete")
    # Kafka's tool prints it whenever its process ends: first after a signal, and as the last line without one.
    if not stopper.stopped:
        run.events.write_event("shutdown_requested")
    run.events.raise_failure()
    return stopper.exit_code


def _parse_words(options: Sequence[Option], words: Sequence[str]) -> Options:
    parsed = parse_arguments(_RULES, options, words)
    if parsed.has(_OLD) and parsed.has(_NEW):
        raise wrong_argument(_RULES, options, f"Options --{_OLD} and --{_NEW} are mutually exclusive.")
    return parsed


def _consumer_settings(options: Options) -> dict[str, str]:
    if options.has(_OLD):
        print(
            f"Option --{_OLD} has been deprecated and will be removed in a future version. Use --{_NEW} instead.",
            flush=True,
        )
    in_file = Options({name: values for name, values in options.given.items() if name in (_OLD, _NEW)})
    try:
        settings = client_settings(in_file, file_options=(_OLD, _NEW), more=CONSUMER_KEYS)
    except ToolError as error:
        raise wrong_argument(_RULES, _OPTIONS, error.message) from None
    _check_protocol(options.value_of("group-protocol", "classic"))
    # As in Kafka's tool, and unlike its verifiable producer, the options override the file, also by their defaults.
    settings |= {key: options.value_of(name) for name, key in _GIVEN.items() if options.has(name)}
    return settings | {
        "enable.auto.commit": str(options.has("enable-autocommit")),
        "auto.offset.reset": _checked_reset(options.value_of("reset-policy", "earliest")),
        "partition.assignment.strategy": options.value_of("assignment-strategy", _RANGE),
    }


def _check_protocol(protocol: str) -> None:
    """Raises ToolError for a protocol that is not known, or not known here."""
    name = protocol.upper()
    if name == "CONSUMER":
        raise ToolError(
            f"--group-protocol {protocol}: Ottla's consumer has the classic protocol. Leave the option out",
            "java.lang.IllegalArgumentException",
        )
    if name != "CLASSIC":
        raise ToolError(
            f"No enum constant org.apache.kafka.clients.consumer.GroupProtocol.{name}",
            "java.lang.IllegalArgumentException",
        )


def _checked_reset(policy: str) -> str:
    try:
        parse_reset(policy)
    except ConfigError:
        raise ToolError(
            f"Invalid value {policy} for configuration auto.offset.reset: Invalid value `{policy}` for configuration "
            "auto.offset.reset. The value must be either 'earliest', 'latest', 'none' or of the format "
            "'by_duration:<PnDTnHnMn.nS.>'.",
            "org.apache.kafka.common.config.ConfigException",
        ) from None
    return policy


class _Run:
    """The count of a run, its events, and its end. Only the stopper's thread calls `_request_shutdown`."""

    def __init__(self, consumer: Consumer, options: Options) -> None:
        self.stopper = Stopper(self._request_shutdown)
        self.events = EventWriter(self.stopper.request_stop)
        self._consumer = consumer
        self._most = options.number_of("max-messages", -1)
        self._verbose = options.has("verbose")
        self._commits = not options.has("enable-autocommit")
        self._consumed = 0

    def _request_shutdown(self) -> None:
        self.events.write_event("shutdown_requested")
        self._consumer.wakeup()

    def read_topic(self, topic: str) -> None:
        """Read, and close the consumer. As in Kafka's tool, an error ends it in order, with exit code 0."""
        try:
            with self._consumer as consumer:
                consumer.subscribe([topic], on_assigned=self._on_assigned, on_revoked=self._on_revoked)
                self._read_records()
        except WakeupError:
            pass  # of `_request_shutdown`
        except ClientError as error:
            print(f"Error during processing, terminating consumer process: \n{error_text(error)}", file=sys.stderr)

    def _read_records(self) -> None:
        while not 0 <= self._most <= self._consumed:
            records = self._poll_records()
            if not records:
                continue
            offsets = self._report_records(records)
            if self._commits:
                self._commit_offsets(offsets)

    def _poll_records(self) -> Sequence[ConsumerRecord]:
        try:
            return self._consumer.poll(_POLL_S)
        except ClientError as error:
            # Kafka's consumer tries without end while no broker answers; ours reports it from time to time.
            if not (error.retriable or isinstance(error, DeadlineError)):
                raise
            print(f"WARN {error}", file=sys.stderr)
            self.stopper.wait_for_stop(_PAUSE_S)
            return ()

    def _report_records(self, records: Sequence[ConsumerRecord]) -> dict[TopicPartition, int]:
        """Print the records that are still wanted; returns the offsets after them."""
        by_partition: dict[TopicPartition, list[ConsumerRecord]] = {}
        for record in records:
            by_partition.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        offsets: dict[TopicPartition, int] = {}
        summaries: list[dict[str, object]] = []
        for tp, found in by_partition.items():
            wanted = found if self._most < 0 else found[: self._most - self._consumed]
            if not wanted:
                break
            self._consumed += len(wanted)
            offsets[tp] = wanted[-1].offset + 1
            summaries.append(_summary_fields(tp, wanted))
            for record in wanted if self._verbose else ():
                self.events.write_event("record_data", **_record_fields(record))
        # As Kafka's tool: the count is that of the poll, also where not all of its records are wanted.
        self.events.write_event("records_consumed", count=len(records), partitions=summaries)
        return offsets

    def _commit_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        failure: dict[str, object] = {}
        try:
            self._consumer.commit(offsets)
        except ClientError as error:
            # Another process has the instance's name: this one ends, as Kafka's tool does.
            cause = error.__cause__
            if isinstance(cause, RefusedError) and cause.code is ErrorCode.FENCED_INSTANCE_ID:
                raise cause from None
            failure = {"error": error_message(error)}
        committed = [{**_partition_fields(tp), "offset": offset} for tp, offset in offsets.items()]
        self.events.write_event("offsets_committed", offsets=committed, **failure, success=not failure)

    def _on_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        self.events.write_event("partitions_assigned", partitions=[_partition_fields(each) for each in partitions])

    def _on_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        self.events.write_event("partitions_revoked", partitions=[_partition_fields(each) for each in partitions])


def _partition_fields(tp: TopicPartition) -> dict[str, object]:
    return {"topic": tp.topic, "partition": tp.partition}


def _summary_fields(tp: TopicPartition, found: Sequence[ConsumerRecord]) -> dict[str, object]:
    return {**_partition_fields(tp), "count": len(found), "minOffset": found[0].offset, "maxOffset": found[-1].offset}


def _record_fields(record: ConsumerRecord) -> dict[str, Any]:
    return {
        "key": _decode_text(record.key),
        "value": _decode_text(record.value),
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
    }


def _decode_text(content: bytes | None) -> str | None:
    # Bytes that are not UTF-8 become U+FFFD, as with Java's StringDeserializer.
    return None if content is None else content.decode("utf-8", "replace")


_OPTIONS: Final = (
    value("topic", "REQUIRED: Consume messages from this topic."),
    value("group-protocol", "The group protocol: classic, the default."),
    value("group-remote-assignor", "The assignor of the other group protocol; without effect with the classic one."),
    value("group-id", "REQUIRED: The group id of the consumer group."),
    value("group-instance-id", "A unique identifier of the consumer instance."),
    value("max-messages", "Consume this many messages; -1, the default: consume until the process is ended."),
    value("session-timeout", "The consumer's session timeout in milliseconds."),
    flag("verbose", "Print an event for each consumed record."),
    flag("enable-autocommit", "Let the consumer commit offsets at intervals; without it, each poll is committed."),
    value("reset-policy", "Where to start without a committed offset: 'earliest', the default, 'latest', or 'none'."),
    value("assignment-strategy", f"The class of the assignor; {_RANGE} by default."),
    value(_OLD, "The old name of --command-config."),
    value(_NEW, "Consumer config properties file. Options override it."),
    value("bootstrap-server", "REQUIRED: The server(s) to connect to."),
)
TOOL: Final = Tool(
    "This tool consumes messages from a specific topic and emits consumer events (e.g. group rebalances, received "
    "messages, and offsets committed) as JSON objects to STDOUT.",
    _OPTIONS,
    run_verifiable_consumer,
    wrong_words=WordsReport.PLAIN,
    class_only=True,
    parse=_parse_words,
)
