"""kafka-console-consumer: print the records of topics.

Zone: real. Options and the loop; `message_formats` makes the text.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from typing import Final

from ottla.client import Consumer
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.consumer.settings import CONSUMER_KEYS
from ottla.client.errors import ClientError
from ottla.kafka_tools.connection import client_settings
from ottla.kafka_tools.java_errors import error_text
from ottla.kafka_tools.options import (
    Options,
    Tool,
    ToolError,
    WordsReport,
    WrongUsage,
    flag,
    value,
    values,
)
from ottla.kafka_tools.tools.console.message_formats import MessageFormat, make_format
from ottla.types import TopicPartition

_POLL_S: Final = 0.5
_FILES: Final = ("consumer.config", "consumer-config", "command-config")
_GIVEN: Final = ("consumer-property", "command-property")
_PROPERTIES: Final = ("property", "formatter-property")


def run_console_consumer(options: Options) -> None:
    """Print records until the wanted number, the time, or an interrupt."""
    _check_options(options)
    form = make_format(options.value_of("formatter"), _format_properties(options))
    settings = _consumer_settings(options)
    count = 0
    with Consumer(settings) as consumer:
        _choose_partitions(consumer, options)
        try:
            for record in _wanted_records(consumer, options):
                count += _print_record(form, record, skip=options.has("skip-message-on-error"))
        except _TimeOver:
            print("Error processing message, terminating consumer process: ", file=sys.stderr)
            print("org.apache.kafka.common.errors.TimeoutException", file=sys.stderr)
        except ClientError as error:
            print("Error processing message, terminating consumer process: ", file=sys.stderr)
            print(error_text(error), file=sys.stderr)
        finally:
            sys.stdout.flush()
            print(f"Processed a total of {count} messages", file=sys.stderr)


class _TimeOver(Exception):
    """No record came within --timeout-ms."""


def _check_options(options: Options) -> None:
    if not options.has("bootstrap-server"):
        raise WrongUsage('Missing required argument "[bootstrap-server]"')
    named = sum(options.has(name) for name in ("topic", "include", "whitelist"))
    if named != 1:
        raise WrongUsage("Exactly one of the following arguments is required: [topic], [include]")
    if options.has("partition") and not options.has("topic"):
        raise WrongUsage("The topic is required when partition is specified.")
    if options.has("offset") and not options.has("partition"):
        raise WrongUsage("The partition is required when offset is specified.")
    if options.has("offset") and options.has("from-beginning"):
        raise WrongUsage("Options from-beginning and offset cannot be specified together.")
    if options.has("group") and options.has("partition"):
        raise WrongUsage("Options group and partition cannot be specified together.")
    if options.has("isolation-level") and options.value_of("isolation-level") not in (
        "read_committed",
        "read_uncommitted",
    ):
        raise ToolError(f"Invalid value {options.value_of('isolation-level')} for configuration isolation.level")


def _format_properties(options: Options) -> dict[str, str]:
    found: dict[str, str] = {}
    if options.has("formatter-config"):
        from ottla.client.settings import parse_properties
        from ottla.kafka_tools.connection import read_file

        found |= parse_properties(read_file(options.value_of("formatter-config")))
    if options.has("property"):
        print(
            "Option --property is deprecated and will be removed in a future version. Use --formatter-property "
            "instead.",
            flush=True,
        )
    for word in (word for name in _PROPERTIES for word in options.values_of(name)):
        key, equals, text = word.partition("=")
        if not equals:
            raise ToolError(f"Missing value for key {key!r}: a property has the form key=value")
        found[key.strip()] = text
    return found


def _consumer_settings(options: Options) -> dict[str, str]:
    given = [word for name in _GIVEN for word in options.values_of(name)]
    settings = client_settings(options, file_options=_FILES, more=CONSUMER_KEYS, given=given)
    if options.has("group"):
        if settings.get("group.id", options.value_of("group")) != options.value_of("group"):
            raise ToolError(
                "The group ids provided in different places (directly using '--group', via '--command-property', or "
                f"via '--command-config') do not match. Detected group ids: '{options.value_of('group')}', "
                f"'{settings['group.id']}'"
            )
        settings["group.id"] = options.value_of("group")
    if "group.id" not in settings:
        # As Kafka's tool: a group of its own, whose offsets are not committed.
        settings["group.id"] = f"console-consumer-{int.from_bytes(os.urandom(2), 'big')}"
        settings.setdefault("enable.auto.commit", "false")
    settings.setdefault("auto.offset.reset", "earliest" if options.has("from-beginning") else "latest")
    if options.has("from-beginning") and settings["auto.offset.reset"] != "earliest":
        raise ToolError(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={settings['auto.offset.reset']}'"
        )
    if options.has("isolation-level"):
        settings["isolation.level"] = options.value_of("isolation-level")
    settings.setdefault("client.id", "console-consumer")
    return settings


def _choose_partitions(consumer: Consumer, options: Options) -> None:
    if not options.has("partition"):
        pattern = options.value_of("include") or options.value_of("whitelist")
        consumer.subscribe(_compile(pattern) if pattern else [options.value_of("topic")])
        return
    tp = TopicPartition(options.value_of("topic"), options.number_of("partition", 0))
    consumer.assign([tp])
    start = options.value_of("offset", "earliest" if options.has("from-beginning") else "latest")
    if start.lower() == "earliest":
        consumer.seek_to_beginning([tp])
    elif start.lower() == "latest":
        consumer.seek_to_end([tp])
    else:
        consumer.seek(tp, _parse_offset(start))


def _parse_offset(text: str) -> int:
    wrong = (
        f"The provided offset value '{text}' is incorrect. Valid values are 'earliest', 'latest', or a non-negative "
        "long."
    )
    if not text.isdecimal() or int(text) >= 2**63:
        raise WrongUsage(wrong)
    return int(text)


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern.replace(",", "|"))
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolError(f"{pattern} is an invalid regex: {error}") from None


def _wanted_records(consumer: Consumer, options: Options) -> Iterator[ConsumerRecord]:
    """Records in the order of their arrival, --max-messages at most. Raises _TimeOver, ClientError."""
    most = options.number_of("max-messages", -1)
    patience_ms = options.number_of("timeout-ms", -1)
    number = 0
    last = time.monotonic()
    while most < 0 or number < most:
        records = consumer.poll(_POLL_S if patience_ms < 0 else min(_POLL_S, patience_ms / 1000))
        if records:
            last = time.monotonic()
        elif 0 <= patience_ms <= (time.monotonic() - last) * 1000:
            raise _TimeOver
        for record in records:
            if most < 0 or number < most:
                number += 1
                yield record
        sys.stdout.flush()


def _print_record(form: MessageFormat, record: ConsumerRecord, *, skip: bool) -> int:
    """Print a record; 1, or 0 for one that cannot be printed and is skipped."""
    try:
        text = form(record)
    except ValueError as error:
        if not skip:
            raise ToolError(f"the record at offset {record.offset} cannot be printed: {error}") from None
        print(f"Error processing message, skipping this message: {error}", file=sys.stderr)
        return 0
    # Bytes, because a value need not be text; where stdout has no bytes (a test), as text.
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(text.decode("utf-8", "replace"))
    else:
        buffer.write(text)
    return 1


TOOL: Final = Tool(
    "This tool helps to read data from Kafka topics and outputs it to standard output.",
    (
        value("bootstrap-server", "REQUIRED: The server(s) to connect to."),
        flag("new-consumer", "DEPRECATED: the default; without effect."),
        value("topic", "The topic to consume on."),
        value("include", "Regular expression specifying list of topics to include for consumption."),
        value("whitelist", "The old name of --include."),
        value("partition", "The partition to consume from."),
        value("offset", "The offset to consume from (a non-negative number), or 'earliest', or 'latest'."),
        values("consumer-property", "The old name of --command-property."),
        values("command-property", "Config properties in the form key=value for the consumer."),
        value("consumer-config", "The old name of --command-config."),
        value("consumer.config", "The old name of --command-config."),
        value("command-config", "Config properties file for the consumer."),
        value("formatter", "The name of a class to use for formatting kafka messages for display."),
        values("property", "The old name of --formatter-property."),
        values("formatter-property", "The properties to initialize the message formatter, key=value."),
        value("formatter-config", "Config properties file to initialize the message formatter."),
        flag("from-beginning", "Start with the earliest message present in the log rather than the latest message."),
        value("max-messages", "The maximum number of messages to consume before exiting."),
        value("timeout-ms", "Exit if no message is available for consumption for the specified interval."),
        flag("skip-message-on-error", "If there is an error when processing a message, skip it instead of halt."),
        flag("enable-systest-events", "Log lifecycle events.", "events of Kafka's system tests"),
        value("key-deserializer", "A class.", "use --formatter-property key.deserializer=…"),
        value("value-deserializer", "A class.", "use --formatter-property value.deserializer=…"),
        value("isolation-level", "read_committed or read_uncommitted."),
        value("group", "The consumer group id of the consumer."),
    ),
    run_console_consumer,
    wrong_words=WordsReport.WITH_USAGE,
)
