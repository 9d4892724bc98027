"""Retries that keep the order of each key: while a record waits, later records with its key wait as well.

Zone: real. Blocks the key, never the partition. Waiting records are in the logs; memory has an index of them. `restore`
builds it from the retry topics, according to the mover's positions, and then from the topic itself after the group's
position, where forwarded records are that were not handled yet. In this order, a record that is forwarded meanwhile is
seen twice and never missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from ottla.client.consumer import Consumer
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.errors import RefusedError
from ottla.client.producer import Producer
from ottla.errors import ErrorCode
from ottla.retry.dead_letters import DeadLetters
from ottla.retry.headers import SPRING, Names, Origin, Trail, read_trail, with_trail
from ottla.retry.policy import Dead, Later, RetryPolicy, retry_topic
from ottla.retry.retrier import Retrier
from ottla.types import TopicPartition

# Waiting records by key, and so which record must not be handled before which. A record is identified by its first
# topic, partition and offset, also after it went through other topics.


class Identity(NamedTuple):
    """The first topic, partition and offset of a record, and its key."""

    tp: TopicPartition
    offset: int
    key: bytes


def identify_record(record: ConsumerRecord, trail: Trail) -> Identity | None:
    """The identity of a record; None without a key or a known origin: such a record has no order."""
    if record.key is None:
        return None
    origin = trail.origin
    if origin is None:
        return Identity(TopicPartition(record.topic, record.partition), record.offset, record.key)
    if origin.partition < 0 or origin.offset < 0:
        return None
    return Identity(TopicPartition(origin.topic, origin.partition), origin.offset, record.key)


class KeyOrder:
    """Waiting records by key; uses no memory for keys without any."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, dict[bytes, dict[int, int]]] = {}
        """Origin → key → offset → when it is due (milliseconds since 1970)."""

    def __len__(self) -> int:
        return sum(len(each) for keys in self._waiting.values() for each in keys.values())

    def blocked_until_ms(self, who: Identity) -> int | None:
        """When the last earlier record of its key is due; None: there is none, and it may be handled."""
        waiting = self._waiting.get(who.tp, {}).get(who.key, {})
        return max((due for offset, due in waiting.items() if offset < who.offset), default=None)

    def add_waiting(self, who: Identity, due_ms: int) -> None:
        """Add a record that waits at least until `due_ms`."""
        self._waiting.setdefault(who.tp, {}).setdefault(who.key, {})[who.offset] = due_ms

    def on_settled(self, who: Identity) -> None:
        """Remove a record that was handled, or became a dead letter."""
        keys = self._waiting.get(who.tp, {})
        waiting = keys.get(who.key)
        if waiting is not None:
            waiting.pop(who.offset, None)
            if not waiting:
                del keys[who.key]

    def forget_partition(self, tp: TopicPartition) -> None:
        """Remove all records of a partition that was revoked."""
        self._waiting.pop(tp, None)


_KINDS: Final = ("CreateTime", "LogAppendTime")


class OrderedRetrier:
    """Handles records one by one, those of a key in the order in which they were written first.

    retrier = OrderedRetrier(producer, policy, broker, group="billing")
    consumer.subscribe(["orders"], on_assigned=retrier.restore, on_revoked=retrier.forget)
    while True:
        for record in consumer.poll(1.0):
            retrier.handle(record, work)
        consumer.commit()

    Order holds as long as the keys' partitions do. When a transaction was aborted, call `restore` for what is assigned.
    """

    def __init__(
        self,
        producer: Producer,
        policy: RetryPolicy,
        settings: Mapping[str, str | int | bool],
        *,
        group: str,
        mover_group: str = "ottla-retry",
        names: Names = SPRING,
        create: bool = True,
    ) -> None:
        """settings: of all clients, by Kafka's keys; used to read waiting records. group: the consumer group, whose
        offsets record what was handled. mover_group: the group of the retry service. The rest as of `Retrier`."""
        self._producer = producer
        self._policy = policy
        self._settings = dict(settings)
        self._group = group
        self._mover_group = mover_group
        self._names = names
        self._retrier = Retrier(producer, policy, group=group, names=names, create=create)
        self._order = KeyOrder()

    @property
    def waiting(self) -> int:
        """The number of waiting records of the restored partitions."""
        return len(self._order)

    def handle(self, record: ConsumerRecord, work: Callable[[ConsumerRecord], object]) -> Later | Dead | None:
        """Call `work` if no earlier record of the key waits; if it fails, or one waits, write it to a retry topic.

        None: it was handled. Raises ClientError when it could not be written to the retry topic; then nothing changes.
        """
        # 1. An earlier record of the key waits: wait until after it. 2. It fails: the policy decides; it waits, or it
        # becomes a dead letter, which blocks the key no longer. 3. It was handled.
        who = identify_record(record, read_trail(record.headers, self._names))
        due = None if who is None else self._order.blocked_until_ms(who)
        if who is not None and due is not None:
            # One millisecond after the last earlier record: records of a key come due in their order.
            due = max(due, _now_ms()) + 1
            decision: Later | Dead = self._queue_record(record, due)
            self._order.add_waiting(who, due)
            return decision
        try:
            work(record)
        except Exception as error:  # noqa: BLE001 - whatever the application raises: the policy decides
            decision = self._retrier.retry_later(record, error)
            if who is not None and isinstance(decision, Later):
                self._order.add_waiting(who, _now_ms() + decision.delay_ms)
                return decision
            if who is not None:
                self._order.on_settled(who)
            return decision
        if who is not None:
            self._order.on_settled(who)
        return None

    def _queue_record(self, record: ConsumerRecord, due_ms: int) -> Later:
        """Write a record to the retry topic without counting an attempt, because it was not tried."""
        trail = read_trail(record.headers, self._names)
        kind = _KINDS[record.timestamp_type == 1]
        origin = trail.origin or Origin(
            record.topic, record.partition, record.offset, record.timestamp, kind, self._group
        )
        first = max(0, record.timestamp) if trail.first_ms is None else trail.first_ms
        trail = replace(trail, due_ms=due_ms, first_ms=first, origin=origin, passes=trail.attempts - 2)
        topic = retry_topic(origin.topic, 1)
        headers = with_trail(record.headers, trail, self._names)
        sent = self._producer.send(topic, record.value, key=record.key, headers=headers)
        if not self._producer.config.transactional_id:
            sent.result()
        return Later(topic, max(0, due_ms - _now_ms()))

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """For `on_revoked`: drop the index of these partitions."""
        for tp in partitions:
            self._order.forget_partition(tp)

    def restore(self, partitions: Iterable[TopicPartition]) -> None:
        """For `on_assigned`: index the waiting records of these partitions, reading all of them. Raises ClientError."""
        wanted = set(partitions)
        self.forget(wanted)
        if not wanted:
            return
        for record in self._read_retry_topics({tp.topic for tp in wanted}):
            self._index_record(record, wanted)
        for record in self._read_forwarded(wanted):
            self._index_record(record, wanted)

    def _index_record(self, record: ConsumerRecord, wanted: set[TopicPartition]) -> None:
        trail = read_trail(record.headers, self._names)
        who = identify_record(record, trail) if trail.origin is not None else None
        if who is not None and who.tp in wanted:
            self._order.add_waiting(who, trail.due_ms or 0)

    def _read_retry_topics(self, topics: set[str]) -> Iterator[ConsumerRecord]:
        for topic in topics:
            # All but the last, which is the dead-letter topic: a dead letter blocks no key.
            for name in self._policy.topics(topic)[:-1]:
                try:
                    with DeadLetters(self._settings, name, group=self._mover_group, names=self._names) as waiting:
                        for each in waiting.letters():
                            yield each.record
                except RefusedError as error:
                    if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        raise

    def _read_forwarded(self, wanted: set[TopicPartition]) -> Iterator[ConsumerRecord]:
        more: dict[str, str | int | bool] = {
            "group.id": self._group, "enable.auto.commit": False, "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }  # fmt: skip
        with Consumer({**self._settings, **more}) as consumer:
            consumer.assign(wanted)
            ends = consumer.end_offsets(wanted)
            while any(consumer.position(tp) < end for tp, end in ends.items()):
                yield from consumer.poll(1.0)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
