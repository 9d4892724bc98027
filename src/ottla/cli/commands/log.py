"""`ottla log`: show, check and repair the log files of a broker.

Zone: real. Options and printing; `ottla.storage.dump` reads the files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from ottla.cli.log_check import repair, verify
from ottla.cli.options import output_option

if TYPE_CHECKING:  # so that help does not import the storage
    from ottla.storage.dump.items import Item
    from ottla.storage.dump.log import Decoder
    from ottla.storage.dump.tool import Options

_LINES_PER_WRITE = 1000


@click.group()
def log() -> None:
    """Show, check and repair the log files of a broker."""


@log.command()
@click.argument("paths", nargs=-1, type=click.Path())
@click.option("--files", multiple=True, metavar="FILE,…", help="Another way to name the files, as with kafka-dump-log.")
@click.option("--deep-iteration", is_flag=True, help="Show the records of each batch.")
@click.option("--print-data-log", is_flag=True, help="Show also keys and values; implies --deep-iteration.")
@click.option("--offsets-decoder", is_flag=True, help="Decode the log as __consumer_offsets.")
@click.option("--transaction-log-decoder", is_flag=True, help="Decode the log as __transaction_state.")
@click.option("--skip-record-metadata", is_flag=True, help="Show only keys and values of records.")
@click.option("--max-bytes", type=click.IntRange(min=0), help="Read no more than this much of a log.")
@click.option("--index-sanity-check", is_flag=True, help="Only report whether a broker would rebuild the index.")
@click.option("--verify-index-only", is_flag=True, help="Check index entries against the log, but do not show them.")
@click.option(
    "--max-message-size",
    type=click.IntRange(min=1),
    default=5 * 1024 * 1024,
    show_default=True,
    help="The largest batch to expect at an index entry.",
)
@output_option("text", "json")
def dump(
    paths: tuple[str, ...],
    files: tuple[str, ...],
    deep_iteration: bool,
    print_data_log: bool,
    offsets_decoder: bool,
    transaction_log_decoder: bool,
    skip_record_metadata: bool,
    max_bytes: int | None,
    index_sanity_check: bool,
    verify_index_only: bool,
    max_message_size: int,
    output: str,
) -> None:
    """Print the contents of log, index, snapshot and checkpoint files, as kafka-dump-log does.

    Mismatches between indexes and logs are printed to stderr at the end. The exit code is 1 when a file could not
    be read, or does not contain what its name promises.
    """
    from ottla.storage.dump.indexes import IndexOptions
    from ottla.storage.dump.log import LogOptions
    from ottla.storage.dump.tool import Options

    chosen = [*paths, *(path for part in files for path in part.split(",") if path)]
    if not chosen:
        raise click.UsageError("name the files to dump, as arguments or with --files")
    if offsets_decoder and transaction_log_decoder:
        raise click.UsageError("--offsets-decoder and --transaction-log-decoder exclude each other.")
    decoder = _choose_decoder(offsets_decoder, transaction_log_decoder)
    contents = print_data_log or offsets_decoder or transaction_log_decoder
    logs = LogOptions(
        deep=deep_iteration or contents,
        contents=contents,
        metadata=not skip_record_metadata,
        max_bytes=max_bytes,
        decoder=decoder,
    )
    indexes = IndexOptions(index_sanity_check, verify_index_only, max_message_size)
    _dump_files(chosen, Options(logs, indexes), as_json=output == "json")


log.add_command(verify)
log.add_command(repair)


def _choose_decoder(offsets: bool, transactions: bool) -> Decoder:
    from ottla.storage.dump.decoders import as_offsets, as_transactions
    from ottla.storage.dump.log import as_text

    if offsets:
        return as_offsets
    return as_transactions if transactions else as_text


def _dump_files(paths: list[str], options: Options, *, as_json: bool) -> None:
    from ottla.storage.dump.tool import Dump

    tool = Dump(options, _complain_line)
    _print_items(tool.iter_items(paths), as_json)
    for line in tool.report_lines():
        _complain_line(line)
    if tool.failed:
        click.get_current_context().exit(1)


def _print_items(items: Iterable[Item], as_json: bool) -> None:
    """Print items as UTF-8 in any terminal, many lines per write: a log has millions of lines."""
    lines: list[str] = []
    for item in items:
        lines.append(json.dumps(item.json(), separators=(",", ":")) if as_json else item.text())
        if len(lines) >= _LINES_PER_WRITE:
            _write_lines(lines)
    _write_lines(lines)
    sys.stdout.buffer.flush()


def _write_lines(lines: list[str]) -> None:
    if lines:
        sys.stdout.buffer.write("\n".join([*lines, ""]).encode(errors="backslashreplace"))
        lines.clear()


def _complain_line(line: str) -> None:
    click.echo(line, err=True)
