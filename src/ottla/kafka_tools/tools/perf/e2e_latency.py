"""kafka-e2e-latency: send one record after the other, and print how long each takes until it is read.

Zone: real. `e2e_records` makes the records and compares them.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Mapping, Sequence
from typing import Final

from ottla.client import Consumer, Producer
from ottla.client.admin.admin import Admin
from ottla.client.admin.types import NewTopic
from ottla.client.cluster import Cluster
from ottla.client.consumer.settings import CONSUMER_KEYS
from ottla.client.errors import ClientError, ConfigError, RefusedError
from ottla.client.producer.config import PRODUCER_KEYS
from ottla.client.retry import Deadline
from ottla.client.settings import ClientConfig, split_unknown
from ottla.errors import ErrorCode
from ottla.kafka_tools.connection import client_settings
from ottla.kafka_tools.java_errors import EXECUTION, error_text, tool_error
from ottla.kafka_tools.options import (
    Option,
    Options,
    Takes,
    Tool,
    ToolError,
    WordsReport,
    WrongUsage,
    parse_words,
    require_options,
    value,
)
from ottla.kafka_tools.tools.perf.e2e_records import RecordSizes, TimedRecord, check_read, make_record
from ottla.kafka_tools.tools.perf.java_text import decimal_text
from ottla.types import TopicPartition

_POLL_MS: Final = 60_000
_NEW_TOPIC_MS: Final = 30_000
"""How long to wait until the brokers know a topic that was created."""
_PAUSE_S: Final = 0.05
_EACH: Final = 1000
"""The time of the first record of this many is printed."""
_REQUIRED: Final = ("bootstrap-server", "topic", "num-records", "producer-acks", "record-size")
_POSITIONAL: Final = (*_REQUIRED, "command-config")
_NOT_NEGATIVE: Final = "a non-negative integer"
_NUMBERS: Final = {
    "num-records": (1, "a positive integer"),
    "record-size": (0, _NOT_NEGATIVE),
    "record-key-size": (0, _NOT_NEGATIVE),
    "record-header-key-size": (0, _NOT_NEGATIVE),
    "record-header-size": (-1, f"{_NOT_NEGATIVE} or -1 for null header value"),
    "num-headers": (0, _NOT_NEGATIVE),
}
"""The least value of each, and its description."""


def run_e2e_latency(options: Options) -> None:
    """Send and read the records, and print the lines."""
    require_options(options, *_REQUIRED)
    if options.value_of("producer-acks") not in ("1", "all"):
        raise WrongUsage(
            "Invalid value for --producer-acks. Latency testing requires synchronous acknowledgement. Please use '1' "
            "or 'all'."
        )
    numbers = {name: _checked_number(options, name) for name in _NUMBERS}
    settings = _all_settings(options)
    with _make_consumer(settings) as consumer:
        _start_at_end(consumer, _find_partitions(consumer, options.value_of("topic"), settings))
        with Producer(_producer_settings(settings, options.value_of("producer-acks"))) as producer:
            measured = _measure_records(producer, consumer, options.value_of("topic"), numbers)
    _print_totals(measured)


def _parse_words(options: Sequence[Option], words: Sequence[str]) -> Options:
    named = {f"--{name}" for name in (*_REQUIRED, "help", "version")}
    if not words or named.intersection(words):
        return parse_words(options, words)
    # The form of Kafka before 4.2, which knows no names.
    if len(words) not in (len(_REQUIRED), len(_POSITIONAL)):
        raise ToolError(
            f"Invalid number of arguments. Expected 5 or 6 positional arguments, but got {len(words)}. Usage: "
            "bootstrap-server topic num-records producer-acks record-size [optional] command-config"
        )
    print(
        "WARNING: Positional argument usage is deprecated and will be removed in Apache Kafka 5.0. Please use named "
        f"arguments instead: {', '.join(f'--{name}' for name in _POSITIONAL)}",
        flush=True,
    )
    return Options({name: [word] for name, word in zip(_POSITIONAL, words, strict=False)}, (), words)


def _checked_number(options: Options, name: str) -> int:
    """The value of an option, 0 without one. Raises WrongUsage, ToolError."""
    number = options.number_of(name, 0) if options.values_of(name) else 0
    least, description = _NUMBERS[name]
    # Java parses an int.
    if not -(2**31) <= number < 2**31:
        raise ToolError(
            f"Cannot parse argument '{options.value_of(name)}' of option {name}",
            "joptsimple.OptionArgumentConversionException",
        )
    if number < least:
        raise WrongUsage(f"Value for --{name} must be {description}.")
    return number


def _all_settings(options: Options) -> dict[str, str]:
    """The settings of both clients."""
    files = ("command-config",) if options.values_of("command-config") else ()
    return client_settings(options, file_options=files, more=PRODUCER_KEYS | CONSUMER_KEYS)


def _make_consumer(settings: Mapping[str, str]) -> Consumer:
    known, _ = split_unknown(settings, CONSUMER_KEYS)
    # Without a group: each record is read from where the one before ended.
    known.pop("group.id", None)
    known.pop("group.instance.id", None)
    try:
        return Consumer(
            known
            | {
                "auto.offset.reset": "latest",
                "exclude.internal.topics": "false",
                # The broker answers at once: its waiting for more records would be a part of the latency.
                "fetch.max.wait.ms": "0",
            }
        )
    except ConfigError as error:
        raise ToolError(
            f"Failed to construct kafka consumer: {error}", "org.apache.kafka.common.KafkaException"
        ) from None


def _producer_settings(settings: Mapping[str, str], acks: str) -> dict[str, str]:
    known, _ = split_unknown(settings, PRODUCER_KEYS)
    return known | {"linger.ms": "0", "max.block.ms": str(2**63 - 1), "acks": acks}


def _find_partitions(consumer: Consumer, topic: str, settings: Mapping[str, str]) -> list[TopicPartition]:
    """The partitions of the topic, which is created if it does not exist. Raises ToolError, ClientError."""
    if topic in consumer.list_topics():
        return consumer.partitions_for_topic(topic)
    print(
        f'Topic "{topic}" does not exist. Will create topic with 1 partition(s) and replication factor = 1', flush=True
    )
    with Cluster(ClientConfig.from_mapping(split_unknown(settings)[0])) as cluster:
        error = Admin(cluster).create_topics([NewTopic(topic, 1, 1)])[topic]
    if isinstance(error, ClientError):
        print(f"Creation of topic {topic} failed", flush=True)
        raise ToolError(f"{EXECUTION}: {error_text(error)}", "java.lang.RuntimeException")
    return _wait_for_partitions(consumer, topic, Deadline.after_ms(_NEW_TOPIC_MS))


def _wait_for_partitions(consumer: Consumer, topic: str, deadline: Deadline) -> list[TopicPartition]:
    while True:
        try:
            return consumer.partitions_for_topic(topic)
        except RefusedError as error:
            # Other brokers hear of a new topic a little later than the one that created it.
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or deadline.expired:
                raise
            time.sleep(_PAUSE_S)


def _start_at_end(consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
    consumer.assign(partitions)
    consumer.seek_to_end()
    # Look the ends up now: a record that is sent before would not be read.
    for tp in partitions:
        consumer.position(tp)


def _measure_records(producer: Producer, consumer: Consumer, topic: str, numbers: Mapping[str, int]) -> Sequence[int]:
    """The nanoseconds of each record, from `send` until it was read. Raises ToolError, ClientError."""
    sizes = RecordSizes(
        numbers["record-size"],
        numbers["record-key-size"],
        numbers["num-headers"],
        numbers["record-header-key-size"],
        numbers["record-header-size"],
    )
    # The same records in every run, so that two runs can be compared.
    source = random.Random(0)
    measured = array("q")
    for number in range(numbers["num-records"]):
        record = make_record(sizes, lambda: bytes((source.randrange(65, 91),)))
        elapsed_ns = _pass_record(producer, consumer, topic, record)
        if number % _EACH == 0:
            print(f"{number}\t{elapsed_ns / 1000 / 1000}", flush=True)
        measured.append(elapsed_ns)
    return measured


def _pass_record(producer: Producer, consumer: Consumer, topic: str, record: TimedRecord) -> int:
    start_ns = time.perf_counter_ns()
    try:
        producer.send(topic, record.value, key=record.key, headers=record.headers).result()
    except ClientError as error:
        raise tool_error(error, wrapped=True) from None
    read = consumer.poll(_POLL_MS / 1000)
    elapsed_ns = time.perf_counter_ns() - start_ns
    if not read:
        raise ToolError(
            f"poll() timed out before finding a result (timeout:[{_POLL_MS}ms])", "java.lang.RuntimeException"
        )
    check_read(record, read)
    return elapsed_ns


def _print_totals(measured: Sequence[int]) -> None:
    print(f"Avg latency: {decimal_text(sum(measured) / len(measured) / 1000 / 1000, 4)} ms")
    # As in Kafka's tool, whole milliseconds that have passed.
    ranked = sorted(each // 1_000_000 for each in measured)
    half, most, nearly_all = (ranked[int(len(ranked) * share)] for share in (0.5, 0.99, 0.999))
    print(f"Percentiles: 50th = {half}, 99th = {most}, 99.9th = {nearly_all}")


TOOL: Final = Tool(
    "This tool measures end-to-end latency in Kafka by sending messages and timing their reception.",
    (
        value("bootstrap-server", "REQUIRED: The server(s) to connect to."),
        value("topic", "REQUIRED: The topic to use for the test; it is created if it does not exist."),
        value("num-records", "REQUIRED: The number of messages to send."),
        value("producer-acks", "REQUIRED: Producer acknowledgements. Must be '1' or 'all'."),
        value("record-size", "REQUIRED: The size of each message payload in bytes."),
        value("record-key-size", "The size of the message key in bytes; without it, messages have no key."),
        value("record-header-key-size", "The size of the key of a header in bytes; 0 by default."),
        value("record-header-size", "The size of the value of a header in bytes, -1 for null; 0 by default."),
        value("num-headers", "The number of headers of each message; 0 by default."),
        Option("command-config", Takes.MAYBE, "A property file for producer, consumer and admin client."),
    ),
    run_e2e_latency,
    wrong_words=WordsReport.WITH_USAGE,
    parse=_parse_words,
)
