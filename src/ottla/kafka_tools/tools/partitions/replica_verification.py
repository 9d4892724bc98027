"""kafka-replica-verification: compare the replicas of partitions, and print how far they agree, until it is ended.

Zone: real. The text is that of Kafka 3.9, the last version with this tool.
"""

from __future__ import annotations

import re
import sys
import time
from datetime import datetime
from typing import Final, NamedTuple

from ottla.client.admin.admin import Admin
from ottla.client.cluster import Cluster
from ottla.client.connections.address import parse_addresses
from ottla.client.errors import ClientError, ConfigError
from ottla.client.metadata import TopicView
from ottla.kafka_tools.connection import open_cluster
from ottla.kafka_tools.name_filter import matching_names
from ottla.kafka_tools.options import COMMAND_CONFIG, Options, Tool, ToolError, WrongUsage, require_options, value
from ottla.kafka_tools.tools.partitions.replica_batches import DifferentOffsets, Verification
from ottla.kafka_tools.tools.partitions.replica_fetches import ReplicaFetches
from ottla.types import TopicPartition

_LATEST, _EARLIEST = -1, -2
_INT_BITS: Final = 31
_FETCH_SIZE: Final = 1 << 20
_REPORT_INTERVAL_MS: Final = 30_000
_LEAST_PAUSE_MS: Final = 50
"""Between rounds in which nothing advanced, with the smallest --max-wait-ms."""


class _Numbers(NamedTuple):
    """The options that are numbers."""

    fetch_size: int
    max_wait_ms: int
    start_time: int
    interval_ms: int


def run_replica_verification(options: Options) -> int:
    """Compare until a signal comes, or until two replicas have different offsets: then the exit code is 1."""
    _check_brokers(options)
    numbers = _parse_numbers(options)
    with open_cluster(options) as cluster:
        topics = _matching_topics(cluster, options)
        fetches = ReplicaFetches(cluster, topics, numbers.fetch_size, numbers.max_wait_ms, _warn)
        offsets = _start_offsets(cluster, sorted(fetches.replicas), numbers.start_time)
        _print_line("verification process is started")
        try:
            _verify_replicas(fetches, Verification(offsets, fetches.replicas), numbers)
        except DifferentOffsets as different:
            _print_line(str(different))
    return 1


def _check_brokers(options: Options) -> None:
    require_options(options, "broker-list")
    addresses = options.value_of("broker-list")
    # Kafka's tool wants a port in each address.
    try:
        parse_addresses(addresses)
        is_valid = all(":" in each for each in addresses.split(","))
    except ConfigError:
        is_valid = False
    if not is_valid:
        raise WrongUsage("Please provide valid host:port like host1:9091,host2:9092\n")


def _parse_numbers(options: Options) -> _Numbers:
    fetch_size = options.number_of("fetch-size", _FETCH_SIZE, _INT_BITS)
    if fetch_size <= 0:
        raise ToolError(f"--fetch-size {fetch_size}: give at least 1 byte", "java.lang.IllegalArgumentException")
    return _Numbers(
        fetch_size,
        max(0, options.number_of("max-wait-ms", 1_000, _INT_BITS)),
        options.number_of("time", _LATEST),
        options.number_of("report-interval-ms", _REPORT_INTERVAL_MS),
    )


def _matching_topics(cluster: Cluster, options: Options) -> list[TopicView]:
    # Internal topics as well: their replicas matter as much.
    topics = {topic.name: topic for topic in Admin(cluster).list_topics(internal=True)}
    found: list[TopicView] = []
    if topics:  # Kafka's tool does not look at the expression without a topic
        expression = _topics_expression(options)
        found = [topics[name] for name in matching_names(expression, sorted(topics))]
    if not any(topic.partitions for topic in found):
        raise ToolError(
            "No topics found. [topics-include] if specified, is either filtering out all topics or there is no topic."
        )
    return found


def _topics_expression(options: Options) -> str:
    # The expression as it was given is checked, before its commas become alternatives.
    expression = options.value_of("topics-include", options.value_of("topic-white-list", ".*"))
    try:
        re.compile(expression)
    except (re.error, OverflowError, RecursionError):
        raise ToolError(f"{expression} is an invalid regex", "java.lang.RuntimeException") from None
    return expression


def _start_offsets(cluster: Cluster, partitions: list[TopicPartition], start_time: int) -> dict[TopicPartition, int]:
    """Where the comparison of each partition begins. Raises ToolError, ClientError."""
    if start_time < _EARLIEST:
        raise ToolError(
            f"The target time for partition {partitions[0]} is {start_time}. The target time cannot be negative.",
            "java.lang.IllegalArgumentException",
        )
    offsets = {}
    for tp, found in Admin(cluster).list_offsets(dict.fromkeys(partitions, start_time)).items():
        if isinstance(found, ClientError):
            raise found
        # Kafka's tool ends with a NullPointerException here, whose class scripts may look for.
        if found.offset < 0:
            raise ToolError(
                f"Partition {tp} has no record with a timestamp of {start_time} or later: use --time -1",
                "java.lang.NullPointerException",
            )
        offsets[tp] = found.offset
    return offsets


def _verify_replicas(fetches: ReplicaFetches, verification: Verification, numbers: _Numbers) -> None:
    """Compare round by round. Raises DifferentOffsets, ToolError."""
    reported = time.time()
    while True:
        began = time.monotonic()
        found, advanced = verification.verify_round(fetches.fetch_round(verification.order, verification.offsets))
        for finding in found:
            _print_line(finding)
        # Only between rounds, so that a report is about partitions that were all compared.
        if (time.time() - reported) * 1000 > numbers.interval_ms:
            _print_line(verification.lag_text())
            reported = time.time()
        if not advanced:
            # Brokers answer at once where one replica has records that another one lacks, and with errors.
            pause_s = max(numbers.max_wait_ms, _LEAST_PAUSE_MS) / 1000
            time.sleep(max(0.0, began + pause_s - time.monotonic()))


def _print_line(text: str) -> None:
    now = datetime.now().astimezone()
    print(f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03}: {text}", flush=True)


def _warn(text: str) -> None:
    print(f"WARN {text}", file=sys.stderr, flush=True)


TOOL: Final = Tool(
    "Validate that all replicas for a set of topics have the same data.",
    (
        *COMMAND_CONFIG,
        value("broker-list", "REQUIRED: The list of hostname and port of the server to connect to."),
        value("fetch-size", f"The fetch size of each request. (default: {_FETCH_SIZE})"),
        value("max-wait-ms", "The max amount of time each fetch request waits. (default: 1000)"),
        value("topics-include", "List of topics to verify replica consistency. (default: .*)"),
        value("topic-white-list", "The old name of --topics-include."),
        value("time", "Timestamp for getting the initial offsets: -1 (latest, the default) or -2 (earliest)."),
        value("report-interval-ms", f"The reporting interval. (default: {_REPORT_INTERVAL_MS})"),
    ),
    run_replica_verification,
    wrap_refusals=True,
)
