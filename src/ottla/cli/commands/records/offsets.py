"""`ottla offsets`: offsets of partitions, by position or by time, as kafka-get-offsets.

Zone: real. Turns options into ListOffsets requests, and prints the offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ottla.cli.commands.topic import exit_with_errors
from ottla.cli.name_options import complete_topics
from ottla.cli.options import common_options, connect_cluster, output_option
from ottla.cli.views.output import Json, write_json, write_jsonl, write_line, write_table

if TYPE_CHECKING:
    from ottla.client import ClientError, Cluster, OffsetFound, TopicPartition

_NAMED = {"latest": -1, "end": -1, "earliest": -2, "start": -2, "max-timestamp": -3}


@click.command()
@click.argument("words", nargs=-1, metavar="[TOPIC[:P,P]]…", shell_complete=complete_topics)
@click.option("-t", "--topic", "more", multiple=True, metavar="TOPIC[:P,P]", shell_complete=complete_topics,
              help="Another way to name a topic.")  # fmt: skip
@click.option("--time", "time_text", default="latest", show_default=True, metavar="WHEN",
              help="earliest, latest, max-timestamp, or a TIME: the first offset at or after it.")  # fmt: skip
@click.option("--exclude-internal-topics", is_flag=True, help="When no topic is named.")
@output_option("text", "table", "json", "jsonl")
@common_options
def offsets(
    words: tuple[str, ...], more: tuple[str, ...], time_text: str, exclude_internal_topics: bool, output: str
) -> None:
    """Show offsets of partitions, as TOPIC:PARTITION:OFFSET; of all topics when none is named.

    latest: the offset after the last record. max-timestamp: the offset of the record with the largest timestamp.
    """
    from ottla.client import Admin, ClientError

    when = _parse_when(time_text)
    with connect_cluster() as cluster:
        asked = _list_partitions(cluster, words + more, internal=not exclude_internal_topics)
        results: dict[TopicPartition, OffsetFound | ClientError] = Admin(cluster).list_offsets(
            dict.fromkeys(asked, when)
        )
    found = {tp: each for tp, each in results.items() if not isinstance(each, ClientError)}
    _write_offsets(output, found)
    exit_with_errors({str(tp): each for tp, each in results.items()})


def _parse_when(text: str) -> int:
    """A timestamp of ListOffsets. Raises click.UsageError."""
    from ottla.cli.reading.offset_grammar import parse_time
    from ottla.client.retry import wall_ms

    if text in _NAMED or text in ("-1", "-2", "-3"):
        return _NAMED.get(text) or int(text)
    time = parse_time(text.removeprefix("@"), wall_ms())
    if time is None:
        raise click.UsageError(f"{text!r} is not a time: use {', '.join(_NAMED)}, ms since 1970, 2026-11-21, or -1h")
    return time


def _list_partitions(cluster: Cluster, words: Sequence[str], *, internal: bool) -> list[TopicPartition]:
    """The named partitions, or all. Raises ClientError, click.UsageError."""
    from ottla.cli.views.group_views import parse_topics
    from ottla.client import Admin, TopicPartition

    try:
        names = parse_topics(words)
    except ValueError as wrong:
        raise click.UsageError(f"name topics as TOPIC or TOPIC:PARTITION,…: {wrong}") from wrong
    if not names:
        names = {each.name: None for each in Admin(cluster).list_topics(internal=internal)}
    return [
        TopicPartition(name, number)
        for name, wanted in names.items()
        for number in (wanted if wanted is not None else sorted(cluster.topic(name).partitions))
    ]


def _write_offsets(output: str, found: dict[TopicPartition, OffsetFound]) -> None:
    if output == "text":
        for tp, each in found.items():
            write_line(f"{tp.topic}:{tp.partition}:{each.offset if each.offset >= 0 else ''}")
    elif output == "table":
        write_table(
            ("TOPIC", "PARTITION", "OFFSET", "TIMESTAMP"),
            [(*tp, *map(_known_or_none, (each.offset, each.timestamp))) for tp, each in found.items()],
        )
    else:
        documents: list[Json] = [
            {"topic": tp.topic, "partition": tp.partition, "offset": _known_or_none(each.offset),
             "timestamp": _known_or_none(each.timestamp), "leader_epoch": _known_or_none(each.leader_epoch)}
            for tp, each in found.items()
        ]  # fmt: skip
        if output == "json":
            write_json(documents)
        else:
            write_jsonl(documents)


def _known_or_none(number: int) -> int | None:
    """The number; None for -1, which is Kafka's "none"."""
    return number if number >= 0 else None
