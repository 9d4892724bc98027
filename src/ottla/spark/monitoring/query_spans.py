"""`QuerySpans`: a span of OpenTelemetry for each batch of a session's streaming queries.

Zone: real. A listener of Spark's streaming queries. Names of attributes are those of OpenTelemetry's semantic
conventions for messaging; what has no name there begins with `spark.`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.errors import BadCheckpoint
from ottla.spark.monitoring.listener import Attached
from ottla.spark.monitoring.progress_counts import input_rows
from ottla.spark.offsets import from_json

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from opentelemetry.util.types import AttributeValue

MAX_TOPICS: Final = 32
"""Topics of a batch that are named in its span."""
MAX_REASON: Final = 4_000
"""Characters of an error that are kept."""
MAX_RUNS: Final = 1_000
"""Runs of queries whose names are kept: an error comes without the name."""


class QuerySpans:
    """Spans of the batches of a session's streaming queries, whatever they read and write.

        spans = QuerySpans()
        spans.attach(spark)  # before the queries are started

    tracer: makes the spans; by default that of the program's tracer provider, which `opentelemetry-instrument` or the
    program sets. Each batch is a trace of its own: `process TOPIC`, from its trigger to its end. A query that fails
    gives a span with the status ERROR. Needs opentelemetry-api (the extra `otel`); raises ImportError without it.
    """

    def __init__(self, tracer: Tracer | None = None) -> None:
        from opentelemetry import trace  # noqa: PLC0415 - an extra

        self._tracer = tracer if tracer is not None else trace.get_tracer("ottla.spark")
        self._kind = trace.SpanKind.CONSUMER
        self._error = trace.StatusCode.ERROR
        self._names: dict[str, str] = {}
        self._attached = Attached(self)

    def attach(self, spark: Any) -> None:
        """Make spans of the queries of a session from now on. A session is attached once."""
        self._attached.attach(spark)

    def detach(self) -> None:
        """Make no more spans. Spark's errors are those of its listeners. Idempotent."""
        self._attached.detach()

    def on_started(self, event: Any) -> None:
        """Keep the name of the run."""
        self._keep_name(str(event.runId), event.name or str(event.id))

    def on_progress(self, event: Any) -> None:
        """Make the span of a batch that has ended."""
        document = json.loads(event.progress.json)
        durations = document.get("durationMs") or {}
        self._keep_name(document["runId"], document.get("name") or document["id"])
        # Without addBatch the trigger found nothing to do.
        if "addBatch" not in durations:
            return
        start = nanoseconds_of(document["timestamp"])
        topics = sorted(_topics_of(document))
        span = self._tracer.start_span(
            f"process {topics[0] if len(topics) == 1 else document.get('name') or 'query'}",
            kind=self._kind, attributes=dict(_attributes_of(document, topics)), start_time=start,
        )  # fmt: skip
        span.end(start + int(durations.get("triggerExecution") or durations["addBatch"]) * 1_000_000)

    def on_terminated(self, event: Any) -> None:
        """Make a span for the failure of a query."""
        name = self._names.pop(str(event.runId), str(event.id))
        if event.exception is None:
            return
        attributes = {"spark.query.name": name, "spark.query.id": str(event.id), "spark.query.run_id": str(event.runId)}
        span = self._tracer.start_span(f"{name} failed", attributes=attributes)
        span.set_status(self._error, str(event.exception)[:MAX_REASON])
        span.end()

    def _keep_name(self, run: str, name: str) -> None:
        while len(self._names) >= MAX_RUNS and run not in self._names:
            del self._names[next(iter(self._names))]
        self._names[run] = name


def nanoseconds_of(timestamp: str) -> int:
    """Nanoseconds since 1970 of a time as Spark writes it in its progress, as 2026-01-31T10:00:00.123Z."""
    return round(datetime.fromisoformat(timestamp).timestamp() * 1_000) * 1_000_000


def _attributes_of(document: Mapping[str, Any], topics: list[str]) -> Iterator[tuple[str, AttributeValue]]:
    yield from (("messaging.system", "kafka"), ("messaging.operation.type", "process")) if topics else ()
    if len(topics) == 1:
        yield "messaging.destination.name", topics[0]
    elif topics:
        yield "spark.batch.topics", topics[:MAX_TOPICS]
    yield "messaging.batch.message_count", input_rows(document)
    yield "spark.query.name", document.get("name") or document["id"]
    yield "spark.query.id", document["id"]
    yield "spark.query.run_id", document["runId"]
    yield "spark.batch.id", int(document["batchId"])
    for part, milliseconds in (document.get("durationMs") or {}).items():
        yield f"spark.batch.duration_ms.{part}", int(milliseconds)


def _topics_of(document: Mapping[str, Any]) -> set[str]:
    """The topics that a batch has read; none of sources with other offsets than Kafka's."""
    found: set[str] = set()
    for source in document.get("sources", ()):
        end = source.get("endOffset")
        try:
            offset = json.loads(end) if isinstance(end, str) else end
            found |= {tp.topic for tp in from_json(offset)} if isinstance(offset, dict) else set()
        except (ValueError, BadCheckpoint):
            continue
    return found
