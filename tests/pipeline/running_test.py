"""A pipeline that runs counts its batches, also while nobody asks for the figures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ottla.pipeline.pipeline import Running, _Query

KEPT = 100
"""Spark's `spark.sql.streaming.numRecentProgressUpdates`."""


class Query:
    """Of Spark: it keeps the progress of its last batches."""

    def __init__(self) -> None:
        self.batches = 0

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return [{"batchId": n, "numInputRows": 2} for n in range(max(0, self.batches - KEPT), self.batches)]


class Clock:
    """Lets sixty batches pass at each look, five times."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def wait(self, seconds: float) -> bool:
        self._query.batches += 60
        return self._query.batches >= 300


def test_batches_are_counted_before_spark_forgets_them() -> None:
    step = SimpleNamespace(name="price", sources=["orders"], retry_topics={})
    counted: Any = _Query(SimpleNamespace(step=step, scope=SimpleNamespace(guarantee="")))  # type: ignore[arg-type]
    counted.query = Query()
    running: Any = object.__new__(Running)
    running._queries, running._ended = [counted], Clock(counted.query)
    running._count()
    assert (running.progress()[0].batches, running.progress()[0].rows_in) == (300, 600)
