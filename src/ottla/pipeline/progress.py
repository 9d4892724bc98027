"""The progress of a pipeline's steps, computed from that of their queries.

Zone: pure. Spark's documents in, figures out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ottla.spark.metrics import behind_by_partition
from ottla.spark.monitoring.progress_counts import input_rows, observed_counts, processed_rows_per_second
from ottla.spark.monitoring.query_figures import COUNTED, METRICS


class StepProgress(NamedTuple):
    """The figures of a step since its query was started."""

    step: str
    guarantee: str
    """exactly once with its unit, or at least once."""
    batches: int = 0
    rows_in: int = 0
    """Records read, retries included."""
    rows_out: int = 0
    """Records written to the step's topic."""
    retries: int = 0
    """Records sent to a retry topic."""
    dead: int = 0
    """Records sent to the dead letters."""
    rows_per_s: float = 0.0
    """The rate of the last batch."""
    lag: int = 0
    """Offsets of the sources that are not read yet, at the last batch."""
    waiting: int = 0
    """Offsets of the retry topics that are not read yet, at the last batch; most of them are not due."""

    def status_line(self) -> str:
        """The figures as a line of text."""
        parts = [
            f"{self.step}: {self.batches:,} batches",
            f"{self.rows_in:,} read",
            f"{self.rows_out:,} written",
            f"{self.rows_per_s:,.0f} rows/s",
            f"lag {self.lag:,}",
        ]
        for count, what in ((self.retries, "retried"), (self.waiting, "waiting"), (self.dead, "dead")):
            if count:
                parts.append(f"{count:,} {what}")
        return " · ".join(parts)


class Counter:
    """Adds up the progress of one query; documents come in order, and may be repeated."""

    def __init__(self, step: str, guarantee: str, sources: Iterable[str], retries: Iterable[str]) -> None:
        self._sources = frozenset(sources)
        self._retries = frozenset(retries)
        self._last = -1
        self._sum = StepProgress(step, guarantee)

    def add_documents(self, documents: Iterable[Mapping[str, Any]]) -> StepProgress:
        """Add the new documents of a query's `recentProgress`; the figures so far."""
        for document in documents:
            # Spark repeats a batch's document, and reports an idle trigger under the number of the next batch: only a
            # higher number with rows or counts is a new batch.
            figures, rows = observed_counts(document, METRICS, COUNTED), input_rows(document)
            if document["batchId"] > self._last and (rows or any(figures.values())):
                self._last = document["batchId"]
                self._sum = self._sum._replace(
                    batches=self._sum.batches + 1,
                    rows_in=self._sum.rows_in + rows,
                    rows_per_s=processed_rows_per_second(document),
                    rows_out=self._sum.rows_out + figures["rows_out"],
                    retries=self._sum.retries + figures["retries"],
                    dead=self._sum.dead + figures["dead"],
                )
            self._sum = self._with_lag(document)
        return self._sum

    def _with_lag(self, document: Mapping[str, Any]) -> StepProgress:
        behind = [one for source in document.get("sources", ()) for one in behind_by_partition(source).items()]
        if not behind:
            return self._sum
        lag = sum(size for where, size in behind if where.topic in self._sources)
        waiting = sum(size for where, size in behind if where.topic in self._retries)
        return self._sum._replace(lag=lag, waiting=waiting)
