"""`Pipeline`: steps from topic to topic on PySpark, with retries and dead letters.

Zone: real. The interface for users; the parts are in the modules beside this one.
"""

from __future__ import annotations

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
from ottla.pipeline.checkpoint_changes import CheckpointChange, explain_checkpoint
from ottla.pipeline.errors import BadPipeline, StepFailed, fault_of_pipeline_name
from ottla.pipeline.functions import BatchFunction, RowFunction
from ottla.pipeline.options import StepOptions
from ottla.pipeline.progress import Counter, StepProgress
from ottla.pipeline.scope import unit_text
from ottla.pipeline.status import StepStatus, status_of
from ottla.pipeline.steps import NeededTopic, Output, Step, check_steps, group_of, make_step, sort_steps, topics_of
from ottla.retry.policy import Duration, ErrorKind, RetryPolicy
from ottla.terminal import draw_status

# The topics of a pipeline on its cluster: which exist, and which are created. `steps` decides which ones it needs.


class TopicPlan(NamedTuple):
    """A topic that a pipeline needs."""

    name: str
    role: str
    exists: bool
    partitions: int
    """The number that it has, or would be created with."""
    configs: dict[str, str]
    """The settings of a topic that would be created."""


def plan_topics(cluster: Cluster, wanted: Sequence[NeededTopic]) -> list[TopicPlan]:
    """Compare the needed topics with the cluster. Raises BadPipeline for a missing source, ClientError."""
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
                f"the topic {each.name} does not exist: create it (ottla topic create {each.name}), or correct the name"
            )
        have = len(view.partitions) if isinstance(view, TopicView) else 0
        counts[each.name] = have or each.partitions or max((counts.get(like, 1) for like in each.like), default=1)
        found.append(TopicPlan(each.name, each.role, exists, counts[each.name], {} if exists else dict(each.configs)))
    return found


def make_topics(cluster: Cluster, plans: Iterable[TopicPlan]) -> list[str]:
    """Create the missing topics; their names. Raises ClientError."""
    new = [NewTopic(each.name, each.partitions, configs=each.configs) for each in plans if not each.exists]
    if not new:
        return []
    for answer in Admin(cluster).create_topics(new).values():
        # Another run of the pipeline may have created it meanwhile.
        if isinstance(answer, ClientError) and not _has_code(answer, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise answer
    for each in new:
        cluster.topic(each.name, create=True)  # waits until the brokers have its metadata
    return [each.name for each in new]


def _is_unknown(error: ClientError) -> bool:
    return _has_code(error, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _has_code(error: ClientError, code: ErrorCode) -> bool:
    return isinstance(error, RefusedError) and error.code is code


# Progress: one line on stderr, which is rewritten, in a terminal and in a notebook; elsewhere one line per step.


class Line:
    """Shows the progress of steps, and at the end a line for each step."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet
        self._rewrites = not quiet and (self._stream.isatty() or "ipykernel" in sys.modules)

    def update_line(self, steps: Sequence[StepProgress]) -> None:
        """Show the present figures."""
        if self._rewrites:
            self._rewrite_line(" | ".join(step.status_line() for step in steps))

    def end_lines(self, steps: Sequence[StepProgress]) -> None:
        """Print the last figures, one line per step."""
        if self._quiet:
            return
        if self._rewrites:
            draw_status("", self._stream)
        for step in steps:
            self._stream.write(f"{step.status_line()} · {step.guarantee}\n")
        self._stream.flush()

    def _rewrite_line(self, line: str) -> None:
        draw_status(line, self._stream)


F = TypeVar("F", bound="Callable[[Any], Any] | RowFunction | BatchFunction")

_LOOK_S: Final = 0.2
_SHOW_EVERY: Final = 5
"""The figures are shown at every 5th check, because reading them from Spark has a cost."""
_COUNT_S: Final = 1.0
"""Seconds between two reads of Spark's progress, which keeps the last hundred batches: these take longer."""


class StepPlan(NamedTuple):
    """The plan of a step."""

    step: str
    reads: tuple[str, ...]
    writes: str
    retries: Mapping[str, int]
    """Retry topics and their delays in milliseconds."""
    dead: tuple[str, ...]
    scope: str
    """partition, batch or off; auto if Spark was not asked."""
    reason: str
    offsets: bool
    """Whether the offsets of the step's group are committed in the transaction of the rows; False if that depends on
    the plan, and Spark was not asked."""

    @property
    def unit(self) -> str:
        """The unit that is written atomically, for a table."""
        return unit_text(self.scope, self.offsets)


class PipelinePlan(NamedTuple):
    """The plan of a run."""

    name: str
    steps: list[StepPlan]
    topics: list[TopicPlan]
    checkpoint: Sequence[CheckpointChange] = ()
    """How the steps continue over the checkpoint, if one was named."""


class Pipeline:
    """Steps from topics to topics, each a streaming query of Spark.

    name: the name of the consumer group, and the prefix of the sink's transactional ids: it must be unique to the
    pipeline, and never change. bootstrap: brokers as host:port, separated by commas. settings: of the client, by
    Kafka's names (`security.protocol` …).
    """

    def __init__(self, name: str, bootstrap: str = "localhost:9092", settings: Mapping[str, str] | None = None) -> None:
        if fault := fault_of_pipeline_name(name):
            raise BadPipeline(fault)
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
        to: Output,
        retries: Sequence[Duration] | RetryPolicy = StepOptions.retries,
        dead: str | None = StepOptions.dead,
        name: str | None = StepOptions.name,
        retry_on: Sequence[ErrorKind] = StepOptions.retry_on,
        abort_on: Sequence[ErrorKind] = StepOptions.abort_on,
        required: Sequence[str] = StepOptions.required,
        max_record_bytes: int = StepOptions.max_record_bytes,
        start: str = StepOptions.start,
        exactly_once: str = StepOptions.exactly_once,
        offsets_in_transaction: str = StepOptions.offsets_in_transaction,
        batch_tasks: int = StepOptions.batch_tasks,
        output_mode: str = StepOptions.output_mode,
        partitions: int | None = StepOptions.partitions,
        options: Mapping[str, str] | None = StepOptions.options,
    ) -> Callable[[F], F]:
        """Decorate a function to make it a step: one over DataFrames, or one of `map_rows` or `map_batches`.

        source: the topic to read, or several. to: the topic to write, or a table (`iceberg`, `delta`, `parquet`).
        retries: the delays after which a failed record is retried, as `["30s", "5m"]`; each has its own topic.
        dead: the topic for records that failed after the last retry; with retries, `<source>.dead` by default. Without
        retries and dead, an error stops the step.
        retry_on, abort_on: classes of exceptions that are the only ones to retry, or that are not retried.
        required: which of key and value must not be null. max_record_bytes: limit of the records that the step makes.
        start: earliest, latest or group, for a run without a checkpoint.
        exactly_once: auto (from the plan), partition, batch or off. offsets_in_transaction: whether the offsets of the
        group are committed with the rows: auto (if possible), true or false. batch_tasks: how many tasks write a whole
        batch. output_mode: append or complete, for aggregations. partitions: of topics that are created.
        options: more options of the source (docs/pyspark.md), as maxOffsetsPerTrigger, minPartitions, failOnDataLoss.
        Raises BadPipeline.
        """

        given = StepOptions(
            retries=retries,
            dead=dead,
            name=name,
            retry_on=retry_on,
            abort_on=abort_on,
            required=required,
            max_record_bytes=max_record_bytes,
            start=start,
            exactly_once=exactly_once,
            offsets_in_transaction=offsets_in_transaction,
            batch_tasks=batch_tasks,
            output_mode=output_mode,
            partitions=partitions,
            options=options,
        )

        def add(function: F) -> F:
            made = make_step(self.name, function, source, to, given)
            check_steps([*self._steps, made])
            self._steps.append(made)
            return function

        return add

    def with_changed_steps(
        self, change: Callable[[Step], Step], settings: Mapping[str, str], name: str | None = None
    ) -> Pipeline:
        """Another pipeline with these settings of the client, and with what `change` makes of each step.

        Raises BadPipeline.
        """
        found = Pipeline(name or self.name)
        found.settings = dict(settings)
        found._steps = [change(step) for step in self._steps]
        check_steps(found._steps)
        return found

    def plan(self, spark: Any = None, checkpoint: str | None = None) -> PipelinePlan:
        """The plan of a run: steps and topics; with a session also the scope of each step. Changes nothing.

        checkpoint: that of the run: how each step continues over it, and what would be refused.
        Raises BadPipeline, BadCheckpoint, ClientError.
        """
        check_steps(self._steps)
        with self.cluster() as cluster:
            topics = plan_topics(cluster, topics_of(self._steps))
        steps = sort_steps(self._steps)
        planned = {} if spark is None else {step.name: self.query(spark, step) for step in steps}
        frames = {name: each.made for name, each in planned.items()}
        changes = explain_checkpoint(steps, checkpoint, spark, frames) if checkpoint else []
        return PipelinePlan(self.name, [_step_plan(step, planned.get(step.name)) for step in steps], topics, changes)

    def query(self, spark: Any, step: Step) -> queries.Planned:
        """A step's query, not started. Raises BadPipeline; StepFailed for errors of Spark."""
        try:
            return queries.plan_step(spark, step, group_of(self.name, step, self._steps), self.settings)
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("py4j", "pyspark"):
                raise
            # Take the text now: after Java has ended, an error of py4j cannot be printed any more.
            raise StepFailed(step.name, queries.reason_of(error)) from error

    def cluster(self) -> Cluster:
        """A client of the pipeline's cluster; close it. Raises ConfigError."""
        ours = {"client.id": f"ottla-pipeline-{self.name}", "isolation.level": "read_committed"}
        return Cluster(ClientConfig.from_mapping({**ours, **self.settings}))

    def make_topics(self) -> list[str]:
        """Create the missing topics; their names. Raises BadPipeline, ClientError."""
        check_steps(self._steps)
        with self.cluster() as cluster:
            return make_topics(cluster, plan_topics(cluster, topics_of(self._steps)))

    def run(
        self, checkpoint: str, trigger: str = "available_now", *, spark: Any = None, progress: bool = True
    ) -> list[StepProgress]:
        """Create the topics, run the steps and wait for their end; the last figures of each step.

        checkpoint: a directory that all processes of Spark can write, with a subdirectory for each step. Keep it:
        without it a pipeline starts from the beginning. trigger: available_now (records that are there and due when a
        step begins; one step after the other) or a duration such as 5s (until Ctrl-C or `stop`; all steps together).
        spark: the session, by default the active one or a new one. progress: whether to show a line on stderr.
        Raises BadPipeline, StepFailed, ClientError.
        """
        line = Line(quiet=not progress)
        running = self.start(checkpoint, trigger, spark=spark)
        try:
            for turn in count():
                if not running.alive:
                    break
                if turn % _SHOW_EVERY == 0:
                    line.update_line(running.progress())
                time.sleep(_LOOK_S)
            found = self.with_present_lag(running.wait())
        except BaseException:
            running.stop()
            line.end_lines(running.progress())
            raise
        line.end_lines(found)
        return found

    def with_present_lag(self, steps: Sequence[StepProgress]) -> list[StepProgress]:
        """The figures with the lag read from the cluster: a query's own lag is that of its last batch's beginning."""
        left = {one.step: one for one in self.status()}
        return [one._replace(lag=left[one.step].lag, waiting=left[one.step].waiting) for one in steps]

    def status(self) -> list[StepStatus]:
        """The progress of each step, from its consumer group; Spark need not run. Raises BadPipeline, ClientError."""
        check_steps(self._steps)
        with self.cluster() as cluster:
            return status_of(cluster, self.name, sort_steps(self._steps))

    def start(self, checkpoint: str, trigger: str = "available_now", *, spark: Any = None) -> Running:
        """As `run`, without waiting. With available_now, a step is started when the one before has ended."""
        # Only a check: a wrong trigger must fail before topics are created.
        queries.trigger_of(trigger)
        if not checkpoint:
            raise BadPipeline("a pipeline needs a checkpoint: name a directory that is kept between runs")
        self.make_topics()
        session = spark if spark is not None else _get_session()
        planned = [self.query(session, step) for step in sort_steps(self._steps)]
        return Running(self, planned, checkpoint, trigger)


def _step_plan(step: Step, planned: queries.Planned | None) -> StepPlan:
    scope = planned.scope if planned is not None else queries.scope_without_plan(step)
    retries, dead = dict(step.retry_topics), step.dead_topics
    return StepPlan(step.name, step.sources, step.to, retries, dead, scope.mode, scope.reason, scope.offsets)


class _Query:
    """A step's query and its figures."""

    def __init__(self, planned: queries.Planned) -> None:
        step, scope = planned.step, planned.scope
        self.planned = planned
        self.query: Any = None
        self._counter = Counter(step.name, scope.guarantee, step.sources, step.retry_topics)
        self._counting = threading.Lock()

    def read_progress(self) -> StepProgress:
        """The present figures of all batches. May be called from any thread."""
        # Two threads read the figures, and each document of Spark must be counted once.
        with self._counting:
            return self._counter.add_documents([] if self.query is None else self.query.recentProgress)

    def raise_failure(self) -> None:
        """Raise StepFailed if the query has failed."""
        if self.query is not None and (error := self.query.exception()) is not None:
            raise StepFailed(self.planned.step.name, queries.reason_of(error)) from error


class Running:
    """A started pipeline."""

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
        # Under available_now each step ends with the records that are there when it begins: it must begin after the
        # step that writes its source has ended.
        self._together = "availableNow" not in queries.trigger_of(trigger)
        self._queries = [_Query(each) for each in planned]
        self._stopped = False
        self._ended = threading.Event()
        for each in self._queries if self._together else self._queries[:1]:
            self._start_query(each)
        counting = threading.Thread(
            target=self._count_batches, args=(count_every_s,), name=f"{pipeline.name}-progress", daemon=True
        )
        counting.start()

    def _count_batches(self, every_s: float) -> None:
        """Count batches before Spark drops their progress, also while no caller reads the figures."""
        while not self._ended.wait(every_s):
            try:
                self.progress()
            except Exception:  # noqa: BLE001 - py4j has many errors for a Spark that has ended: stop counting
                return

    def _start_query(self, each: _Query) -> None:
        pipeline = self._pipeline
        try:
            each.query = queries.start_query(
                each.planned, pipeline.name, pipeline.settings, self._checkpoint, self._trigger
            )
        except Exception as error:
            self.stop()
            raise StepFailed(each.planned.step.name, queries.reason_of(error)) from error

    @property
    def alive(self) -> bool:
        """Whether a step is running; starts the next step when one has ended. False as soon as a step has failed."""
        lives = self._is_running()
        if not lives:
            self._ended.set()
        return lives

    def _is_running(self) -> bool:
        # 1. Stopped, or a step has failed. 2. All steps run together. 3. One after the other: the present step is
        # running, or the next one is started.
        running = [each for each in self._queries if each.query is not None]
        if self._stopped or any(each.query.exception() is not None for each in running):
            return False
        if self._together:
            return any(each.query.isActive for each in running)
        if running[-1].query.isActive:
            return True
        running[-1].read_progress()
        waiting = [each for each in self._queries if each.query is None]
        if waiting and running[-1].query.exception() is None:
            self._start_query(waiting[0])
        return bool(waiting)

    def progress(self) -> list[StepProgress]:
        """The present figures of every step."""
        return [each.read_progress() for each in self._queries]

    def wait(self, timeout: float | None = None) -> list[StepProgress]:
        """Wait for the end; the last figures. timeout: seconds; None: no limit.

        Raises StepFailed and TimeoutError, after stopping all steps.
        """
        until = None if timeout is None else time.monotonic() + timeout
        try:
            while self.alive:
                if until is not None and time.monotonic() > until:
                    raise TimeoutError(f"pipeline {self._pipeline.name} has not ended within {timeout:g} s")
                time.sleep(_LOOK_S)
            for each in self._queries:
                each.raise_failure()
        except BaseException:
            self.stop()
            raise
        return self.progress()

    def stop_after_batch(self, timeout: float) -> None:
        """Stop each step when the batch that it is running has ended, after `timeout` seconds in any case."""
        self._stopped = True
        queries.stop_after_batch([each.query for each in self._queries if each.query is not None], timeout)
        self.stop()

    def stop(self) -> None:
        """Stop all steps; unwritten records are processed in the next run. Idempotent."""
        # First, so that `alive` in another thread does not start the next step meanwhile.
        self._stopped = True
        self._ended.set()
        for each in self._queries:
            if each.query is not None and each.query.isActive:
                each.query.stop()


def _get_session() -> Any:
    """The active session, or a new one, whose workers run this Python."""
    from ottla.spark import java_home  # noqa: PLC0415
    from ottla.spark.environment import one_thread_in_planners  # noqa: PLC0415

    java_home()  # also makes Spark's workers run this Python
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow to import

    with one_thread_in_planners():
        return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
