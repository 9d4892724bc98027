"""A running pipeline counts its batches, also while no caller reads the figures.

Spark's part is played by the test: a frame that starts a query, and a query that keeps the progress of a few batches.
"""

from __future__ import annotations

import threading
from typing import Any

from tests.pipeline.offline import Frame

from ottla.pipeline import Pipeline, map_rows
from ottla.pipeline.pipeline import Running
from ottla.pipeline.queries import Planned
from ottla.pipeline.scope import Scope

KEPT = 100
"""Spark's `spark.sql.streaming.numRecentProgressUpdates`."""
PER_LOOK = 60
BATCHES = 300
PATIENCE_S = 30.0


class Query:
    """Sixty batches pass between two looks at it; three hundred in all."""

    def __init__(self) -> None:
        self._batches = 0
        self.seen = threading.Event()
        """All batches were looked at."""
        self.isActive = True

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        self._batches = min(BATCHES, self._batches + PER_LOOK)
        if self._batches == BATCHES:
            self.seen.set()
        return [{"batchId": n, "numInputRows": 2} for n in range(max(0, self._batches - KEPT), self._batches)]

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        self.isActive = False


def test_batches_are_counted_before_spark_forgets_them() -> None:
    pipeline = Pipeline("prices")
    pipeline.step("orders", to="priced")(map_rows(lambda record: record.value))
    query = Query()
    planned = Planned(pipeline.steps[0], Frame(query), Scope("partition", ""), "prices")
    running = Running(pipeline, [planned], "checkpoint", "1s", count_every_s=0.001)
    try:
        assert query.seen.wait(PATIENCE_S), "the figures are looked at by themselves"
    finally:
        running.stop()
    assert (running.progress()[0].batches, running.progress()[0].rows_in) == (BATCHES, 2 * BATCHES)
