"""The figures of streaming queries, added up from Spark's progress, and their metrics.

Zone: pure. Spark's documents in, figures out; `query_metrics` receives the documents and serves the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from ottla.metrics import Histogram, Labels, Registry
from ottla.spark.errors import BadCheckpoint
from ottla.spark.metrics import behind_by_partition
from ottla.spark.monitoring.progress_counts import input_rows, observed_counts

METRICS: Final = "ottla"
"""The name of the metrics that a query of a pipeline's step observes."""
COUNTED: Final = ("rows_out", "retries", "dead")
"""The names of the counts."""
BOUNDS_S: Final = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800)
"""Upper bounds of the buckets of the time of a batch, in seconds."""
MAX_QUERIES: Final = 200
"""Queries whose figures are kept: above, those that have ended are forgotten, the oldest first."""
MAX_TOPICS: Final = 100
"""Topics of a query whose lag is shown: above, those with the largest."""


class QueryFigures:
    """The figures of one query since the metrics began; those of several runs with one name are added up."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_running = False
        self.failure: str | None = None
        """Why the last run failed; None while one is running, and after one that ended in order."""
        self.failures = 0
        self.batches = 0
        self.rows = 0
        self.late_rows = 0
        self.counts = dict.fromkeys(COUNTED, 0)
        """Records that a pipeline's step has written, sent to retry topics, and to the dead letters."""
        self.seconds = Histogram(BOUNDS_S)
        self.lag: dict[str, int] = {}
        """Offsets that are not read yet, by topic, at the last batch."""
        self.state_rows = 0
        self.state_bytes = 0
        self.last_batch_s = 0.0
        """When the last batch ended, in seconds since 1970."""
        self._last_batch = -1

    def begin_run(self) -> None:
        """A run of the query has started; it may repeat the last batch of the run before."""
        self.is_running = True
        self.failure = None
        self._last_batch = -1

    def end_run(self, failure: str | None) -> None:
        """The run has ended, with Spark's error or in order."""
        self.is_running = False
        self.failure = failure
        self.failures += failure is not None

    def add_progress(self, document: Mapping[str, Any], now_s: float) -> None:
        """Add the progress of a batch; a document that comes twice counts once."""
        self._read_present(document)
        duration = document.get("durationMs") or {}
        # Without addBatch the trigger found nothing to do.
        if "addBatch" not in duration or document["batchId"] <= self._last_batch:
            return
        self._last_batch = document["batchId"]
        self.last_batch_s = now_s
        self.batches += 1
        self.rows += input_rows(document)
        self.seconds.observe((duration.get("triggerExecution") or duration["addBatch"]) / 1000)
        self.late_rows += sum(each.get("numRowsDroppedByWatermark") or 0 for each in document.get("stateOperators", ()))
        for name, count in observed_counts(document, METRICS, COUNTED).items():
            self.counts[name] += count

    def _read_present(self, document: Mapping[str, Any]) -> None:
        """Take over figures that are not added up."""
        operators = document.get("stateOperators", ())
        self.state_rows = sum(each.get("numRowsTotal") or 0 for each in operators)
        self.state_bytes = sum(each.get("memoryUsedBytes") or 0 for each in operators)
        lag: dict[str, int] = {}
        for source in document.get("sources", ()):
            if isinstance(source.get("latestOffset"), Mapping | str):
                for tp, size in _read_lag(source).items():
                    lag[tp.topic] = lag.get(tp.topic, 0) + size
        if lag:
            self.lag = lag


def _read_lag(source: Mapping[str, Any]) -> dict[Any, int]:
    """The lag by partition; empty for the offsets of other sources, which have another form."""
    try:
        return behind_by_partition(source)
    except (ValueError, BadCheckpoint):
        return {}


class QueryTable:
    """The figures of all queries of a session, by name; a query without a name is known by its id."""

    def __init__(self) -> None:
        self._queries: dict[str, QueryFigures] = {}
        self._name_of_run: dict[str, str] = {}

    def __iter__(self) -> Iterator[QueryFigures]:
        return iter(list(self._queries.values()))

    def on_started(self, name: str, run_id: str) -> None:
        """A query was started."""
        self._name_of_run[run_id] = name
        # The one that was started last is the last one to be forgotten.
        figures = self._queries.pop(name) if name in self._queries else QueryFigures(name)
        self._queries[name] = figures
        figures.begin_run()
        ended = [each for each in self._queries.values() if not each.is_running]
        for each in ended[: max(0, len(self._queries) - MAX_QUERIES)]:
            del self._queries[each.name]

    def on_progress(self, name: str, run_id: str, document: Mapping[str, Any], now_s: float) -> None:
        """A query has ended a batch, or found nothing to do."""
        if run_id not in self._name_of_run:
            self.on_started(name, run_id)  # it was started before the metrics were
        self._queries[name].add_progress(document, now_s)

    def on_terminated(self, run_id: str, failure: str | None) -> None:
        """A query has ended."""
        name = self._name_of_run.pop(run_id, None)
        if name is not None and name in self._queries and name not in self._name_of_run.values():
            self._queries[name].end_run(failure)


def add_query_metrics(registry: Registry, queries: Iterable[QueryFigures]) -> None:
    """Declare the metrics of queries. queries: they are read at each scrape."""

    def each(read: Callable[[QueryFigures], float]) -> Callable[[], list[tuple[Labels, float]]]:
        return lambda: [({"query": one.name}, read(one)) for one in queries]

    def lags() -> Iterator[tuple[Labels, float]]:
        for one in queries:
            largest = sorted(one.lag.items(), key=lambda item: (-item[1], item[0]))[:MAX_TOPICS]
            yield from (({"query": one.name, "topic": topic}, size) for topic, size in largest)

    counter, gauge = registry.add_counter, registry.add_gauge
    gauge("ottla_query_running", "1 while the streaming query is running.", each(lambda one: one.is_running))
    counter("ottla_query_failures_total", "Runs of the query that ended with an error.", each(lambda one: one.failures))
    counter("ottla_query_batches_total", "Batches that have ended.", each(lambda one: one.batches))
    counter("ottla_query_rows_total", "Rows that were read.", each(lambda one: one.rows))
    counter("ottla_query_written_rows_total", "Records that a pipeline's step has written to its topic.",
            each(lambda one: one.counts["rows_out"]))  # fmt: skip
    counter("ottla_query_retried_rows_total", "Records that a pipeline's step has sent to a retry topic.",
            each(lambda one: one.counts["retries"]))  # fmt: skip
    counter("ottla_query_dead_rows_total", "Records that a pipeline's step has sent to the dead letters.",
            each(lambda one: one.counts["dead"]))  # fmt: skip
    counter("ottla_query_late_rows_total", "Rows dropped because they came after the watermark.",
            each(lambda one: one.late_rows))  # fmt: skip
    registry.add_histogram("ottla_query_batch_seconds", "The time of a batch.",
                           lambda: (({"query": one.name}, one.seconds) for one in queries))  # fmt: skip
    gauge("ottla_query_lag_offsets", "Offsets of a topic that were not read yet at the last batch.", lags)
    gauge("ottla_query_state_rows", "Rows in the state of the query.", each(lambda one: one.state_rows))
    gauge("ottla_query_state_bytes", "Memory of the state of the query.", each(lambda one: one.state_bytes))
    gauge("ottla_query_last_batch_timestamp_seconds", "When the last batch ended, in seconds since 1970; 0: none has.",
          each(lambda one: one.last_batch_s))  # fmt: skip
