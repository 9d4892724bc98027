"""`ottla export` and `ottla import`: a topic to a file of JSON lines, CSV or Parquet, and back.

Zone: real. Chooses records, files and formats; the modules of `ottla.cli.files` read and write.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from ottla.cli.files.cells import CELL_FORMATS
from ottla.cli.files.record_files import FILE_FORMATS, STANDARD, format_of, make_writer, open_records
from ottla.cli.name_options import complete_topics
from ottla.cli.options import (
    DEFAULT_TIMEOUT_S,
    ClientSettings,
    common_options,
    connect_cluster,
    option_value,
    output_option,
    print_note,
)
from ottla.cli.views.output import Json, write_json

if TYPE_CHECKING:
    from ottla.cli.deliveries import Deliveries
    from ottla.cli.files.record_export import PartitionExport, RecordWriter
    from ottla.cli.files.sending import Records
    from ottla.cli.reading.offset_grammar import Bound
    from ottla.cli.views.progress import Progress
    from ottla.cli.views.record_text import RecordLine
    from ottla.client import ClientError, Producer

F = TypeVar("F", bound=Callable[..., Any])
_LAST_WORDS_S = 1.0
"""How long records in flight may take after Ctrl-C."""
_BATCH_BYTES = 131_072


def _format_options(command: F) -> F:
    """`--format`, `--key-format`, `--value-format`."""
    of_bytes = click.Choice(CELL_FORMATS)
    for option in (
        click.option("--value-format", type=of_bytes, default="auto", show_default=True, help="The form of values."),
        click.option("--key-format", type=of_bytes, default="auto", show_default=True, help="The form of keys."),
        click.option(
            "--format", "file_format", type=click.Choice(FILE_FORMATS), help="By default from the name of FILE."
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class _ExportOptions:
    """The arguments and options of `export`, by the names that click gives them."""

    topic: str
    file: str
    first: str
    until: str
    partitions: tuple[int, ...]
    isolation: str | None
    overwrite: bool
    file_format: str
    key_format: str
    value_format: str
    output: str


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("file")
@click.option(
    "--from", "first", metavar="OFFSET", default="start", show_default=True, help="start, end, N, +N, -N or @TIME."
)
@click.option("--to", "until", metavar="OFFSET", default="end", show_default=True, help="The first one not exported.")
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this partition.")
@click.option(
    "--isolation", type=click.Choice(["read_committed", "read_uncommitted"]), help="read_committed by default."
)
@click.option("--overwrite", is_flag=True, help="Replace FILE when it exists.")
@_format_options
@output_option("text", "json")
@common_options
def export(file: str, file_format: str | None, **given: Any) -> None:
    """Write the records of TOPIC to FILE, or with - to standard output: JSON lines, CSV or Parquet.

    FILE appears when it is whole. Records are in the order of partitions and offsets.
    """
    import os

    options = _ExportOptions(file=file, file_format=format_of(file, file_format), **given)
    if file == STANDARD and options.output == "json":
        raise click.UsageError("-o json cannot be used with -, where standard output has the records")
    first, until = _parse_bound(options.first), _parse_bound(options.until)
    if os.path.isfile(file) and not options.overwrite:
        raise click.UsageError(f"{file} exists: --overwrite replaces it")
    exported = _run_export(options, first, until)
    records = sum(each.records for each in exported)
    if options.output == "json":
        document: dict[str, Json] = {"topic": options.topic, "file": file, "format": options.file_format}
        write_json({**document, "records": records, "partitions": [each.row_document() for each in exported]})
    else:
        print_note(f"{records:,} records of {len(exported)} partitions exported")


def _parse_bound(text: str) -> Bound:
    from ottla.cli.reading.offset_grammar import parse_bound
    from ottla.client.retry import wall_ms

    try:
        return parse_bound(text, wall_ms())
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _run_export(options: _ExportOptions, first: Bound, until: Bound) -> list[PartitionExport]:
    from ottla.cli.clients import make_consumer
    from ottla.cli.files.record_export import RecordExport, find_ranges, is_start
    from ottla.cli.views.progress import Progress
    from ottla.client import ClientError

    # Records deleted below our position are an error, not a jump. A context may set group.id: commit nothing here.
    defaults: ClientSettings = {"isolation.level": "read_committed", "max.poll.records": 1_000}
    fixed: ClientSettings = {"auto.offset.reset": "none", "enable.auto.commit": False}
    if options.isolation is not None:
        fixed["isolation.level"] = options.isolation
    # No line over data that go to the same terminal.
    shown = not (options.file == STANDARD and sys.stdout.isatty())
    with make_consumer(defaults, fixed) as consumer, Progress("exported", shown=shown) as progress:
        try:
            ranges = find_ranges(consumer, options.topic, options.partitions, first, until)
            with _open_output(options.file) as stream, _open_writer(stream, options) as writer:
                run = RecordExport(consumer, writer, progress, option_value("timeout_s", DEFAULT_TIMEOUT_S))
                return [run.export_partition(each, from_start=is_start(first)) for each in ranges]
        except KeyboardInterrupt:
            if progress.records:
                print_note(f"{progress.records:,} records were read. {_unfinished_text(options.file)}")
            raise
        except ClientError as error:
            raise _interrupted(error, options.file, progress.records) from error


def _open_output(file: str) -> AbstractContextManager[BinaryIO]:
    from ottla.cli.files.finished_file import open_finished

    return nullcontext(sys.stdout.buffer) if file == STANDARD else open_finished(file)


@contextmanager
def _open_writer(stream: BinaryIO, options: _ExportOptions) -> Iterator[RecordWriter]:
    """A writer whose file ends where its block ends without an error, and otherwise never."""
    writer = make_writer(stream, options.topic, options.file_format, options.key_format, options.value_format)
    try:
        yield writer
    except BaseException:
        writer.abandon_file()
        raise
    writer.end_file()
    stream.flush()


def _unfinished_text(file: str) -> str:
    return "Standard output is not whole" if file == STANDARD else f"{file} was not written"


def _interrupted(error: ClientError, file: str, count: int) -> Exception:
    """The error that ends an export, with how far it came."""
    from ottla.cli.explain import exit_code, explain_error
    from ottla.cli.failure import CommandFailed

    if not count:
        return error
    return CommandFailed(
        f"{explain_error(error)}. {count:,} records were read. {_unfinished_text(file)}: correct the cause, then run "
        "it again",
        exit_code=exit_code(error) or 1,
        details={"exported": count},
    )


@dataclass(frozen=True)
class _ImportOptions:
    """The arguments and options of `import`, by the names that click gives them."""

    topic: str
    file: str
    skip: int
    partition: int | None
    repartition: bool
    drop_timestamps: bool
    compression: str | None
    transactional_id: str | None
    transaction_records: int | None
    file_format: str
    key_format: str
    value_format: str
    output: str

    def place_record(self, record: RecordLine) -> RecordLine:
        """The record with the topic, the partition and the timestamp that it is sent with."""
        partition = None if self.repartition else record.partition
        return record._replace(
            topic=self.topic,
            partition=partition if self.partition is None else self.partition,
            timestamp=None if self.drop_timestamps else record.timestamp,
        )

    @property
    def settings(self) -> ClientSettings:
        """The settings of the client that options name."""
        named = {"compression.type": self.compression, "transactional.id": self.transactional_id}
        return {key: value for key, value in named.items() if value is not None}


@click.command("import")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("file")
@click.option("--skip", type=click.IntRange(min=0), default=0, metavar="N", help="Pass over the first N records.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Write to this partition only.")
@click.option("--repartition", is_flag=True, help="Choose partitions by key, not from the file.")
@click.option("--drop-timestamps", is_flag=True, help="Give records the present time, not that of the file.")
@click.option(
    "-z", "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), help="Codec of the batches."
)
@click.option("--transactional-id", metavar="ID", help="Write all records in one transaction.")
@click.option(
    "--transaction-records", type=click.IntRange(min=1), metavar="N", help="… in one transaction per N records."
)
@_format_options
@output_option("text", "json")
@common_options
def import_(file: str, file_format: str | None, **given: Any) -> None:
    """Write the records of FILE, or with - of standard input, to TOPIC: JSON lines, CSV or Parquet.

    Keys, values, headers, timestamps and partitions are those of the file; offsets are new. After an error the message
    has the number of records that are written, and the --skip that continues.
    """
    options = _ImportOptions(file=file, file_format=format_of(file, file_format), **given)
    if options.transaction_records is not None and options.transactional_id is None:
        raise click.UsageError("--transaction-records needs --transactional-id")
    if options.repartition and options.partition is not None:
        raise click.UsageError("--repartition cannot be used with --partition")
    count = _run_import(options)
    if options.output == "json":
        document: dict[str, Json] = {"topic": options.topic, "file": file, "format": options.file_format}
        write_json({**document, "records": count, "skipped": options.skip})
    else:
        print_note(f"{count:,} records imported")


def _run_import(options: _ImportOptions) -> int:
    """Returns the number of records that were written."""
    from ottla.cli.clients import make_producer
    from ottla.cli.deliveries import Deliveries
    from ottla.cli.failure import BadLine
    from ottla.cli.views.progress import Progress
    from ottla.client import ClientError

    deliveries = Deliveries(
        printing=False, noun="record", continuation=lambda number: f"--skip {number - 1}", skipped=options.skip
    )
    with make_producer({"batch.size": _BATCH_BYTES}, options.settings) as producer, Progress("imported") as progress:
        transactional = bool(producer.config.transactional_id)
        try:
            _send_file(producer, options, deliveries, progress)
        except KeyboardInterrupt:
            producer.close(_LAST_WORDS_S)
            print_note(deliveries.interruption_text(transactional=transactional))
            raise
        # Closed first: only then the outcome of every accepted record is known, which the message reports.
        except (ClientError, BadLine) as error:
            producer.close()
            raise deliveries.as_failure(error, transactional=transactional) from error
    return deliveries.written_count(transactional=transactional)


def _send_file(producer: Producer, options: _ImportOptions, deliveries: Deliveries, progress: Progress) -> None:
    from ottla.cli.commands.records.produce import lines_of
    from ottla.cli.files.sending import send_in_transactions, send_records

    def on_pause() -> None:
        if not options.transactional_id:
            producer.flush()

    def read_lines(stream: BinaryIO, longest: int) -> Iterator[bytes]:
        return lines_of(stream, longest, on_pause)

    if not producer.config.client.allow_auto_create_topics:
        _require_topic(options.topic)
    largest = producer.config.client.max_request_size
    formats = options.key_format, options.value_format
    with open_records(options.file, options.file_format, options.skip, largest, formats, read_lines) as found:
        records: Records = ((number, options.place_record(record)) for number, record in found)
        if producer.config.transactional_id:
            send_in_transactions(producer, records, deliveries, progress, options.transaction_records)
        else:
            send_records(producer, records, deliveries, progress)


def _require_topic(name: str) -> None:
    """Raise ClientError at once where there is no such topic; a producer would wait for one to be created."""
    with connect_cluster() as cluster:
        cluster.topic(name)
