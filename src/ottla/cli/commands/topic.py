"""`ottla topic`: list, describe, create, alter and delete topics.

Zone: real. Turns options into admin calls, and prints their results.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from ottla.cli.name_options import complete_topics
from ottla.cli.options import (
    common_options,
    connect_cluster,
    option_value,
    output_option,
    parse_assignments,
    parse_regex,
    print_note,
)
from ottla.cli.views.output import Json, write_documents, write_line, write_table

if TYPE_CHECKING:
    from ottla.cli.reading.offset_grammar import Bound
    from ottla.cli.record_deletion import Deletion
    from ottla.cli.views.topic_views import Described
    from ottla.client import Admin, ClientError
    from ottla.errors import ErrorCode
    from ottla.types import TopicPartition

V = TypeVar("V")
_ANOTHER = "Another way to name a topic."


@click.group()
def topic() -> None:
    """List, describe, create, alter and delete topics."""


@topic.command("list")
@click.option("--include", metavar="REGEX", help="Topics whose whole name matches.")
@click.option("--internal", is_flag=True, help="Include internal topics.")
@output_option("table", "wide", "json", "jsonl", "name")
@common_options
def list_(include: str | None, internal: bool, output: str) -> None:
    """List topics."""
    from ottla.cli.views.topic_views import topic_document
    from ottla.client import Admin

    pattern = parse_regex(".*" if include is None else include)
    with connect_cluster() as cluster:
        topics = [view for view in Admin(cluster).list_topics(internal=internal) if pattern.fullmatch(view.name)]
    if output == "name":
        for view in topics:
            write_line(view.name)
    elif output in ("json", "jsonl"):
        write_documents(output, [topic_document(view) for view in topics])
    else:
        rows = [(d["name"], d["partitions"], d["replication_factor"], d["id"]) for d in map(topic_document, topics)]
        columns = 4 if output == "wide" else 3
        write_table(("NAME", "PARTITIONS", "REPLICAS", "ID")[:columns], [row[:columns] for row in rows])


@topic.command()
@click.argument("names", nargs=-1, shell_complete=complete_topics)
@click.option("-t", "--topic", "more", multiple=True, metavar="NAME", shell_complete=complete_topics, help=_ANOTHER)
@click.option(
    "--under-replicated-partitions",
    "--under-replicated",
    "only",
    flag_value="under_replicated",
    help="Only partitions with an out-of-sync replica; of all topics when none is named.",
)
@click.option(
    "--under-min-isr-partitions",
    "--under-min-isr",
    "only",
    flag_value="under_min_isr",
    help="… below min.insync.replicas.",
)
@click.option(
    "--at-min-isr-partitions", "--at-min-isr", "only", flag_value="at_min_isr", help="… exactly at min.insync.replicas."
)
@click.option("--unavailable-partitions", "--offline", "only", flag_value="unavailable", help="… without a leader.")
@output_option("table", "wide", "json", "jsonl", "name")
@common_options
def describe(names: tuple[str, ...], more: tuple[str, ...], only: str | None, output: str) -> None:
    """Show partitions, offsets and changed settings of topics (all settings with -o wide)."""
    from ottla.cli.views.topic_views import all_names, describe_all, filter_topics
    from ottla.client import Admin

    with connect_cluster() as cluster:
        admin = Admin(cluster)
        wanted = all_names(admin) if only and not names + more else _require_names(names + more)
        results = describe_all(admin, wanted)
    found = [result for result in results.values() if not isinstance(result, Exception)]
    if only is not None:
        found = filter_topics(found, only)
    if output == "name":
        for described in found:
            write_line(described.view.name)
    elif output in ("json", "jsonl"):
        write_documents(output, [described.document() for described in found])
    else:
        for number, described in enumerate(found):
            _write_described(described, everything=output == "wide", gap=number > 0)
    exit_with_errors(results)


@topic.command()
@click.argument("names", nargs=-1)
@click.option("-t", "--topic", "more", multiple=True, metavar="NAME", help=_ANOTHER)
@click.option(
    "-p", "--partitions", type=click.IntRange(min=1), help="Partitions; the broker's num.partitions by default."
)
@click.option(
    "-r",
    "--replication-factor",
    type=click.IntRange(1, 32_767),
    help="Replicas; default.replication.factor by default.",
)
@click.option("-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", help="Set a topic key.")
@click.option("--if-not-exists", is_flag=True, help="Do not fail when a topic exists.")
@click.option("--dry-run", is_flag=True, help="Check whether it could be created; create nothing.")
@output_option("table", "json", "jsonl", "name")
@common_options
def create(
    names: tuple[str, ...],
    more: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Create topics."""
    from ottla.client import Admin, NewTopic
    from ottla.errors import ErrorCode

    settings = parse_assignments(configs)
    new = [
        NewTopic(name, partitions or -1, replication_factor or -1, settings) for name in _require_names(names + more)
    ]
    with connect_cluster() as cluster:
        results = Admin(cluster).create_topics(new, validate_only=dry_run)
    if if_not_exists:
        results = _without_code(results, ErrorCode.TOPIC_ALREADY_EXISTS)
    created = [result for result in results.values() if not isinstance(result, Exception)]
    done = "would be created" if dry_run else "created"
    documents: list[Json] = [
        {"name": made.name, "id": _id_text(made.topic_id),
         "partitions": made.partitions if made.partitions > 0 else None,
         "replication_factor": made.replication_factor if made.replication_factor > 0 else None}
        for made in created
    ]  # fmt: skip
    _write_done(output, [made.name for made in created], documents, done)
    exit_with_errors(results)


@topic.command()
@click.argument("names", nargs=-1, shell_complete=complete_topics)
@click.option("-t", "--topic", "more", multiple=True, metavar="NAME", shell_complete=complete_topics, help=_ANOTHER)
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Raise the number of partitions to this.")
@click.option("-c", "--config", "--add-config", "configs", multiple=True, metavar="KEY=VALUE", help="Set a topic key.")
@click.option("--delete-config", "deleted", multiple=True, metavar="KEY", help="Return a topic key to its default.")
@click.option("--dry-run", is_flag=True, help="Check whether it could be done; change nothing.")
@output_option("table", "json", "jsonl", "name")
@common_options
def alter(
    names: tuple[str, ...],
    more: tuple[str, ...],
    partitions: int | None,
    configs: tuple[str, ...],
    deleted: tuple[str, ...],
    dry_run: bool,
    output: str,
) -> None:
    """Change settings of topics, or add partitions."""
    from ottla.cli.views.topic_views import unknown_keys
    from ottla.client import Admin, ConfigChange, ConfigOp, Resource, ResourceType

    wanted = _require_names(names + more)
    changes = [ConfigChange(key, value) for key, value in parse_assignments(configs).items()]
    changes += [ConfigChange(key, None, ConfigOp.DELETE) for key in deleted]
    if not changes and partitions is None:
        raise click.UsageError("nothing to change: give --partitions, --config or --delete-config")
    results: dict[str, ClientError | None] = dict.fromkeys(wanted)
    with connect_cluster() as cluster:
        admin = Admin(cluster)
        # Partitions first: a topic that refuses them keeps its settings.
        if partitions is not None:
            results |= admin.create_partitions(dict.fromkeys(wanted, partitions), validate_only=dry_run)
        if changes:
            left = [Resource(ResourceType.TOPIC, name) for name, error in results.items() if error is None]
            unknown = unknown_keys(admin, left, deleted) if deleted else {}
            results |= {resource.name: error for resource, error in unknown.items()}
            altered = admin.alter_configs(
                {each: changes for each in left if each not in unknown}, validate_only=dry_run
            )
            results |= {resource.name: error for resource, error in altered.items()}
    done = [name for name, error in results.items() if error is None]
    _write_done(output, done, [{"name": name} for name in done], "could be altered" if dry_run else "altered")
    exit_with_errors(results)


@topic.command()
@click.argument("names", nargs=-1, shell_complete=complete_topics)
@click.option("-t", "--topic", "more", multiple=True, metavar="NAME", shell_complete=complete_topics, help=_ANOTHER)
@click.option("--if-exists", is_flag=True, help="Do not fail when a topic does not exist.")
@output_option("table", "json", "jsonl", "name")
@common_options
def delete(names: tuple[str, ...], more: tuple[str, ...], if_exists: bool, output: str) -> None:
    """Delete topics with all their records. Asks first in a terminal, needs --yes elsewhere."""
    from ottla.client import Admin
    from ottla.errors import ErrorCode

    wanted = _require_names(names + more)
    confirm_action(f"Delete {', '.join(wanted)} with all records?")
    with connect_cluster() as cluster:
        results = Admin(cluster).delete_topics(wanted)
    if if_exists:
        results = _without_code(results, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    done = [name for name, error in results.items() if error is None]
    _write_done(output, done, [{"name": name} for name in done], "deleted")
    exit_with_errors(results)


@topic.command("delete-records")
@click.argument("words", nargs=-1, metavar="[TOPIC[:P,P]]…", shell_complete=complete_topics)
@click.option("--before", metavar="OFFSET", help="N, end, -N (keep the last N), +N after the start, or @TIME.")
@click.option("--offset-json-file", metavar="FILE", help="… or a file as kafka-delete-records reads it; - is stdin.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; delete nothing.")
@output_option("table", "json", "jsonl")
@common_options
def delete_records(
    words: tuple[str, ...], before: str | None, offset_json_file: str | None, dry_run: bool, output: str
) -> None:
    """Delete the records of partitions before an offset. Asks first in a terminal, needs --yes elsewhere."""
    from ottla.cli.record_deletion import plan_deletions
    from ottla.client import Admin

    if bool(words) != (before is not None) or bool(words) == (offset_json_file is not None):
        raise click.UsageError("give topics and --before, or --offset-json-file alone")
    with connect_cluster() as cluster:
        admin = Admin(cluster)
        planned = plan_deletions(admin, _deletion_bounds(admin, words, before, offset_json_file))
        lows: dict[TopicPartition, int | ClientError] = {}
        if not dry_run:
            count = sum(each.record_count for each in planned)
            confirm_action(f"Delete {count:,} records of {len(planned)} partitions for good?")
            lows = admin.delete_records({each.tp: each.before for each in planned})
    _write_deletions(output, planned, lows)
    if dry_run:
        print_note("nothing was deleted: leave out --dry-run to delete")
    exit_with_errors({str(tp): low for tp, low in lows.items()})


def _deletion_bounds(
    admin: Admin, words: Sequence[str], before: str | None, path: str | None
) -> dict[TopicPartition, Bound]:
    from ottla.cli.reading.offset_grammar import parse_bound
    from ottla.cli.record_deletion import read_offset_file
    from ottla.cli.views.group_views import parse_topics, partitions_of
    from ottla.client.retry import wall_ms

    if path is not None:
        return read_offset_file(path)
    try:
        bound, wanted = parse_bound(before or "", wall_ms()), parse_topics(words)
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from wrong
    return dict.fromkeys(partitions_of(admin, wanted, ()), bound)


def _write_deletions(
    output: str, planned: Sequence[Deletion], lows: Mapping[TopicPartition, int | ClientError]
) -> None:
    """A row for each partition; of a dry run all, else those whose records are deleted."""
    documents: list[dict[str, Json]] = [
        {"topic": tp.topic, "partition": tp.partition, "start_offset": start, "before": before,
         "low_watermark": low if isinstance(low := lows.get(tp), int) else None}
        for tp, start, before in planned if not isinstance(lows.get(tp), Exception)
    ]  # fmt: skip
    if output in ("json", "jsonl"):
        write_documents(output, documents)
    else:
        header = ("TOPIC", "PARTITION", "START", "BEFORE", "LOW-WATERMARK")
        write_table(header, [tuple(each.values()) for each in documents])


def _require_names(names: Sequence[str]) -> list[str]:
    if not names:
        raise click.UsageError("name at least one topic")
    return list(dict.fromkeys(names))


def confirm_action(question: str) -> None:
    """Ask before a destructive action; outside of a terminal --yes is needed.

    Raises CommandFailed when the answer is no, or the end of the input.
    """
    if option_value("yes", False):
        return
    if not sys.stdin.isatty():
        raise click.UsageError("cannot ask, as stdin is not a terminal: add --yes to do it")
    if not _ask_user(question):
        from ottla.cli.failure import CommandFailed

        raise CommandFailed("not confirmed: nothing was changed")


def _ask_user(question: str) -> bool:
    try:
        return click.confirm(question, err=True)
    except click.Abort as abort:
        if not isinstance(abort.__context__, EOFError):
            raise  # Ctrl-C
        click.echo(err=True)
        return False


def _without_code(results: Mapping[str, V], code: ErrorCode) -> dict[str, V]:
    from ottla.client import RefusedError

    return {
        name: result
        for name, result in results.items()
        if not (isinstance(result, RefusedError) and result.code is code)
    }


def _id_text(topic_id: bytes) -> str | None:
    from ottla.cli.views.topic_views import id_text

    return id_text(topic_id)


def _write_done(output: str, names: Sequence[str], documents: Sequence[Json], done: str) -> None:
    if output in ("json", "jsonl"):
        write_documents(output, documents)
    else:
        for name in names:
            write_line(name if output == "name" else f"{name} {done}")


def _write_described(described: Described, *, everything: bool, gap: bool) -> None:
    document = described.document()
    if gap:
        write_line("")
    for label, key in (("Topic", "name"), ("Id", "id"), ("Internal", "internal")):
        value = document[key]
        if value not in (None, False):
            write_line(f"{label + ':':10}{value}")
    write_line("")
    write_table(
        ("PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "OFFLINE", "START", "END"), described.partition_rows()
    )
    settings = [c for c in described.configs if everything or not c.is_default]
    if settings:
        write_line("")
        write_table(("SETTING", "VALUE", "SOURCE"), [(c.name, c.value, c.source.name) for c in settings])


def exit_with_errors(results: Mapping[str, object]) -> None:
    """Print every error among the results, and exit with the code of the first one."""
    from ottla.cli.explain import exit_code, print_error

    errors = [result for result in results.values() if isinstance(result, Exception)]
    for error in errors:
        print_error(error)
    if errors:
        raise click.exceptions.Exit(exit_code(errors[0]) or 1)
