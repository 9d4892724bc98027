"""`Pipeline`: steps from topic to topic on PySpark, with retries and dead letters.

Zone: real. What users call; the parts are in the modules beside this one.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, TextIO, TypeVar

from ottla.client.admin.admin import Admin
from ottla.client.admin.types import NewTopic
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, RefusedError
from ottla.client.metadata import TopicView
from ottla.client.settings import ClientConfig
from ottla.errors import ErrorCode
from ottla.pipeline import queries
from ottla.pipeline.errors import BadPipeline, StepFailed
from ottla.pipeline.functions import BatchFunction, RowFunction
from ottla.pipeline.progress import Counter, StepProgress
from ottla.pipeline.scope import Scope, unit, with_offsets
from ottla.pipeline.status import StepStatus, status_of
from ottla.pipeline.steps import NeededTopic, Step, check_steps, group_of, in_order, make_step, topics_of
from ottla.retry.policy import Duration, ErrorKind, RetryPolicy
from ottla.terminal import draw_status

# The topics of a pipeline on its cluster: which are there, which are made. Which topics a pipeline needs is decided
# in `steps`.


class TopicPlan(NamedTuple):
    """A topic that a pipeline needs."""

    name: str
    role: str
    exists: bool
    partitions: int
    """As it has them, or would get."""
    configs: dict[str, str]
    """Of a topic that would be made."""


def plan_topics(cluster: Cluster, wanted: Sequence[NeededTopic]) -> list[TopicPlan]:
    """Compare with the cluster. Raises BadPipeline for a source that is missing, ClientError."""
    counts: dict[str, int] = {}
    found: list[TopicPlan] = []
    views = Admin(cluster).describe_topics([each.name for each in wanted])
    for each in wanted:
        view = views[each.name]
        if isinstance(view, ClientError) and not _is_unknown(view):
            raise view
        exists = isinstance(view, TopicView)
        if not exists and each.role == "source":
            raise BadPipeline(
                f"the topic {each.name} does not exist: create it (ottla topic create {each.name}), or mend the name"
            )
        have = len(view.partitions) if isinstance(view, TopicView) else 0
        counts[each.name] = have or each.partitions or max((counts.get(like, 1) for like in each.like), default=1)
        found.append(TopicPlan(each.name, each.role, exists, counts[each.name], {} if exists else dict(each.configs)))
    return found


def make_topics(cluster: Cluster, plans: Iterable[TopicPlan]) -> list[str]:
    """Make those that are not there; their names. Raises ClientError."""
    new = [NewTopic(each.name, each.partitions, configs=each.configs) for each in plans if not each.exists]
    if not new:
        return []
    for answer in Admin(cluster).create_topics(new).values():
        # Another run of the pipeline may have been quicker.
        if isinstance(answer, ClientError) and not _is(answer, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise answer
    for each in new:
        cluster.topic(each.name, create=True)  # waits until the brokers show it
    return [each.name for each in new]


def _is_unknown(error: ClientError) -> bool:
    return _is(error, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _is(error: ClientError, code: ErrorCode) -> bool:
    return isinstance(error, RefusedError) and error.code is code


# Progress for people: one line on stderr that is rewritten, in a terminal and in a notebook; else one line per step.


class Line:
    """Shows how far steps are. Use as a context manager: at the end each step has its line."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet
        self._rewrites = not quiet and (self._stream.isatty() or "ipykernel" in sys.modules)

    def update(self, steps: Sequence[StepProgress]) -> None:
        """Show the figures of now."""
        if self._rewrites:
            self._rewrite_line(" | ".join(step.line() for step in steps))

    def end(self, steps: Sequence[StepProgress]) -> None:
        """The last figures, a line per step."""
        if self._quiet:
            return
        if self._rewrites:
            draw_status("", self._stream)
        for step in steps:
            self._stream.write(f"{step.line()} · {step.guarantee}\n")
        self._stream.flush()

    def _rewrite_line(self, line: str) -> None:
        draw_status(line, self._stream)


F = TypeVar("F", bound="Callable[[Any], Any] | RowFunction | BatchFunction")

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_LOOK_S: Final = 0.2
_SHOW_EVERY: Final = 5
"""Looks between two of the figures: asking Spark for them costs a little."""
_COUNT_S: Final = 1.0
"""Between two looks at what Spark keeps of each query: the last hundred batches, which take longer than this."""


class StepPlan(NamedTuple):
    """A step as it would run."""

    step: str
    reads: tuple[str, ...]
    writes: str
    retries: Mapping[str, int]
    """Retry topics and their delays in milliseconds."""
    dead: tuple[str, ...]
    scope: str
    """partition, batch or off; auto where Spark was not asked."""
    reason: str
    offsets: bool
    """Whether the offsets of the step's group are committed in the transaction of the rows; False where Spark was not
    asked and it depends on the plan."""

    @property
    def unit(self) -> str:
        """For a table: what is written all or nothing."""
        return unit(self.scope, self.offsets)


class PipelinePlan(NamedTuple):
    """What a run would do."""

    name: str
    steps: list[StepPlan]
    topics: list[TopicPlan]


class Pipeline:
    """Steps that read topics and write topics, each a streaming query of Spark.

    name: the consumer group that lag tools see, and the beginning of the sink's transactional ids: one name, one
    pipeline, for ever. bootstrap: brokers as host:port, several with commas. settings: of the client, by Kafka's names
    (`security.protocol` …).
    """

    def __init__(self, name: str, bootstrap: str = "localhost:9092", settings: Mapping[str, str] | None = None) -> None:
        if not _NAME.fullmatch(name):
            raise BadPipeline(f"the pipeline's name {name!r} must be 1 to 100 letters, digits, '.', '_' and '-'")
        self.name = name
        self.settings: dict[str, str] = {"bootstrap.servers": bootstrap, **(settings or {})}
        self._steps: list[Step] = []

    @property
    def steps(self) -> list[Step]:
        """The steps, in the order in which they were written."""
        return list(self._steps)

    def step(
        self,
        source: str | Sequence[str],
        *,
        to: str,
        retries: Sequence[Duration] | RetryPolicy = (),
        dead: str | None = None,
        name: str | None = None,
        retry_on: Sequence[ErrorKind] = (),
        abort_on: Sequence[ErrorKind] = (),
        required: Sequence[str] = (),
        max_record_bytes: int = 1_000_000,
        start: str = "earliest",
        exactly_once: str = "auto",
        offsets_in_transaction: str = "auto",
        output_mode: str = "append",
        partitions: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Callable[[F], F]:
        """Make a step of the function below: one over DataFrames, or of `map_rows` or `map_batches`.

        source: the topic to read, or several. to: the topic to write.
        retries: after which delays a record that failed is tried again, as `["30s", "5m"]`; each has its own topic.
        dead: the topic for records that failed after the last retry; with retries, `<source>.dead` by default. With
        neither, an error stops the step.
        retry_on, abort_on: classes of exceptions that alone are, or are not, worth a retry.
        required: key and value, where they must not be null. max_record_bytes: of what the step makes.
        start: earliest, latest or group, for a run without a checkpoint.
        exactly_once: auto (from the plan), partition, batch or off. offsets_in_transaction: whether the offsets of the
        group are committed with the rows: auto (where that can be), true or false. output_mode: append or complete, for
        aggregations. partitions: of topics that are made; by default as many as the source has.
        options: more of the source (docs/pyspark.md), as maxOffsetsPerTrigger, minPartitions and failOnDataLoss.
        Raises BadPipeline.
        """

        def add(function: F) -> F:
            made = make_step(
                self.name,
                function,
                source,
                to,
                name=name,
                retries=retries,
                dead=dead,
                retry_on=retry_on,
                abort_on=abort_on,
                required=required,
                max_record_bytes=max_record_bytes,
                start=start,
                exactly_once=exactly_once,
                offsets_in_transaction=offsets_in_transaction,
                output_mode=output_mode,
                partitions=partitions,
                options=options or {},
            )
            check_steps([*self._steps, made])
            self._steps.append(made)
            return function

        return add

    def plan(self, spark: Any = None) -> PipelinePlan:
        """What a run would do: steps and topics; with a session also the scope of each step. Changes nothing.

        Raises BadPipeline, ClientError.
        """
        check_steps(self._steps)
        with self.cluster() as cluster:
            topics = plan_topics(cluster, topics_of(self._steps))
        return PipelinePlan(self.name, [self._plan_step(spark, step) for step in in_order(self._steps)], topics)

    def _plan_step(self, spark: Any, step: Step) -> StepPlan:
        scope = self.query(spark, step).scope if spark is not None else _guess(step)
        retries, dead = dict(step.retry_topics), step.dead_topics
        return StepPlan(step.name, step.sources, step.to, retries, dead, scope.mode, scope.reason, scope.offsets)

    def query(self, spark: Any, step: Step) -> queries.Planned:
        """A step's query, not started. Raises BadPipeline; StepFailed for what Spark says."""
        try:
            return queries.plan_step(spark, step, group_of(self.name, step, self._steps), self.settings)
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("py4j", "pyspark"):
                raise
            # Now: later, when Java is gone, the error could not even be shown.
            raise StepFailed(step.name, queries.reason_of(error)) from error

    def cluster(self) -> Cluster:
        """A client of the pipeline's cluster; close it. Raises ConfigError."""
        ours = {"client.id": f"ottla-pipeline-{self.name}", "isolation.level": "read_committed"}
        return Cluster(ClientConfig.from_mapping({**ours, **self.settings}))

    def make_topics(self) -> list[str]:
        """Make the topics that are missing; their names. Raises BadPipeline, ClientError."""
        check_steps(self._steps)
        with self.cluster() as cluster:
            return make_topics(cluster, plan_topics(cluster, topics_of(self._steps)))

    def run(
        self, checkpoint: str, trigger: str = "available_now", *, spark: Any = None, progress: bool = True
    ) -> list[StepProgress]:
        """Make the topics, run the steps and wait for their end; the last figures of each step.

        checkpoint: a directory that all of Spark can write; each step has one below it. Without it a pipeline begins
        anew, so keep it. trigger: available_now (what is there and due when a step begins; one step after the other) or
        a duration such as 5s (until Ctrl-C or `stop`; all steps together). spark: the session, by default the one that
        is there or a new one. progress: a line on stderr.
        Raises BadPipeline, StepFailed, ClientError.
        """
        line = Line(quiet=not progress)
        running = self.start(checkpoint, trigger, spark=spark)
        try:
            for turn in count():
                if not running.alive:
                    break
                if turn % _SHOW_EVERY == 0:
                    line.update(running.progress())
                time.sleep(_LOOK_S)
            found = self._at_the_end(running.wait())
        except BaseException:
            running.stop()
            line.end(running.progress())
            raise
        line.end(found)
        return found

    def _at_the_end(self, steps: Sequence[StepProgress]) -> list[StepProgress]:
        """With what is left as the cluster tells it: queries know what was there when their last batch began."""
        left = {one.step: one for one in self.status()}
        return [one._replace(lag=left[one.step].lag, waiting=left[one.step].waiting) for one in steps]

    def status(self) -> list[StepStatus]:
        """How far each step is, as its consumer group tells; Spark need not run. Raises BadPipeline, ClientError."""
        check_steps(self._steps)
        with self.cluster() as cluster:
            return status_of(cluster, self.name, in_order(self._steps))

    def start(self, checkpoint: str, trigger: str = "available_now", *, spark: Any = None) -> Running:
        """As `run`, without waiting. With available_now, later steps are started as earlier ones end."""
        queries.trigger_of(trigger)
        if not checkpoint:
            raise BadPipeline("a pipeline needs a checkpoint: a directory that is kept between runs")
        self.make_topics()
        session = spark if spark is not None else _session()
        planned = [self.query(session, step) for step in in_order(self._steps)]
        return Running(self, planned, checkpoint, trigger)


def _guess(step: Step) -> Scope:
    """The unit of a step, as far as it can be known without Spark."""
    if step.is_frame_step:
        auto = step.exactly_once == "auto"
        return Scope(step.exactly_once, "decided from Spark's plan when it runs" if auto else "as the step says")
    scope = Scope(step.exactly_once, "as the step says")
    if step.exactly_once == "auto":
        scope = Scope("partition", "rows stay in the task that read them")
    return with_offsets(scope, step.offsets_in_transaction, stays=True, has_source=True, options=step.options)


class _Query:
    """A step's query and its figures."""

    def __init__(self, planned: queries.Planned) -> None:
        step, scope = planned.step, planned.scope
        self.planned = planned
        self.query: Any = None
        self._counter = Counter(step.name, scope.guarantee, step.sources, step.retry_topics)
        self._counting = threading.Lock()

    def progress(self) -> StepProgress:
        """The figures of now, of all batches. From any thread."""
        with self._counting:
            return self._counter.add([] if self.query is None else self.query.recentProgress)

    def check(self) -> None:
        """Raises StepFailed when the query has failed."""
        if self.query is not None and (error := self.query.exception()) is not None:
            raise StepFailed(self.planned.step.name, queries.reason_of(error)) from error


class Running:
    """A pipeline that was started."""

    def __init__(
        self,
        pipeline: Pipeline,
        planned: Sequence[queries.Planned],
        checkpoint: str,
        trigger: str,
        count_every_s: float = _COUNT_S,
    ) -> None:
        self._pipeline = pipeline
        self._checkpoint = checkpoint
        self._trigger = trigger
        self._together = "availableNow" not in queries.trigger_of(trigger)
        self._queries = [_Query(each) for each in planned]
        self._stopped = False
        self._ended = threading.Event()
        for each in self._queries if self._together else self._queries[:1]:
            self._start(each)
        counting = threading.Thread(
            target=self._count, args=(count_every_s,), name=f"{pipeline.name}-progress", daemon=True
        )
        counting.start()

    def _count(self, every_s: float) -> None:
        """Count batches before Spark forgets them, also while nobody asks for the figures."""
        while not self._ended.wait(every_s):
            try:
                self.progress()
            except Exception:  # noqa: BLE001 - py4j has many errors for a Spark that is gone, and then nothing comes
                return

    def _start(self, each: _Query) -> None:
        pipeline = self._pipeline
        try:
            each.query = queries.start(each.planned, pipeline.name, pipeline.settings, self._checkpoint, self._trigger)
        except Exception as error:
            self.stop()
            raise StepFailed(each.planned.step.name, queries.reason_of(error)) from error

    @property
    def alive(self) -> bool:
        """Whether anything still runs; starts the next step when one has ended. False as soon as a step has failed."""
        lives = self._lives()
        if not lives:
            self._ended.set()
        return lives

    def _lives(self) -> bool:
        running = [each for each in self._queries if each.query is not None]
        if self._stopped or any(each.query.exception() is not None for each in running):
            return False
        if self._together:
            return any(each.query.isActive for each in running)
        if running[-1].query.isActive:
            return True
        running[-1].progress()
        waiting = [each for each in self._queries if each.query is None]
        if waiting and running[-1].query.exception() is None:
            self._start(waiting[0])
        return bool(waiting)

    def progress(self) -> list[StepProgress]:
        """The figures of every step."""
        return [each.progress() for each in self._queries]

    def wait(self) -> list[StepProgress]:
        """Wait for the end; the last figures. Raises StepFailed; then all steps are stopped."""
        try:
            while self.alive:
                time.sleep(_LOOK_S)
            for each in self._queries:
                each.check()
        except BaseException:
            self.stop()
            raise
        return self.progress()

    def stop(self) -> None:
        """Stop all steps; what they were about to write is written at the next run. Idempotent."""
        self._stopped = True
        self._ended.set()
        for each in self._queries:
            if each.query is not None and each.query.isActive:
                each.query.stop()


def _session() -> Any:
    """The session that is there, or a new one, whose workers run this Python."""
    from ottla.spark import java_home  # noqa: PLC0415
    from ottla.spark.environment import one_thread_in_planners  # noqa: PLC0415

    java_home()  # names this Python to Spark's workers, too
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow to import

    with one_thread_in_planners():
        return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
