"""Ottla's writers and attempts with points between their steps, at which a test or a strike acts.

Zone: real. Between the points run only Ottla's own steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from ottla.client.batch_transaction import ConnectionCache, Prepared
from ottla.client.positions import OffsetAndMetadata
from ottla.spark.safeguards import SinkSafeguards
from ottla.spark.sink.batch_decision import Batch, Part
from ottla.spark.sink.exactly_once import Marker, TaskBatch
from ottla.spark.sink.sink_options import SinkOptions
from ottla.spark.sink.transactional_write import TransactionalWrite
from ottla.spark.sink.whole_batches import BatchCalls
from ottla.spark.source.source_positions import Positions

At = Callable[[str, TaskBatch], None]
"""Called at each point with its name: start, fence (the id is about to be taken), begun (it is taken), mid (some rows
are written), prepared (all is in the transaction), before and after the end of the transaction by the task itself; for
a whole batch of several tasks sent (the decision is in the transaction of partition 0), decided (that is committed) and
half (one of the others is, too)."""


class PointedAttempt(TransactionalWrite):
    """An attempt with points between its steps."""

    at: At

    def take_over(self) -> Marker | None:
        self.at("start", self.turn)
        done = super().take_over()
        self.at("begun", self.turn)
        return done

    def fence(self) -> None:
        self.at("fence", self.turn)
        super().fence()

    def write_rows(self, batch: pa.RecordBatch) -> None:
        super().write_rows(batch)
        self.at("mid", self.turn)

    def prepare_commit(self, sources: Positions | None = None) -> Prepared | None:
        prepared = super().prepare_commit(sources)
        self.at("prepared", self.turn)
        return prepared

    def commit_prepared(self, prepared: Prepared) -> None:
        self.at("before", self.turn)
        super().commit_prepared(prepared)
        self.at("after", self.turn)


class PointedCalls(BatchCalls):
    """The end of a whole batch, with points between its steps."""

    at: At
    turn: TaskBatch

    def send_decision(self, decider: Part, batch: Batch, lists: Sequence[OffsetAndMetadata]) -> None:
        super().send_decision(decider, batch, lists)
        self.at("sent", self.turn)

    def commit_decider(self, decider: Part) -> None:
        super().commit_decider(decider)
        self.at("decided", self.turn)

    def commit_part(self, part: Part) -> bool:
        done = super().commit_part(part)
        self.at("half", self.turn)
        return done


class PointedWriter:
    """Mix-in of a writer: gives its attempts and the end of its batches points."""

    at: At
    _options: SinkOptions
    safeguards: SinkSafeguards

    def _make_attempt(self, links: ConnectionCache, turn: TaskBatch) -> TransactionalWrite:
        attempt = PointedAttempt(links, self._options, turn, self.safeguards)
        attempt.at = self.at
        return attempt

    def _make_calls(self, links: ConnectionCache, turn: TaskBatch, sources: Positions) -> BatchCalls:
        once = self._options.once
        if not hasattr(self, "at"):  # a driver whose steps are not watched
            return BatchCalls(links, once.timeout_ms, sources, demands_offsets=once.offsets == "true")
        calls = PointedCalls(links, once.timeout_ms, sources, demands_offsets=once.offsets == "true")
        calls.at, calls.turn = self.at, turn
        return calls
