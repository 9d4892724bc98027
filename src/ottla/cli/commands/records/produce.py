"""`ottla produce`: write lines or JSON from standard input to a topic.

Zone: real. Turns input into records; the producer does batches, partitions, retries and transactions.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import click

from ottla.cli.clients import make_producer
from ottla.cli.name_options import topic_words
from ottla.cli.options import ClientSettings, common_options, remember_output
from ottla.cli.reading.byte_formats import FORMAT_NAMES, parse_bytes
from ottla.client.errors import UsageError

# Reading standard input: bytes in, lines out, and a callback whenever the writer of the pipe pauses.

_CHUNK = 1 << 16


def lines_of(stream: BinaryIO, limit: int, on_pause: Callable[[], None]) -> Iterator[bytes]:
    """Each line without its newline; a last line without one counts as well.

    on_pause: called when no more input is available yet, so that the lines read so far can be sent.
    Raises UsageError for a line longer than `limit` bytes, before it fills the memory.
    """
    parts: list[bytes] = []
    size = 0
    number = 1
    while chunk := _read_stream(stream):
        # `parts` are pieces of one line: joining them only at its end keeps a long line from being copied for each
        # chunk.
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            yield b"".join([*parts, line])
            parts.clear()
            size = 0
            number += 1
        parts.append(rest)
        size += len(rest)
        if size > limit:
            raise UsageError(f"line {number} is longer than {limit} bytes", "Raise it with -X max.request.size=…")
        if _is_paused(stream):
            on_pause()
    if size:
        yield b"".join(parts)


def _read_stream(stream: BinaryIO) -> bytes:
    """The bytes that are available, at least one; empty at the end of the input."""
    read1 = getattr(stream, "read1", stream.read)
    chunk: bytes = read1(_CHUNK)
    return chunk


def _is_paused(stream: BinaryIO) -> bool:
    """Whether a read would block now. False for files, and for streams without a descriptor."""
    try:
        return not select.select([stream], [], [], 0)[0]
    except (OSError, ValueError):
        return False


if TYPE_CHECKING:
    from ottla.cli.views.record_text import RecordLine

_BATCH_BYTES = 131_072
"""Larger than Kafka's batch.size, as throughput matters for a pipe, not latency; -X batch.size=… changes it."""
_LAST_WORDS_S = 1.0
"""How long records in flight may take after Ctrl-C."""


class _Choice(NamedTuple):
    """The options that apply to every record."""

    topic: str | None
    key: bytes | None
    separator: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    tombstone: bool
    jsonl: bool
    partition: int | None
    repartition: bool
    timestamp: int | None
    files: tuple[str, ...]
    whole: bool
    key_format: str
    value_format: str

    @property
    def noun(self) -> str:
        """The unit of the input that becomes a record."""
        return "file" if self.whole else "line"


@click.command()
@topic_words
@click.option("-k", "--key", help="The key of every record.")
@click.option("-K", "--key-separator", metavar="TEXT", help="Separator of key and value in a line; \\t is a tab.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every record.")
@click.option("--file", "files", multiple=True, metavar="FILE", help="Read this file, not standard input (-).")
@click.option("--whole", is_flag=True, help="Write each whole file, or all of standard input, as one record.")
@click.option("--key-format", type=click.Choice(FORMAT_NAMES), default="text", help="The form of keys in the input.")
@click.option("--value-format", type=click.Choice(FORMAT_NAMES), default="text", help="The form of values.")
@click.option("--tombstone", is_flag=True, help="Write null values: for --key, or with each line as a key.")
@click.option("--jsonl", is_flag=True, help="Read lines of JSON, as `ottla consume -o jsonl` prints them.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Write to this partition only.")
@click.option("--repartition", is_flag=True, help="With --jsonl: choose partitions by key, not from the lines.")
@click.option("--acks", type=click.Choice(["0", "1", "all"]), help="Replicas that must have a record; all by default.")
@click.option(
    "-z", "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), help="Codec of the batches."
)
@click.option("--timestamp", metavar="TIME", help="Timestamp of every record: ms since 1970, a date and time, or -1h.")
@click.option("--transactional-id", metavar="ID", help="Write all records in one transaction.")
@click.option(
    "--transaction-records", type=click.IntRange(min=1), metavar="N", help="… in one transaction per N records."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["none", "jsonl"]),
    default="none",
    callback=remember_output,
    help="jsonl: print partition and offsets of the written records.",
)
@common_options
def produce(
    topic: str | None,
    topic_option: str | None,
    key: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    files: tuple[str, ...],
    whole: bool,
    key_format: str,
    value_format: str,
    tombstone: bool,
    jsonl: bool,
    partition: int | None,
    repartition: bool,
    acks: str | None,
    compression: str | None,
    timestamp: str | None,
    transactional_id: str | None,
    transaction_records: int | None,
    output: str,
) -> None:
    """Write records to TOPIC, one for each line of standard input, or of the files.

    With --jsonl a line may name its own topic; TOPIC, when given, overrides it.
    """
    choice = _Choice(
        topic or topic_option,
        None if key is None else os.fsencode(key),
        _parse_separator(key_separator),
        tuple(_parse_header(text) for text in headers),
        tombstone,
        jsonl,
        partition,
        repartition,
        _parse_timestamp(timestamp),
        files,
        whole,
        key_format,
        value_format,
    )
    _check_choice(choice)
    if transaction_records is not None and transactional_id is None:
        raise click.UsageError("--transaction-records needs --transactional-id")
    settings = {"acks": acks, "compression.type": compression, "transactional.id": transactional_id}
    fixed: ClientSettings = {name: value for name, value in settings.items() if value is not None}
    _run_import(choice, fixed, transaction_records, printing=output == "jsonl")


def _run_import(choice: _Choice, settings: ClientSettings, per_transaction: int | None, *, printing: bool) -> None:
    from ottla.cli.deliveries import Deliveries
    from ottla.cli.failure import BadLine
    from ottla.cli.files.sending import send_in_transactions, send_records
    from ottla.cli.views.progress import Progress
    from ottla.client import ClientError

    continuation = None if choice.files else "tail -n +{}".format
    deliveries = Deliveries(printing=printing, noun=choice.noun, continuation=continuation)
    defaults: ClientSettings = {"batch.size": _BATCH_BYTES, "allow.auto.create.topics": True}
    with make_producer(defaults, settings) as producer, Progress("written") as progress:
        transactional = bool(producer.config.transactional_id)

        def on_pause() -> None:
            if not transactional:  # whose records are settled when it is committed
                producer.flush()
                deliveries.settle_runs()

        records = _read_records(choice, producer.config.client.max_request_size, on_pause)
        try:
            if transactional:
                send_in_transactions(producer, records, deliveries, progress, per_transaction)
            else:
                send_records(producer, records, deliveries, progress)
        # 1. Ctrl-C: wait a moment for records in flight, and report nothing. 2. A failure: close first, because only
        #    then the outcome of every accepted record is known, which the message reports.
        except KeyboardInterrupt:
            producer.close(_LAST_WORDS_S)
            raise
        except (ClientError, BadLine) as error:
            producer.close()
            raise deliveries.as_failure(error, transactional=transactional) from error


def _read_records(choice: _Choice, limit: int, on_pause: Callable[[], None]) -> Iterator[tuple[int, RecordLine]]:
    """The number of each line and its record, with the options applied. Raises BadLine."""
    from ottla.cli.failure import BadLine
    from ottla.cli.views.record_text import RecordLine

    # A tombstone for a given key is one record, which needs no line of input.
    if choice.tombstone and choice.key is not None:
        only = parse_bytes(choice.key_format)(choice.key)
        yield 1, RecordLine(choice.topic, choice.partition, choice.timestamp, only, None, choice.headers)
        return
    # JSON may be several times the size of the record in it: escapes, base64, field names. So may the other formats.
    longest = limit * 8 if choice.jsonl or choice.value_format != "text" else limit
    parse_key, parse_value = parse_bytes(choice.key_format), parse_bytes(choice.value_format)
    for number, line in enumerate(_read_input(choice, longest, on_pause), 1):
        try:
            record = _from_json(line, choice) if choice.jsonl else _from_text(line, choice)
            key = None if record.key is None else parse_key(record.key)
            value = None if record.value is None else parse_value(record.value)
        except ValueError as error:
            raise BadLine(number, str(error), choice.noun) from error
        yield number, record._replace(key=key, value=value)


def _read_input(choice: _Choice, limit: int, on_pause: Callable[[], None]) -> Iterator[bytes]:
    """The lines of the files one after the other, or whole files. Raises UsageError for too long ones, OSError."""
    for name in choice.files or ("-",):
        with contextlib.nullcontext(sys.stdin.buffer) if name == "-" else open(name, "rb") as stream:
            if not choice.whole:
                yield from lines_of(stream, limit, on_pause)
                continue
            content = stream.read(limit + 1)
            if len(content) > limit:
                raise UsageError(f"{name} is longer than {limit} bytes", "Raise it with -X max.request.size=…")
            yield content


def _from_text(line: bytes, choice: _Choice) -> RecordLine:
    from ottla.cli.views.record_text import RecordLine

    key, value = choice.key, line
    if choice.separator is not None:
        key, found, value = line.partition(choice.separator)
        if not found:
            raise ValueError(f"it does not contain the key separator {choice.separator.decode()!r}")
    if choice.tombstone:
        return RecordLine(choice.topic, choice.partition, choice.timestamp, line, None, choice.headers)
    return RecordLine(choice.topic, choice.partition, choice.timestamp, key, value, choice.headers)


def _from_json(line: bytes, choice: _Choice) -> RecordLine:
    from ottla.cli.views.record_text import from_json

    record = from_json(line)
    topic = choice.topic or record.topic
    if topic is None:
        raise ValueError("it names no topic, and neither does the command line")
    partition = choice.partition if choice.partition is not None or choice.repartition else record.partition
    return record._replace(
        topic=topic,
        partition=partition,
        timestamp=record.timestamp if choice.timestamp is None else choice.timestamp,
        key=record.key if choice.key is None else choice.key,
        headers=record.headers + choice.headers,
    )


def _check_choice(choice: _Choice) -> None:
    """Raise click.UsageError for options that exclude each other."""
    if choice.topic is None and not choice.jsonl:
        raise click.UsageError("name the topic")
    if choice.separator is not None and (choice.jsonl or choice.tombstone or choice.key is not None):
        raise click.UsageError("--key-separator cannot be used with --key, --tombstone or --jsonl")
    if choice.whole and (choice.separator is not None or choice.jsonl or choice.tombstone):
        raise click.UsageError("--whole cannot be used with --key-separator, --tombstone or --jsonl")
    _check_key(choice)
    if choice.tombstone and choice.jsonl:
        raise click.UsageError("--tombstone cannot be used with --jsonl, in which a null value is a tombstone")


def _check_key(choice: _Choice) -> None:
    if choice.key is None:
        return
    try:
        parse_bytes(choice.key_format)(choice.key)
    except ValueError as error:
        raise click.UsageError(f"--key: {error}") from error


def _parse_separator(text: str | None) -> bytes | None:
    if text is None:
        return None
    if not text:
        raise click.UsageError("the key separator is empty")
    return os.fsencode(text.replace("\\t", "\t"))


def _parse_header(text: str) -> tuple[str, bytes | None]:
    """`NAME=VALUE`; `NAME` alone is a header without a value."""
    name, equals, value = text.partition("=")
    if not name or not name.isprintable():
        raise click.UsageError(f"{text!r} is not a header: write NAME=VALUE")
    return name, os.fsencode(value) if equals else None


def _parse_timestamp(text: str | None) -> int | None:
    if text is None:
        return None
    from ottla.cli.reading.offset_grammar import parse_time
    from ottla.client.retry import wall_ms

    time = parse_time(text, wall_ms())
    if time is None:
        raise click.UsageError(f"{text!r} is not a time: use ms since 1970, 2026-11-21T08:30:00Z, or -1h")
    return time
