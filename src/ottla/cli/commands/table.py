"""`ottla table`: a topic as an Iceberg table, a Delta table or a folder of Parquet files.

Zone: real. Ends at SIGTERM, at Ctrl-C or, on request, at the end of the topic; what was read is committed first.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.name_options import complete_topics
from ottla.cli.options import (
    client_settings,
    common_options,
    output_option,
    parse_assignments,
    print_note,
    resolve_secrets,
)
from ottla.cli.views.output import write_json, write_line

if TYPE_CHECKING:
    from ottla.tables.copying import CopyOptions, TopicCopy


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "--to", "kind", type=click.Choice(["iceberg", "delta", "parquet"]), required=True, help="Format of the table."
)
@click.option(
    "--table", "location", required=True, metavar="NAME", help="NAMESPACE.TABLE in the Iceberg catalog; path or URI."
)
@click.option("--catalog", default="default", show_default=True, help="Iceberg catalog, as pyiceberg names it.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="Property of the Iceberg catalog or of Delta's object store; repeat it for more.",
)
@click.option(
    "--partition-by",
    type=click.Choice(["none", "day", "hour"]),
    default="none",
    show_default=True,
    help="Partition a new table by the record's timestamp.",
)
@click.option(
    "--commit-every",
    type=click.FloatRange(0.1, 3600),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Commit after this time.",
)
@click.option(
    "--commit-mib",
    type=click.IntRange(1, 1024),
    default=128,
    show_default=True,
    metavar="MIB",
    help="Commit at this size of rows in memory.",
)
@click.option("--exit-at-end", is_flag=True, help="End at the present end of the topic.")
@click.option("--skip-deleted", is_flag=True, help="Continue without records that retention deleted before the copy.")
@output_option("text", "json")
@common_options
def table(topic: str, output: str, **given: Any) -> None:
    """Copy a topic into a table, each record exactly once.

    The table contains the offsets: the next run continues where it ends. A new table begins at the topic's beginning.
    """
    from ottla.tables.copying import TopicCopy
    from ottla.tables.formats import open_table

    settings, kind = client_settings(), given["kind"]
    properties = _resolve_properties(given["properties"])
    by, catalog = given["partition_by"], given["catalog"]
    with (
        closing(
            open_table(kind, given["location"], topic, partition_by=by, catalog=catalog, properties=properties)
        ) as writer,
        closing(TopicCopy(settings, topic, writer, _options(given))) as copy,
        _stop_signals() as received,
    ):
        copy.copy_records(lambda: bool(received), _note_commit)
        _print_summary(copy, output, topic, writer.name)


def _resolve_properties(words: tuple[str, ...]) -> dict[str, str]:
    """The properties; `${env:NAME}` and other references are replaced, because a property may be a secret."""
    given = resolve_secrets({"config.providers": "file,env,dir", **parse_assignments(words)})
    return {key: str(value) for key, value in given.items() if key != "config.providers"}


def _options(given: Mapping[str, Any]) -> CopyOptions:
    from ottla.tables.copying import CopyOptions

    return CopyOptions(given["commit_every"], given["commit_mib"] << 20, given["exit_at_end"], given["skip_deleted"])


def _note_commit(copy: TopicCopy, rows: int) -> None:
    print_note(f"commit {copy.commits}: {rows} rows")


def _print_summary(copy: TopicCopy, output: str, topic: str, name: str) -> None:
    if output == "json":
        offsets = {str(number): offset for number, offset in sorted(copy.offsets.items())}
        write_json({"topic": topic, "table": name, "rows": copy.rows, "commits": copy.commits, "next_offsets": offsets})
    else:
        write_line(f"{name}: {copy.rows} rows of {topic} in {copy.commits} commits")


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """The signals that asked the command to stop, as they come in."""
    received: list[int] = []

    def note_signal(number: int, _frame: object) -> None:
        received.append(number)

    before = {number: signal.signal(number, note_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
