"""`ottla pipeline`: run the pipelines of a Python file, show their plan and their progress.

Zone: real. Turns options into calls of `ottla.pipeline`; results go to stdout, progress to stderr.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.options import (
    common_options,
    given_settings,
    option_value,
    output_option,
    parse_assignments,
    print_note,
    resolve_secrets,
)
from ottla.cli.views.output import Json, write_json, write_line, write_table

if TYPE_CHECKING:
    from types import ModuleType

    from ottla.pipeline import Pipeline, PipelinePlan, StepProgress

_NEEDED = ("pyspark", "pyarrow", "numpy", "pandas")


@click.group()
def pipeline() -> None:
    """Run PySpark pipelines, and show their progress.

    A pipeline is a `Pipeline` in a Python file (docs/pipeline.md). FILE:NAME gives the file and the variable; without
    NAME the file must have exactly one pipeline.
    """


@pipeline.command("list")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@output_option("table", "json")
@common_options
def list_(file: str, output: str) -> None:
    """List the pipelines of a file and their steps."""
    with _explain_errors():
        found = _find_pipelines(_load_file(file))
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


@pipeline.command()
@click.argument("name", metavar="FILE[:NAME]")
@output_option("table", "json")
@common_options
def status(name: str, output: str) -> None:
    """Show lag, waiting retries and dead letters of each step. Works while Spark is not running.

    Lag is what the pipeline's consumer group has not committed yet. Offsets are counted, which with transactions are
    a little more than records.
    """
    with _explain_errors():
        chosen, _ = _load_pipeline(name)
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
@click.option(
    "--checkpoint", metavar="DIRECTORY", help="Where Spark saves the progress of the steps; keep it between runs."
)
@click.option("--trigger", default="available_now", show_default=True, metavar="WHEN",
              help="available_now: process what is there and due; or an interval, as 5s, until Ctrl-C.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show the steps and the topics that would be created; change nothing.")
@click.option(
    "--cores", type=click.IntRange(min=1), default=2, show_default=True, help="Cores of this machine for Spark."
)
@click.option("--master", metavar="URL", help="Use this Spark cluster instead of this machine.")
@click.option("--conf", "confs", multiple=True, metavar="KEY=VALUE", help="Set a Spark configuration key.")
@output_option("table", "json")
@common_options
def run(
    name: str,
    checkpoint: str | None,
    trigger: str,
    dry_run: bool,
    cores: int,
    master: str | None,
    confs: tuple[str, ...],
    output: str,
) -> None:
    """Create missing topics, and run the steps of a pipeline.

    Each record appears in the output exactly once, also after crashes, as long as the checkpoint is kept. The exit code
    is 1 when a step fails.
    """
    with _explain_errors():
        chosen, module = _load_pipeline(name)
        if dry_run:
            _show_plan(chosen.plan(), output)
            return
        if not checkpoint:
            raise click.UsageError("name a directory with --checkpoint, or show the plan with --dry-run")
        # Java runs in a temporary directory, and would resolve a relative path there.
        place = checkpoint if "://" in checkpoint else os.path.abspath(checkpoint)
        settings = {**({"spark.master": master} if master else {}), **parse_assignments(confs)}
        with _spark_session(module, cores, settings) as session:
            found = chosen.run(place, trigger, spark=session, progress=not option_value("quiet", False))
    _show_progress(chosen.name, found, output)


@contextlib.contextmanager
def _spark_session(module: ModuleType, cores: int, settings: dict[str, str]) -> Iterator[Any]:
    """A Spark session; functions of the user's file are pickled by value, so that workers need not have the file."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(f"pipelines need {', '.join(missing)}: pip install 'ottla[spark]'")
    from pyspark import cloudpickle

    from ottla.demo.jvm import SparkFailed, SparkProcess
    from ottla.spark.java import NoJava

    with tempfile.TemporaryDirectory(prefix="ottla-pipeline-", ignore_cleanup_errors=True) as directory:
        spark = SparkProcess(Path(directory), cores, settings)
        try:
            spark.start_java()
            session = spark.get_session()
            cloudpickle.register_pickle_by_value(module)
            signal.signal(signal.SIGTERM, _raise_interrupt)
            yield session
        except (NoJava, SparkFailed) as error:
            raise click.ClickException(str(error)) from error
        finally:
            spark.stop_spark()


def _raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _show_plan(plan: PipelinePlan, output: str) -> None:
    if output == "json":
        steps: list[Json] = [{**each._asdict(), "retries": dict(each.retries)} for each in plan.steps]
        write_json({"pipeline": plan.name, "steps": steps, "topics": [each._asdict() for each in plan.topics]})
        return
    rows = [
        (each.step, ",".join(each.reads), each.writes,
         ",".join(_retry_text(*one) for one in each.retries.items()) or None,
         ",".join(each.dead) or None, each.unit) for each in plan.steps
    ]  # fmt: skip
    write_table(("STEP", "READS", "WRITES", "RETRIES", "DEAD LETTERS", "EXACTLY ONCE BY"), rows)
    write_line("")
    topics = [(each.name, each.role, each.partitions, "is there" if each.exists else "made") for each in plan.topics]
    write_table(("TOPIC", "ROLE", "PARTITIONS", "STATE"), topics)


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


# -- files -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _explain_errors() -> Iterator[None]:
    """Turn errors of pipelines into click's."""
    from ottla.pipeline.errors import BadPipeline, StepFailed

    try:
        yield
    except BadPipeline as error:
        raise click.UsageError(str(error)) from error
    except StepFailed as error:
        raise click.ClickException(str(error)) from error


def _load_pipeline(words: str) -> tuple[Pipeline, ModuleType]:
    """The pipeline of FILE:NAME, with the brokers of the options."""
    file, colon, name = words.rpartition(":")
    if not colon or os.path.exists(words):
        file, name = words, ""
    if not os.path.isfile(file):
        raise click.UsageError(f"{file} does not exist: name a Python file, and the pipeline in it as FILE:NAME")
    module = _load_file(file)
    found = _find_pipelines(module)
    if not found:
        raise click.UsageError(f"{file} has no Pipeline: add p = Pipeline(…) to it")
    if not name and len({id(each) for each in found.values()}) > 1:
        raise click.UsageError(f"{file} has several pipelines: name one as {file}:NAME, of {', '.join(found)}")
    if name and name not in found:
        raise click.UsageError(f"{file} has no pipeline {name}; it has {', '.join(found)}")
    chosen = found[name] if name else next(iter(found.values()))
    chosen.settings |= {key: str(value) for key, value in resolve_secrets(given_settings(())).items()}
    return chosen, module


def _find_pipelines(module: ModuleType) -> dict[str, Pipeline]:
    from ottla.pipeline import Pipeline

    return {name: value for name, value in vars(module).items() if isinstance(value, Pipeline)}


def _load_file(file: str) -> ModuleType:
    """Run the file as a module; it and Spark's workers can import the files beside it."""
    path = Path(file).resolve()
    directory = str(path.parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [directory, os.environ.get("PYTHONPATH", "")]))
    name = f"ottla_pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise click.UsageError(f"{file} is not a Python file: its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        from ottla.cli.explain import missing_package

        if missing_package(error) is not None:
            raise
        raise click.ClickException(f"{file} cannot be loaded: {type(error).__name__}: {error}") from error
    return module
