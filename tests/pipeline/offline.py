"""Pipelines of a service without Spark: a frame that starts a query, and a query that ends as the test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ottla.pipeline import Pipeline, map_rows
from ottla.pipeline.queries import Planned
from ottla.pipeline.scope import Scope
from ottla.pipeline.service import ServedPipeline
from ottla.pipeline.supervision import State

PATIENCE_S = 60.0
SESSION = object()
"""Not asked for anything: the pipelines make their frames themselves."""


class Query:
    """A query of Spark's: one batch has ended, and another one is running while `busy`."""

    def __init__(self, error: Exception | None = None, *, busy: bool = False, batches: int = 1) -> None:
        self._error = error
        self.busy = busy
        self.triggers = batches
        self.isActive = error is None
        self.stopped = threading.Event()
        self.asked = threading.Event()
        """Its status was asked for."""

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return [{"batchId": number, "numInputRows": 2, "timestamp": str(number)} for number in range(self.triggers)]

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return self.recentProgress[-1] if self.triggers else None

    @property
    def status(self) -> dict[str, Any]:
        self.asked.set()
        return {"isTriggerActive": self.busy}

    def exception(self) -> Exception | None:
        return self._error

    def stop(self) -> None:
        self.isActive = False
        self.stopped.set()


class Frame:
    """What a step hands to the sink: every option leads to itself, `start` to the query."""

    def __init__(self, query: Query) -> None:
        self._query = query

    @property
    def writeStream(self) -> Frame:
        return self

    def __getattr__(self, name: str) -> Callable[..., Frame]:
        return lambda *_, **__: self

    def start(self) -> Query:
        return self._query


class Offline(Pipeline):
    """A pipeline without a cluster, whose starts get these queries one after the other; an error is raised."""

    def __init__(self, name: str, *queries: Query | Exception) -> None:
        super().__init__(name)
        self.step("orders", to="priced", name="price")(map_rows(lambda record: record.value))
        self._queries = list(queries)

    def make_topics(self) -> list[str]:
        return []

    def query(self, spark: Any, step: Any) -> Planned:
        found = self._queries.pop(0)
        if isinstance(found, Exception):
            raise found
        return Planned(step, Frame(found), Scope("partition", ""), self.name)


class Changes:
    """The changes of states, and a wait for one of them."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, State]] = []
        self._changed = threading.Condition()

    def __call__(self, each: ServedPipeline, wait_s: float | None) -> None:
        with self._changed:
            self.seen.append((each.name, each.supervision.state))
            self._changed.notify_all()

    def wait_for(self, name: str, state: State, times: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.seen.count((name, state)) >= times, PATIENCE_S), self.seen

    def of(self, name: str) -> list[str]:
        return [state.value for other, state in self.seen if other == name]
