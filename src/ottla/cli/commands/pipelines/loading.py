"""Pipelines in Python files, and the Spark that runs them.

Zone: real. Errors become click's.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import signal
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ottla.cli.options import given_settings, parse_assignments, resolve_secrets

if TYPE_CHECKING:
    from types import ModuleType

    from ottla.demo.jvm import SparkProcess
    from ottla.pipeline import Pipeline
    from ottla.pipeline.definitions.definition import PipelineDefinition

_NEEDED = ("pyspark", "pyarrow", "numpy", "pandas")


class RunOptions(NamedTuple):
    """How pipelines run: options that several commands have."""

    checkpoint: str | None
    """Absolute, or a URL: Java runs in a temporary directory, and would resolve a relative path there."""
    trigger: str
    cores: int
    settings: dict[str, str]
    """Of Spark."""

    @property
    def required_checkpoint(self) -> str:
        """The checkpoint. Raises UsageError."""
        if self.checkpoint is None:
            raise click.UsageError("name a directory with --checkpoint, or show the plan with --dry-run")
        return self.checkpoint


Command = Callable[..., None]


def run_options(trigger: str, *, required: bool = True) -> Callable[[Command], Command]:
    """Add --checkpoint, --trigger, --cores, --master and --conf; the command gets them as `options`.

    trigger: the default. required: whether --checkpoint is.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def call(
            *, checkpoint: str | None, trigger: str, cores: int, master: str | None, confs: tuple[str, ...], **more: Any
        ) -> None:
            place = checkpoint if checkpoint is None or "://" in checkpoint else os.path.abspath(checkpoint)
            settings = {**({"spark.master": master} if master else {}), **parse_assignments(confs)}
            command(options=RunOptions(place, trigger, cores, settings), **more)

        made: Command = call
        for option in (
            click.option("--conf", "confs", multiple=True, metavar="KEY=VALUE", help="Set a Spark configuration key."),
            click.option("--master", metavar="URL", help="Use this Spark cluster instead of this machine."),
            click.option("--cores", type=click.IntRange(min=1), default=2, show_default=True,
                         help="Cores of this machine for Spark."),
            click.option("--trigger", default=trigger, show_default=True, metavar="WHEN",
                         help="available_now: process what is there and due; or an interval, as 5s, until Ctrl-C."),
            click.option("--checkpoint", metavar="DIRECTORY", required=required,
                         help="Where Spark saves the progress of the steps; keep it between runs."),
        ):  # fmt: skip
            made = option(made)
        return made

    return decorate


@contextlib.contextmanager
def spark_session(modules: Sequence[ModuleType], options: RunOptions) -> Iterator[SparkProcess]:
    """Spark with its session; functions of the user's files are pickled by value, as workers may not have them."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(f"pipelines need {', '.join(missing)}: pip install 'ottla[spark]'")
    from pyspark import cloudpickle

    from ottla.demo.jvm import SparkFailed, SparkProcess
    from ottla.spark.java import NoJava

    with tempfile.TemporaryDirectory(prefix="ottla-pipeline-", ignore_cleanup_errors=True) as directory:
        spark = SparkProcess(Path(directory), options.cores, options.settings)
        try:
            spark.start_java()
            spark.get_session()
            for module in modules:
                cloudpickle.register_pickle_by_value(module)
            signal.signal(signal.SIGTERM, _raise_interrupt)
            yield spark
        except (NoJava, SparkFailed) as error:
            raise click.ClickException(str(error)) from error
        finally:
            spark.stop_spark()


def _raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def explain_errors() -> Iterator[None]:
    """Turn errors of pipelines into click's."""
    from ottla.pipeline.errors import BadPipeline, StepFailed
    from ottla.spark.errors import BadCheckpoint

    try:
        yield
    except BadPipeline as error:
        raise click.UsageError(str(error)) from error
    except (BadCheckpoint, StepFailed) as error:
        raise click.ClickException(str(error)) from error


def load_pipeline(words: str) -> tuple[Pipeline, ModuleType]:
    """The pipeline of FILE:NAME, with the brokers of the options."""
    found, module, file = _load_pipelines(words)
    if len(found) > 1:
        names = ", ".join(name for name, value in vars(module).items() if any(value is each for each in found))
        raise click.UsageError(f"{file} has several pipelines: name one as {file}:NAME, of {names}")
    return found[0], module


def load_pipelines(words: str) -> tuple[list[Pipeline], ModuleType]:
    """The pipelines of FILE, or the one of FILE:NAME, with the brokers of the options."""
    found, module, _ = _load_pipelines(words)
    return found, module


def _load_pipelines(words: str) -> tuple[list[Pipeline], ModuleType, str]:
    file, colon, name = words.rpartition(":")
    if not colon or os.path.exists(words):
        file, name = words, ""
    if not os.path.isfile(file):
        raise click.UsageError(f"{file} does not exist: name a Python file, and the pipeline in it as FILE:NAME")
    module = load_file(file)
    found = find_pipelines(module)
    if not found:
        raise click.UsageError(f"{file} has no Pipeline: add p = Pipeline(…) to it")
    if name and name not in found:
        raise click.UsageError(f"{file} has no pipeline {name}; it has {', '.join(found)}")
    # Two variables may be one pipeline.
    chosen = [found[name]] if name else list({id(each): each for each in found.values()}.values())
    for each in chosen:
        each.settings |= {key: str(value) for key, value in resolve_secrets(given_settings(())).items()}
    return chosen, module, file


class PipelineLoader:
    """Makes the pipelines of definitions, from files below a directory. For threads, which have no context of click.

    Raises UsageError for a directory that does not exist.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory).resolve()
        if not self._directory.is_dir():
            raise click.UsageError(f"{directory} is not a directory: name that of the pipelines' files")
        self._settings = {key: str(value) for key, value in resolve_secrets(given_settings(())).items()}
        self._lock = threading.Lock()
        # Before Java is started, whose workers get the path from the environment.
        _add_import_path(str(self._directory))

    def load_definition(self, name: str, definition: PipelineDefinition) -> Pipeline:
        """Run the file, and return its pipeline of this name. Raises ClickException, or the error of an import."""
        from pyspark import cloudpickle

        path = self._directory / definition.file
        if not path.is_file():
            raise click.ClickException(f"{definition.file} does not exist in {self._directory}: put it there")
        # One after the other: a file is a module, and modules are global.
        with self._lock:
            try:
                module = load_file(str(path))
            except SystemExit as error:
                raise click.ClickException(f"{definition.file} cannot be loaded: it ends the process") from error
            cloudpickle.register_pickle_by_value(module)
        found = {id(each): each for each in find_pipelines(module).values()}.values()
        chosen = [each for each in found if each.name == name]
        if len(chosen) != 1:
            there = ", ".join(sorted(each.name for each in found)) or "none"
            problem = "several pipelines" if chosen else "no pipeline"
            raise click.ClickException(f'{definition.file} has {problem} with the name "{name}"; it has {there}')
        chosen[0].settings |= self._settings
        return chosen[0]


def find_pipelines(module: ModuleType) -> dict[str, Pipeline]:
    from ottla.pipeline import Pipeline

    return {name: value for name, value in vars(module).items() if isinstance(value, Pipeline)}


def _add_import_path(directory: str) -> None:
    """Have this process, and processes that it starts, import modules from a directory."""
    if directory not in sys.path:
        sys.path.insert(0, directory)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [directory, os.environ.get("PYTHONPATH", "")]))


def load_file(file: str) -> ModuleType:
    """Run the file as a module; it and Spark's workers can import the files beside it."""
    path = Path(file).resolve()
    _add_import_path(str(path.parent))
    name = f"ottla_pipeline_{path.stem}"
    if name in sys.modules and sys.modules[name].__file__ != str(path):
        name = f"{name}_{zlib.crc32(os.fsencode(path)):08x}"  # a file of this name in another directory
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
