"""The accepted records of a producer that are not delivered: a queue of batches per partition, in `buffer.memory`.

Zone: pure. Puts records into batches, finds the batches that are due, and fills requests; time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ottla.client.errors import UsageError
from ottla.client.producer.batch import ProducerBatch
from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.partition_queue import PartitionQueue, ProducerId
from ottla.record.batch import HEADER_SIZE, Headers
from ottla.types import TopicPartition

NEVER = float("inf")
_new = tuple.__new__  # three times as fast as Due(…)


class Due(NamedTuple):
    """The batches that could be sent now."""

    nodes: set[int]
    """Leaders with a batch that is due."""
    leaderless: set[str]
    """Topics with a due batch of a partition without a known leader."""
    wake_at: float
    """When the next batch becomes due; NEVER if there is none."""


class RecordAccumulator:
    """The unfinished batches of all partitions."""

    __slots__ = (
        "_codec",
        "_level",
        "_linger",
        "_most",
        "_patience",
        "_request_size",
        "_room",
        "flushes",
        "hurried",
        "incomplete",
        "lanes",
        "limit",
        "memory_waiters",
        "news",
        "used",
        "waiting",
    )

    def __init__(self, config: ProducerConfig) -> None:
        self._room = min(config.client.batch_size, config.client.max_request_size)
        self._linger = config.linger_ms / 1000
        self._patience = config.client.delivery_timeout_ms / 1000
        self._request_size = config.client.max_request_size
        self._most = config.max_in_flight_requests_per_connection
        self._codec = config.codec
        self._level = config.level
        self.lanes: dict[TopicPartition, PartitionQueue] = {}
        self.waiting: dict[PartitionQueue, None] = {}
        """Partition queues with a batch to send; the one that sent last comes last."""
        self.incomplete: dict[ProducerBatch, None] = {}
        """All unfinished batches, oldest first."""
        self.limit = config.buffer_memory
        self.used = 0
        """Bytes of `buffer.memory` in use."""
        self.memory_waiters = 0
        """Number of callers that wait for memory."""
        self.flushes = 0
        """Number of callers that wait until everything is sent."""
        self.hurried = False
        """Send without waiting for `linger.ms`: the producer closes, or a transaction ends."""
        self.news = False
        """Whether the sender must look for due batches; the sender resets it."""

    def queue_for(self, tp: TopicPartition, *, numbered: bool) -> PartitionQueue:
        """The queue of a partition, created at first use."""
        found = self.lanes.get(tp)
        if found is None:
            found = self.lanes[tp] = PartitionQueue(tp, numbered=numbered, most=self._most)
        return found

    def append(
        self, lane: PartitionQueue, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers, now: float
    ) -> ProducerBatch | None:
        """Append a record; returns its batch, as whose last record it was added, or None if `buffer.memory` is full.

        Raises UsageError for a record larger than `max.request.size` or `buffer.memory`, and for one that is not bytes.
        """
        queue = lane.queue
        if queue:
            batch = queue[-1]
            if batch.append(timestamp, key, value, headers):
                return batch
            self.news = True  # the batch is full, so it is due
        return self._begin_batch(lane, timestamp, key, value, headers, now)

    def _begin_batch(
        self, lane: PartitionQueue, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers, now: float
    ) -> ProducerBatch | None:
        batch = ProducerBatch(lane.tp, self._room, timestamp, now, now + self._patience)
        batch.append(timestamp, key, value, headers)
        own = len(batch.buffer)
        if own > min(self._room, self.limit):
            self._check_size(own - HEADER_SIZE, lane.tp)
        # As in Java, an open batch counts with its full room: the records that fill it need no further check.
        size = max(self._room, own)
        # If nothing else is in memory, the batch is accepted: no release could make more room.
        if self.used + size > self.limit and self.used:
            return None
        self._enqueue_batch(lane, batch, size)
        return batch

    def append_whole(self, lane: PartitionQueue, batch: ProducerBatch, now: float) -> bool:
        """Append a complete batch; False if `buffer.memory` has no room for it now."""
        if self.used + batch.size > self.limit and self.used:
            return False
        batch.created, batch.expires = now, now + self._patience
        batch.seal_batch(self._codec, self._level)
        self._enqueue_batch(lane, batch, batch.size)
        return True

    def _enqueue_batch(self, lane: PartitionQueue, batch: ProducerBatch, size: int) -> None:
        batch.reserved = size
        self.used += size
        lane.queue.append(batch)
        self.waiting.setdefault(lane)
        self.incomplete[batch] = None
        self.news = True

    def _check_size(self, size: int, tp: TopicPartition) -> None:
        for key, limit in (("max.request.size", self._request_size), ("buffer.memory", self.limit)):
            if size > limit:
                raise UsageError(
                    f"a record of {size} bytes for {tp} is larger than {key}",
                    f"Send smaller records, or raise {key} (now {limit})",
                )

    def due_batches(
        self, now: float, leader_of: Callable[[TopicPartition], int | None], identity: ProducerId | None
    ) -> Due:
        """The batches that could be sent at `now`. leader_of: returns a node id, or None if it is not known."""
        nodes: set[int] = set()
        leaderless: set[str] = set()
        wake_at = NEVER
        for lane in self.waiting:
            at = self._due_at(lane)
            if at > now:
                wake_at = min(wake_at, at)
            elif (leader := leader_of(lane.tp)) is None:
                leaderless.add(lane.tp.topic)
            elif lane.may_send(identity):
                nodes.add(leader)
        return _new(Due, (nodes, leaderless, wake_at))

    def _due_at(self, lane: PartitionQueue) -> float:
        batch = lane.queue[0]
        # 1. A retry waits for its backoff. 2. A full batch is due at once; so is any batch while a caller waits for
        # it (close, flush, memory). 3. Else it lingers.
        if batch.attempts:
            return batch.retry_at
        # A second batch in the queue means that the first one is full, because records go to the last one only.
        full = not self._linger or batch.sealed or len(lane.queue) > 1 or len(batch.buffer) >= self._room
        if full or self.hurried or self.flushes or self.memory_waiters:
            return batch.created
        return batch.created + self._linger

    def drain_node(
        self, now: float, node: int, leader_of: Callable[[TopicPartition], int | None], identity: ProducerId | None
    ) -> list[ProducerBatch]:
        """The batches of one request to `node`: the first of each of its partitions, up to `max.request.size`.

        Empty if none of them is due. A request with a due batch also takes lingering ones. Partitions that have waited
        longest come first.
        """
        taken: list[PartitionQueue] = []
        is_due = False
        size = 0
        for lane in self.waiting:
            first = lane.queue[0]
            if leader_of(lane.tp) != node or not lane.may_send(identity) or (first.attempts and first.retry_at > now):
                continue
            size += len(first.buffer)
            # The first batch is always taken, also if it exceeds the limit alone.
            if taken and size > self._request_size:
                break
            taken.append(lane)
            is_due = is_due or self._due_at(lane) <= now
        return [self._take_batch(lane, identity) for lane in taken] if is_due else []

    def _take_batch(self, lane: PartitionQueue, identity: ProducerId | None) -> ProducerBatch:
        first = lane.queue[0]
        if not first.sealed:
            # Only the first attempt counts for the sticky partition: a retry brings the partition no new records.
            lane.sent += len(first.buffer)
            self._seal_batch(first)
        lane.take_batch(identity)
        # Removed and added again, so that the partitions take turns when a request cannot hold all of them.
        del self.waiting[lane]
        if lane.queue:
            self.waiting[lane] = None  # now the last one
        return first

    def _seal_batch(self, batch: ProducerBatch) -> None:
        """Seal an open batch, and free the memory that it reserved and does not need."""
        batch.seal_batch(self._codec, self._level)
        size = len(batch.buffer)
        if batch.reserved > size:
            self.used -= batch.reserved - size
            batch.reserved = size

    def update_readiness(self, lane: PartitionQueue) -> None:
        """Update whether `lane` has a batch to send."""
        if lane.queue:
            self.waiting.setdefault(lane)
        else:
            self.waiting.pop(lane, None)

    def split_batch(self, batch: ProducerBatch) -> None:
        """Replace `batch` with its halves."""
        lane = self.lanes[batch.tp]
        parts = batch.split_batch()
        lane.replace_batch(batch, parts)
        for part in parts:
            self._seal_part(part)
        # The halves keep the age of the whole batch, and so its place: only the first batch is checked for expiry.
        older = list(self.incomplete)
        at = older.index(batch)
        self.incomplete = dict.fromkeys([*older[:at], *parts, *older[at:]])
        self.release_batch(batch)
        batch.buffer = bytearray()
        self.update_readiness(lane)

    def _seal_part(self, part: ProducerBatch) -> None:
        part.seal_batch(self._codec, self._level)
        # The halves may take more than the whole. The sender must not wait for memory, which only it can free.
        part.reserved = part.size
        self.used += part.size

    def release_batch(self, batch: ProducerBatch) -> None:
        """Free the memory of a batch that is done."""
        self.incomplete.pop(batch, None)
        self.used -= batch.reserved
        batch.reserved = 0
