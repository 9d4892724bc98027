"""`ottla pipeline serve`: pipelines as a service.

Zone: real. Turns options into a `PipelineService`, and signals into its stop.
"""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ottla.cli.commands.pipelines.loading import RunOptions, explain_errors, load_pipelines, run_options, spark_session
from ottla.cli.options import common_options, option_value, output_option, print_note
from ottla.cli.views.output import Json, write_json, write_table

if TYPE_CHECKING:
    from types import ModuleType

    from ottla.demo.jvm import SparkProcess
    from ottla.pipeline import Pipeline
    from ottla.pipeline.service import PipelineService, ServedPipeline
    from ottla.spark.monitoring.query_metrics import QueryMetrics

_LOOK_S = 0.5


@click.command()
@click.argument("files", metavar="FILE[:NAME]...", nargs=-1, required=True)
@run_options("5s")
@click.option("--http", "address", metavar="HOST:PORT", help="Serve /metrics and /health here.")
@click.option("--max-restarts", type=click.IntRange(min=0), default=20, show_default=True,
              help="Give a pipeline up after this many restarts without a finished batch between them.")  # fmt: skip
@click.option("--stop-timeout", type=click.FloatRange(min=0), default=60, show_default=True, metavar="SECONDS",
              help="How long a stop waits for the batches that are running.")  # fmt: skip
@output_option("table", "json")
@common_options
def serve(
    files: tuple[str, ...],
    address: str | None,
    max_restarts: int,
    stop_timeout: float,
    options: RunOptions,
    output: str,
) -> None:
    """Run pipelines until SIGTERM or Ctrl-C, and start those again that fail.

    All pipelines of each FILE run, or the one of FILE:NAME, in one Spark, and share its cores; the
    checkpoint has a directory for each. One that fails is started again after a
    back-off, which doubles from 1 second to 5 minutes; one whose error a restart cannot mend is given up. The others
    run on. A stop waits for the batches that are running. The exit code is 1 when all were given up or Java ended.
    """
    from ottla.pipeline.service import PipelineService
    from ottla.pipeline.supervision import Supervision
    from ottla.spark.monitoring.query_metrics import QueryMetrics

    with explain_errors():
        chosen, modules = _load_all(files)
        place = options.required_checkpoint
        on_change = None if option_value("quiet", False) else _print_change
        service = PipelineService(chosen, place, options.trigger, lambda: Supervision(max_restarts), on_change)
        metrics = QueryMetrics()
        # First of all: an address that is taken is reported at once, and /health answers while Spark starts.
        with _open_pages(service, metrics, address), spark_session(modules, options) as spark:
            in_order = _run_service(service, spark, metrics, stop_timeout)
    _show_end(service, output)
    if not in_order:
        raise click.ClickException("no pipeline is left: correct what is wrong with them, and start again")


def _load_all(files: tuple[str, ...]) -> tuple[list[Pipeline], list[ModuleType]]:
    chosen: list[Pipeline] = []
    modules: list[ModuleType] = []
    for words in files:
        found, module = load_pipelines(words)
        chosen += found
        modules.append(module)
    return chosen, modules


@contextlib.contextmanager
def _open_pages(service: PipelineService, metrics: QueryMetrics, address: str | None) -> Iterator[None]:
    if address is None:
        yield
        return
    from ottla.pipeline.service import serve_pages

    try:
        pages = serve_pages(service, metrics.registry, address)
    except (ValueError, OSError) as error:
        raise click.UsageError(f"--http {address}: {error}") from error
    try:
        print_note(f"serving /metrics and /health at port {pages.port}")
        yield
    finally:
        pages.stop()


def _run_service(service: PipelineService, spark: SparkProcess, metrics: QueryMetrics, stop_s: float) -> bool:
    """Serve until a signal; False when no pipeline is left. Raises SparkFailed when Java has ended."""
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    metrics.attach(spark.get_session())
    if importlib.util.find_spec("opentelemetry") is not None:
        from ottla.spark.monitoring.query_spans import QuerySpans

        QuerySpans().attach(spark.get_session())  # without a tracer provider they are not recorded
    service.start(spark.get_session())
    while not asked.wait(_LOOK_S) and service.is_running:
        if not spark.is_alive:
            raise spark.make_failure("Java has ended, and all pipelines with it")
    if asked.is_set():
        print_note("stopping: the batches that are running are finished first")
    service.stop(stop_s)
    return asked.is_set()


def _print_change(each: ServedPipeline, wait_s: float | None) -> None:
    """Print a change of state. Called in threads, which have no context of click."""
    state = each.supervision
    line = f"pipeline {each.pipeline.name}: {state.state.value}"
    if wait_s is not None:
        line = f"pipeline {each.pipeline.name}: failed, and is started again in {wait_s:.0f} s: {state.reason}"
    elif state.reason is not None and state.state.value == "failed":
        line = f"pipeline {each.pipeline.name}: given up: {state.reason}"
    click.echo(line, err=True)


def _show_end(service: PipelineService, output: str) -> None:
    if output == "json":
        write_json([_describe_end(each) for each in service.pipelines])
        return
    rows = [
        (each.pipeline.name, step.step, each.supervision.restarts,
         step.batches, step.rows_in, step.rows_out, step.retries, step.dead, step.lag)
        for each in service.pipelines for step in each.steps
    ]  # fmt: skip
    write_table(("PIPELINE", "STEP", "RESTARTS", "BATCHES", "READ", "WRITTEN", "RETRIED", "DEAD", "LAG"), rows)


def _describe_end(each: ServedPipeline) -> dict[str, Json]:
    steps: list[Json] = [step._asdict() for step in each.steps]
    return {"pipeline": each.pipeline.name, **each.describe_state(), "steps": steps}
