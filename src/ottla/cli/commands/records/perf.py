"""`ottla perf`: measure how fast a cluster accepts records, returns them, and passes one on.

Zone: real. Options and output; `perf_runs` measures. Options as in Kafka's
kafka-producer-perf-test, kafka-consumer-perf-test and kafka-e2e-latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from ottla.cli.name_options import named_topic, topic_words
from ottla.cli.options import (
    DEFAULT_TIMEOUT_S,
    ClientSettings,
    common_options,
    option_value,
    output_option,
    parse_assignments,
    print_note,
)
from ottla.cli.views.output import Json, write_json, write_line

if TYPE_CHECKING:
    from ottla.cli.perf_runs import Consumed, Sent
    from ottla.cli.perf_stats import Latencies

_MIB = 1 << 20
_RECORD_SIZE = 100
_TRANSACTION_MS = 3_000
"""Kafka's default, for an id without a duration."""


@click.group()
def perf() -> None:
    """Measure throughput and latency."""


@perf.command()
@topic_words
@click.option("-n", "--num-records", type=click.IntRange(min=1), required=True, help="How many records to send.")
@click.option(
    "--record-size", type=click.IntRange(min=1), metavar="BYTES", help=f"Size of each value; {_RECORD_SIZE} by default."
)
@click.option("--payload-file", type=click.Path(exists=True, dir_okay=False), help="Draw each value from this file.")
@click.option("--payload-delimiter", default="\\n", show_default=True, help="Separator of the values in the file.")
@click.option("--payload-monotonic", is_flag=True, help="Send 0, 1, 2 … as values.")
@click.option("--throughput", type=float, default=-1, metavar="N", help="Most records per second; -1: no limit.")
@click.option(
    "--producer-props",
    "--command-property",
    "props",
    multiple=True,
    metavar="KEY=VALUE…",
    help="Set client keys, as -X.",
)
@click.option("--transactional-id", metavar="ID", help="Send in transactions.")
@click.option(
    "--transaction-duration-ms",
    type=click.IntRange(min=1),
    help=f"Duration of each transaction; {_TRANSACTION_MS} by default.",
)
@click.option("--warmup-records", type=click.IntRange(min=0), default=0, help="How many first records are not counted.")
@click.option("--print-metrics", is_flag=True, help="Print the producer's metrics at the end.")
@output_option("text", "json")
@common_options
def produce(
    topic: str | None,
    topic_option: str | None,
    num_records: int,
    record_size: int | None,
    payload_file: str | None,
    payload_delimiter: str,
    payload_monotonic: bool,
    throughput: float,
    props: tuple[str, ...],
    transactional_id: str | None,
    transaction_duration_ms: int | None,
    warmup_records: int,
    print_metrics: bool,
    output: str,
) -> None:
    """Send records to TOPIC as fast as possible, and show how long their acknowledgements took."""
    from ottla.cli.perf_runs import Load, make_payloads, send_all

    name = named_topic(topic, topic_option)
    if (record_size is not None) + (payload_file is not None) + payload_monotonic > 1:
        raise click.UsageError("use only one of --record-size, --payload-file and --payload-monotonic")
    if warmup_records >= num_records:
        raise click.UsageError("--warmup-records leaves no record to count: make it less than --num-records")
    values = make_payloads(record_size or _RECORD_SIZE, payload_file, payload_delimiter, monotonic=payload_monotonic)
    transaction_s = None
    if transactional_id or transaction_duration_ms:
        transaction_s = (transaction_duration_ms or _TRANSACTION_MS) / 1_000
    load = Load(name, num_records, values, throughput, warmup_records, transaction_s)
    sent = send_all(load, _parse_properties(props), transactional_id)
    if output == "json":
        write_json({**sent.document(), **({"metrics": sent.metrics} if print_metrics else {})})
    else:
        _write_sent(sent, metrics=print_metrics)
    if sent.error is not None:
        raise sent.error


def _parse_properties(words: tuple[str, ...]) -> ClientSettings:
    """Parse Kafka's `--producer-props "a=1 b=2"`: several pairs in one word, or the option repeated."""
    return dict(parse_assignments(tuple(part for word in words for part in word.split())))


def _write_sent(sent: Sent, *, metrics: bool) -> None:
    """Print Kafka's line, and the histogram."""
    seen, seconds = sent.latencies, max(sent.seconds, 1e-9)
    places = ", ".join(f"{seen.quantile_ms(share):.2f} ms {word}" for word, share in _ORDINALS.items())
    write_line(
        f"{seen.count} records sent, {seen.count / seconds:.1f} records/sec ({sent.size / _MIB / seconds:.2f} MB/sec), "
        f"{seen.mean_ms():.2f} ms avg latency, {seen.largest_us / 1_000:.2f} ms max latency, {places}."
    )
    _write_chart(seen)
    if metrics:
        _write_metrics(sent.metrics)


_ORDINALS: Mapping[str, float] = {"50th": 0.5, "95th": 0.95, "99th": 0.99, "99.9th": 0.999}


def _write_chart(seen: Latencies) -> None:
    if not option_value("quiet", False):
        for line in seen.chart_lines():
            write_line(line)


def _write_metrics(metrics: Mapping[str, float]) -> None:
    for key, value in metrics.items():
        write_line(f"{key}\t{value:.3f}")


@perf.command()
@topic_words
@click.option(
    "-n", "--num-records", "--messages", type=click.IntRange(min=1), required=True, help="How many records to read."
)
@click.option("-g", "--group", metavar="GROUP", help="The consumer group; a new one by default.")
@click.option("--from-latest", is_flag=True, help="Begin at the end of partitions without a committed offset.")
@click.option("--fetch-size", type=click.IntRange(min=1), metavar="BYTES", help="max.partition.fetch.bytes.")
@click.option("--socket-buffer-size", type=click.IntRange(min=1), metavar="BYTES", help="receive.buffer.bytes.")
@click.option(
    "--consumer-props",
    "--command-property",
    "props",
    multiple=True,
    metavar="KEY=VALUE…",
    help="Set client keys, as -X.",
)
@click.option("--table", is_flag=True, help="Read Arrow tables instead of records.")
@click.option("--hide-header", is_flag=True, help="Print only the line with the numbers.")
@output_option("text", "json")
@common_options
def consume(
    topic: str | None,
    topic_option: str | None,
    num_records: int,
    group: str | None,
    from_latest: bool,
    fetch_size: int | None,
    socket_buffer_size: int | None,
    props: tuple[str, ...],
    table: bool,
    hide_header: bool,
    output: str,
) -> None:
    """Read records of TOPIC in a group as fast as possible. Ends when none came for --timeout seconds (10)."""
    from ottla.cli.perf_runs import read_all

    name = named_topic(topic, topic_option)
    sizes = {"max.partition.fetch.bytes": fetch_size, "receive.buffer.bytes": socket_buffer_size, "group.id": group}
    settings: ClientSettings = {key: value for key, value in sizes.items() if value is not None}
    settings["auto.offset.reset"] = "latest" if from_latest else "earliest"
    patience_s = option_value("timeout_s", _SILENCE_S)
    seen = read_all(name, num_records, {**_parse_properties(props), **settings}, patience_s, table=table)
    if output == "json":
        write_json(seen.document())
    else:
        _write_consumed(seen, header=not hide_header)
    if seen.records < num_records:
        print_note(f"no record came for {patience_s:g} s: {seen.records} of {num_records} were read")
        raise click.exceptions.Exit(5)


_SILENCE_S = 10.0
"""Kafka's default."""
_CONSUMED = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
    "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)


def _write_consumed(seen: Consumed, *, header: bool) -> None:
    """Print Kafka's two lines."""
    if header:
        write_line(_CONSUMED)
    size, seconds = seen.size / _MIB, max(seen.seconds, 1e-9)
    fetching_s = max(seen.seconds - seen.joining_s, 1e-9)
    write_line(
        f"{_time_text(seen.began_s)}, {_time_text(seen.began_s + seen.seconds)}, {size:.4f}, {size / seconds:.4f}, "
        f"{seen.records}, {seen.records / seconds:.4f}, {seen.joining_s * 1_000:.0f}, {fetching_s * 1_000:.0f}, "
        f"{size / fetching_s:.4f}, {seen.records / fetching_s:.4f}"
    )


def _time_text(seconds: float) -> str:
    """A time as Kafka prints it: 2026-11-21 08:30:00:123."""
    from datetime import datetime

    at = datetime.fromtimestamp(seconds).astimezone()
    return f"{at:%Y-%m-%d %H:%M:%S}:{at.microsecond // 1_000:03}"


@perf.command()
@topic_words
@click.option(
    "-n", "--num-records", "--num-messages", type=click.IntRange(min=1), required=True, help="How many records."
)
@click.option("--producer-acks", type=click.Choice(["1", "all"]), default="all", show_default=True, help="acks.")
@click.option("--record-size", type=click.IntRange(min=1), default=_RECORD_SIZE, show_default=True, metavar="BYTES")
@click.option("--throughput", type=float, default=-1, metavar="N", help="Most records per second; -1: no limit.")
@click.option(
    "--warmup-records", type=click.IntRange(min=0), default=10, help="How many first records are not counted."
)
@output_option("text", "json")
@common_options
def e2e(
    topic: str | None,
    topic_option: str | None,
    num_records: int,
    producer_acks: str,
    record_size: int,
    throughput: float,
    warmup_records: int,
    output: str,
) -> None:
    """Measure the time from sending a record to TOPIC until it is read, for one record after the other."""
    from ottla.cli.perf_runs import pass_all

    name = named_topic(topic, topic_option)
    patience_s = option_value("timeout_s", DEFAULT_TIMEOUT_S)
    seen = pass_all(
        name, num_records + warmup_records, record_size, producer_acks, throughput, warmup_records, patience_s
    )
    if output == "json":
        document: dict[str, Json] = {"records": seen.count, "latency_ms": seen.document()}
        write_json(document)
        return
    write_line(f"Avg latency: {seen.mean_ms():.4f} ms")
    write_line(
        f"Percentiles: 50th = {seen.quantile_ms(0.5):.3f}, 99th = {seen.quantile_ms(0.99):.3f}, "
        f"99.9th = {seen.quantile_ms(0.999):.3f}"
    )
    _write_chart(seen)
