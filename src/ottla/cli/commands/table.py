"""`ottla table copy`: a topic as an Iceberg table, a Delta table or a folder of Parquet files.

Zone: real. Ends at SIGTERM, at Ctrl-C or, on request, at the end of the topic; what was read is committed first.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from ottla.cli.commands.table_maintenance import catalog_options, maintain_table, resolve_properties
from ottla.cli.name_options import complete_topics
from ottla.cli.options import client_settings, common_options, output_option, print_note, resolve_secrets
from ottla.cli.views.output import write_json, write_line
from ottla.tables.partitionings import NONE, TIME_PARTITIONINGS, describe_possible, is_possible, partition_name

if TYPE_CHECKING:
    from ottla.client.schemas.registry import SchemaRegistry
    from ottla.tables.column_types import ColumnTypes
    from ottla.tables.copying import CopyOptions, TopicCopy
    from ottla.tables.dead_letters import DeadLetters
    from ottla.tables.decoded_columns import Decoder
    from ottla.tables.rows import Layout, RowMaker
    from ottla.tables.writers import TableWriter


_TEXT = "text"
_PACKAGES = {"avro": ("fastavro", "numba"), "json": ("jsonschema",), "protobuf": ("google.protobuf",)}


class TableGroup(click.Group):
    """`ottla table TOPIC …` is `ottla table copy TOPIC …`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words, with `copy` before those that do not begin with a command."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["copy", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands, and the topics that `copy` takes."""
        topic = self.commands["copy"].params[0]
        topics = [CompletionItem(name) for name in complete_topics(ctx, topic, incomplete)]
        return [*super().shell_complete(ctx, incomplete), *topics]


def _complete_partitionings(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [each for each in (NONE, *TIME_PARTITIONINGS, "bucket[16]") if each.startswith(incomplete)]


@click.group(cls=TableGroup)
def table() -> None:
    """Copy a topic into a table, and maintain the table.

    `ottla table TOPIC …` is short for `ottla table copy TOPIC …`.
    """


table.add_command(maintain_table)


@table.command("copy")
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "--to", "kind", type=click.Choice(["iceberg", "delta", "parquet"]), required=True, help="Format of the table."
)
@click.option(
    "--table", "location", required=True, metavar="NAME", help="NAMESPACE.TABLE in the Iceberg catalog; path or URI."
)
@catalog_options
@click.option(
    "--partition-by",
    default=NONE,
    show_default=True,
    metavar="PARTITIONING",
    shell_complete=_complete_partitionings,
    help="Partition a new table: day or hour of the record's timestamp; Iceberg: bucket[16], the hash of its key.",
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
@click.option(
    "--value-schema",
    type=click.Choice(["avro", "json", "protobuf"]),
    help="Decode values by their schemas, which --schema-registry has.",
)
@click.option(
    "--key-schema",
    type=click.Choice(["avro", "json", "protobuf", _TEXT]),
    help="Decode keys as well, into one column more; text needs no registry.",
)
@click.option("--schema-registry", "registry", metavar="URL", help="Where the schemas are: http://HOST:PORT.")
@click.option(
    "--columns",
    type=click.Choice(["flat", "nested"]),
    default="flat",
    show_default=True,
    help="flat: a column for each field of a value; nested: one column `value`.",
)
@click.option("--message", default="", metavar="NAME", help="Protobuf: the message, if it is not a schema's first.")
@click.option("--dead-letters", metavar="TOPIC", help="Topic for records that cannot be decoded; without: an error.")
@click.option("--upsert", is_flag=True, help="One row per key: the last; a record without a value deletes it.")
@click.option("--exit-at-end", is_flag=True, help="End at the present end of the topic.")
@click.option("--skip-deleted", is_flag=True, help="Continue without records that retention deleted before the copy.")
@output_option("text", "json")
@common_options
def copy_topic(topic: str, output: str, **given: Any) -> None:
    """Copy a topic into a table, each record exactly once.

    The table contains the offsets: the next run continues where it ends. A new table begins at the topic's beginning.
    """
    from ottla.tables.copying import TopicCopy

    settings = client_settings()
    with ExitStack() as opened:
        writer = opened.enter_context(closing(_open_writer(topic, given)))
        letters = _letters(settings, topic, writer.name, given["dead_letters"])
        if letters is not None:
            opened.enter_context(closing(letters))
        rows = _row_maker(writer.types, given)
        copy = opened.enter_context(closing(TopicCopy(settings, topic, writer, _options(given), rows, letters)))
        received = opened.enter_context(_stop_signals())
        copy.copy_records(lambda: bool(received), _note_commit)
        _print_summary(copy, output, topic, writer.name)


def _open_writer(topic: str, given: Mapping[str, Any]) -> TableWriter:
    from ottla.tables.formats import open_table
    from ottla.tables.writers import Making

    if bool(_registered_kinds(given)) != (given["registry"] is not None):
        raise click.UsageError("--value-schema or --key-schema, and --schema-registry: give both or none.")
    kind, by = given["kind"], given["partition_by"]
    if not is_possible(kind, by):
        raise click.UsageError(f"--partition-by {by}: with --to {kind} it must be {describe_possible(kind)}.")
    return open_table(
        kind,
        given["location"],
        topic,
        Making(_layout(given), by),
        catalog=given["catalog"],
        properties=resolve_properties(given["properties"]),
    )


def _layout(given: Mapping[str, Any]) -> Layout:
    from ottla.tables.rows import BYTES, LAYOUTS

    found = BYTES if given["value_schema"] is None else LAYOUTS[given["columns"]]
    return found._replace(is_upsert=given["upsert"])


def _registered_kinds(given: Mapping[str, Any]) -> list[str]:
    """The kinds of schemas that are asked of a registry."""
    return [kind for kind in (given["value_schema"], given["key_schema"]) if kind not in (None, _TEXT)]


def _row_maker(types: ColumnTypes, given: Mapping[str, Any]) -> RowMaker:
    from ottla.tables.rows import BytesRows

    if given["value_schema"] is None and given["key_schema"] is None:
        return BytesRows(_layout(given))
    for kind in _registered_kinds(given):
        _require_packages(kind)
    from ottla.tables.decoded_rows import DecodedRows

    by = given["partition_by"]
    reserved = [] if by == NONE else [partition_name(by)]
    return DecodedRows(_layout(given), types, _value_decoder(given), _key_decoder(given), reserved)


def _value_decoder(given: Mapping[str, Any]) -> Decoder | None:
    from ottla.tables.decoding import SchemaDecoder

    kind = given["value_schema"]
    return None if kind is None else SchemaDecoder(_open_registry(given), kind, given["message"])


def _key_decoder(given: Mapping[str, Any]) -> Decoder | None:
    from ottla.tables.decoding import SchemaDecoder, TextDecoder

    kind = given["key_schema"]
    if kind is None:
        return None
    return TextDecoder() if kind == _TEXT else SchemaDecoder(_open_registry(given), kind, is_key=True)


def _open_registry(given: Mapping[str, Any]) -> SchemaRegistry:
    from ottla.client.schemas.registry import SchemaRegistry

    found = resolve_secrets({"config.providers": "file,env,dir", "--schema-registry": given["registry"]})
    return SchemaRegistry(str(found["--schema-registry"]))


def _require_packages(kind: str) -> None:
    if missing := [name for name in _PACKAGES[kind] if find_spec(name) is None]:
        command = "pip install 'ottla[tables,schemas,fast]'"
        raise click.ClickException(f"{kind} schemas need the package {missing[0]}: {command}")


def _letters(settings: Mapping[str, Any], topic: str, name: str, letters: str | None) -> DeadLetters | None:
    if letters is None:
        return None
    from ottla.tables.dead_letters import DeadLetters

    return DeadLetters(settings, letters, topic, name)


def _options(given: Mapping[str, Any]) -> CopyOptions:
    from ottla.tables.copying import CopyOptions

    return CopyOptions(given["commit_every"], given["commit_mib"] << 20, given["exit_at_end"], given["skip_deleted"])


def _note_commit(copy: TopicCopy, rows: int) -> None:
    print_note(f"commit {copy.commits}: {rows} rows")


def _print_summary(copy: TopicCopy, output: str, topic: str, name: str) -> None:
    if output == "json":
        offsets = {str(number): offset for number, offset in sorted(copy.offsets.items())}
        counts = {"rows": copy.rows, "commits": copy.commits, "dead_letters": copy.dead_letters}
        write_json({"topic": topic, "table": name, **counts, "next_offsets": offsets})
    else:
        letters = f", {_counted(copy.dead_letters, 'dead letter')}" if copy.dead_letters else ""
        write_line(f"{name}: {_counted(copy.rows, 'row')} of {topic} in {_counted(copy.commits, 'commit')}{letters}")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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
