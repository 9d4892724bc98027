"""The batches of one partition: waiting ones, unanswered ones, and their sequence numbers.

Zone: pure. Only this module decides about the order of the batches of a partition.

With idempotence every batch keeps its sequence numbers in all its attempts. While one is sent again, later ones wait:
only the first unanswered batch may be repeated, so the broker gets the batch that it misses next. Sequence numbers
restart at 0, in a new producer epoch, if one is missing for good or if the broker has lost the producer's state
(KIP-360), but only after all sent batches of the partition were answered or lost.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ottla.client.producer.batch import ProducerBatch
from ottla.types import TopicPartition

_MASK = 0x7FFF_FFFF
"""Sequences wrap from 2³¹-1 to 0."""


class ProducerId(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


class PartitionQueue:
    """The batches of one partition."""

    __slots__ = (
        "_acked",
        "_closed",
        "_count",
        "_most",
        "_next",
        "_numbered",
        "identity",
        "in_flight",
        "queue",
        "rewinding",
        "sent",
        "tp",
        "unresolved",
    )

    def __init__(self, tp: TopicPartition, *, numbered: bool, most: int) -> None:
        """numbered: batches have sequence numbers. most: how many may be unanswered if order matters."""
        self.tp = tp
        self.queue: deque[ProducerBatch] = deque()
        """Batches to send. Repeated ones come first."""
        self.in_flight: list[ProducerBatch] = []
        """Batches that were sent and are not done, in the order of their sequence numbers."""
        self.identity: ProducerId | None = None
        """The producer id and epoch of the current sequence numbers."""
        self.rewinding = False
        """Sequence numbers must restart as soon as no batch is on the wire."""
        self.unresolved = False
        """A sent batch was given up without a known outcome: the broker may miss its sequence numbers."""
        self._closed = False
        """Unresolved, and no given-up batch can still arrive: missing numbers stay missing."""
        self.sent = 0
        """Bytes of all batches sent so far, before compression."""
        self._numbered = numbered
        self._most = most
        self._next = 0
        self._acked = -1
        self._count = 0
        """Number of batches that got sequence numbers so far."""

    @property
    def on_wire(self) -> bool:
        """Whether a batch is unanswered."""
        return any(batch.on_wire for batch in self.in_flight)

    def may_send(self, identity: ProducerId | None) -> bool:
        """Whether the order allows to send the first waiting batch now."""
        # 1. Without sequence numbers the order holds only if at most one batch is unanswered. 2. No producer id yet, or
        # a restart is due. 3. A repeated batch: only the first unanswered one. 4. The first batch of an epoch goes
        # alone. 5. After a batch without a known outcome: no new ones. 6. Else new ones, within the window.
        if not self._numbered:
            return self._most > 1 or not self.in_flight
        if identity is None or self.rewinding:
            return False
        if self.queue[0].base_sequence >= 0:
            return self.in_flight[0] is self.queue[0]
        if self._acked < 0 and self.in_flight:
            # A Kafka broker without state of a producer accepts any first sequence number. If it refused the first
            # batch and accepted the second one, the first could never follow.
            return False
        if not self.in_flight:
            return not self.unresolved
        return not self.unresolved and self.identity == identity and self._in_window()

    def _in_window(self) -> bool:
        """Whether the broker still remembers the oldest unanswered batch after one more is appended."""
        behind = self._count - self.in_flight[0].ordinal
        return max(behind, len(self.in_flight)) < self._most

    def take_batch(self, identity: ProducerId | None) -> ProducerBatch:
        """Take the first waiting batch to send it. `may_send` must hold."""
        batch = self.queue.popleft()
        if self._numbered and batch.base_sequence < 0:
            assert identity is not None
            if self.identity != identity:
                self._begin_sequence(identity)
            self._number_batch(batch)
        # A batch that is sent again is there already, in the place of its sequence numbers.
        if batch not in self.in_flight:
            self.in_flight.append(batch)
        batch.on_wire = True
        batch.attempts += 1
        return batch

    def give_back(self, batch: ProducerBatch) -> None:
        """An attempt failed: the batch waits again, in its place."""
        batch.on_wire = False
        if not self._numbered:
            self.in_flight.remove(batch)
            self.queue.appendleft(batch)
            return
        # All sent batches without an answer wait again, in the order of their numbers, before the new ones.
        while self.queue and self.queue[0].base_sequence >= 0:
            self.queue.popleft()
        self.queue.extendleft(one for one in reversed(self.in_flight) if not one.on_wire)

    def replace_batch(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """Replace a batch that was split with its parts, which wait to be sent."""
        at = self.in_flight.index(batch)
        batch.on_wire = False
        if self._numbered:
            # The halves continue the numbers of the whole, so they take its place before later batches.
            self.in_flight[at : at + 1] = parts
            self.give_back(parts[0])
        else:
            del self.in_flight[at]
            self.queue.extendleft(reversed(parts))

    def on_appended(self, batch: ProducerBatch) -> None:
        """A batch is in the log; it may have been given up before."""
        current = self._numbered and self.identity == (batch.producer_id, batch.producer_epoch)
        # A late answer may be for an old batch: the acknowledged sequence number never decreases.
        if current and ((last := batch.last_sequence) - self._acked) & _MASK < 2**30:
            self._acked = last
        self.forget_batch(batch)

    def on_refused(self, batch: ProducerBatch) -> None:
        """The broker refuses a batch for good. Its sequence numbers are missing, so later batches need new ones.

        Exception: an earlier attempt of it may be in the log, and so may later batches. Then the first of these is
        repeated unchanged, and its answer shows which is true.
        """
        if self._numbered and batch in self.in_flight:
            behind = self.in_flight[self.in_flight.index(batch) + 1 :]
            if not batch.uncertain:
                # Without this batch the broker has accepted no later one.
                for one in behind:
                    one.uncertain = False
            if not batch.adrift and any(one.uncertain for one in behind):
                self.unresolved = self._closed = True
            else:
                self.rewinding = True
        self.forget_batch(batch)

    def on_came_too_early(self, batch: ProducerBatch) -> None:
        """The broker misses an earlier batch, so it has neither this one nor later ones."""
        for one in self.in_flight[self.in_flight.index(batch) :]:
            one.uncertain = one.adrift and not self._closed

    def on_given_up(self, batch: ProducerBatch) -> None:
        """A batch has expired, or its transaction was given up."""
        if batch.base_sequence >= 0 and batch in self.in_flight:
            if batch.on_wire or batch.uncertain:
                self.unresolved, self._closed = True, False
            else:
                self.rewinding = True
        self.forget_batch(batch)

    def forget_batch(self, batch: ProducerBatch) -> None:
        """Remove a batch: its outcome does not matter here any more."""
        if batch in self.in_flight:
            self.in_flight.remove(batch)
        if batch in self.queue:
            self.queue.remove(batch)
        batch.on_wire = False

    def is_next_in_line(self, batch: ProducerBatch) -> bool:
        """Whether all earlier batches are acknowledged."""
        return not self.unresolved and batch.base_sequence == (self._acked + 1) & _MASK

    def settle_gap(self) -> None:
        """When no sent batch is in doubt, decide whether a given-up batch has left a gap."""
        if self.unresolved and not any(batch.on_wire or batch.uncertain for batch in self.in_flight):
            self.unresolved = self._closed = False
            # A gap: the number after the last acknowledged one is not that of the next batch.
            due = self.in_flight[0].base_sequence if self.in_flight else self._next
            self.rewinding = self.rewinding or (self._acked + 1) & _MASK != due

    def clear_gaps(self) -> None:
        """Forget gaps, because new sequence numbers begin."""
        self.rewinding = self.unresolved = self._closed = False

    def restart_sequence(self, identity: ProducerId) -> list[ProducerBatch]:
        """Restart with sequence number 0 under `identity`. No batch may be on the wire.

        Removes and returns the batches that may be in the log: writing them again could duplicate them, so they must
        fail with an unknown outcome.
        """
        assert not self.on_wire
        # Under a new epoch the broker cannot recognize these batches as repetitions any more.
        doubtful = [batch for batch in self.in_flight if batch.uncertain]
        for batch in doubtful:
            self.forget_batch(batch)
        self.clear_gaps()
        self._begin_sequence(identity)
        for batch in self.in_flight:
            self._number_batch(batch)
        return doubtful

    def _begin_sequence(self, identity: ProducerId) -> None:
        self.identity = identity
        self._next = 0
        self._acked = -1

    def _number_batch(self, batch: ProducerBatch) -> None:
        assert self.identity is not None
        batch.put_identity(*self.identity, self._next)
        # Sequence numbers start again in a new epoch; the ordinal does not, so that `_in_window` counts over epochs.
        batch.ordinal = self._count
        self._count += 1
        self._next = (self._next + batch.count) & _MASK
