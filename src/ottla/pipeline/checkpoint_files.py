"""Reads what Spark's checkpoint of a step holds: its topics, its batches, its state.

Zone: real. Reads files, and changes none. The layout is Spark's (Structured Streaming, "Recovering from Failures"):
`offsets/N` is the plan of batch N, `commits/N` its end, `state/I/_metadata/metadata` the I-th stateful operator.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from ottla.spark.errors import BadCheckpoint
from ottla.spark.offsets import from_json

MAX_FILE_BYTES: Final = 32 << 20
"""A larger file is no plan of a batch: 32 MiB are the offsets of 500,000 partitions."""
MAX_OPERATORS: Final = 100
"""Stateful operators of a query that are looked at."""
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"


class CheckpointFiles(Protocol):
    """The files of a checkpoint, by their path below it."""

    def names(self, directory: str) -> list[str]:
        """The names in a directory; none if there is no such directory. Raises BadCheckpoint."""

    def read(self, file: str) -> str | None:
        """The text of a file; None if there is no such file. Raises BadCheckpoint."""


class LocalFiles:
    """A checkpoint in a directory of this machine."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""
        path = self._root / directory
        try:
            return sorted(each.name for each in path.iterdir()) if path.is_dir() else []
        except OSError as error:
            raise BadCheckpoint(f"{path} cannot be read: {error}") from error

    def read(self, file: str) -> str | None:
        """The text of a file."""
        path = self._root / file
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise BadCheckpoint(f"{path} is larger than any file of a checkpoint ({MAX_FILE_BYTES >> 20} MiB)")
            return path.read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise BadCheckpoint(f"{path} cannot be read: {error}") from error


class HadoopFiles:
    """A checkpoint on any file system that Spark knows, as `hdfs://` or `s3a://`; needs a session that is not remote.

    spark: the session. root: its URL.
    """

    def __init__(self, spark: Any, root: str) -> None:
        if getattr(spark, "_jvm", None) is None:
            raise BadCheckpoint(f"{root} cannot be looked at in a Spark Connect session: name a local directory")
        self._spark = spark
        self._root = root

    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""
        with _named_errors(self._root):
            system, path = self._find_path(directory)
            if not system.exists(path) or not system.getFileStatus(path).isDirectory():
                return []
            return sorted(each.getPath().getName() for each in system.listStatus(path))

    def read(self, file: str) -> str | None:
        """The text of a file."""
        with _named_errors(self._root):
            system, path = self._find_path(file)
            if not system.exists(path):
                return None
            if system.getFileStatus(path).getLen() > MAX_FILE_BYTES:
                raise BadCheckpoint(f"{path.toString()} is larger than any file of a checkpoint")
            stream = system.open(path)
            try:
                return str(self._spark._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def _find_path(self, name: str) -> tuple[Any, Any]:
        """The file system, and a path on it."""
        make = self._spark._jvm.org.apache.hadoop.fs.Path
        path = make(f"{self._root.rstrip('/')}/{name}".rstrip("/"))
        return path.getFileSystem(self._spark._jsc.hadoopConfiguration()), path


@contextmanager
def _named_errors(root: str) -> Iterator[None]:
    """Raise the errors of Java's file systems as BadCheckpoint."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - an extra

    try:
        yield
    except Py4JJavaError as error:
        raise BadCheckpoint(f"{root} cannot be read: {error.java_exception.toString()}") from error


def files_of(root: str, spark: Any = None) -> CheckpointFiles:
    """The files of a checkpoint: a local directory, or a URL, which needs a session. Raises BadCheckpoint."""
    if root.startswith("file:"):
        return LocalFiles("/" + root.removeprefix("file:").lstrip("/"))
    if "://" not in root:
        return LocalFiles(root)
    if spark is None:
        raise BadCheckpoint(f"{root} is not on this machine, and only Spark can read it: give the session")
    return HadoopFiles(spark, root)


class StepCheckpoint(NamedTuple):
    """The checkpoint of one step."""

    planned: int
    """The last batch whose offsets are written; -1: none."""
    ended: int
    """The last batch that has ended; -1: none."""
    topics: frozenset[str]
    """The topics that the last planned batch knew."""
    operators: tuple[str, ...] | None
    """Spark's names of the stateful operators, sorted; None if they are written in a form that is not known."""
    shuffle_partitions: int | None
    """The number of partitions of the state, which stays whatever the session says; None: not written."""


def read_step(files: CheckpointFiles, step: str) -> StepCheckpoint | None:
    """The checkpoint of a step; None if it has none. Raises BadCheckpoint."""
    if not files.names(step):
        return None
    planned, ended = _last_batch(files, f"{step}/offsets"), _last_batch(files, f"{step}/commits")
    topics, conf = _read_plan(files, f"{step}/offsets/{planned}") if planned >= 0 else (frozenset(), {})
    number = str(conf.get(SHUFFLE_PARTITIONS, ""))
    partitions = int(number) if number.isdecimal() else None
    return StepCheckpoint(planned, ended, topics, _read_operators(files, f"{step}/state"), partitions)


def _last_batch(files: CheckpointFiles, directory: str) -> int:
    # Spark writes under a name that begins with a dot, and renames.
    return max((int(name) for name in files.names(directory) if name.isdecimal()), default=-1)


def _read_plan(files: CheckpointFiles, file: str) -> tuple[frozenset[str], Mapping[str, Any]]:
    """The topics of a batch's plan, and Spark's settings that go with the checkpoint."""
    # The lines: a version, the settings as JSON, and an offset for each source, as JSON, or `-`.
    lines = (files.read(file) or "").splitlines()
    try:
        conf = json.loads(lines[1])["conf"] if len(lines) > 1 else {}
        topics = {topic for line in lines[2:] if line != "-" for topic in _topics_of(line)}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{file} is not the plan of a batch as Spark writes it: {error}") from error
    return frozenset(topics), conf if isinstance(conf, dict) else {}


def _topics_of(line: str) -> set[str]:
    """The topics of a source's offset; none for a source that is not Kafka's."""
    offset = json.loads(line)
    try:
        return {tp.topic for tp in from_json(offset)} if isinstance(offset, dict) else set()
    except BadCheckpoint:
        return set()


def _read_operators(files: CheckpointFiles, directory: str) -> tuple[str, ...] | None:
    found: list[str] = []
    for name in [each for each in files.names(directory) if each.isdecimal()][:MAX_OPERATORS]:
        # The lines: a version, and the operator as JSON.
        lines = (files.read(f"{directory}/{name}/_metadata/metadata") or "").splitlines()
        try:
            found.append(str(json.loads(lines[1])["operatorInfo"]["operatorName"]))
        except (IndexError, KeyError, TypeError, ValueError, RecursionError):
            return None
    return tuple(sorted(found))
