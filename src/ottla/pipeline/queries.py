"""A step as a query of Spark: read its topics, apply its function, write everything through one sink.

Zone: real. The only place where the options of source and sink are put together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from ottla.pipeline.errors import BadPipeline
from ottla.pipeline.functions import ERROR
from ottla.pipeline.progress import COUNTED, METRICS
from ottla.pipeline.routing import SCHEMA, SOURCE, Router
from ottla.pipeline.scope import Scope, scope_of
from ottla.pipeline.steps import ROOM_BYTES, Step
from ottla.retry.policy import duration_ms

_SOURCE_FIELDS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_SINK_COLUMNS: Final = ("key", "value", "headers")
_OURS: Final = re.compile(r"\bottla\.[\w.]+\.(\w+): (.+)")


class Planned(NamedTuple):
    """A step's query before it is started."""

    step: Step
    frame: Any
    """What the sink gets."""
    scope: Scope


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
        **_kafka(settings),
    }
    if delays := step.retry_topics:
        found["topicDelays"] = json.dumps({topic: f"{ms}ms" for topic, ms in delays.items()})
    return found


def sink_options(step: Step, pipeline: str, settings: Mapping[str, str], scope: Scope) -> dict[str, str]:
    """The options of the step's sink; the column `topic` says where a row goes."""
    kafka = _kafka(settings)
    kafka.setdefault("kafka.max.request.size", str(max(1_048_576, step.limits.max_bytes) + ROOM_BYTES))
    once = {"exactlyOnce": scope.mode, "transactionalIdPrefix": f"{pipeline}-", "sink": step.name}
    return {**kafka, **once}


def _kafka(settings: Mapping[str, str]) -> dict[str, str]:
    return {f"kafka.{key}": str(value) for key, value in settings.items()}


def plan_step(spark: Any, step: Step, group: str, settings: Mapping[str, str]) -> Planned:
    """Build the step's DataFrame. Raises BadPipeline when its function returns none, or its columns do not fit."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - everybody calls it F; slow to import

    read = spark.readStream.format("ottla").options(**source_options(step, group, settings)).load()
    if step.is_frame_step:
        frame = _frame_step(read.withColumn(SOURCE, F.struct(*_SOURCE_FIELDS)), step, group)
    else:
        frame = read.mapInArrow(Router(step, group), SCHEMA)
    retry, dead = list(step.retry_topics), list(step.dead_topics)
    topic = F.col("topic")
    counts = {"rows_out": ~topic.isin([*retry, *dead]), "retries": topic.isin(retry), "dead": topic.isin(dead)}
    frame = frame.observe(METRICS, *(F.count_if(counts[name]).alias(name) for name in COUNTED))
    scope = scope_of(frame) if step.exactly_once == "auto" else Scope(step.exactly_once, "as the step says")
    return Planned(step, frame.repartition(1) if scope.mode == "batch" else frame, scope)


def _frame_step(read: Any, step: Step, group: str) -> Any:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    assert callable(step.function)
    try:
        made = step.function(read)
    except Exception as error:
        raise BadPipeline(
            f"step {step.name}: its function raised {type(error).__name__}: {reason_of(error)}"
        ) from error
    if not hasattr(made, "writeStream"):
        raise BadPipeline(f"step {step.name}: the function returned {type(made).__name__}, not a DataFrame")
    if "value" not in made.columns:
        raise BadPipeline(f"step {step.name}: there is no column `value` among {', '.join(made.columns)}")
    columns = [F.col(name) for name in _SINK_COLUMNS if name in made.columns]
    if ERROR not in made.columns and (SOURCE not in made.columns or step.policy is None):
        if step.limits.required:
            raise BadPipeline(f"step {step.name}: required=… needs dead=…, and the column `{SOURCE}`: keep it")
        return made.select(F.lit(step.to).alias("topic"), *columns)
    if SOURCE not in made.columns:
        raise BadPipeline(
            f"step {step.name}: rows with `{ERROR}` are sent on as they were read: keep the column `{SOURCE}`"
        )
    more = [F.col(name) for name in (ERROR, SOURCE) if name in made.columns]
    # Without the function: it stays on the driver, and may hold what cannot leave it.
    return made.select(*columns, *more).mapInArrow(Router(replace(step, function=_made), group), SCHEMA)


def _made(frame: Any) -> Any:
    """What a DataFrame step has made already."""
    return frame


def start(planned: Planned, pipeline: str, settings: Mapping[str, str], checkpoint: str, trigger: str) -> Any:
    """Start the query. Its checkpoint is in a directory of its own under `checkpoint`."""
    step = planned.step
    directory = (
        f"{checkpoint.rstrip('/')}/{step.name}" if "://" in checkpoint else str(PurePosixPath(checkpoint) / step.name)
    )
    return (
        planned.frame.writeStream.format("ottla")
        .options(**sink_options(step, pipeline, settings, planned.scope))
        .option("checkpointLocation", directory)
        .outputMode(step.output_mode)
        .queryName(f"{pipeline}.{step.name}")
        .trigger(**trigger_of(trigger))
        .start()
    )


def trigger_of(text: str) -> dict[str, Any]:
    """The trigger that a word stands for: available_now, or a duration. Raises BadPipeline."""
    if text.lower().replace("-", "_") == "available_now":
        return {"availableNow": True}
    try:
        return {"processingTime": f"{duration_ms(text)} milliseconds"}
    except ValueError:
        raise BadPipeline(f"trigger must be available_now or a duration such as 500ms or 5s, not {text!r}") from None


def reason_of(error: BaseException) -> str:
    """Why a query stopped, out of Spark's stack trace: what our own classes said, else its first line."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        kind, words = ours[-1]
        return f"{kind}: {words}"
    python = re.findall(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception)): (.+)$", text, re.MULTILINE)
    lines = [line for line in text.splitlines() if line.strip()]
    return ": ".join(python[-1]) if python else (lines[0] if lines else type(error).__name__)
