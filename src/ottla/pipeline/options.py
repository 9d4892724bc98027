"""The options of a step: the arguments of `Pipeline.step` besides the function and the topics, one row each.

Zone: pure. `steps` computes the step from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.config.options import INTEGER, LIST, MAPPING, TEXT, Bounds, Option, option, options_of
from ottla.retry.policy import Duration, ErrorKind, RetryPolicy


@dataclass(frozen=True)
class StepOptions:
    """The options of a step as they were given. Without slots: `Pipeline.step` reads its defaults from the class."""

    retries: Sequence[Duration] | RetryPolicy = option(
        "retries",
        LIST,
        (),
        'The delays after which a failed record is retried, as `["30s", "5m"]`, each with a topic of its own; or an '
        "`ottla.retry.RetryPolicy.fixed(…)`.",
    )
    dead: str | None = option(
        "dead",
        TEXT,
        None,
        "The topic for records that failed after the last retry. Without `retries` and `dead` a failed record stops "
        "the step.",
        default_text="`<source>.<pipeline>.dead` with `retries`",
    )
    name: str | None = option(
        "name",
        TEXT,
        None,
        "The name of the step, of letters, digits, `.` and `_`: its checkpoint's directory, and a part of its "
        "transactional ids.",
        default_text="the function's",
    )
    retry_on: Sequence[ErrorKind] = option(
        "retry_on", LIST, (), "Classes of exceptions, or their names: only these are retried.", default_text="all"
    )
    abort_on: Sequence[ErrorKind] = option(
        "abort_on",
        LIST,
        (),
        "Classes of exceptions, or their names: these are not retried. Never retried are `Poison` (raise it), text "
        "that cannot be decoded, records that are too large, and a null that is not allowed.",
    )
    required: Sequence[str] = option(
        "required", LIST, (), '`["key"]`, `["value"]` or both: a result with null there is a failure.'
    )
    max_record_bytes: int = option(
        "max_record_bytes", INTEGER, 1_000_000, "A result that is larger is a failure.", Bounds(1)
    )
    start: str = option(
        "start",
        TEXT,
        "earliest",
        "Where a run without a checkpoint starts; `group` is where the pipeline's group is.",
        ("earliest", "latest", "group"),
    )
    exactly_once: str = option(
        "exactly_once",
        TEXT,
        "auto",
        "The unit that is written as a whole or not at all; `auto` decides from Spark's plan, `off` is at least once.",
        ("auto", "partition", "batch", "off"),
    )
    offsets_in_transaction: str = option(
        "offsets_in_transaction",
        TEXT,
        "auto",
        "Whether the offsets of the pipeline's group are committed in the transaction of the rows: `auto` where that "
        "is possible, `true` (or an error), or `false`.",
        ("auto", "true", "false"),
    )
    batch_tasks: int = option(
        "batch_tasks",
        INTEGER,
        1,
        "The number of tasks that write a whole batch, by topic and key; each has a transaction of its own.",
        Bounds(1, 1000),
    )
    output_mode: str = option(
        "output_mode",
        TEXT,
        "append",
        "`complete` is for aggregations. Spark has no other mode for this sink.",
        ("append", "complete"),
    )
    partitions: int | None = option(
        "partitions",
        INTEGER,
        None,
        "The number of partitions of topics that are created.",
        Bounds(1),
        default_text="as many as the source has",
    )
    options: Mapping[str, str] | None = option(
        "options",
        MAPPING,
        None,
        'More options of the [source](config-spark.md#the-source), as `{"maxOffsetsPerTrigger": "100000"}`.',
    )


STEP_OPTIONS: Final[Mapping[str, Option]] = options_of(StepOptions)
"""The rows by the names of the arguments."""
