"""`ottla consume`: records of topics to stdout.

Zone: real. Chooses the records and their format; `range_reading` or `group_reading` reads them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.name_options import complete_groups, several_topics
from ottla.cli.options import (
    ClientSettings,
    common_options,
    option_value,
    parse_regex,
    print_note,
    remember_output,
    resolve_secrets,
)
from ottla.cli.reading.byte_formats import FORMAT_NAMES
from ottla.cli.reading.outage import outage_settings
from ottla.cli.views.printer import Printer
from ottla.utf8 import readable_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.cli.reading.filters import Filter
    from ottla.cli.reading.offset_grammar import OffsetRange
    from ottla.cli.views.record_text import Piece, Placed, Shown
    from ottla.client import Consumer

    Topics = list[str] | re.Pattern[str]

_RECORDS = 1_000
"""Records per poll, unless `max.poll.records` is set."""


@dataclass(frozen=True)
class _Options:
    """The options, by the names that click gives them."""

    group: str | None
    partitions: tuple[int, ...]
    offset: str | None
    from_beginning: bool
    count: int | None
    exit_at_end: bool
    follow: bool
    format_text: str | None
    output: str
    formatter: str | None
    isolation: str | None
    registry: str | None
    keys: tuple[str, ...]
    values: tuple[str, ...]
    json_conditions: tuple[str, ...]
    key_format: str
    value_format: str
    headers: tuple[str, ...]
    key_regexes: tuple[str, ...]
    value_regexes: tuple[str, ...]
    header_regexes: tuple[str, ...]

    @property
    def settings(self) -> ClientSettings:
        """The settings of the client that options name."""
        return {} if self.isolation is None else {"isolation.level": self.isolation}


@click.command()
@several_topics
@click.option("--include", metavar="REGEX", help="Topics whose whole name matches; internal ones are left out.")
@click.option(
    "-g",
    "--group",
    metavar="GROUP",
    shell_complete=complete_groups,
    help="Join this group: share its partitions, commit offsets.",
)
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this partition.")
@click.option(
    "--offset", metavar="OFFSETS", help="start, end, N, +N, -N, @TIME, or FROM:TO; end by default, start with -e."
)
@click.option("--from-beginning", is_flag=True, help="The same as --offset start.")
@click.option(
    "-n", "--count", "--max-messages", "count", type=click.IntRange(min=0), help="Stop after this many records."
)
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at the end offsets of the start of the command.")
@click.option("--follow", is_flag=True, help="Wait for new records at the end; the default without an upper bound.")
@click.option(
    "-f", "--format", "format_text", metavar="TEXT", help="A format as kcat's: %s value, %k key, %o offset, %T …"
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["value", "wide", "json", "jsonl"]),
    default="value",
    show_default=True,
    callback=remember_output,
    help="wide: partition, offset, timestamp, key and value, separated by tabs.",
)
@click.option("--formatter", metavar="NAME", help="For internal topics: offsets, groups, transactions, offsets-1.0.")
@click.option("--isolation", type=click.Choice(["read_uncommitted", "read_committed"]), help="isolation.level.")
@click.option(
    "--schema-registry", "registry", metavar="URL", help="Show what was written with a registered schema as JSON."
)
@click.option("--key", "keys", multiple=True, metavar="TEXT", help="Only records whose key contains TEXT.")
@click.option("--value", "values", multiple=True, metavar="TEXT", help="Only records whose value contains TEXT.")
@click.option("--header", "headers", multiple=True, metavar="NAME[=TEXT]", help="Only records with this header.")
@click.option("--key-regex", "key_regexes", multiple=True, metavar="REGEX", help="Only records whose key matches.")
@click.option(
    "--value-regex", "value_regexes", multiple=True, metavar="REGEX", help="Only records whose value matches."
)
@click.option("--header-regex", "header_regexes", multiple=True, metavar="NAME=REGEX", help="Only with such a header.")
@click.option(
    "--json",
    "json_conditions",
    multiple=True,
    metavar="CONDITION",
    help="Only values that are JSON with .a.b=5, .c[0]~RE …",
)
@click.option("--key-format", type=click.Choice(FORMAT_NAMES), default="text", help="How keys are shown.")
@click.option("--value-format", type=click.Choice(FORMAT_NAMES), default="text", help="How values are shown.")
@common_options
def consume(topics: tuple[str, ...], more: tuple[str, ...], include: str | None, **given: Any) -> None:
    """Read records of topics. Prints one value per line, unless -o or -f sets another format.

    A record must pass all filters. With --timeout, stops with exit code 5 when no record came for that long.
    """
    wanted = _choose_topics(topics + more, include)
    options = _Options(**given)
    if options.offset is not None and options.from_beginning:
        raise click.UsageError("--offset and --from-beginning exclude each other: use one of them")
    if options.follow and options.exit_at_end:
        raise click.UsageError("--follow and --exit-at-end exclude each other: use one of them")
    bounds = _parse_bounds(_first_offset(options))
    printer = Printer(options.count, _make_filter(options), _make_renderer(options), _make_decoder(options))
    if options.group is None:
        _run_without_group(wanted, options, bounds, printer)
    else:
        _run_in_group(wanted, options, bounds, printer)


def _choose_topics(names: Sequence[str], include: str | None) -> Topics:
    if bool(names) == (include is not None):
        raise click.UsageError("name topics, or give --include" + (": not both" if names else ""))
    return list(dict.fromkeys(names)) if include is None else parse_regex(include)


def _first_offset(options: _Options) -> str:
    """The offsets that the options name. Without them, a reader that stops at the end begins at the start: otherwise it
    would read nothing. A group begins at the end, as Kafka's tools do.
    """
    if options.from_beginning or (options.exit_at_end and options.offset is None and options.group is None):
        return "start"
    return options.offset or "end"


def _parse_bounds(text: str) -> OffsetRange:
    from ottla.cli.reading.offset_grammar import parse_range
    from ottla.client.retry import wall_ms

    try:
        return parse_range(text, wall_ms())
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _make_filter(options: _Options) -> Filter:
    from ottla.cli.reading.filters import all_of, contains_text, matches_regex, on_header, on_key, on_value
    from ottla.cli.reading.json_filters import json_filter

    conditions = options.json_conditions
    try:
        return all_of(
            [
                *(on_key(contains_text(text)) for text in options.keys),
                *(on_value(contains_text(text)) for text in options.values),
                *(on_header(text, contains_text) for text in options.headers),
                *(on_key(matches_regex(text)) for text in options.key_regexes),
                *(on_value(matches_regex(text)) for text in options.value_regexes),
                *(on_header(text, matches_regex) for text in options.header_regexes),
                *([json_filter(conditions)] if conditions else []),
            ]
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _make_decoder(options: _Options) -> Callable[[Shown], Shown] | None:
    """A function that decodes by schemas, then by formats, which show parts that have no schema."""
    steps = []
    if options.registry is not None:
        steps.append(_schema_decoder(options.registry))
    if (options.key_format, options.value_format) != ("text", "text"):
        from ottla.cli.reading.formatted_records import record_formatter

        steps.append(record_formatter(options.key_format, options.value_format))
    return (lambda record: reduce(lambda found, step: step(found), steps, record)) if steps else None


def _schema_decoder(registry: str) -> Callable[[Shown], Shown]:
    from ottla.cli.reading.schemas import record_decoder
    from ottla.client.schemas.registry import SchemaRegistry

    text = resolve_secrets({"config.providers": "file,env,dir", "--schema-registry": registry})
    return record_decoder(SchemaRegistry(str(text["--schema-registry"])))


def _make_renderer(options: _Options) -> Piece:
    import json

    from ottla.cli.views.record_text import compile_format, to_json

    output, format_text, formatter = options.output, options.format_text, options.formatter
    if format_text is not None or formatter is not None:
        from ottla.cli.views import internal_records

        try:
            return (
                compile_format(format_text or "") if formatter is None else internal_records.make_formatter(formatter)
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from error
    if output in ("json", "jsonl"):
        # jsonl is read by programs, a line per record: no spaces, and no newline inside.
        indent = 2 if output == "json" else None
        separators = None if output == "json" else (",", ":")

        def document(at: Placed) -> bytes:
            fields = to_json(at.topic, at.partition, at.record)
            text = json.dumps(fields, ensure_ascii=False, indent=indent, separators=separators)
            return readable_text(text).encode() + b"\n"

        return document
    return compile_format("%p\t%o\t%T\t%k\t%s\n" if output == "wide" else "%s\n")


def _run_without_group(topics: Topics, options: _Options, bounds: OffsetRange, printer: Printer) -> None:
    from ottla.cli.clients import make_consumer
    from ottla.cli.reading.range_reading import RangeReading

    # Records deleted below our position are an error, not a jump. A context may set group.id: commit nothing here.
    defaults: ClientSettings = {"auto.offset.reset": "none", "max.poll.records": _RECORDS, **outage_settings()}
    with make_consumer(defaults, options.settings | {"enable.auto.commit": False}) as consumer:
        RangeReading(consumer, printer, option_value("timeout_s", 0.0)).read_range(
            _matching_names(consumer, topics), options.partitions, bounds, exit_at_end=options.exit_at_end
        )


def _run_in_group(topics: Topics, options: _Options, bounds: OffsetRange, printer: Printer) -> None:
    from ottla.cli.reading.group_reading import GroupReading
    from ottla.cli.reading.offset_grammar import END, START, OffsetRange

    resets = {OffsetRange(START): "earliest", OffsetRange(END): "latest"}
    if options.partitions or bounds not in resets:
        raise click.UsageError("--group reads from the group's committed offsets: change them with ottla group reset")
    assert options.group is not None
    own: ClientSettings = {"enable.auto.commit": False, "auto.offset.reset": resets[bounds]}
    settings = {**options.settings, "group.id": options.group, **own}
    timeout_s = option_value("timeout_s", 0.0)
    GroupReading(topics, settings, printer, timeout_s, exit_at_end=options.exit_at_end).read_group()
    if options.exit_at_end and options.offset is None and bounds.first == END and not printer.written:
        print_note("nothing was read: where the group has committed nothing it begins at the end; see --from-beginning")


def _matching_names(consumer: Consumer, topics: Topics) -> list[str]:
    """The names of the topics, or of those that match now. Raises CommandFailed when there are none."""
    if isinstance(topics, list):
        return topics
    found = [name for name in consumer.list_topics() if topics.fullmatch(name)]
    if not found:
        from ottla.cli.failure import CommandFailed

        raise CommandFailed(f"no topic matches {topics.pattern!r}: see ottla topic list", exit_code=3)
    return found
