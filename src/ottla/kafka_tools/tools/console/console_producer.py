"""kafka-console-producer: write the lines of standard input as records.

Zone: real. Options and the loop; `message_lines` parses lines.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import BinaryIO, Final

from ottla.client import Producer
from ottla.client.errors import ClientError
from ottla.client.producer.config import PRODUCER_KEYS
from ottla.client.producer.failed_records import FailedRecord
from ottla.kafka_tools.connection import client_settings
from ottla.kafka_tools.java_errors import error_text
from ottla.kafka_tools.options import (
    Option,
    Options,
    Takes,
    Tool,
    ToolError,
    WordsReport,
    WrongUsage,
    flag,
    value,
    values,
)
from ottla.kafka_tools.tools.console.message_lines import LineParser

_FILES: Final = ("producer.config", "producer-config", "command-config")
_GIVEN: Final = ("producer-property", "command-property")
_PROPERTIES: Final = ("property", "reader-property")
_LONGEST_LINE: Final = 1 << 30
"""Longer lines cannot be records."""
_KEYS: Final = {
    "batch-size": "batch.size",
    "max-memory-bytes": "buffer.memory",
    "max-block-ms": "max.block.ms",
    "message-send-max-retries": "retries",
    "request-timeout-ms": "request.timeout.ms",
    "retry-backoff-ms": "retry.backoff.ms",
    "socket-buffer-size": "send.buffer.bytes",
    "timeout": "linger.ms",
    "metadata-expiry-ms": "metadata.max.age.ms",
    "request-required-acks": "acks",
    "acks": "acks",
}


def run_console_producer(options: Options) -> int:
    """Write all lines. The exit code is 0 when records failed, as in Kafka, and each error is printed."""
    if not (options.has("bootstrap-server") or options.has("broker-list")):
        raise WrongUsage('Missing required argument "[bootstrap-server]"')
    if not options.has("topic"):
        raise WrongUsage('Missing required argument "[topic]"')
    topic = options.value_of("topic")
    parser = LineParser.from_properties(_reader_properties(options))
    settings = _producer_settings(options)
    sync = options.has("sync")
    with Producer(settings, on_failed=_print_failed) as producer:
        # Kafka's tool prints its prompt always; scripts do not want it in their output.
        for number, line in enumerate(input_lines(sys.stdin.buffer, prompt=sys.stdin.isatty()), 1):
            record = parser.parse_line(line, number)
            try:
                sent = producer.send(topic, record.value, key=record.key, headers=record.headers)
                if sync:
                    sent.result()
            except ClientError as error:
                _print_error(topic, record.key, record.value, error)
        producer.flush()
    return 0


def _print_failed(failed: FailedRecord) -> None:
    _print_error(failed.topic, failed.key, failed.value, failed.error)


def _print_error(topic: str, key: bytes | None, content: bytes | None, error: BaseException) -> None:
    sizes = [
        f"{name}: {'null' if part is None else f'{len(part)} bytes'}"
        for name, part in (("key", key), ("value", content))
    ]
    text = error_text(error) if isinstance(error, ClientError) else str(error)
    print(f"Error when sending message to topic {topic} with {', '.join(sizes)} with error:\n{text}", file=sys.stderr)


def _reader_properties(options: Options) -> dict[str, str]:
    found: dict[str, str] = {}
    if options.has("reader-config"):
        from ottla.client.settings import parse_properties
        from ottla.kafka_tools.connection import read_file

        found |= parse_properties(read_file(options.value_of("reader-config")))
    if options.has("property"):
        print(
            "Warning: --property is deprecated and will be removed in a future version. Use --reader-property instead."
        )
    for word in (word for name in _PROPERTIES for word in options.values_of(name)):
        key, equals, text = word.partition("=")
        if not equals:
            raise ToolError(f"Missing value for key {key!r}: a property has the form key=value")
        found[key.strip()] = text
    return found


def _producer_settings(options: Options) -> dict[str, str]:
    given = [word for name in _GIVEN for word in options.values_of(name)]
    settings = {"client.id": "console-producer", "linger.ms": "1000", "max.block.ms": "60000"}
    settings |= client_settings(options, file_options=_FILES, more=PRODUCER_KEYS, given=given)
    settings |= {key: options.value_of(name) for name, key in _KEYS.items() if options.has(name)}
    if options.has("compression-codec"):
        settings["compression.type"] = options.value_of("compression-codec") or "gzip"
    if options.has("bootstrap-server"):
        settings["bootstrap.servers"] = options.value_of("bootstrap-server")
    return settings


def input_lines(source: BinaryIO, longest: int = _LONGEST_LINE, *, prompt: bool = False) -> Iterator[bytes]:
    """Lines without their ends. prompt: print a sign before each. Raises ToolError for a line that is too long."""
    while True:
        if prompt:
            print(">", end="", flush=True)
        line = source.readline(longest + 1)
        if not line:
            return
        if len(line) > longest:
            raise ToolError(f"a line is longer than {longest} bytes: divide it")
        yield line.removesuffix(b"\n").removesuffix(b"\r")


TOOL: Final = Tool(
    "This tool helps to read data from standard input and publish it to Kafka.",
    (
        value("bootstrap-server", "REQUIRED: The server(s) to connect to."),
        value("broker-list", "The old name of --bootstrap-server."),
        value("topic", "REQUIRED: The topic name to produce messages to."),
        flag("sync", "Send each message before the next line is read."),
        Option("compression-codec", Takes.MAYBE, "none, gzip, snappy, lz4, or zstd; without a value gzip."),
        *(value(name, f"The producer's {key}.") for name, key in _KEYS.items()),
        value("max-partition-memory-bytes", "The old name of --batch-size.", "use --batch-size"),
        value("line-reader", "A class.", "classes of Java cannot be loaded; the properties of the default one work"),
        values("property", "The old name of --reader-property."),
        values("reader-property", "Properties of the reader: parse.key, key.separator and others, key=value."),
        value("reader-config", "Config properties file for the reader."),
        values("producer-property", "The old name of --command-property."),
        values("command-property", "Config properties in the form key=value for the producer."),
        value("producer-config", "The old name of --command-config."),
        value("producer.config", "The old name of --command-config."),
        value("command-config", "Config properties file for the producer."),
    ),
    run_console_producer,
    wrong_words=WordsReport.WITH_USAGE,
)
