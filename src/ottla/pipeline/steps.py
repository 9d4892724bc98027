"""The steps of a pipeline as values: what each reads and writes, and which topics that needs.

Zone: pure. Names and checks; nothing is asked of a cluster, and Spark is not imported.

A step's retry topics carry the name of the pipeline, unless that is the name of the source: another pipeline that reads
the same source must not get them. Records of `orders` that fail in the pipeline `pricing` go to
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
from ottla.retry.policy import Duration, ErrorKind, PolicyError, RetryPolicy, duration_ms

MODES: Final = ("auto", "partition", "batch", "off")
OFFSETS: Final = ("auto", "true", "false")
STARTS: Final = ("earliest", "latest", "group")
HOPELESS: Final[tuple[ErrorKind, ...]] = (
    Poison,
    BadOutput,
    RecordTooLarge,
    NullField,
    UnicodeDecodeError,
    json.JSONDecodeError,
)
"""Errors that come again whenever it is tried: such records go to the dead letters at once."""
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
    }
)
"""Options of the source that a step sets itself."""
RETENTION_MS: Final = 7 * 86_400_000
ROOM_BYTES: Final = 262_144
"""What a record may grow by on its way into a retry topic or the dead letters: headers."""
_NAME: Final = re.compile(r"[A-Za-z0-9._]{1,100}")
"""Without '-', which stands between the parts of a transactional id."""


class TopicPosition(NamedTuple):
    """Where a topic that a step reads stands: the source itself is level 0, then its retry topics."""

    source: str
    level: int


@dataclass(frozen=True)
class Step:
    """One step: a query of its own, with a checkpoint of its own."""

    name: str
    sources: tuple[str, ...]
    to: str
    function: Callable[[Any], Any] | RowFunction | BatchFunction
    policy: RetryPolicy | None
    """None: an error stops the step."""
    base: Mapping[str, str]
    """What the names of a source's retry topics begin with."""
    limits: Limits
    start: str
    exactly_once: str
    offsets_in_transaction: str
    output_mode: str
    partitions: int | None
    """Of topics that are created; None: as many as the sources have."""
    options: Mapping[str, str]
    """More options of the source."""

    @property
    def is_frame_step(self) -> bool:
        """Whether the function takes a DataFrame."""
        return not isinstance(self.function, RowFunction | BatchFunction)

    @cached_property
    def places(self) -> dict[str, TopicPosition]:
        """All topics that are read."""
        found = {source: TopicPosition(source, 0) for source in self.sources}
        if self.policy is not None:
            for source in self.sources:
                for level in range(1, self.policy.levels + 1):
                    found[self.retry_topic(source, level)] = TopicPosition(source, level)
        return found

    def retry_topic(self, source: str, level: int) -> str:
        """Where records of a source wait before their next attempt; `level` from 1.

        Not named as those of the retry service (`ottla.retry.policy.retry_topic`), which takes all that are, and would
        hand records back to the source behind the pipeline's back.
        """
        return f"{self.base[source]}.retry-{level}"

    @cached_property
    def levels(self) -> dict[str, int]:
        """How many retries lie before each topic."""
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
        """Where what cannot be helped ends."""
        if self.policy is None:
            return ()
        return tuple(dict.fromkeys(self.policy.dead_topic(self.base[source]) for source in self.sources))


class NeededTopic(NamedTuple):
    """A topic that a step needs."""

    name: str
    role: str
    """source, output, retry or dead."""
    like: tuple[str, ...]
    """It gets as many partitions as the largest of these has."""
    partitions: int | None
    configs: Mapping[str, str]


def make_step(
    pipeline: str,
    function: Callable[[Any], Any] | RowFunction | BatchFunction,
    source: str | Sequence[str],
    to: str,
    *,
    name: str | None,
    retries: Sequence[Duration] | RetryPolicy,
    dead: str | None,
    retry_on: Sequence[ErrorKind],
    abort_on: Sequence[ErrorKind],
    required: Sequence[str],
    max_record_bytes: int,
    start: str,
    exactly_once: str,
    offsets_in_transaction: str,
    output_mode: str,
    partitions: int | None,
    options: Mapping[str, str],
) -> Step:
    """A step out of what `Pipeline.step` got. Raises BadPipeline."""
    sources = (source,) if isinstance(source, str) else tuple(dict.fromkeys(source))
    called = name or _name_of(function)
    _check_words(called, sources, to, required, start, exactly_once, output_mode)
    policy = _policy(called, retries, dead, tuple(retry_on), tuple(abort_on))
    base = {one: one if one == pipeline else f"{one}.{pipeline}" for one in sources}
    if max_record_bytes < 1 or (partitions is not None and partitions < 1):
        raise BadPipeline(f"step {called}: max_record_bytes and partitions must be at least 1")
    if offsets_in_transaction not in OFFSETS:
        raise BadPipeline(
            f"step {called}: offsets_in_transaction must be one of {', '.join(OFFSETS)}, not {offsets_in_transaction!r}"
        )
    _check_options(called, options)
    limits = Limits(max_record_bytes, tuple(required))
    once = (exactly_once, offsets_in_transaction)
    step = Step(
        called, sources, to, function, policy, base, limits, start, *once, output_mode, partitions, dict(options)
    )
    _check_topics(step)
    return step


def _name_of(function: Any) -> str:
    inner = function.function if isinstance(function, RowFunction | BatchFunction) else function
    return str(getattr(inner, "__name__", "step")).strip("<>")


def _check_words(
    name: str, sources: Sequence[str], to: str, required: Sequence[str], start: str, exactly_once: str, mode: str
) -> None:
    if not _NAME.fullmatch(name):
        raise BadPipeline(f"the step's name {name!r} must be 1 to 100 letters, digits, '.' and '_': give name=…")
    if not sources or not all(sources) or not to:
        raise BadPipeline(f"step {name}: name the topic to read and, with to=…, the one to write")
    if wrong := set(required) - {"key", "value"}:
        raise BadPipeline(f"step {name}: required may name key and value, not {', '.join(sorted(wrong))}")
    if start not in STARTS:
        raise BadPipeline(f"step {name}: start must be one of {', '.join(STARTS)}, not {start!r}")
    if exactly_once not in MODES:
        raise BadPipeline(f"step {name}: exactly_once must be one of {', '.join(MODES)}, not {exactly_once!r}")
    if mode not in ("append", "complete"):
        raise BadPipeline(f"step {name}: output_mode must be append or complete; Spark has no other for this sink")


def _check_options(name: str, options: Mapping[str, str]) -> None:
    taken = sorted(key for key in options if key.lower() in TAKEN or key.lower().startswith("kafka."))
    if taken:
        raise BadPipeline(
            f"step {name}: the option {taken[0]} is the pipeline's own: the step says it in its arguments, and Kafka's "
            "settings are those of Pipeline(…, settings=…)"
        )


def _policy(
    name: str,
    retries: Sequence[Duration] | RetryPolicy,
    dead: str | None,
    retry_on: tuple[ErrorKind, ...],
    abort_on: tuple[ErrorKind, ...],
) -> RetryPolicy | None:
    if isinstance(retries, RetryPolicy):
        if retries.backoff is not None or retries.jitter or len(retries.delays_ms) != retries.attempts - 1:
            raise BadPipeline(
                f"step {name}: a pipeline's delays belong to topics: use RetryPolicy.fixed without jitter, and as many "
                "attempts as delays and one"
            )
        if dead is not None or retry_on or abort_on:
            raise BadPipeline(f"step {name}: dead, retry_on and abort_on are in the policy: say them there")
        return retries
    if not retries and dead is None:
        if retry_on or abort_on:
            raise BadPipeline(f"step {name}: retry_on and abort_on say nothing without retries=… or dead=…")
        return None
    try:
        delays = [duration_ms(each) for each in retries] if not isinstance(retries, str) else []
        policy = RetryPolicy.fixed(retries, retry_on=retry_on, abort_on=(*HOPELESS, *abort_on), dead=dead)
    except PolicyError as error:
        raise BadPipeline(f"step {name}: {error}") from error
    if any(delay < 1 for delay in delays):
        raise BadPipeline(f"step {name}: a retry without a delay would fail again at once: 1s is a good first one")
    return policy


def _check_topics(step: Step) -> None:
    """A record must not come back to the step that made it, except through a retry topic."""
    reads = step.places
    if len(reads) < len(step.sources) * (1 + (step.policy.levels if step.policy else 0)):
        raise BadPipeline(f"step {step.name}: a source has the name of another one's retry topic: {', '.join(reads)}")
    for topic, what in ((step.to, "to"), *((dead, "dead") for dead in step.dead_topics)):
        if topic in reads:
            raise BadPipeline(f"step {step.name}: {what}={topic} is read by this step: that is an endless loop")
    if step.to in step.dead_topics:
        raise BadPipeline(f"step {step.name}: results and dead letters both go to {step.to}: name another one")


def check_steps(steps: Sequence[Step]) -> None:
    """What must not be between the steps of a pipeline. Raises BadPipeline."""
    if not steps:
        raise BadPipeline("the pipeline has no step: write one with @p.step(source, to=…)")
    for number, step in enumerate(steps):
        for other in steps[:number]:
            if other.name == step.name:
                raise BadPipeline(f"two steps are called {step.name}: give one of them another name=…")
            both = sorted(set(step.places) & set(other.places))
            if both and (step.policy or other.policy):
                raise BadPipeline(
                    f"the steps {other.name} and {step.name} both read {', '.join(both)}, and retries of one would go "
                    "to both: put them into pipelines of their own"
                )


def group_of(pipeline: str, step: Step, steps: Sequence[Step]) -> str:
    """The consumer group of a step: the pipeline's, unless another step reads one of its topics, too."""
    shared = any(other is not step and set(other.sources) & set(step.sources) for other in steps)
    return f"{pipeline}.{step.name}" if shared else pipeline


def in_order(steps: Sequence[Step]) -> list[Step]:
    """Steps after those that write what they read; of a circle, as they were written."""
    left, found = list(steps), []
    while left:
        made = {step.to for step in left}
        ready = next((step for step in left if not made & (set(step.sources) - {step.to})), left[0])
        left.remove(ready)
        found.append(ready)
    return found


def topics_of(steps: Sequence[Step]) -> list[NeededTopic]:
    """Every topic that the steps need, each once; a source that another step makes is that one's output."""
    made = {step.to for step in steps}
    found: dict[str, NeededTopic] = {}
    for step in in_order(steps):
        for source in step.sources:
            if source not in made:
                found.setdefault(source, NeededTopic(source, "source", (), None, {}))
        found.setdefault(step.to, NeededTopic(step.to, "output", step.sources, step.partitions, {}))
        room = {"max.message.bytes": str(max(1_048_588, step.limits.max_bytes) + ROOM_BYTES)}
        for topic, delay_ms in step.retry_topics.items():
            # By the broker's clock: no producer's clock can make one record hold up those behind it.
            times = {"message.timestamp.type": "LogAppendTime", "retention.ms": str(max(RETENTION_MS, 2 * delay_ms))}
            like = (step.places[topic].source,)
            found.setdefault(topic, NeededTopic(topic, "retry", like, step.partitions, {**room, **times}))
        for topic in step.dead_topics:
            found.setdefault(topic, NeededTopic(topic, "dead", step.sources, step.partitions, room))
    return list(found.values())
