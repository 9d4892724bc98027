"""`ottla demo`: a broker, real events and PySpark in one command.

Zone: real. Prints the outcome; `ottla.demo` does the work.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Mapping

import click

from ottla.cli.options import common_options, option_value, output_option
from ottla.cli.views.output import Json, write_json, write_line

_NEEDED = ("pyspark", "pyarrow", "numpy")


@click.command()
@common_options
@output_option("table", "json")
def demo(output: str) -> None:
    """Stream real events through a broker with PySpark.

    Starts a broker and Spark, produces 20,000 real events (bundled with the package), enriches each one into a second
    topic, exactly once, and counts them per half year and directory. On the way it kills a Spark worker and the broker,
    and at the end it compares the counts with a recount of the file. Takes about a minute, uses free ports of 127.0.0.1
    and a temporary directory, and removes everything it made. The exit code is 1 when the recount disagrees.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(f"the demo needs {', '.join(missing)}: pip install 'ottla[spark]'")
    from ottla.demo.broker import BrokerFailed
    from ottla.demo.jvm import SparkFailed
    from ottla.demo.progress import Progress
    from ottla.demo.run import run_demo
    from ottla.demo.show import result_document, table_lines
    from ottla.spark.java import NoJava

    try:
        outcome = run_demo(Progress(quiet=option_value("quiet", False)))
    except (NoJava, SparkFailed, BrokerFailed) as error:
        raise click.ClickException(str(error)) from error
    if output == "json":
        write_json(result_document(outcome.counts, outcome.facts))
    else:
        for line in table_lines(outcome.counts, shutil.get_terminal_size().columns, ascii_only=not _has_blocks()):
            write_line(line)
        write_line(_verdict_text(outcome.facts))
    for problem in outcome.problems[:20]:
        click.echo(problem, err=True)
    if outcome.problems:
        sys.exit(1)


def _verdict_text(facts: Mapping[str, Json]) -> str:
    agrees = "agrees with" if facts["agrees"] else "DISAGREES with"
    return (
        f"\n{facts['events']:,} events in {facts['windows']} half years and {facts['directories']} directories: "
        f"the pipeline {agrees} a recount of the file,\nalthough {_killed_text(facts)}. {facts['seconds']} s in all."
    )


def _killed_text(facts: Mapping[str, Json]) -> str:
    if facts["killed_workers"] and facts["killed_brokers"]:
        return "a Spark worker and the broker were killed in the middle"
    died = "a Spark worker" if facts["killed_workers"] else "the broker" if facts["killed_brokers"] else "nothing"
    return f"{died} was killed in the middle"


def _has_blocks() -> bool:
    """Whether stdout can show block characters."""
    try:
        "▁█".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
