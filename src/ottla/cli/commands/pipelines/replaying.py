"""`ottla pipeline replay`: a second output of a pipeline beside the first.

Zone: real. `ottla.pipeline.replay` makes the second pipeline; the words after its run name the steps of a switch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from ottla.cli.commands.pipelines.loading import RunOptions, explain_errors, load_pipeline, run_options, spark_session
from ottla.cli.options import common_options, option_value, output_option, print_note
from ottla.cli.reading.offset_grammar import parse_time
from ottla.cli.views.output import write_json, write_table

if TYPE_CHECKING:
    from ottla.pipeline.replay import OutputCount


@click.command()
@click.argument("file", metavar="FILE[:NAME]")
@click.option("--from", "start", metavar="@TIME", required=True,
              help="Read records of this time and later: @2026-11-21, @2026-11-21T08:30:00Z, @-2d …")  # fmt: skip
@click.option("--into", metavar="NAME", required=True,
              help="Name of the second pipeline, and the suffix of the topics that it writes.")  # fmt: skip
@run_options("available_now")
@output_option("table", "json")
@common_options
def replay(file: str, start: str, into: str, options: RunOptions, output: str) -> None:
    """Run a pipeline again from a time on, into topics beside the first ones, and compare their counts.

    The second pipeline has the name NAME: its own consumer group, transactional ids, retry topics and outputs (with
    the suffix .NAME). The checkpoint is that of the second one. The first one may run meanwhile; nothing of it changes.
    Run the command again to continue.
    """
    from ottla.pipeline.replay import count_outputs, replay_pipeline

    from_ms = parse_time(start.removeprefix("@"), time.time_ns() // 1_000_000)
    if from_ms is None:
        raise click.UsageError(f"--from {start} is not a time: write @2026-11-21, @2026-11-21T08:30:00Z or @-2d")
    with explain_errors():
        first, module = load_pipeline(file)
        second = replay_pipeline(first, into, from_ms)
        place, quiet = options.required_checkpoint, option_value("quiet", False)
        with spark_session([module], options) as spark:
            second.run(place, options.trigger, spark=spark.get_session(), progress=not quiet)
        counts = count_outputs(first, second, from_ms)
    _show_counts(into, counts, output)
    outputs = ", ".join(each.replayed_output for each in counts)
    print_note(f"to switch: 1. stop {first.name}; 2. run this command again, so that nothing is left; 3. have readers "
               f"read {outputs}; 4. in {file}, name the pipeline {into} and these topics, and run it with --checkpoint "
               f"{place}")  # fmt: skip


def _show_counts(into: str, counts: list[OutputCount], output: str) -> None:
    if output == "json":
        write_json({"pipeline": into, "steps": [each._asdict() for each in counts]})
        return
    header = ("STEP", "OUTPUT", "RECORDS", "DEAD", "REPLAYED OUTPUT", "RECORDS", "DEAD")
    write_table(header, [tuple(each) for each in counts])
