"""Metrics of streaming queries: Spark's documents added up, and a session's queries as Prometheus sees them."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, Tracer

from ottla.metrics import Registry
from ottla.spark import QueryMetrics, QuerySpans
from ottla.spark.monitoring.query_figures import MAX_QUERIES, MAX_TOPICS, QueryTable, add_query_metrics


def progress(batch: int, rows: int = 5, **more: Any) -> dict[str, Any]:
    return {
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": {"addBatch": 900, "triggerExecution": 1500},
        "stateOperators": [{"numRowsTotal": 7, "memoryUsedBytes": 100, "numRowsDroppedByWatermark": 2}],
        "observedMetrics": {"ottla": {"rows_out": 3, "retries": 1, "dead": 1}},
        "sources": [{"latestOffset": {"a": {"0": 9, "1": 4}}, "endOffset": json.dumps({"a": {"0": 4, "1": 4}})}],
        **more,
    }


def registry_of(table: QueryTable) -> Registry:
    registry = Registry()
    add_query_metrics(registry, table)
    return registry


def test_batches_are_added_up_once_and_over_runs_of_one_name() -> None:
    table = QueryTable()
    registry = registry_of(table)
    table.on_started("q", "run-1")
    for document in (progress(0), progress(0), progress(1, durationMs={"latestOffset": 3}), progress(1)):
        table.on_progress("q", "run-1", document, 77.5)
    table.on_terminated("run-1", "it broke")
    assert registry.value_of("ottla_query_running", query="q") == 0
    table.on_started("q", "run-2")
    table.on_progress("q", "run-2", progress(1), 80.0)  # the batch in which the first run died
    found = {name: registry.value_of(f"ottla_query_{name}", query="q") for name in (
        "running", "failures_total", "batches_total", "rows_total", "written_rows_total", "retried_rows_total",
        "dead_rows_total", "late_rows_total", "state_rows", "state_bytes", "last_batch_timestamp_seconds",
    )}  # fmt: skip
    assert list(found.values()) == [1, 1, 3, 15, 9, 3, 3, 6, 7, 100, 80.0]
    assert registry.value_of("ottla_query_lag_offsets", query="q", topic="a") == 5
    text = registry.render_text()
    assert 'ottla_query_batch_seconds_sum{query="q"} 4.5' in text
    assert 'ottla_query_batch_seconds_bucket{query="q",le="2"} 3' in text


def test_the_end_of_an_older_run_does_not_end_a_newer_one() -> None:
    table = QueryTable()
    table.on_started("q", "run-1")
    table.on_started("q", "run-2")
    table.on_terminated("run-1", "interrupted")
    (figures,) = table
    assert (figures.is_running, figures.failure) == (True, None)


def test_offsets_of_other_sources_and_empty_documents_are_no_error() -> None:
    table = QueryTable()
    for sources in ([{"latestOffset": 17, "endOffset": 3}], [{"latestOffset": '{"v": 1}', "endOffset": None}], []):
        table.on_progress("q", "run", {"batchId": 0, "sources": sources}, 1.0)
    (figures,) = table
    assert (figures.batches, figures.lag) == (0, {})


def test_numbers_of_queries_and_topics_are_bounded() -> None:
    table = QueryTable()
    table.on_started("alive", "0")
    for number in range(2 * MAX_QUERIES):
        table.on_started(f"q{number}", f"run-{number}")
        table.on_terminated(f"run-{number}", None)
    names = [one.name for one in table]
    assert len(names) == MAX_QUERIES
    assert "alive" in names
    assert "q0" not in names
    many = {f"t{number:03}": {"0": number} for number in range(MAX_TOPICS + 50)}
    table.on_progress("alive", "0", progress(0, sources=[{"latestOffset": many, "endOffset": None}]), 1.0)
    text = registry_of(table).render_text()
    assert text.count("ottla_query_lag_offsets{") == MAX_TOPICS
    assert 'topic="t149"} 149' in text


def tracer_of(exporter: InMemorySpanExporter) -> Tracer:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("tests")


class Event:
    """An event of Spark's listener."""

    def __init__(self, document: Any = None, exception: str | None = None, run: str = "r") -> None:
        self.id, self.runId, self.name, self.exception = "i", run, "q", exception
        self.progress = self
        self.json = json.dumps(document)


def test_a_batch_is_a_span_with_its_times_and_an_idle_trigger_is_none() -> None:
    exporter = InMemorySpanExporter()
    spans = QuerySpans(tracer_of(exporter))
    start = {"id": "i", "runId": "r", "name": "q", "timestamp": "2026-01-31T10:00:00.123Z"}
    spans.on_started(Event())
    spans.on_progress(Event({**start, **progress(3, durationMs={"latestOffset": 3})}))
    spans.on_progress(Event({**start, **progress(4)}))
    others = [{"endOffset": end} for end in (17, "[]", "{", {"a": 1}, {"b": {"0": 1}}, '{"a": {"0": 1}, "$plan": {}}')]
    spans.on_progress(Event({**start, **progress(5, sources=others)}))
    spans.on_terminated(Event(exception="x" * 9_999))
    spans.on_terminated(Event())
    one, several, failed = exporter.get_finished_spans()
    assert (one.name, several.name, failed.name) == ("process a", "process q", "q failed")
    assert (one.start_time, one.end_time) == (1_769_853_600_123_000_000, 1_769_853_601_623_000_000)
    assert dict(one.attributes or {}) == {
        "messaging.system": "kafka", "messaging.operation.type": "process", "messaging.destination.name": "a",
        "messaging.batch.message_count": 5, "spark.query.name": "q", "spark.query.id": "i", "spark.query.run_id": "r",
        "spark.batch.id": 4, "spark.batch.duration_ms.addBatch": 900, "spark.batch.duration_ms.triggerExecution": 1500,
    }  # fmt: skip
    assert (several.attributes or {})["spark.batch.topics"] == ("a", "b")
    assert (failed.status.status_code, len(failed.status.description or "")) == (StatusCode.ERROR, 4_000)


def test_the_names_of_runs_are_bounded() -> None:
    from ottla.spark.monitoring.query_spans import MAX_RUNS

    exporter = InMemorySpanExporter()
    spans = QuerySpans(tracer_of(exporter))
    for number in range(MAX_RUNS + 1):
        spans.on_started(Event(run=str(number)))
    for run in ("0", "1"):
        spans.on_terminated(Event(exception="it broke", run=run))
    assert [each.name for each in exporter.get_finished_spans()] == ["i failed", "q failed"]


def read_page(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """Spark's events come from a thread of its own."""
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until, "Spark's listener was not called"
        time.sleep(0.05)


@pytest.mark.spark
@pytest.mark.slow
def test_queries_of_a_session_are_counted_and_one_that_fails_turns_health_red(
    spark: Any, topics: Any, tmp_path: Path
) -> None:
    source, sink = topics.make(), topics.make()
    topics.put(source, 0, [b"1", b"2", b"3"])
    metrics = QueryMetrics()
    exporter = InMemorySpanExporter()
    spans = QuerySpans(tracer_of(exporter))
    for each in (metrics, metrics, spans, spans):
        each.attach(spark)
    port = metrics.serve("127.0.0.1:0")

    def start(name: str, *columns: str) -> Any:
        frame = spark.readStream.format("ottla").options(**topics.options, subscribe=source, startingOffsets="earliest")
        writer = frame.load().selectExpr(*columns).writeStream.format("ottla").options(**topics.options, topic=sink)
        query = writer.queryName(name).option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True)
        return query.start()

    try:
        start("good", "key", "value").awaitTermination()
        wait_until(lambda: 'ottla_query_batches_total{query="good"} 1' in read_page(port, "/metrics")[1])
        wait_until(lambda: 'ottla_query_running{query="good"} 0' in read_page(port, "/metrics")[1])
        assert 'ottla_query_rows_total{query="good"} 3' in read_page(port, "/metrics")[1]
        assert f'ottla_query_lag_offsets{{query="good",topic="{source}"}} 0' in read_page(port, "/metrics")[1]
        assert read_page(port, "/health") == (200, '{"status": "ready", "running": 0, "failed": {}}\n')
        with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
            start(
                "bad", "key", "CAST(1 / (CAST(CAST(value AS STRING) AS INT) - 2) AS STRING) AS value"
            ).awaitTermination()
        wait_until(lambda: read_page(port, "/health")[0] == 503)
        assert list(json.loads(read_page(port, "/health")[1])["failed"]) == ["bad"]
        assert read_page(port, "/other")[0] == 404
        wait_until(lambda: len(exporter.get_finished_spans()) == 2)
        assert [each.name for each in exporter.get_finished_spans()] == [f"process {source}", "bad failed"]
    finally:
        metrics.close()
        spans.detach()
    metrics.close()
    with pytest.raises(OSError, match=r"refused|reset"):
        read_page(port, "/health")
