"""`ottla pipeline`: run the pipelines of a Python file, show their plan and their progress.

Zone: real. Turns options into calls of `ottla.pipeline`; results go to stdout, progress to stderr.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.cli.commands.pipelines.loading import (
    RunOptions,
    explain_errors,
    find_pipelines,
    load_file,
    load_pipeline,
    run_options,
    spark_session,
)
from ottla.cli.commands.pipelines.replaying import replay
from ottla.cli.commands.pipelines.serving import serve
from ottla.cli.options import (
    common_options,
    connect_definitions,
    option_value,
    output_option,
    pipelines_topic_option,
    print_note,
)
from ottla.cli.views.output import Json, write_json, write_line, write_table

if TYPE_CHECKING:
    from ottla.pipeline import PipelinePlan, StepProgress


@click.group()
def pipeline() -> None:
    """Run PySpark pipelines, and show their progress.

    A pipeline is a `Pipeline` in a Python file (docs/pipeline.md). FILE:NAME gives the file and the variable; without
    NAME the file must have exactly one pipeline.
    """


@pipeline.command("list")
@click.argument("file", type=click.Path(exists=True, dir_okay=False), required=False)
@click.option("--from-cluster", is_flag=True, help="List the definitions in the cluster instead.")
@pipelines_topic_option
@output_option("table", "json")
@common_options
def list_(file: str | None, from_cluster: bool, output: str) -> None:
    """List the pipelines of a file and their steps, or those that `ottla apply` has defined in the cluster."""
    if (file is None) != from_cluster:
        raise click.UsageError("name a file, or use --from-cluster")
    if file is None:
        _list_definitions(output)
        return
    with explain_errors():
        found = find_pipelines(load_file(file))
        rows = [
            {"pipeline": name, "name": each.name, "step": step.name, "reads": list(step.sources), "writes": step.to}
            for name, each in found.items()
            for step in each.steps
        ]
    if output == "json":
        write_json(rows)
    else:
        header = ("VARIABLE", "PIPELINE", "STEP", "READS", "WRITES")
        write_table(header, [(r["pipeline"], r["name"], r["step"], ",".join(r["reads"]), r["writes"]) for r in rows])


def _list_definitions(output: str) -> None:
    from ottla.pipeline.definitions.definition import DefinitionTable, PipelineDefinition, UnreadableDefinition
    from ottla.pipeline.definitions.definitions_topic import TOPIC, DefinitionsTopic

    with connect_definitions() as cluster:
        topic = DefinitionsTopic(cluster, option_value("pipelines_topic", TOPIC))
        table = topic.read_definitions() if topic.check_topic() else DefinitionTable()
    found = sorted(table.definitions.items())
    # Unset fields are null: the service decides.
    rows = [(name, *each) for name, each in found if isinstance(each, PipelineDefinition)]
    for name, each in found:
        if isinstance(each, UnreadableDefinition):
            print_note(f"left out: pipeline {name}: {each.reason}")
    if output == "json":
        keys = ("pipeline", *PipelineDefinition._fields)
        write_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        write_table(("PIPELINE", "FILE", "STATE", "TRIGGER", "MAX RESTARTS"), rows)


@pipeline.command()
@click.argument("name", metavar="FILE[:NAME]")
@output_option("table", "json")
@common_options
def status(name: str, output: str) -> None:
    """Show lag, waiting retries and dead letters of each step. Works while Spark is not running.

    Lag is what the pipeline's consumer group has not committed yet. Offsets are counted, which with transactions are
    a little more than records.
    """
    with explain_errors():
        chosen, _ = load_pipeline(name)
        found = chosen.status()
    if output == "json":
        write_json({"pipeline": chosen.name, "steps": [each._asdict() for each in found]})
    else:
        write_table(("STEP", "LAG", "WAITING", "DEAD"), [each[:4] for each in found])
    for each in found:
        if each.missing:
            print_note(f"step {each.step}: topics that do not exist yet: {', '.join(each.missing)}")


@pipeline.command()
@click.argument("name", metavar="FILE[:NAME]")
@run_options("available_now", required=False)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show the steps and the topics that would be created; change nothing. "
    "With --checkpoint: also how each step continues over it. Exit code 1 if a run would be refused.",
)
@output_option("table", "json")
@common_options
def run(name: str, dry_run: bool, options: RunOptions, output: str) -> None:
    """Create missing topics, and run the steps of a pipeline.

    Each record appears in the output exactly once, also after crashes, as long as the checkpoint is kept. The exit code
    is 1 when a step fails.
    """
    with explain_errors():
        chosen, module = load_pipeline(name)
        if dry_run and options.checkpoint is None:
            show_plan(chosen.plan(), output)
            return
        place, quiet = options.required_checkpoint, option_value("quiet", False)
        with spark_session([module], options) as spark:
            if dry_run:
                plan = chosen.plan(spark.get_session(), place)
            else:
                found = chosen.run(place, options.trigger, spark=spark.get_session(), progress=not quiet)
    if not dry_run:
        _show_progress(chosen.name, found, output)
        return
    show_plan(plan, output)
    if any(each.effect == "refused" for each in plan.checkpoint):
        raise click.exceptions.Exit(1)


def show_plan(plan: PipelinePlan, output: str) -> None:
    """Print the plan of a run."""
    if output == "json":
        steps: list[Json] = [{**each._asdict(), "retries": dict(each.retries)} for each in plan.steps]
        topics: list[Json] = [each._asdict() for each in plan.topics]
        checkpoint: list[Json] = [each._asdict() for each in plan.checkpoint]
        write_json({"pipeline": plan.name, "steps": steps, "topics": topics, "checkpoint": checkpoint})
        return
    rows = [
        (each.step, ",".join(each.reads), each.writes,
         ",".join(_retry_text(*one) for one in each.retries.items()) or None,
         ",".join(each.dead) or None, each.unit) for each in plan.steps
    ]  # fmt: skip
    write_table(("STEP", "READS", "WRITES", "RETRIES", "DEAD LETTERS", "EXACTLY ONCE BY"), rows)
    write_line("")
    needed = [(each.name, each.role, each.partitions, "is there" if each.exists else "made") for each in plan.topics]
    write_table(("TOPIC", "ROLE", "PARTITIONS", "STATE"), needed)
    if plan.checkpoint:
        write_line("")
        write_table(("STEP", "CHECKPOINT", "REASON"), plan.checkpoint)


def _retry_text(topic: str, delay_ms: int) -> str:
    from ottla.retry.policy import duration_text

    return f"{topic} after {duration_text(delay_ms)}"


def _show_progress(name: str, found: list[StepProgress], output: str) -> None:
    if output == "json":
        write_json({"pipeline": name, "steps": [each._asdict() for each in found]})
        return
    header = ("STEP", "BATCHES", "READ", "WRITTEN", "RETRIED", "WAITING", "DEAD", "LAG")
    rows = [(e.step, e.batches, e.rows_in, e.rows_out, e.retries, e.waiting, e.dead, e.lag) for e in found]
    write_table(header, rows)


pipeline.add_command(replay)
pipeline.add_command(serve)
