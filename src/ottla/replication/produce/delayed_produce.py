"""A Produce whose response is delayed (Kafka's DelayedProduce).

Zone: deterministic.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import DelayedOperation
from ottla.replication.partition.partition import Partition
from ottla.replication.produce.produce_responses import Refusals, Responses, Row

LateResponse = dict[Partition, tuple[int, list[Row], int]]
"""Partition → (offset that its high watermark must reach, rows, index of the row)."""


class DelayedProduce(DelayedOperation):
    """A Produce that waits for the high watermark of its partitions (acks=all) or for their disks (flush.messages)."""

    __slots__ = ("_acks", "_answer", "_answers", "_refused", "waiting")

    def __init__(
        self, waiting: LateResponse, acks: int, answers: Responses, refused: Refusals, answer: Callable[[], None]
    ) -> None:
        super().__init__()
        self.waiting = dict(waiting)
        self._acks = acks
        self._answers = answers
        self._refused = refused
        self._answer = answer

    def try_complete(self) -> bool:
        """Complete when every partition has settled.

        Case A: its batch is committed (or synced). Case B: it will not be: the row becomes an error.
        """
        for partition, (offset, rows, at) in list(self.waiting.items()):
            try:
                # A partition that has failed does not end the wait: as in Kafka the response has the outcome of every
                # partition.
                if not partition.leader_role.is_settled(offset, self._acks):
                    continue
            except ApiError as error:
                self._refuse_row(rows, at, error.as_value())
            del self.waiting[partition]
        return self.completed or (not self.waiting and self.force_complete())

    def _refuse_row(self, rows: list[Row], at: int, error: ApiError) -> None:
        topic = next(place for place, (_, _, own) in enumerate(self._answers, 1) if own is rows)
        self._refused[topic, at] = error
        rows[at] = (rows[at][0], error.code, -1, -1, -1)

    def on_expire(self) -> None:
        """Answer REQUEST_TIMED_OUT for the rows that still wait: their batches may or may not survive."""
        for _, rows, at in self.waiting.values():
            rows[at] = (rows[at][0], ErrorCode.REQUEST_TIMED_OUT, -1, -1, -1)

    def on_complete(self) -> None:
        """Send the response."""
        self._answer()
