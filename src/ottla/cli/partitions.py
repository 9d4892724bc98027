"""Shared by `leader` and `reassign`: parsing TOPIC:PARTITION and plan files, printing results per partition.

Zone: real.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.views.output import Json, write_json, write_jsonl, write_line

if TYPE_CHECKING:
    from ottla.client import ClientError
    from ottla.types import TopicPartition


def parse_partition(word: str) -> TopicPartition:
    """`TOPIC:PARTITION`. Raises click.UsageError."""
    from ottla.types import TopicPartition

    topic, colon, number = word.rpartition(":")
    if not colon or not topic or not number.isdecimal():
        raise click.UsageError(f"{word!r} is not of the form TOPIC:PARTITION")
    return TopicPartition(topic, int(number))


def read_assignment(path: str) -> dict[TopicPartition, tuple[int, ...]]:
    """Kafka's file of a reassignment: `{"version":1,"partitions":[{"topic":…,"partition":…,"replicas":[…]},…]}`.

    Raises click.UsageError naming what is wrong.
    """
    from ottla.types import TopicPartition

    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        found = {
            TopicPartition(str(each["topic"]), int(each["partition"])): tuple(int(node) for node in each["replicas"])
            for each in document["partitions"]
        }
    except (ValueError, KeyError, TypeError) as error:
        raise click.UsageError(
            f'{path} is not of the form {{"version":1,"partitions":[{{"topic":…,"partition":…,"replicas":[…]}}]}}: '
            f"{type(error).__name__} {error}"
        ) from error
    if not found:
        raise click.UsageError(f"{path} names no partition")
    return found


def assignment_text(assignment: Mapping[TopicPartition, Sequence[int]]) -> str:
    """The text of such a file, one partition per line."""
    rows = [
        json.dumps({"topic": tp.topic, "partition": tp.partition, "replicas": list(replicas)})
        for tp, replicas in assignment.items()
    ]
    return '{"version": 1, "partitions": [\n  ' + ",\n  ".join(rows) + "\n]}"


def write_results(output: str, results: Mapping[TopicPartition, ClientError | None], done: str) -> None:
    """Print the result of each partition, then the errors, and exit with the code of the first one."""
    from ottla.cli.explain import exit_code, explain_error

    documents: list[Json] = [
        {"topic": tp.topic, "partition": tp.partition, "error": None if error is None else explain_error(error)}
        for tp, error in results.items()
    ]
    if output == "json":
        write_json(documents)
    elif output == "jsonl":
        write_jsonl(documents)
    else:
        for tp, error in results.items():
            if error is None:
                write_line(f"{tp.topic}:{tp.partition} {done}")
    errors = [error for error in results.values() if error is not None]
    for error in errors:
        click.echo(f"ottla: {explain_error(error)}", err=True)
    if errors:
        raise click.exceptions.Exit(exit_code(errors[0]) or 1)
