"""An application that sends records with Ottla's producer, and notes the outcome of each.

Zone: deterministic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from ottla.client.producer.config import ProducerConfig
from ottla.sim.clients.history import ClientHistory, Promise, Sent
from ottla.sim.clients.producer import CoreProducer
from ottla.sim.entropy import Stream
from ottla.sim.history import Write
from ottla.sim.workload.catalog import Catalog, Role, Topic
from ottla.sim.world import MS
from ottla.types import TopicPartition

BURST_MAX: Final = 12
LARGE_MAX: Final = 3000
STICKY: Final = 0.3
"""Chance that a record leaves the choice of its partition to the producer."""


class Application:
    """Sends bursts of records to the topics of one role."""

    def __init__(
        self, producer: CoreProducer, config: ProducerConfig, catalog: Catalog, role: Role, random: Stream
    ) -> None:
        self.producer = producer
        self.history: ClientHistory = producer.history
        self.catalog = catalog
        self.role = role
        self.random = random
        self.interval_ns = random.between(250, 750) * MS
        self.working = True
        """False: it sends no new records."""
        self.calm = False
        """Everything is healed: from now on a failure has no excuse. So a burst waits until the one before is decided:
        with small batches, one request at a time and a short timeout a producer cannot deliver two bursts in time."""
        # With one request at a time a producer keeps the order even without idempotence.
        alone = config.max_in_flight_requests_per_connection == 1
        self._promise = Promise(
            config.idempotent, config.idempotent or alone, alone, config.client.delivery_timeout_ms * MS
        )
        self._acks = config.acks
        self._waiting: deque[tuple[Topic, int | None]] = deque()
        """Records that the producer has not accepted yet, because it has no memory or no metadata for them."""
        self._count = 0
        producer.on_decided = self._send_waiting

    @property
    def name(self) -> str:
        """Its name in values and in the history."""
        return self.producer.name

    @property
    def acknowledged(self) -> int:
        """How many records were acknowledged so far."""
        return self.producer.acknowledged

    @property
    def on_acknowledged(self) -> Callable[[Write], None]:
        """Called with one record of every batch that was acknowledged."""
        return self.producer.on_acknowledged

    @on_acknowledged.setter
    def on_acknowledged(self, call: Callable[[Write], None]) -> None:
        self.producer.on_acknowledged = call

    def start_writing(self) -> None:
        """Start to send bursts."""
        self.producer.timeline.schedule_after(self.random.random_below(self.interval_ns), "produce", self._on_interval)

    def outstanding_logs(self) -> list[str]:
        """Partitions with records that have no outcome yet."""
        return [f"{tp.topic}-{tp.partition}" for tp in self.producer.undecided_partitions()]

    # ---- sending ----

    def _on_interval(self) -> None:
        wait = 1 + int(self.random.exponential(self.interval_ns))
        self.producer.timeline.schedule_after(wait, "produce", self._on_interval)
        if not self.working:
            self._waiting.clear()
        # A new burst only when the one before is accepted: else a slow producer would collect records without end.
        elif not self._waiting and not (self.calm and self.producer.core.accumulator.incomplete):
            topics = self.catalog.topics_of_role(self.role)
            for _ in range(1 + self.random.random_below(BURST_MAX) if topics else 0):
                self._waiting.append(self._choose_topic(self.random.choice(topics)))
        self._send_waiting()

    def _choose_topic(self, topic: Topic) -> tuple[Topic, int | None]:
        return topic, None if self.random.chance(STICKY) else self.random.random_below(topic.partitions)

    def _send_waiting(self) -> None:
        """Send the waiting records, until the producer refuses one."""
        accumulator = self.producer.core.accumulator
        while self._waiting and self._send_record(*self._waiting[0]):
            self._waiting.popleft()
        accumulator.memory_waiters = 1 if self._waiting else 0

    def _send_record(self, topic: Topic, partition: int | None) -> bool:
        known = self.producer.core.metadata.known_topic(topic.name)
        if known is not None and partition not in known.lanes:
            partition = None  # added after the last metadata of this producer
        # Every value is unique: it contains the producer's name and the record's number.
        value = self._next_value(topic)

        def sent(tp: TopicPartition) -> Sent:
            return self._note_sent(topic, tp, value)

        return self.producer.accept_record(topic.name, partition, value, sent)

    def _next_value(self, topic: Topic) -> bytes:
        head = f"{self.name} {self._count + 1} {topic.name} ".encode()
        size = self.random.between(0, 120) if self.random.chance(0.98) else self.random.between(800, LARGE_MAX)
        return head + (b"%d." % self._count * (size // 2 + 1))[:size]

    def _note_sent(self, topic: Topic, tp: TopicPartition, value: bytes) -> Sent:
        """Note a record that the producer has accepted."""
        self._count += 1
        topic.partitions = max(topic.partitions, tp.partition + 1)
        log, now_ns = topic.partition_log(tp.partition), self.producer.timeline.now_ns
        write = Write(self.name, log, [value], self._acks, invoked_ns=now_ns)
        sent = Sent(self._count, write, self._promise, self.calm)
        self.history.writes.append(write)
        self.history.sent.append(sent)
        return sent
