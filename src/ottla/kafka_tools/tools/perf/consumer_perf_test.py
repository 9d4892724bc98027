"""kafka-consumer-perf-test: read records, and print how many per second, and how long joining the group took.

Zone: real.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

from ottla.client import Consumer
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.consumer.settings import CONSUMER_KEYS
from ottla.kafka_tools.connection import client_settings
from ottla.kafka_tools.options import (
    Option,
    Options,
    Takes,
    Tool,
    ToolError,
    WordsReport,
    WrongUsage,
    flag,
    refuse_together,
    require_options,
    value,
    values,
)
from ottla.kafka_tools.tools.perf.java_text import date_text, decimal_text, metric_text, quotient
from ottla.types import TopicPartition

_POLL_S: Final = 0.1
_MB: Final = 1024 * 1024
_DATE_FORMAT: Final = "yyyy-MM-dd HH:mm:ss:SSS"
_COLUMNS: Final = (
    "data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, fetch.MB.sec, "
    "fetch.nMsg.sec"
)


def run_consumer_perf_test(options: Options) -> None:
    """Read the records and print the lines."""
    _check_options(options)
    if not options.has("hide-header"):
        first = "time, threadId" if options.has("show-detailed-stats") else "start.time, end.time"
        print(f"{first}, {_COLUMNS}")
    settings = _consumer_settings(options)
    run = _make_run(options)
    with Consumer(settings) as consumer:
        meter = _Meter(run)
        _subscribe(consumer, options, meter.joins)
        meter.read_records(consumer)
        end_ms = now_ms()
        metrics = meter.named_metrics(settings["client.id"])  # before the consumer gives its partitions back
    if not run.detailed:
        print(meter.total_line(end_ms))
    if options.has("print-metrics"):
        print(metric_text(metrics))


def _check_options(options: Options) -> None:
    require_options(options, "bootstrap-server")
    for first, second in (("topic", "include"), ("messages", "num-records")):
        if options.has(first) == options.has(second):
            raise WrongUsage(f"Exactly one of the following arguments is required: [{first}], [{second}]")
    refuse_together(options, "consumer.config", ("command-config",))
    for old, new in (("messages", "num-records"), ("consumer.config", "command-config")):
        if options.has(old):
            print(f"Warning: --{old} is deprecated. Use --{new} instead.")


def _consumer_settings(options: Options) -> dict[str, str]:
    # As in Kafka's tool, a word without a value is a property with an empty one.
    given = [word if "=" in word else f"{word}=" for word in options.values_of("command-property")]
    files = ("consumer.config", "command-config")
    settings = {"client.id": "perf-consumer-client"}
    settings |= client_settings(options, file_options=files, more=CONSUMER_KEYS, given=given)
    return settings | {
        "group.id": options.value_of("group", f"perf-consumer-{random.randrange(100_000)}"),
        "max.partition.fetch.bytes": str(options.number_of("fetch-size", _MB)),
        "auto.offset.reset": "latest" if options.has("from-latest") else "earliest",
        "check.crcs": "false",
    }


class _Run(NamedTuple):
    """The options as numbers."""

    records: int
    timeout_ms: int
    interval_ms: int
    detailed: bool
    date_format: str


def _make_run(options: Options) -> _Run:
    number = options.number_of
    interval_ms = number("reporting-interval", 5000)
    if interval_ms <= 0:
        raise ToolError("Reporting interval must be greater than 0.", "java.lang.IllegalArgumentException")
    date_format = options.value_of("date-format", _DATE_FORMAT)
    try:
        date_text(date_format, datetime.now().astimezone())
    except ValueError as error:
        raise ToolError(str(error), "java.lang.IllegalArgumentException") from None
    records = number("messages", 0) if options.has("messages") else number("num-records", 0)
    timeout_ms = number("timeout", 10_000) if options.values_of("timeout") else 10_000
    return _Run(records, timeout_ms, interval_ms, options.has("show-detailed-stats"), date_format)


def _subscribe(consumer: Consumer, options: Options, joins: _Joins) -> None:
    topics: re.Pattern[str] | list[str] = [options.value_of("topic")]
    if options.has("include"):
        try:
            topics = re.compile(options.value_of("include"))
        except (re.error, OverflowError, RecursionError) as error:
            raise ToolError(
                f"{error}: {options.value_of('include')}", "java.util.regex.PatternSyntaxException"
            ) from None
    consumer.subscribe(topics, on_assigned=joins.on_assigned, on_revoked=joins.on_revoked)


class _Joins:
    """How long the consumer waited for partitions."""

    def __init__(self) -> None:
        self.time_ms = 0
        self.rebalances = 0
        self.assigned: set[TopicPartition] = set()
        self._start_ms = now_ms()

    def on_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        self.assigned -= set(partitions)
        if not self.assigned:
            self._start_ms = now_ms()

    def on_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        self.rebalances += 1
        if not self.assigned:
            self.time_ms += now_ms() - self._start_ms
        self.assigned |= set(partitions)


class _Mark(NamedTuple):
    """The counts at a time."""

    time_ms: int
    records: int = 0
    size: int = 0
    join_ms: int = 0


class _Meter:
    """Counts of all records, and of those since the last line of progress."""

    def __init__(self, run: _Run) -> None:
        self.joins = _Joins()
        self._run = run
        self._start_ms = now_ms()
        self._records = 0
        self._size = 0
        self._last = _Mark(self._start_ms)

    def read_records(self, consumer: Consumer) -> None:
        """Read the wanted number, or until no record arrives for --timeout."""
        now = read_ms = self._start_ms
        while self._records < self._run.records and now - read_ms <= self._run.timeout_ms:
            found = consumer.poll(_POLL_S)
            now = now_ms()
            if found:
                read_ms = now
                self._count(found, now)
        if self._records < self._run.records:
            print(
                "WARNING: Exiting before consuming the expected number of records: timeout "
                f"({self._run.timeout_ms} ms) exceeded. You can use the --timeout option to increase the timeout."
            )

    def _count(self, found: list[ConsumerRecord], now: int) -> None:
        # All records of a poll have one time, so that only its first one can be due for a line, as in Kafka's tool.
        if now - self._last.time_ms >= self._run.interval_ms:
            self._add(found[:1])
            found = found[1:]
            if self._run.detailed:
                print(self._progress_line(now), flush=True)
            self._last = _Mark(now, self._records, self._size, self.joins.time_ms)
        self._add(found)

    def _add(self, found: list[ConsumerRecord]) -> None:
        self._records += len(found)
        self._size += sum(len(record.key or b"") + len(record.value or b"") for record in found)

    def _progress_line(self, now: int) -> str:
        last, join_ms = self._last, self.joins.time_ms - self._last.join_ms
        records, megabytes = self._records - last.records, (self._size - last.size) / _MB
        elapsed = (now - last.time_ms) / 1000
        fetch_ms = now - last.time_ms - join_ms
        rates = [megabytes * 1000 / fetch_ms, records * 1000 / fetch_ms] if fetch_ms > 0 else [0.0, 0.0]
        return ", ".join(
            (
                self._date(now),
                "0",
                decimal_text(self._size / _MB, 4),
                decimal_text(quotient(megabytes, elapsed), 4),
                str(self._records),
                decimal_text(quotient(records, elapsed), 4),
                str(join_ms),
                str(fetch_ms),
                *(decimal_text(rate, 4) for rate in rates),
            )
        )

    def total_line(self, end_ms: int) -> str:
        """The line about all records."""
        megabytes, elapsed_ms = self._size / _MB, end_ms - self._start_ms
        fetch_ms = elapsed_ms - self.joins.time_ms
        return ", ".join(
            (
                self._date(self._start_ms),
                self._date(end_ms),
                decimal_text(megabytes, 4),
                decimal_text(quotient(megabytes, elapsed_ms / 1000), 4),
                str(self._records),
                decimal_text(quotient(self._records, elapsed_ms / 1000), 4),
                str(self.joins.time_ms),
                str(fetch_ms),
                decimal_text(quotient(megabytes, fetch_ms / 1000), 4),
                decimal_text(quotient(self._records, fetch_ms / 1000), 4),
            )
        )

    def _date(self, time_ms: int) -> str:
        return date_text(self._run.date_format, datetime.fromtimestamp(time_ms / 1000).astimezone())

    def named_metrics(self, client_id: str) -> dict[str, float]:
        """The metrics of Kafka's consumer that the tool counts."""
        found = {
            "consumer-coordinator-metrics:assigned-partitions": len(self.joins.assigned),
            "consumer-coordinator-metrics:rebalance-total": self.joins.rebalances,
            "consumer-fetch-manager-metrics:records-consumed-total": self._records,
        }
        return {f"{name}:{{client-id={client_id}}}": number for name, number in found.items()}


def now_ms() -> int:
    """Milliseconds of the wall clock, by which Kafka's tool measures too."""
    return time.time_ns() // 1_000_000


TOOL: Final = Tool(
    "This tool is used to verify the consumer performance.",
    (
        value("bootstrap-server", "REQUIRED: The server(s) to connect to."),
        value("topic", "The topic to consume from."),
        value("include", "Regular expression specifying list of topics to include for consumption."),
        value("group", "The group id to consume on; perf-consumer- and a number by default."),
        value("fetch-size", "The maximum amount of data to fetch from a single partition per request."),
        values("command-property", "Consumer properties, which take precedence over those of --command-config."),
        flag("from-latest", "Without a committed offset, start with the latest record rather than the earliest one."),
        value("socket-buffer-size", "A size of receive buffers.", "the system chooses the size of receive buffers"),
        value("consumer.config", "The old name of --command-config."),
        value("command-config", "Config properties file."),
        flag("print-metrics", "Print out the metrics."),
        flag("show-detailed-stats", "Print a line of statistics for each reporting interval."),
        Option("timeout", Takes.MAYBE, "The most milliseconds between returned records; 10000 by default."),
        value("messages", "The old name of --num-records."),
        value("num-records", "REQUIRED: The number of records to consume."),
        value("reporting-interval", "Interval in milliseconds at which to print progress info; 5000 by default."),
        value("date-format", "The format of times, as of java.text.SimpleDateFormat."),
        flag("hide-header", "Do not print the header of the statistics."),
    ),
    run_consumer_perf_test,
    wrong_words=WordsReport.WITH_USAGE,
)
