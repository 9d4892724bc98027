"""A producer's metadata of topics: leaders, the time of the next refresh, and the sticky partition.

Zone: pure. Metadata answers come in as views, time as an argument; the sender sends the requests.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.client.backoff import backoff_ms
from ottla.client.errors import ClientError, RefusedError
from ottla.client.metadata import EMPTY, NO_LEADER, ClusterView, TopicView
from ottla.client.producer.accumulator import NEVER, RecordAccumulator
from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.partition_queue import PartitionQueue
from ottla.client.producer.partitioning import choose_sticky
from ottla.errors import ErrorCode
from ottla.types import TopicPartition


class ProducedTopic:
    """A topic that the producer writes to."""

    __slots__ = ("given", "lanes", "led", "name", "sticky", "used_at", "view")

    def __init__(self, name: str, view: TopicView) -> None:
        self.name = name
        self.view = view
        self.lanes: dict[int, PartitionQueue] = {}
        self.led: list[int] = []
        """Partitions with a leader, ascending."""
        self.sticky: PartitionQueue | None = None
        """The sticky partition for records without a key."""
        self.given = 0
        """The bytes that its queue had sent when it was chosen."""
        self.used_at = 0.0


class ProducerMetadata:
    """The topics, and the times of metadata requests."""

    __slots__ = (
        "_adaptive",
        "_age",
        "_answered_at",
        "_attempts",
        "_backoff",
        "_draw",
        "_idle",
        "_not_before",
        "_refresh_at",
        "_topics",
        "is_requesting",
        "refused",
        "view",
        "wanted",
    )

    def __init__(self, config: ProducerConfig, draw: Callable[[], float]) -> None:
        """draw: returns a random number in [0, 1)."""
        self._draw = draw
        self._adaptive = config.partitioner_adaptive_partitioning_enable
        self._age = config.client.metadata_max_age_ms / 1000
        self._idle = config.metadata_max_idle_ms / 1000
        self._backoff = (config.client.retry_backoff_ms, config.client.retry_backoff_max_ms)
        self._attempts = 0
        self._answered_at = 0.0
        self._not_before = 0.0
        self._refresh_at = NEVER
        self._topics: dict[str, ProducedTopic] = {}
        self.is_requesting = False
        """Whether a request is unanswered."""
        self.view: ClusterView = EMPTY
        self.wanted: dict[str, float] = {}
        """Topics that callers or batches wait for, and since when."""
        self.refused: dict[str, ClientError] = {}
        """Topics that the last answer refused, with their errors."""

    def known_topic(self, name: str) -> ProducedTopic | None:
        """The topic, if its metadata is known. Hot."""
        return self._topics.get(name)

    def request_topic(self, name: str, now: float) -> None:
        """Request a topic's metadata with the next question."""
        if name not in self.wanted:
            self.refused.pop(name, None)
            self.wanted[name] = now

    def mark_stale(self) -> None:
        """The metadata is out of date: refresh it, but not before the backoff after the last answer."""
        # From the last answer, not from now: many errors at once then cause one request.
        self._refresh_at = min(self._refresh_at, self._answered_at + self._backoff[0] / 1000)

    def leader_of(self, tp: TopicPartition) -> int | None:
        """The node id of the leader, None if no leader is known."""
        topic = self._topics.get(tp.topic)
        part = topic.view.partitions.get(tp.partition) if topic is not None else None
        return part.leader if part is not None and part.leader in self.view.nodes else None

    def topics_to_request(self, now: float) -> list[str] | None:
        """The topics to request now; None: not now. The caller reports the result with `on_metadata` or
        `on_metadata_failure`."""
        if self.next_request_at() > now:
            return None
        if self._refresh_at <= now:
            self._drop_idle(now)
        self.is_requesting = True
        return sorted({*self._topics, *self.wanted})

    def next_request_at(self) -> float:
        """When the next request is due."""
        if self.is_requesting:
            return NEVER
        return max(self._not_before, 0.0 if self.wanted else self._refresh_at)

    def on_metadata(self, now: float, newer: ClusterView, accumulator: RecordAccumulator, *, numbered: bool) -> None:
        """Use the metadata of an answer."""
        self.is_requesting = False
        self._answered_at = now
        self.view = self.view.merge(newer)
        complete = True
        for name, found in newer.topics.items():
            if isinstance(found, RefusedError):
                complete = self._note_refusal(name, found) and complete
            else:
                self._update_topic(name, found, now, accumulator, numbered=numbered)
                complete = all(part.leader != NO_LEADER for part in found.partitions.values()) and complete
        # An incomplete answer is not requested again before the backoff: the cluster needs time.
        self._attempts = 0 if complete else self._attempts + 1
        self._not_before = now if complete else now + self._backoff_s(self._attempts)
        self._refresh_at = now + self._age if complete else self._not_before

    def on_metadata_failure(self, now: float) -> None:
        """The request had no answer."""
        self.is_requesting = False
        self._attempts += 1
        self._not_before = now + self._backoff_s(self._attempts)
        self._refresh_at = min(self._refresh_at, self._not_before)

    def _backoff_s(self, attempt: int) -> float:
        return backoff_ms(*self._backoff, max(0, attempt - 1), self._draw()) / 1000

    def _note_refusal(self, name: str, error: RefusedError) -> bool:
        """Note the error of a topic; returns whether another request need not follow soon."""
        self.refused[name] = error
        # 1. Retriable: request it again soon only if it is wanted or known. 2. No permission: keep what is known of
        # the topic. 3. Any other error: forget the topic.
        if error.retriable:
            return name not in self.wanted and name not in self._topics
        self.wanted.pop(name, None)
        if error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            self._topics.pop(name, None)
        return True

    def _update_topic(
        self, name: str, view: TopicView, now: float, accumulator: RecordAccumulator, *, numbered: bool
    ) -> None:
        self.refused.pop(name, None)
        self.wanted.pop(name, None)
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = ProducedTopic(name, view)
            topic.used_at = now
        topic.view = view
        topic.led = [number for number, part in view.partitions.items() if part.leader != NO_LEADER]
        for number in view.partitions:
            if number not in topic.lanes:
                topic.lanes[number] = accumulator.queue_for(TopicPartition(name, number), numbered=numbered)
        # Records without a key can go anywhere, so they need not wait for a partition's next leader.
        if topic.sticky is not None and topic.sticky.tp.partition not in topic.led:
            topic.sticky = None

    def _drop_idle(self, now: float) -> None:
        """Forget topics that were not written to for `metadata.max.idle.ms`."""
        for name, topic in list(self._topics.items()):
            busy = any(lane.queue or lane.in_flight for lane in topic.lanes.values())
            if not busy and now - topic.used_at > self._idle:
                del self._topics[name]

    def next_sticky_queue(self, topic: ProducedTopic, below: Callable[[int], int]) -> PartitionQueue:
        """Choose the next sticky partition."""
        # Partitions without a leader get records only if no partition has one.
        among = topic.led or list(topic.view.partitions)
        queued = [len(topic.lanes[number].queue) for number in among] if self._adaptive else None
        topic.sticky = topic.lanes[choose_sticky(among, queued, below)]
        topic.given = topic.sticky.sent
        return topic.sticky
