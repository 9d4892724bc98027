"""`ottla top`: rates of topics and groups, again and again.

Zone: real. `samples` reads, `rates` computes; changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ottla.cli.name_options import complete_groups, complete_topics
from ottla.cli.options import common_options, connect_cluster, output_option
from ottla.cli.views.output import Json, write_json, write_jsonl, write_line, write_table
from ottla.cli.views.watch import watch_view

if TYPE_CHECKING:
    from ottla.cli.views.rates import GroupRate, TopicRate

_ROWS = 20


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]…", shell_complete=complete_topics)
@click.option("-g", "--group", "groups", multiple=True, shell_complete=complete_groups, help="Only this group.")
@click.option("--interval", type=click.FloatRange(min=0.1), default=2.0, show_default=True, metavar="SECONDS",
              help="Between two looks.")  # fmt: skip
@click.option("--once", is_flag=True, help="Look twice, print once, and exit.")
@click.option("--metrics", "pages", multiple=True, metavar="URL", help="The metrics of a broker; name those of all.")
@output_option("table", "json", "jsonl")
@common_options
def top(
    topics: tuple[str, ...], groups: tuple[str, ...], interval: float, once: bool, pages: tuple[str, ...], output: str
) -> None:
    """Show records and bytes per second of topics, hot partitions, and lag of groups with the time to catch up.

    Bytes that are read are known with --metrics only; bytes that are written come from the sizes of logs without it.
    """
    from ottla.cli.views.rates import Sample, group_rates, topic_rates
    from ottla.cli.views.samples import Sampler

    with connect_cluster() as cluster:
        sampler = Sampler(cluster, topics, groups, pages)
        last = sampler.take_sample()
        time.sleep(interval)

        def read() -> tuple[Sample, Sample]:
            nonlocal last
            before, last = last, sampler.take_sample()
            return before, last

        def write(samples: tuple[Sample, Sample]) -> None:
            found = topic_rates(*samples), group_rates(*samples)
            if output == "table":
                _write_tables(*found)
                return
            document: dict[str, Json] = {
                "seconds": round(samples[1].time_s - samples[0].time_s, 3),
                "topics": [each.rate_document() for each in found[0]],
                "groups": [each.rate_document() for each in found[1]],
            }
            write_json(document) if output == "json" else write_jsonl([document])

        watch_view(None if once else interval, read, write)


def _write_tables(topics: Sequence[TopicRate], groups: Sequence[GroupRate]) -> None:
    from ottla.cli.views.rates import top_rows

    rows = top_rows(topics[:_ROWS], groups[:_ROWS])
    write_table(("TOPIC", "PARTITIONS", "RECORDS/S", "BYTES IN/S", "BYTES OUT/S", "HOT PARTITION"), rows[0])
    if len(topics) > _ROWS:
        write_line(f"and {len(topics) - _ROWS} more topics with fewer records: see -o json")
    if groups:
        write_line("")
        write_table(("GROUP", "TOPIC", "LAG", "RECORDS/S", "CATCHES UP IN"), rows[1])
    if len(groups) > _ROWS:
        write_line(f"and {len(groups) - _ROWS} more positions with less lag: see -o json")
