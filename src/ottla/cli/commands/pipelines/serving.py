"""`ottla pipeline serve`: pipelines as a service.

Zone: real. Turns options into a `PipelineService`, and signals into its stop.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ottla.cli.clients import make_consumer
from ottla.cli.commands.pipelines.loading import (
    Command,
    PipelineLoader,
    RunOptions,
    explain_errors,
    load_pipelines,
    run_options,
    spark_session,
)
from ottla.cli.options import (
    common_options,
    connect_definitions,
    option_value,
    output_option,
    pipelines_topic_option,
    print_note,
)
from ottla.cli.views.output import Json, write_json, write_table

if TYPE_CHECKING:
    from types import ModuleType

    from ottla.demo.jvm import SparkProcess
    from ottla.pipeline import Pipeline
    from ottla.pipeline.definitions.follower import DefinitionFollower
    from ottla.pipeline.service import PipelineService, ServedPipeline
    from ottla.spark.monitoring.query_metrics import QueryMetrics

_LOOK_S = 0.5
_STOPPING = "stopping: the batches that are running are finished first"


class ServiceOptions(NamedTuple):
    """Options of the service alone."""

    address: str | None
    """Of the pages."""
    max_restarts: int
    stop_s: float
    from_cluster: bool


def _service_options(command: Command) -> Command:
    """Add --from-cluster, --http, --max-restarts and --stop-timeout; the command gets them as `service`."""

    @functools.wraps(command)
    def call(*, address: str | None, max_restarts: int, stop_timeout: float, from_cluster: bool, **more: Any) -> None:
        command(service=ServiceOptions(address, max_restarts, stop_timeout, from_cluster), **more)

    made: Command = call
    for option in (
        click.option("--stop-timeout", type=click.FloatRange(min=0), default=60, show_default=True, metavar="SECONDS",
                     help="How long a stop waits for the batches that are running."),
        click.option("--max-restarts", type=click.IntRange(min=0), default=20, show_default=True,
                     help="Give a pipeline up after this many restarts without a finished batch between them."),
        click.option("--http", "address", metavar="HOST:PORT", help="Serve /metrics and /health here."),
        click.option("--from-cluster", is_flag=True,
                     help="Run the pipelines that `ottla apply` has defined in the cluster, from the files in the "
                          "directory FILE."),
    ):  # fmt: skip
        made = option(made)
    return made


@click.command()
@click.argument("files", metavar="FILE[:NAME]...", nargs=-1, required=True)
@run_options("5s")
@_service_options
@pipelines_topic_option
@output_option("table", "json")
@common_options
def serve(files: tuple[str, ...], service: ServiceOptions, options: RunOptions, output: str) -> None:
    """Run pipelines until SIGTERM or Ctrl-C, and start those again that fail.

    All pipelines of each FILE run, or the one of FILE:NAME, in one Spark, and share its cores; the
    checkpoint has a directory for each. One that fails is started again after a
    back-off, which doubles from 1 second to 5 minutes; one whose error a restart cannot mend is given up. The others
    run on. A stop waits for the batches that are running. The exit code is 1 when all were given up or Java ended.

    With --from-cluster, FILE is a directory, and definitions in the cluster choose the pipelines: the service follows
    their changes. Of several services of one topic one runs them, the others stand by.
    """
    with explain_errors():
        if service.from_cluster:
            _serve_cluster(files, service, options, output)
        else:
            _serve_files(files, service, options, output)


def _serve_files(files: tuple[str, ...], given: ServiceOptions, options: RunOptions, output: str) -> None:
    from ottla.pipeline.service import PipelineService
    from ottla.pipeline.supervision import Supervision

    chosen, modules = _load_all(files)
    place = options.required_checkpoint
    service = PipelineService(
        chosen, place, options.trigger, lambda: Supervision(given.max_restarts), _change_printer()
    )  # fmt: skip
    # First of all: an address that is taken is reported at once, and /health answers while Spark starts.
    with _open_pages(service, given.address) as metrics, spark_session(modules, options) as spark:
        in_order = _run_service(service, spark, metrics, given.stop_s)
    _show_end(service.pipelines, output)
    if not in_order:
        raise click.ClickException("no pipeline is left: correct what is wrong with them, and start again")


def _serve_cluster(files: tuple[str, ...], given: ServiceOptions, options: RunOptions, output: str) -> None:
    from ottla.pipeline.definitions.definitions_topic import TOPIC, DefinitionsTopic
    from ottla.pipeline.definitions.follower import CONSUMER_SETTINGS, DefinitionFollower
    from ottla.pipeline.service import PipelineService
    from ottla.pipeline.supervision import Supervision

    if len(files) != 1:
        raise click.UsageError("--from-cluster takes one directory, that of the pipelines' files")
    topic = option_value("pipelines_topic", TOPIC)
    loader = PipelineLoader(files[0])
    service = PipelineService(None, options.required_checkpoint, options.trigger, on_change=_change_printer())
    with connect_definitions() as cluster:
        DefinitionsTopic(cluster, topic).create_topic()

    def make_supervision(restarts: int | None) -> Supervision:
        return Supervision(given.max_restarts if restarts is None else restarts)

    with make_consumer(overrides={**CONSUMER_SETTINGS, "group.id": topic}) as consumer:
        follower = DefinitionFollower(
            consumer, topic, service, loader.load_definition, make_supervision, given.stop_s
        )  # fmt: skip
        pages = _open_pages(service, given.address, follower.describe_state)
        with pages as metrics, spark_session([], options) as spark:
            _follow_definitions(follower, spark, metrics, service)
            follower.stop()
        # The consumer leaves the group at its close, which also empties the service.
        ended = service.pipelines
    _show_end(ended, output)


def _load_all(files: tuple[str, ...]) -> tuple[list[Pipeline], list[ModuleType]]:
    chosen: list[Pipeline] = []
    modules: list[ModuleType] = []
    for words in files:
        found, module = load_pipelines(words)
        chosen += found
        modules.append(module)
    return chosen, modules


@contextlib.contextmanager
def _open_pages(
    service: PipelineService, address: str | None, definitions: Callable[[], dict[str, str | None]] | None = None
) -> Iterator[QueryMetrics]:
    from ottla.pipeline.service import serve_pages
    from ottla.spark.monitoring.query_metrics import QueryMetrics

    metrics = QueryMetrics()
    if address is None:
        yield metrics
        return
    try:
        pages = serve_pages(service, metrics.registry, address, definitions=definitions)
    except (ValueError, OSError) as error:
        raise click.UsageError(f"--http {address}: {error}") from error
    try:
        print_note(f"serving /metrics and /health at port {pages.port}")
        yield metrics
    finally:
        pages.stop()


def _begin_service(spark: SparkProcess, metrics: QueryMetrics) -> threading.Event:
    """Count the queries of the session; an event that a signal sets."""
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    metrics.attach(spark.get_session())
    if importlib.util.find_spec("opentelemetry") is not None:
        from ottla.spark.monitoring.query_spans import QuerySpans

        QuerySpans().attach(spark.get_session())  # without a tracer provider they are not recorded
    return asked


def _check_java(spark: SparkProcess) -> None:
    if not spark.is_alive:
        raise spark.make_failure("Java has ended, and all pipelines with it")


def _run_service(service: PipelineService, spark: SparkProcess, metrics: QueryMetrics, stop_s: float) -> bool:
    """Serve until a signal; False when no pipeline is left. Raises SparkFailed when Java has ended."""
    asked = _begin_service(spark, metrics)
    service.start(spark.get_session())
    while not asked.wait(_LOOK_S) and service.is_running:
        _check_java(spark)
    if asked.is_set():
        print_note(_STOPPING)
    service.stop(stop_s)
    return asked.is_set()


def _follow_definitions(
    follower: DefinitionFollower, spark: SparkProcess, metrics: QueryMetrics, service: PipelineService
) -> None:
    """Follow the definitions until a signal. Raises SparkFailed when Java has ended."""
    asked = _begin_service(spark, metrics)
    service.start(spark.get_session())
    noted: tuple[bool, str | None, int] = (False, None, 0)
    while not asked.is_set():
        _check_java(spark)
        if not follower.follow(_LOOK_S):
            asked.wait(_LOOK_S)
        noted = _note_changes(follower, noted)
    print_note(_STOPPING)


def _note_changes(follower: DefinitionFollower, noted: tuple[bool, str | None, int]) -> tuple[bool, str | None, int]:
    """Print what is new about the definitions as a whole; what was noted."""
    topic = follower.topic
    found = (follower.is_active, follower.error, follower.ignored)
    if found[0] != noted[0]:
        print_note(f"this service {'runs' if found[0] else 'has given up'} the pipelines of {topic}")
    if found[1] is not None and found[1] != noted[1]:
        print_note(f"{topic} cannot be read, and the pipelines run on as they are: {found[1]}")
    if found[2] > noted[2]:
        print_note(f"{topic} has {found[2]} records that are no definitions of pipelines")
    return found


def _change_printer() -> Callable[[ServedPipeline, float | None], None] | None:
    return None if option_value("quiet", False) else _print_change


def _print_change(each: ServedPipeline, wait_s: float | None) -> None:
    """Print a change of state. Called in threads, which have no context of click."""
    state = each.supervision
    line = f"pipeline {each.name}: {state.state.value}"
    if wait_s is not None:
        line = f"pipeline {each.name}: failed, and is started again in {wait_s:.0f} s: {state.reason}"
    elif state.reason is not None and state.state.value == "failed":
        line = f"pipeline {each.name}: given up: {state.reason}"
    click.echo(line, err=True)


def _show_end(pipelines: Sequence[ServedPipeline], output: str) -> None:
    if output == "json":
        write_json([_describe_end(each) for each in pipelines])
        return
    rows = [
        (each.name, step.step, each.supervision.restarts,
         step.batches, step.rows_in, step.rows_out, step.retries, step.dead, step.lag)
        for each in pipelines for step in each.steps
    ]  # fmt: skip
    write_table(("PIPELINE", "STEP", "RESTARTS", "BATCHES", "READ", "WRITTEN", "RETRIED", "DEAD", "LAG"), rows)


def _describe_end(each: ServedPipeline) -> dict[str, Json]:
    steps: list[Json] = [step._asdict() for step in each.steps]
    return {"pipeline": each.name, **each.describe_state(), "steps": steps}
