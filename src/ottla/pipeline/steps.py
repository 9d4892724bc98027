"""The steps of a pipeline as values: what each reads and writes, and which topics it needs.

Zone: pure. Names and checks; sends no request to a cluster, and does not import Spark.

The names of a step's retry topics contain that of the pipeline, unless it equals the source's: another pipeline with
the same source must not read them. Records of `orders` that fail in the pipeline `pricing` go to
`orders.pricing.retry-1` and so on, and to `orders.pricing.dead`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from ottla.pipeline.errors import BadOutput, BadPipeline, NullField, Poison, RecordTooLarge
from ottla.pipeline.functions import BatchFunction, Limits, RowFunction
from ottla.pipeline.options import STEP_OPTIONS, StepOptions
from ottla.pipeline.table_output.targets import TableTarget
from ottla.retry.policy import ErrorKind, PolicyError, RetryPolicy, duration_ms

HOPELESS: Final[tuple[ErrorKind, ...]] = (
    Poison,
    BadOutput,
    RecordTooLarge,
    NullField,
    UnicodeDecodeError,
    json.JSONDecodeError,
)
"""Errors that a retry cannot solve: such records become dead letters at once."""
TAKEN: Final = frozenset(
    {
        "subscribe",
        "subscribepattern",
        "assign",
        "startingoffsets",
        "includeheaders",
        "commitoffsets",
        "groupidprefix",
        "checktopicids",
        "topicdelays",
        "topicdelaysat",
    }
)
"""Options of the source that a step sets itself."""
_SPLITS: Final = frozenset({"minpartitions", "maxrecordsperpartition"})
RETENTION_MS: Final = 7 * 86_400_000
ROOM_BYTES: Final = 262_144
"""How much a record may grow by headers in a retry topic or the dead letters."""
_NAME: Final = re.compile(r"[A-Za-z0-9._]{1,100}")
"""Without '-', which separates the parts of a transactional id."""


Output = str | TableTarget
"""The output of a step: a topic, or a table."""


class TopicPosition(NamedTuple):
    """The source and level of a topic that a step reads: level 0 is the source itself, then its retry topics follow."""

    source: str
    level: int


@dataclass(frozen=True)
class Step:
    """A step, which is a query with a checkpoint of its own."""

    name: str
    sources: tuple[str, ...]
    to: str
    """The topic that it writes, or the name of its table in plans."""
    function: Callable[[Any], Any] | RowFunction | BatchFunction
    policy: RetryPolicy | None
    """None: an error stops the step."""
    base: Mapping[str, str]
    """The prefix of the names of each source's retry topics."""
    limits: Limits
    start: str
    exactly_once: str
    offsets_in_transaction: str
    batch_tasks: int
    """Tasks that write, where the unit is the batch."""
    output_mode: str
    partitions: int | None
    """Of topics that are created; None: as many as the sources have."""
    options: Mapping[str, str]
    """More options of the source."""
    table: TableTarget | None = None
    """The table that it writes instead of a topic."""

    @property
    def is_frame_step(self) -> bool:
        """Whether the function takes a DataFrame."""
        return not isinstance(self.function, RowFunction | BatchFunction)

    @cached_property
    def places(self) -> dict[str, TopicPosition]:
        """All topics that the step reads."""
        found = {source: TopicPosition(source, 0) for source in self.sources}
        if self.policy is not None:
            for source in self.sources:
                for level in range(1, self.policy.levels + 1):
                    found[self.retry_topic(source, level)] = TopicPosition(source, level)
        return found

    def retry_topic(self, source: str, level: int) -> str:
        """The topic in which records of a source wait before their next attempt; `level` from 1.

        Its name differs from those of the retry service (`ottla.retry.policy.retry_topic`), which by default moves the
        records of all such topics back to their source.
        """
        return f"{self.base[source]}.retry-{level}"

    @cached_property
    def levels(self) -> dict[str, int]:
        """The retry level of each topic."""
        return {topic: place.level for topic, place in self.places.items()}

    @property
    def retry_topics(self) -> dict[str, int]:
        """Retry topics and their delays in milliseconds."""
        policy = self.policy
        if policy is None:
            return {}
        return {topic: policy.delay_ms(place.level) for topic, place in self.places.items() if place.level}

    @property
    def dead_topics(self) -> tuple[str, ...]:
        """The dead-letter topics."""
        if self.policy is None:
            return ()
        return tuple(dict.fromkeys(self.policy.dead_topic(self.base[source]) for source in self.sources))


class NeededTopic(NamedTuple):
    """A topic that a step needs."""

    name: str
    role: str
    """source, output, retry or dead."""
    like: tuple[str, ...]
    """It is created with as many partitions as the largest of these."""
    partitions: int | None
    configs: Mapping[str, str]


def make_step(
    pipeline: str,
    function: Callable[[Any], Any] | RowFunction | BatchFunction,
    source: str | Sequence[str],
    to: Output,
    given: StepOptions,
) -> Step:
    """A step from the arguments of `Pipeline.step`. Raises BadPipeline."""
    sources = (source,) if isinstance(source, str) else tuple(dict.fromkeys(source))
    name = given.name or _name_of(function)
    if not _NAME.fullmatch(name):
        raise BadPipeline(f"the step's name {name!r} must be 1 to 100 letters, digits, '.' and '_': give name=…")
    if not sources or not all(sources) or not to:
        raise BadPipeline(f"step {name}: name the topic to read and, with to=…, the one to write")
    table = to if isinstance(to, TableTarget) else None
    _check_rows(name, given)
    if table is not None:
        is_frame_step = not isinstance(function, RowFunction | BatchFunction)
        _check_table(name, table, given, is_frame_step=is_frame_step)
        _check_making(name, table, given, is_frame_step=is_frame_step)
    options = dict(given.options or {})
    _check_options(name, options)
    step = Step(
        name=name,
        sources=sources,
        to=str(to),
        function=function,
        policy=_make_policy(name, given),
        base={one: one if one == pipeline else f"{one}.{pipeline}" for one in sources},
        limits=Limits(given.max_record_bytes, tuple(given.required)),
        start=given.start,
        exactly_once=given.exactly_once,
        offsets_in_transaction=given.offsets_in_transaction,
        batch_tasks=given.batch_tasks,
        output_mode=given.output_mode,
        partitions=given.partitions,
        options=options,
        table=table,
    )
    _check_topics(step)
    if table is not None and table.upsert and step.retry_topics:
        raise BadPipeline(
            f"step {name}: a retry would replace the row of its key by an older one: omit retries, and give dead=…"
        )
    return step


def _name_of(function: Any) -> str:
    inner = function.function if isinstance(function, RowFunction | BatchFunction) else function
    return str(getattr(inner, "__name__", "step")).strip("<>")


def _check_rows(name: str, given: StepOptions) -> None:
    for row in STEP_OPTIONS.values():
        value = getattr(given, row.attribute)
        if not row.is_allowed(value):
            raise BadPipeline(f"step {name}: {row.name} must be {row.requirement}, not {value!r}")
    if wrong := set(given.required) - {"key", "value"}:
        raise BadPipeline(f"step {name}: required may name key and value, not {', '.join(sorted(wrong))}")


def _check_table(name: str, table: TableTarget, given: StepOptions, *, is_frame_step: bool) -> None:
    # 1. A commit of the table has a whole batch. 2. Its offsets could not be in the same transaction. 3. The complete
    # result would be added with each batch; with upsert its rows take the place of those before. 4. A row has other
    # columns than a record.
    wrong = {
        "exactly_once": given.exactly_once not in {"auto", "batch"},
        "offsets_in_transaction": given.offsets_in_transaction == "true",
        "output_mode": given.output_mode != "append" and not table.upsert,
        "required": is_frame_step and bool(given.required),
    }
    for option in (each for each, is_wrong in wrong.items() if is_wrong):
        raise BadPipeline(f"step {name}: {option}={getattr(given, option)!r} is not possible with a table: omit it")


def _check_making(name: str, table: TableTarget, given: StepOptions, *, is_frame_step: bool) -> None:
    if table.is_partitioned_by_time and not is_frame_step:
        raise BadPipeline(
            f"step {name}: partition_by={table.partition_by} needs a column timestamp, and a function of records makes "
            "none: take a DataFrame"
        )
    # Several tasks would read the records of one partition, and Spark may join their rows in any order.
    splits = sorted(key for key in given.options or {} if key.lower() in _SPLITS)
    if table.upsert and splits:
        raise BadPipeline(f"step {name}: the option {splits[0]} is not possible with an upsert: the last row counts")


def _check_options(name: str, options: Mapping[str, str]) -> None:
    taken = sorted(key for key in options if key.lower() in TAKEN or key.lower().startswith("kafka."))
    if taken:
        raise BadPipeline(
            f"step {name}: the pipeline sets the option {taken[0]} itself: use the step's arguments, and for Kafka's "
            "settings Pipeline(…, settings=…)"
        )
    if on_driver := [key for key in options if key.lower() == "maxrecordsondriver"]:
        raise BadPipeline(
            f"step {name}: {on_driver[0]} is not possible in a pipeline, whose sink commits offsets that tasks have "
            "read: omit it, or write the query with readStream and exactlyOnce=batch"
        )


def _make_policy(name: str, given: StepOptions) -> RetryPolicy | None:
    retries, dead = given.retries, given.dead
    retry_on, abort_on = tuple(given.retry_on), tuple(given.abort_on)
    if isinstance(retries, RetryPolicy):
        if retries.backoff is not None or retries.jitter or len(retries.delays_ms) != retries.attempts - 1:
            raise BadPipeline(
                f"step {name}: each delay of a pipeline has a topic: use RetryPolicy.fixed without jitter, with one "
                "attempt more than delays"
            )
        if dead is not None or retry_on or abort_on:
            raise BadPipeline(f"step {name}: dead, retry_on and abort_on are in the policy: set them there")
        return retries
    if not retries and dead is None:
        if retry_on or abort_on:
            raise BadPipeline(f"step {name}: retry_on and abort_on have no effect without retries=… or dead=…")
        return None
    try:
        delays = [duration_ms(each) for each in retries] if not isinstance(retries, str) else []
        policy = RetryPolicy.fixed(retries, retry_on=retry_on, abort_on=(*HOPELESS, *abort_on), dead=dead)
    except PolicyError as error:
        raise BadPipeline(f"step {name}: {error}") from error
    if any(delay < 1 for delay in delays):
        raise BadPipeline(f"step {name}: a retry without a delay would fail again at once: begin with 1s")
    return policy


def _check_topics(step: Step) -> None:
    """Check that no record comes back to the step that made it, except by a retry topic. Raises BadPipeline."""
    reads = step.places
    if len(reads) < len(step.sources) * (1 + (step.policy.levels if step.policy else 0)):
        raise BadPipeline(f"step {step.name}: a source has the name of another's retry topic: {', '.join(reads)}")
    for topic, what in ((step.to, "to"), *((dead, "dead") for dead in step.dead_topics)):
        if topic in reads:
            raise BadPipeline(f"step {step.name}: {what}={topic} is read by this step: that is an endless loop")
    if step.to in step.dead_topics:
        raise BadPipeline(f"step {step.name}: results and dead letters both go to {step.to}: name another one")


def check_steps(steps: Sequence[Step]) -> None:
    """Check that the steps of a pipeline do not conflict. Raises BadPipeline."""
    if not steps:
        raise BadPipeline("the pipeline has no step: add one with @p.step(source, to=…)")
    for number, step in enumerate(steps):
        for other in steps[:number]:
            if other.name == step.name:
                raise BadPipeline(f"two steps are called {step.name}: give one of them another name=…")
            both = sorted(set(step.places) & set(other.places))
            if both and (step.policy or other.policy):
                raise BadPipeline(
                    f"the steps {other.name} and {step.name} both read {', '.join(both)}, and both would get retries "
                    "of one: put them into separate pipelines"
                )


def group_of(pipeline: str, step: Step, steps: Sequence[Step]) -> str:
    """The consumer group of a step: the pipeline's, unless another step also reads one of its topics."""
    shared = any(other is not step and set(other.sources) & set(step.sources) for other in steps)
    return f"{pipeline}.{step.name}" if shared else pipeline


def sort_steps(steps: Sequence[Step]) -> list[Step]:
    """The steps, each after those that write its sources; in a cycle, in the order in which they were defined."""
    left, found = list(steps), []
    while left:
        made = {step.to for step in left}
        # A step that reads its own output waits for no other. In a cycle no step is ready: the first defined one goes
        # first.
        ready = next((step for step in left if not made & (set(step.sources) - {step.to})), left[0])
        left.remove(ready)
        found.append(ready)
    return found


def topics_of(steps: Sequence[Step]) -> list[NeededTopic]:
    """Every topic that the steps need, each once; a source that another step writes counts as its output."""
    made = {step.to for step in steps}
    found: dict[str, NeededTopic] = {}
    for step in sort_steps(steps):
        for source in step.sources:
            if source not in made:
                found.setdefault(source, NeededTopic(source, "source", (), None, {}))
        if step.table is None:
            found.setdefault(step.to, NeededTopic(step.to, "output", step.sources, step.partitions, {}))
        room = {"max.message.bytes": str(max(1_048_588, step.limits.max_bytes) + ROOM_BYTES)}
        for topic, delay_ms in step.retry_topics.items():
            # Timestamps of the broker's clock: a wrong clock of a producer cannot make a record block those after it.
            times = {"message.timestamp.type": "LogAppendTime", "retention.ms": str(max(RETENTION_MS, 2 * delay_ms))}
            like = (step.places[topic].source,)
            found.setdefault(topic, NeededTopic(topic, "retry", like, step.partitions, {**room, **times}))
        for topic in step.dead_topics:
            found.setdefault(topic, NeededTopic(topic, "dead", step.sources, step.partitions, room))
    return list(found.values())
