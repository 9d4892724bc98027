"""kafka-verifiable-producer: send increasing numbers, and print an event in JSON for each acknowledgement.

Zone: real. `verifiable_records` chooses keys, values and times; `verifiable_events` prints.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from ottla.client import Producer
from ottla.client.errors import BufferExhaustedError, ClientError, ConfigError, DeadlineError, UnreachableError
from ottla.client.producer.config import PRODUCER_KEYS
from ottla.client.producer.futures import RecordMetadata
from ottla.kafka_tools.argument_parser import ArgumentRules, parse_arguments, wrong_argument
from ottla.kafka_tools.connection import client_settings
from ottla.kafka_tools.java_errors import error_class, error_message
from ottla.kafka_tools.options import Option, Options, Tool, ToolError, WordsReport, value
from ottla.kafka_tools.tools.perf.throttler import Throttler
from ottla.kafka_tools.tools.perf.verifiable_events import EventWriter, Stopper, now_ms
from ottla.kafka_tools.tools.perf.verifiable_records import VerifiableRecord, VerifiableRecords

_RULES: Final = ArgumentRules(
    "verifiable-producer",
    ("topic",),
    {
        "max-messages": "Integer",
        "throughput": "Integer",
        "acks": "Integer",
        "message-create-time": "Long",
        "value-prefix": "Integer",
        "repeating-keys": "Integer",
    },
    ("bootstrap-server",),
)
_OLD, _NEW = "producer.config", "command-config"


def run_verifiable_producer(options: Options) -> int:
    """Send the records; the exit code is 128 and its number after a signal."""
    settings = _producer_settings(options)
    try:
        producer = Producer(settings)
    except ConfigError as error:
        raise ToolError(
            f"Failed to construct kafka producer: {error}", "org.apache.kafka.common.KafkaException"
        ) from None
    with producer, Stopper(producer.close) as stopper:
        events = EventWriter(stopper.request_stop)
        run = _Run(producer, options, events)
        events.write_event("startup_complete")
        try:
            run.send_records(stopper)
        finally:
            # Also after an error, as Kafka's tool: the last acknowledgements come before these two lines.
            producer.close()
            events.write_event("shutdown_complete")
            events.write_event("tool_data", **run.summary())
    events.raise_failure()
    return stopper.exit_code


def _parse_words(options: Sequence[Option], words: Sequence[str]) -> Options:
    parsed = parse_arguments(_RULES, options, words)
    acks = parsed.value_of("acks")
    if acks and int(acks) not in (0, 1, -1):
        raise wrong_argument(_RULES, options, f"argument --acks: invalid choice: '{acks}' (choose from {{0,1,-1}})")
    if parsed.has(_OLD) and parsed.has(_NEW):
        raise wrong_argument(_RULES, options, f"Options --{_OLD} and --{_NEW} are mutually exclusive.")
    return parsed


def _producer_settings(options: Options) -> dict[str, str]:
    if options.has(_OLD):
        print(
            f"Option --{_OLD} has been deprecated and will be removed in a future version. Use --{_NEW} instead.",
            flush=True,
        )
    # As in Kafka's tool, the file also overrides the options that are settings: bootstrap.servers, acks.
    settings = {
        "bootstrap.servers": options.value_of("bootstrap-server"),
        "acks": str(options.number_of("acks", -1)),
        "retries": "0",
    }
    in_file = Options({name: values for name, values in options.given.items() if name in (_OLD, _NEW)})
    try:
        return settings | client_settings(in_file, file_options=(_OLD, _NEW), more=PRODUCER_KEYS)
    except ToolError as error:
        raise wrong_argument(_RULES, _OPTIONS, error.message) from None


class _Run:
    """The counts of a run. `on_delivery` is called in the producer's thread, and at its end in the main thread."""

    def __init__(self, producer: Producer, options: Options, events: EventWriter) -> None:
        self._producer = producer
        self._options = options
        self._events = events
        self._topic = options.value_of("topic")
        self._start_ms = now_ms()
        self._throughput = options.number_of("throughput", -1)
        self._sent = self._acked = 0

    def send_records(self, stopper: Stopper) -> None:
        """Send until the number is reached, or a signal comes. Raises ToolError for an impossible time."""
        most = self._options.number_of("max-messages", -1)
        records = VerifiableRecords(
            prefix=self._options.number_of("value-prefix", 0) if self._options.has("value-prefix") else None,
            keys=self._options.number_of("repeating-keys", 0) if self._options.has("repeating-keys") else None,
            create_ms=self._options.number_of("message-create-time", -1),
        )
        throttler = Throttler(self._throughput, time.monotonic())
        number = 0
        while not stopper.stopped and (most < 0 or number < most):
            self._send_record(records.next_record(number, now_ms() - self._start_ms), stopper)
            self._pause(throttler, number, stopper)
            number += 1

    def _send_record(self, record: VerifiableRecord, stopper: Stopper) -> None:
        self._sent += 1
        try:
            self._producer.send(
                self._topic,
                record.value.encode(),
                key=None if record.key is None else record.key.encode(),
                timestamp=record.timestamp,
                on_delivery=partial(self._on_delivery, record),
            )
        except (DeadlineError, UnreachableError) as error:
            # The words that scripts look for; ours, with the reason, follow.
            self._write_error(record, error, f"{self._awaited_words(error)}. {error_message(error)}")
        except ClientError as error:
            # A signal has closed the producer meanwhile: this record was not sent.
            if stopper.stopped:
                self._sent -= 1
            else:
                self._write_error(record, error, error_message(error))

    def _awaited_words(self, error: ClientError) -> str:
        """Kafka's words for what `send` waited for."""
        config = self._producer.config
        if isinstance(error, BufferExhaustedError):
            return (
                f"Failed to allocate {config.client.batch_size} bytes within the configured max blocking time "
                f"{config.max_block_ms} ms"
            )
        return f"Topic {self._topic} not present in metadata after {config.max_block_ms} ms"

    def _pause(self, throttler: Throttler, number: int, stopper: Stopper) -> None:
        # As Kafka's tool, which then sends two records, and waits until it is ended.
        if self._throughput == 0:
            if number:
                stopper.wait_for_stop()
            return
        pause = throttler.pause_after(number, time.monotonic())
        if pause:
            time.sleep(pause)

    def _on_delivery(
        self, record: VerifiableRecord, metadata: RecordMetadata | None, error: ClientError | None
    ) -> None:
        if metadata is None:
            assert error is not None
            self._write_error(record, error, error_message(error))
            return
        self._acked += 1
        self._events.write_event(
            "producer_send_success",
            key=record.key,
            value=record.value,
            offset=metadata.offset,
            topic=metadata.topic,
            partition=metadata.partition,
        )

    def _write_error(self, record: VerifiableRecord, error: ClientError, message: str) -> None:
        self._events.write_event(
            "producer_send_error",
            topic=self._topic,
            key=record.key,
            value=record.value,
            exception=f"class {error_class(error)}",
            message=message,
        )

    def summary(self) -> dict[str, int | float]:
        """The fields of the last event."""
        elapsed_ms = max(1, now_ms() - self._start_ms)
        return {
            "sent": self._sent,
            "acked": self._acked,
            "target_throughput": self._throughput,
            "avg_throughput": 1000 * (self._acked / elapsed_ms),
        }


_OPTIONS: Final = (
    value("topic", "REQUIRED: Produce messages to this topic."),
    value("max-messages", "Produce this many messages; -1, the default: produce until the process is ended."),
    value("throughput", "If it is positive, the most messages per second, approximately; -1 by default."),
    value("acks", "Acks required on each produced message: 0, 1 or -1, the default."),
    value(_OLD, "The old name of --command-config."),
    value(
        "message-create-time", "Send messages with creation time starting at this value, in milliseconds since 1970."
    ),
    value("value-prefix", "If specified, each value has this number and a dot before it."),
    value("repeating-keys", "If specified, keys count from 0 up to this number, exclusive, and again from 0."),
    value(_NEW, "Producer config properties file. It overrides the options that are settings."),
    value("bootstrap-server", "REQUIRED: The server(s) to connect to."),
)
TOOL: Final = Tool(
    "This tool produces increasing integers to the specified topic and prints JSON metadata to stdout on each "
    '"send" request, making externally visible which messages have been acked and which have not.',
    _OPTIONS,
    run_verifiable_producer,
    wrong_words=WordsReport.PLAIN,
    class_only=True,
    parse=_parse_words,
)
