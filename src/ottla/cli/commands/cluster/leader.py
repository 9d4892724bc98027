"""`ottla leader`: elect leaders of partitions.

Zone: real. Turns options into one admin call, and prints its results.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ottla.cli.name_options import complete_topics
from ottla.cli.options import common_options, connect_cluster, option_value, output_option, print_note
from ottla.cli.partitions import parse_partition, write_results

if TYPE_CHECKING:
    from ottla.client import Admin, ClientError
    from ottla.types import TopicPartition


@click.group()
def leader() -> None:
    """Elect leaders of partitions."""


@leader.command()
@click.argument("partitions", nargs=-1, metavar="[TOPIC:PARTITION]…")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_topics,
    help="All partitions of a topic.",
)
@click.option("--all", "everything", is_flag=True, help="All partitions of all topics.")
@click.option(
    "--election-type",
    "--type",
    "kind",
    type=click.Choice(("preferred", "unclean")),
    default="preferred",
    show_default=True,
    help="preferred: the first replica. unclean: any live one if none is in sync; records may be lost.",
)
@output_option("table", "json", "jsonl")
@common_options
def elect(partitions: tuple[str, ...], topics: tuple[str, ...], everything: bool, kind: str, output: str) -> None:
    """Elect leaders. Partitions that have the wanted leader already are not changed."""
    from ottla.client import Admin, ElectionType

    if everything == bool(partitions or topics):
        raise click.UsageError("name partitions (TOPIC:PARTITION) or topics (-t), or add --all")
    named = [parse_partition(word) for word in partitions]
    if kind == "unclean":
        _confirm_unclean()
    with connect_cluster() as client:
        admin = Admin(client)
        wanted = None if everything else [*named, *_partitions_of(admin, topics)]
        results = admin.elect_leaders(ElectionType[kind.upper()], wanted)
    left_alone = _take_not_needed(results)
    if left_alone:
        print_note(f"{left_alone} partition(s) needed no election")
    write_results(output, results, "has a new leader")


def _confirm_unclean() -> None:
    if option_value("yes", False):
        return
    question = "An unclean election can lose records that were acknowledged. Continue?"
    if not sys.stdin.isatty():
        raise click.UsageError("cannot ask, as stdin is not a terminal: add --yes for an unclean election")
    click.confirm(question, abort=True, err=True)


def _partitions_of(admin: Admin, topics: Sequence[str]) -> list[TopicPartition]:
    """All partitions of these topics. Raises RefusedError for a topic that does not exist."""
    from ottla.client import TopicView
    from ottla.types import TopicPartition

    found = []
    for name, view in admin.describe_topics(topics).items():
        if not isinstance(view, TopicView):
            raise view
        found += [TopicPartition(name, number) for number in view.partitions]
    return found


def _take_not_needed(results: dict[TopicPartition, ClientError | None]) -> int:
    """Remove the partitions that needed no election, which is not an error. Returns how many."""
    from ottla.client import RefusedError
    from ottla.errors import ErrorCode

    fine = [
        tp
        for tp, error in results.items()
        if isinstance(error, RefusedError) and error.code is ErrorCode.ELECTION_NOT_NEEDED
    ]
    for tp in fine:
        del results[tp]
    return len(fine)
