"""kafka-producer-perf-test: send records, and print how many per second, and how long they took.

Zone: real. `send_statistics` makes the lines.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from ottla.client import Producer
from ottla.client.errors import ClientError
from ottla.client.producer.config import PRODUCER_KEYS
from ottla.client.producer.futures import RecordMetadata
from ottla.kafka_tools.argument_parser import ArgumentRules, parse_arguments, wrong_argument
from ottla.kafka_tools.connection import client_settings
from ottla.kafka_tools.java_errors import error_text
from ottla.kafka_tools.options import Option, Options, Takes, Tool, ToolError, WordsReport, flag, value
from ottla.kafka_tools.tools.perf.java_text import metric_text
from ottla.kafka_tools.tools.perf.payloads import make_payloads
from ottla.kafka_tools.tools.perf.send_statistics import SendStatistics
from ottla.kafka_tools.tools.perf.throttler import Throttler

_RULES: Final = ArgumentRules(
    "kafka-producer-perf-test",
    ("topic", "num-records", "throughput"),
    {
        "num-records": "Long",
        "throughput": "Double",
        "transaction-duration-ms": "Long",
        "warmup-records": "Long",
        "reporting-interval": "Long",
        "record-size": "Integer",
    },
    ("record-size", "payload-file", "payload-monotonic"),
)
_SETTINGS: Final = ("bootstrap-server", "command-property", "producer-props", "producer.config", "command-config")
_OLD_NAMES: Final = {"producer-props": "command-property", "producer.config": "command-config"}


class _Run(NamedTuple):
    """The options as numbers."""

    topic: str
    records: int
    throughput: float
    warmup: int
    interval_ms: int
    transaction_ms: int | None
    """How long a transaction is open; None: records are sent without transactions."""


def run_producer_perf_test(options: Options) -> None:
    """Send the records and print the lines."""
    _check_options(options)
    payloads = make_payloads(options)
    for old, new in _OLD_NAMES.items():
        if options.has(old):
            print(f"Option --{old} has been deprecated and will be removed in a future version. Use --{new} instead.")
    settings = _producer_settings(options)
    run = _make_run(options, settings)
    with Producer(settings) as producer:
        meter = _Meter(run)
        _send_records(producer, run, payloads, meter)
        # The totals are those of all records: the last ones are acknowledged first.
        producer.flush()
        meter.print_totals()
        if options.has("print-metrics"):
            tags = f"{{client-id={settings['client.id']}}}"
            print(metric_text({f"producer-metrics:{name}:{tags}": n for name, n in producer.metrics().items()}))


def _check_options(options: Options) -> None:
    for wrong, message in _wrong_combinations(options):
        if wrong:
            raise wrong_argument(_RULES, _OPTIONS, message)


def _wrong_combinations(options: Options) -> Iterator[tuple[bool, str]]:
    number = options.number_of
    records = number("num-records", 1)
    yield records <= 0, "--num-records should be greater than zero."
    yield (
        number("warmup-records", 0) >= records,
        "The value for --warmup-records must be strictly fewer than the number of records in the test, --num-records.",
    )
    yield number("record-size", 1) <= 0, "--record-size should be greater than zero."
    yield (
        not any(map(options.has, _SETTINGS)),
        f"At least one of {', '.join(f'--{name}' for name in _SETTINGS[:-1])} or --{_SETTINGS[-1]} must be specified.",
    )
    for old, new in _OLD_NAMES.items():
        first, second = sorted((old, new))
        yield options.has(old) and options.has(new), f"--{first} and --{second} cannot be specified together."
    yield number("transaction-duration-ms", 1) <= 0, "--transaction-duration-ms should be greater than zero."
    yield number("reporting-interval", 1) <= 0, "--reporting-interval should be greater than zero."
    yield (
        not abs(float(options.value_of("throughput"))) > 0,
        "--throughput 0 would send one record and wait without end. Use -1 to send without a limit.",
    )


def _producer_settings(options: Options) -> dict[str, str]:
    given = [word for name in ("producer-props", "command-property") for word in options.values_of(name)]
    for word in given:
        if word.count("=") != 1 or word.endswith("="):
            raise ToolError(f"java.lang.IllegalArgumentException: Invalid property: {word}")
    files = ("producer.config", "command-config")
    settings = {"client.id": "perf-producer-client"}
    settings |= client_settings(options, file_options=files, more=PRODUCER_KEYS, given=given)
    if options.has("transactional-id"):
        settings["transactional.id"] = options.value_of("transactional-id")
    elif options.has("transaction-duration-ms"):
        settings.setdefault("transactional.id", f"performance-producer-{uuid.uuid4()}")
    return settings


def _make_run(options: Options, settings: dict[str, str]) -> _Run:
    number = options.number_of
    return _Run(
        options.value_of("topic"),
        number("num-records", 0),
        float(options.value_of("throughput")),
        number("warmup-records", 0),
        number("reporting-interval", 5000),
        number("transaction-duration-ms", 3000) if "transactional.id" in settings else None,
    )


class _Meter:
    """The statistics of all records and, after the warm-up, those of the others."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self.steady: SendStatistics | None = None
        if run.warmup > 0:
            print(
                f"Warmup first {run.warmup} records. Steady state results will print after the complete test summary."
            )
        self.all = SendStatistics(run.records, run.interval_ms, now_ms())

    def end_warmup(self) -> None:
        """From now on the lines of progress are about records after the warm-up."""
        self.steady = SendStatistics(self._run.records - self._run.warmup, self._run.interval_ms, now_ms(), steady=True)
        self.all.silent = True

    def on_delivery(
        self,
        start_ms: int,
        size: int,
        steady: SendStatistics | None,
        _: RecordMetadata | None,
        error: ClientError | None,
    ) -> None:
        """Called in the producer's thread."""
        if error is not None:
            print(error_text(error), file=sys.stderr)
            return
        now = now_ms()
        lines = self.all.add_record(now - start_ms, size, now)
        if steady is not None:
            lines += steady.add_record(now - start_ms, size, now)
        for line in lines:
            print(line, flush=True)

    def print_totals(self) -> None:
        """The last lines."""
        for each in (self.all, self.steady):
            if each is not None:
                print(each.total_line(now_ms()))


def _send_records(producer: Producer, run: _Run, payloads: Iterator[bytes], meter: _Meter) -> None:
    transactions = _Transactions(producer, run.transaction_ms)
    throttler = Throttler(run.throughput, time.monotonic())
    for number in range(run.records):
        payload = next(payloads)
        transactions.begin_if_needed()
        if run.warmup > 0 and number == run.warmup:
            meter.end_warmup()
        start_ms = now_ms()
        on_delivery = partial(meter.on_delivery, start_ms, len(payload), meter.steady)
        try:
            producer.send(run.topic, payload, on_delivery=on_delivery)
        # Kafka's producer gives errors of a record to its callback; errors of a transaction end the run.
        except ClientError as error:
            if run.transaction_ms is not None:
                raise
            on_delivery(None, error)
        transactions.commit_if_due(start_ms)
        # The number before this record, as Kafka's tool counts: the first record is never waited for.
        pause = throttler.pause_after(number, time.monotonic())
        if pause:
            time.sleep(pause)
    transactions.commit_open()


class _Transactions:
    """Transactions of a duration; nothing is done without one."""

    def __init__(self, producer: Producer, duration_ms: int | None) -> None:
        self._producer = producer
        self._duration_ms = duration_ms
        self._begun_ms: int | None = None
        if duration_ms is not None:
            producer.init_transactions()

    def begin_if_needed(self) -> None:
        if self._duration_ms is not None and self._begun_ms is None:
            self._producer.begin_transaction()
            self._begun_ms = now_ms()

    def commit_if_due(self, time_ms: int) -> None:
        if (
            self._duration_ms is not None
            and self._begun_ms is not None
            and time_ms - self._begun_ms >= self._duration_ms
        ):
            self.commit_open()

    def commit_open(self) -> None:
        """Commit, if a transaction is open."""
        if self._begun_ms is not None:
            self._producer.commit_transaction()
            self._begun_ms = None


def now_ms() -> int:
    """Milliseconds of the wall clock, by which Kafka's tool measures too."""
    return time.time_ns() // 1_000_000


_OPTIONS: Final = (
    value(
        "bootstrap-server",
        "The server(s) to connect to, which take precedence over bootstrap.servers of --command-property or "
        "--command-config.",
    ),
    value("topic", "REQUIRED: Produce records to this topic."),
    value("num-records", "REQUIRED: Number of records to produce."),
    value("payload-delimiter", "The regular expression between payloads of --payload-file; a new line by default."),
    value("throughput", "REQUIRED: The most records per second, approximately; -1 for no limit."),
    Option("producer-props", Takes.SEVERAL, "The old name of --command-property."),
    Option("command-property", Takes.SEVERAL, "Producer properties, such as linger.ms=10 batch.size=32768."),
    value("producer.config", "The old name of --command-config."),
    value("command-config", "Producer config properties file."),
    flag("print-metrics", "Print out metrics at the end of the test."),
    value("transactional-id", "The transactional id; performance-producer- and a UUID by default."),
    value("transaction-duration-ms", "Commit a transaction after this time; 3000 by default with a transactional id."),
    value("warmup-records", "The number of first records that the steady-state statistics leave out."),
    value("reporting-interval", "Interval in milliseconds at which to print progress info; 5000 by default."),
    value("record-size", "Record size in bytes."),
    value("payload-file", "A UTF-8 file of payloads, of which one is chosen at random for each record."),
    flag("payload-monotonic", "The payload is a number: 0, 1, 2 and so on."),
)
TOOL: Final = Tool(
    "This tool is used to verify the producer performance.",
    _OPTIONS,
    run_producer_perf_test,
    wrong_words=WordsReport.PLAIN,
    parse=partial(parse_arguments, _RULES),
)
