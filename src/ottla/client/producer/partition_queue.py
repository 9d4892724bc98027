"""One partition's batches: what waits, what is unanswered, and which sequence numbers they have.

Zone: pure. The order of one partition lives here and nowhere else.

With idempotence every batch keeps its sequence numbers through all its attempts. When one is sent again, those behind
it wait: only the first unanswered batch may be repeated, so what a broker misses it gets next. Sequences begin anew, in
a new producer epoch, when one is missing for good or the broker has lost its place (KIP-360), and not before everything
of the partition that is on its way was answered or lost.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ottla.client.producer.batch import ProducerBatch
from ottla.client.producer.safeguards import ProducerSafeguards
from ottla.types import TopicPartition

_MASK = 0x7FFF_FFFF
"""Sequences wrap from 2³¹-1 to 0."""


class ProducerId(NamedTuple):
    """Who writes, and in which epoch of it."""

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
        "_safe",
        "identity",
        "in_flight",
        "queue",
        "rewinding",
        "sent",
        "tp",
        "unresolved",
    )

    def __init__(
        self, tp: TopicPartition, *, numbered: bool, most: int, safeguards: ProducerSafeguards | None = None
    ) -> None:
        """numbered: batches carry sequence numbers. most: how many may be unanswered when order matters."""
        self.tp = tp
        self.queue: deque[ProducerBatch] = deque()
        """Not on the wire. Those that are sent again come first."""
        self.in_flight: list[ProducerBatch] = []
        """Sent at least once and not done, in the order of their sequence numbers."""
        self.identity: ProducerId | None = None
        """The one under which the sequence numbers below count."""
        self.rewinding = False
        """Sequences are to begin anew as soon as nothing is on the wire."""
        self.unresolved = False
        """A numbered batch was given up while its fate was unknown: its numbers may be missing at the broker."""
        self._closed = False
        """Unresolved, and nothing of what is not waited for is on its way: what is missing stays missing."""
        self.sent = 0
        """Bytes of all batches so far, before compression."""
        self._numbered = numbered
        self._most = most
        self._safe = safeguards or ProducerSafeguards()
        self._next = 0
        self._acked = -1
        self._count = 0
        """Batches that got sequence numbers so far."""

    @property
    def on_wire(self) -> bool:
        """Whether an answer is awaited."""
        return any(batch.on_wire for batch in self.in_flight)

    def may_send(self, identity: ProducerId | None) -> bool:
        """Whether the first waiting batch may be sent now, as far as order is concerned."""
        if not self._numbered:
            return self._most > 1 or not self.in_flight or not self._safe.in_flight_cap
        if identity is None or self.rewinding:
            return False
        if self.queue[0].base_sequence >= 0:
            return self.in_flight[0] is self.queue[0] or not self._safe.first_repeated
        if self._acked < 0 and self.in_flight and self._safe.first_alone:
            # Where a broker knows nothing of a producer, Apache Kafka takes any sequence for the first: were the first
            # batch refused and the second one taken, the first could never follow.
            return False
        if not self.in_flight:
            return not self.unresolved
        return not self.unresolved and self.identity == identity and self._in_window()

    def _in_window(self) -> bool:
        """Whether the broker will remember the oldest unanswered batch still when one more is in the log."""
        behind = self._count - self.in_flight[0].ordinal
        return max(behind, len(self.in_flight)) < self._most or not self._safe.in_flight_cap

    def take_batch(self, identity: ProducerId | None) -> ProducerBatch:
        """The first waiting batch, on its way from now on. `may_send` must hold."""
        batch = self.queue.popleft()
        if self._numbered and (batch.base_sequence < 0 or not self._safe.sequences_kept):
            assert identity is not None
            if self.identity != identity:
                self._begin_sequence(identity)
            self._number(batch)
        if batch not in self.in_flight:
            self.in_flight.append(batch)
        batch.on_wire = True
        batch.attempts += 1
        return batch

    def give_back(self, batch: ProducerBatch) -> None:
        """An attempt is over without success: the batch waits again, in its place."""
        batch.on_wire = False
        if not self._numbered:
            self.in_flight.remove(batch)
            self.queue.appendleft(batch)
            return
        while self.queue and self.queue[0].base_sequence >= 0:
            self.queue.popleft()
        self.queue.extendleft(one for one in reversed(self.in_flight) if not one.on_wire)

    def replace(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """The parts of a batch that was split take its place, to be sent."""
        at = self.in_flight.index(batch)
        batch.on_wire = False
        if self._numbered:
            self.in_flight[at : at + 1] = parts
            self.give_back(parts[0])
        else:
            del self.in_flight[at]
            self.queue.extendleft(reversed(parts))

    def on_appended(self, batch: ProducerBatch) -> None:
        """A batch is in the log; maybe one that was given up before."""
        current = self._numbered and self.identity == (batch.producer_id, batch.producer_epoch)
        # Answers of one epoch come in order of sequences, but a late one may be of long ago: never step back.
        if current and ((last := batch.last_sequence) - self._acked) & _MASK < 2**30:
            self._acked = last
        self.forget_batch(batch)

    def on_refused(self, batch: ProducerBatch) -> None:
        """A batch will never be accepted. Its sequence numbers are missing, so those behind it need new ones.

        Unless it is in the log by an earlier attempt. Then those behind it may be there, too: the first of them is
        repeated as it is, and shows it.
        """
        if self._numbered and batch in self.in_flight:
            behind = self.in_flight[self.in_flight.index(batch) + 1 :]
            if not batch.uncertain:
                # Without this one, no broker has accepted those behind it.
                for one in behind:
                    one.uncertain = False
            if not batch.adrift and any(one.uncertain for one in behind):
                self.unresolved = self._closed = True
            else:
                self.rewinding = True
        self.forget_batch(batch)

    def came_too_early(self, batch: ProducerBatch) -> None:
        """The broker lacks what comes before this one, so it has neither this one nor those behind it."""
        for one in self.in_flight[self.in_flight.index(batch) :]:
            one.uncertain = one.adrift and not self._closed

    def gave_up(self, batch: ProducerBatch) -> None:
        """Time is up for a batch."""
        if batch.base_sequence >= 0 and batch in self.in_flight:
            if batch.on_wire or batch.uncertain:
                self.unresolved, self._closed = True, False
            else:
                self.rewinding = True
        self.forget_batch(batch)

    def forget_batch(self, batch: ProducerBatch) -> None:
        """It is not waited for any more."""
        if batch in self.in_flight:
            self.in_flight.remove(batch)
        if batch in self.queue:
            self.queue.remove(batch)
        batch.on_wire = False

    def next_in_line(self, batch: ProducerBatch) -> bool:
        """Whether every batch before this one is acknowledged."""
        return not self.unresolved and batch.base_sequence == (self._acked + 1) & _MASK

    def settle(self) -> None:
        """Once nothing is in doubt it shows whether a batch that was given up has left a gap."""
        if self.unresolved and not any(batch.on_wire or batch.uncertain for batch in self.in_flight):
            self.unresolved = self._closed = False
            due = self.in_flight[0].base_sequence if self.in_flight else self._next
            self.rewinding = self.rewinding or (self._acked + 1) & _MASK != due

    def clear(self) -> None:
        """No sequence number is missing any more: others are counted from now on."""
        self.rewinding = self.unresolved = self._closed = False

    def rewind(self, identity: ProducerId) -> list[ProducerBatch]:
        """Begin anew with sequence 0 under `identity`. Nothing may be on the wire.

        Returns the batches that may be in the log already: they cannot be written again without perhaps being there
        twice, so they are out, and their senders must hear that their fate is unknown.
        """
        assert not self.on_wire
        doubtful = [batch for batch in self.in_flight if batch.uncertain and self._safe.doubtful_fail]
        for batch in doubtful:
            self.forget_batch(batch)
        self.clear()
        self._begin_sequence(identity)
        for batch in self.in_flight:
            self._number(batch)
        return doubtful

    def _begin_sequence(self, identity: ProducerId) -> None:
        self.identity = identity
        self._next = 0
        self._acked = -1

    def _number(self, batch: ProducerBatch) -> None:
        assert self.identity is not None
        batch.put_identity(*self.identity, self._next)
        batch.ordinal = self._count
        self._count += 1
        self._next = (self._next + batch.count) & _MASK
