"""Builds a step's query: reads its topics, applies its function, and writes everything through one sink.

Zone: real. The only module that sets the options of source and sink.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from ottla.client.errors import ClientError
from ottla.pipeline.errors import BadPipeline
from ottla.pipeline.functions import ERROR
from ottla.pipeline.routing import HEADERS, ORIGIN, SCHEMA, SOURCE, Router
from ottla.pipeline.scope import Scope, scope_of, with_offsets
from ottla.pipeline.steps import ROOM_BYTES, Step
from ottla.pipeline.table_output.rows import ROW, begin_table, table_rows
from ottla.retry.policy import duration_ms
from ottla.spark.environment import activate_session
from ottla.spark.monitoring.query_figures import COUNTED, METRICS

_SOURCE_FIELDS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_ORIGIN_FIELDS: Final = ("topic", "partition", "offset")
_SINK_COLUMNS: Final = ("key", "value", "headers")
_KEY: Final = "key"
_TABLE_SCOPE: Final = Scope("batch", "a commit of the table has a whole batch", because="the rows are in a table")
_LOOK_S: Final = 0.05
_LOG = logging.getLogger(__name__)
_OURS: Final = re.compile(r"\bottla\.[\w.]+\.(\w+): (.+)")
_THEIRS: Final = re.compile(r"^(?:: )?(?:[\w.]+\.)?(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)
_NOT_FOUND: Final = re.compile(r"\[DATA_SOURCE_NOT_FOUND\].*\bottla\b")
_OTHER_PYTHON: Final = (
    "Spark does not find ottla: its workers run `python3` of PATH, unless PYSPARK_PYTHON names the Python that has it: "
    "call ottla.spark.java_home() before creating the session. In a thread of your own, or in a notebook where Spark "
    "was interrupted, call ottla.spark.activate_session(spark)"
)


class Planned(NamedTuple):
    """A step's query before it is started."""

    step: Step
    frame: Any
    """The DataFrame that the sink writes."""
    scope: Scope
    group: str
    """The consumer group of its source."""
    made: Any = None
    """The DataFrame of the function, or the source's for a function of rows."""


def source_options(step: Step, group: str, settings: Mapping[str, str]) -> dict[str, str]:
    """The options of the step's source."""
    found = {
        "subscribe": ",".join(step.places),
        "startingOffsets": step.start,
        "includeHeaders": "true",
        "commitOffsets": "true",
        "kafka.group.id": group,
        "checkTopicIds": "true",
        **step.options,
        **_kafka_options(settings),
    }
    if delays := step.retry_topics:
        found["topicDelays"] = json.dumps({topic: f"{ms}ms" for topic, ms in delays.items()})
    return found


def sink_options(planned: Planned, pipeline: str, settings: Mapping[str, str]) -> dict[str, str]:
    """The options of the step's sink; the column `topic` has the topic of each row."""
    step, scope = planned.step, planned.scope
    kafka = _kafka_options(settings)
    # A record of the largest size must still fit when the headers of a retry are added.
    kafka.setdefault("kafka.max.request.size", str(max(1_048_576, step.limits.max_bytes) + ROOM_BYTES))
    once = {"exactlyOnce": scope.mode, "transactionalIdPrefix": f"{pipeline}-", "sink": step.name}
    # auto if the plan allows it: a task in which it is impossible after all logs that, and continues without.
    once["offsetsInTransaction"] = step.offsets_in_transaction if scope.offsets else "false"
    return {**kafka, **once, "sourceGroup": planned.group}


def _kafka_options(settings: Mapping[str, str]) -> dict[str, str]:
    return {f"kafka.{key}": str(value) for key, value in settings.items()}


def plan_step(spark: Any, step: Step, group: str, settings: Mapping[str, str]) -> Planned:
    """Build the step's DataFrame. Raises BadPipeline if its function returns none, or one without needed columns."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name; slow to import

    options = source_options(step, group, settings)
    read = spark.readStream.format("ottla").options(**options).load()
    made = _call_function(step, read.withColumn(SOURCE, F.struct(*_SOURCE_FIELDS))) if step.is_frame_step else read
    scope = _choose_scope(step, made)
    frame = _rows_of_step(step, made, group, keep=scope.mode == "batch" and scope.offsets)
    retry, dead = list(step.retry_topics), list(step.dead_topics)
    topic = F.col("topic")
    counts = {"rows_out": ~topic.isin([*retry, *dead]), "retries": topic.isin(retry), "dead": topic.isin(dead)}
    frame = frame.observe(METRICS, *(F.count_if(counts[name]).alias(name) for name in COUNTED))
    if scope.mode == "batch":
        frame = _spread_rows(frame, step)
    return Planned(step, frame, scope, options["kafka.group.id"], made)


def _rows_of_step(step: Step, made: Any, group: str, *, keep: bool) -> Any:
    """The rows that the sink writes: those of the output, and the failed records."""
    if not step.is_frame_step:
        return _route_rows(made, Router(step, group, keep))
    return _frame_rows(step, made, group, keep) if step.table is None else table_rows(step, made, group)


def _spread_rows(frame: Any, step: Step) -> Any:
    """The rows of a whole batch, in a number of tasks: each has a transaction of its own.

    Rows of one key are in one task, so that they keep their order. Rows of a table have no key, and no order, unless it
    has one row per key.
    """
    keys: tuple[str, ...] = ("topic", "key")
    if step.table is not None:
        keys = () if not step.table.upsert else (f"{ROW}.{_KEY}",) if ROW in frame.columns else (_KEY,)
    return frame.repartition(step.batch_tasks, *(() if step.batch_tasks == 1 else keys))


def scope_without_plan(step: Step) -> Scope:
    """The unit of a step, as far as it is known without Spark."""
    if step.table is not None:
        return _TABLE_SCOPE
    if step.is_frame_step:
        auto = step.exactly_once == "auto"
        return Scope(step.exactly_once, "decided from Spark's plan when it runs" if auto else "as set in the step")
    scope = Scope(step.exactly_once, "as set in the step")
    if step.exactly_once == "auto":
        scope = Scope("partition", "rows stay in the task that read them")
    return with_offsets(scope, step.offsets_in_transaction, stays=True, has_source=True, options=step.options)


def _choose_scope(step: Step, made: Any) -> Scope:
    """The unit, and whether it includes the group's offsets. Raises BadPipeline if they are demanded and impossible."""
    if step.table is not None:
        return _TABLE_SCOPE
    by_plan = scope_of(made)
    scope = by_plan if step.exactly_once == "auto" else Scope(step.exactly_once, "as set in the step")
    stays, has_source = by_plan.mode == "partition", not step.is_frame_step or _has_source(made)
    wanted = step.offsets_in_transaction
    scope = with_offsets(scope, wanted, stays=stays, has_source=has_source, options=step.options)
    if wanted == "true" and not scope.offsets:
        raise BadPipeline(f"step {step.name}: offsets_in_transaction cannot be true here: {scope.because}")
    return scope


def _has_source(made: Any) -> bool:
    fields = dict(made.dtypes).get(SOURCE, "")
    return all(field in fields for field in ("topic:string", "partition:int", "offset:bigint"))


def _route_rows(rows: Any, router: Router) -> Any:
    return without_null_lists(rows).mapInArrow(router, f"{SCHEMA}, {ORIGIN}" if router.keep else SCHEMA)


def without_null_lists(rows: Any) -> Any:
    """Replace null headers by empty lists, in rows that are sent to Python.

    Spark reads the size of the Arrow batch after each row, and each time Arrow fills the offsets of all null lists
    since the last one: on average 5,000 steps per row, in batches of 10,000.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    def filled(name: str) -> Any:
        return F.coalesce(F.col(name), F.array().cast(HEADERS))

    kinds = dict(rows.dtypes)
    if "headers" in kinds:
        rows = rows.withColumn("headers", filled("headers"))
    if f"headers:{HEADERS}" in kinds.get(SOURCE, ""):
        rows = rows.withColumn(SOURCE, F.col(SOURCE).withField("headers", filled(f"{SOURCE}.headers")))
    return rows


def _call_function(step: Step, read: Any) -> Any:
    """The DataFrame that the function of a step returns. Raises BadPipeline."""
    assert callable(step.function)
    try:
        made = step.function(read)
    except Exception as error:
        raise BadPipeline(
            f"step {step.name}: its function raised {type(error).__name__}: {reason_of(error)}"
        ) from error
    if not hasattr(made, "writeStream"):
        raise BadPipeline(f"step {step.name}: the function returned {type(made).__name__}, not a DataFrame")
    if step.table is None and "value" not in made.columns:
        raise BadPipeline(f"step {step.name}: there is no column `value` among {', '.join(made.columns)}")
    return made


def _frame_rows(step: Step, made: Any, group: str, keep: bool) -> Any:
    """The rows of a DataFrame step, with their topics."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    columns = [F.col(name) for name in _SINK_COLUMNS if name in made.columns]
    if ERROR not in made.columns and (SOURCE not in made.columns or step.policy is None):
        if step.limits.required:
            raise BadPipeline(f"step {step.name}: required=… needs dead=…, and the column `{SOURCE}`: keep it")
        origin = [F.struct(*(f"{SOURCE}.{name}" for name in _ORIGIN_FIELDS)).alias(SOURCE)] if keep else []
        return without_null_lists(made.select(F.lit(step.to).alias("topic"), *columns, *origin))
    if SOURCE not in made.columns:
        raise BadPipeline(
            f"step {step.name}: rows with `{ERROR}` are forwarded as they were read: keep the column `{SOURCE}`"
        )
    more = [F.col(name) for name in (ERROR, SOURCE) if name in made.columns]
    # Without the function: it runs on the driver, and may refer to objects that cannot be pickled.
    return _route_rows(made.select(*columns, *more), Router(replace(step, function=_return_frame), group, keep))


def _return_frame(frame: Any) -> Any:
    """The function of a DataFrame step on the executors: its rows are made already."""
    return frame


def start_query(planned: Planned, pipeline: str, settings: Mapping[str, str], checkpoint: str, trigger: str) -> Any:
    """Start the query. Its checkpoint is in a directory of its own under `checkpoint`."""
    step = planned.step
    activate_session(planned.frame.sparkSession)  # a pipeline may be started from any thread
    _LOG.info("pipeline %s: step %s is %s", pipeline, step.name, planned.scope.guarantee)
    # A path would shorten the `://` of a URL to one slash.
    directory = (
        f"{checkpoint.rstrip('/')}/{step.name}" if "://" in checkpoint else str(PurePosixPath(checkpoint) / step.name)
    )
    writer, options = planned.frame.writeStream, sink_options(planned, pipeline, settings)
    return (
        (writer.format("ottla") if step.table is None else begin_table(planned.frame, writer, step.table))
        .options(**options)
        .option("checkpointLocation", directory)
        .outputMode(step.output_mode)
        .queryName(f"{pipeline}.{step.name}")
        .trigger(**trigger_of(trigger))
        .start()
    )


def stop_after_batch(queries: Sequence[Any], timeout: float) -> None:
    """Stop each query when the batch that it is running has ended; after `timeout` seconds in any case.

    A batch that begins between the end of the last one and the stop is dropped: nothing of it is written, and the next
    run begins with it.
    """
    until = time.monotonic() + timeout
    left = [(query, _last_trigger(query)) for query in queries if query.isActive]
    while left:
        late = time.monotonic() > until
        for query, last in list(left):
            ended = not query.isActive or not query.status["isTriggerActive"] or _last_trigger(query) != last
            if ended or late:
                query.stop()
                left.remove((query, last))
        if left:
            time.sleep(_LOOK_S)


def _last_trigger(query: Any) -> str | None:
    """When the last trigger began whose progress is known."""
    last = query.lastProgress
    return None if last is None else str(last["timestamp"])


def trigger_of(text: str) -> dict[str, Any]:
    """Spark's trigger for available_now, or for a duration. Raises BadPipeline."""
    if text.lower().replace("-", "_") == "available_now":
        return {"availableNow": True}
    try:
        return {"processingTime": f"{duration_ms(text)} milliseconds"}
    except ValueError:
        raise BadPipeline(f"trigger must be available_now or a duration such as 500ms or 5s, not {text!r}") from None


def reason_of(error: BaseException) -> str:
    """Why a query stopped, from Spark's stack trace."""
    # 1. Spark did not find the format: another Python. 2. The text of an error class of ours, which is the last cause.
    # 3. The last Python exception. 4. The first line. Before them: an error of ours that Spark has not seen.
    if isinstance(error, ClientError):
        return f"{type(error).__name__}: {error}"
    text = str(error)
    if _NOT_FOUND.search(text):
        return _OTHER_PYTHON
    ours = _OURS.findall(text)
    if ours:
        kind, words = ours[-1]
        return f"{kind}: {words}"
    python = _THEIRS.findall(text)
    lines = [line for line in text.splitlines() if line.strip()]
    return ": ".join(python[-1]) if python else (lines[0] if lines else type(error).__name__)
