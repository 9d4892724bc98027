"""Replication throttles (KIP-73): limits the rate of replicas that catch up, separately for leaders and followers.

Zone: deterministic. Knows the throttled partitions, the recent rate, and whether it is too high. Replicas in sync are
never throttled; callers check that, because they know the ISR or the lag.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from ottla.types import TopicPartition

UNLIMITED: Final = 2**63 - 1
_NS_PER_SECOND: Final = 1_000_000_000
_ALL: Final = "*"


class RecentBytes:
    """Bytes per second over a sliding window of samples (Kafka's SimpleRate)."""

    __slots__ = ("_samples", "_span_ns", "_total", "_window_ns")

    def __init__(self, samples: int, sample_seconds: int) -> None:
        self._window_ns = sample_seconds * _NS_PER_SECOND
        self._span_ns = samples * self._window_ns
        self._samples: deque[list[int]] = deque()
        """[begin in ns, bytes], oldest first."""
        self._total = 0

    def record_bytes(self, size: int, now_ns: int) -> None:
        """Count `size` bytes at this time."""
        self._drop_old_samples(now_ns)
        if not self._samples or now_ns - self._samples[-1][0] >= self._window_ns:
            self._samples.append([now_ns, 0])
        self._samples[-1][1] += size
        self._total += size

    def per_second(self, now_ns: int) -> float:
        """Bytes per second since the oldest sample, averaged over at least the time of one sample."""
        self._drop_old_samples(now_ns)
        if not self._samples:
            return 0.0
        # At least one window, as in Kafka's SimpleRate: the first bytes after a pause, divided by a few milliseconds,
        # would look like a rate far above the limit.
        elapsed = max(now_ns - self._samples[0][0], self._window_ns)
        return self._total * _NS_PER_SECOND / elapsed

    def _drop_old_samples(self, now_ns: int) -> None:
        samples = self._samples
        while samples and now_ns - samples[0][0] >= self._span_ns:
            self._total -= samples.popleft()[1]


class Throttle:
    """One direction: what leaders send to throttled replicas, or what throttled replicas fetch."""

    __slots__ = ("_node_id", "_rate", "_recent", "_topics")

    def __init__(self, node_id: int, samples: int, sample_seconds: int) -> None:
        """The rate is that of `samples` of `sample_seconds` each (replication.quota.window.num, ….size.seconds)."""
        self._node_id = node_id
        self._rate = UNLIMITED
        self._recent = RecentBytes(samples, sample_seconds)
        self._topics: dict[str, frozenset[int] | None] = {}
        """Topic → its throttled partitions, None for all."""

    def set_rate(self, bytes_per_second: int) -> None:
        """Set the rate ({leader,follower}.replication.throttled.rate)."""
        self._rate = bytes_per_second

    def mark_topic(self, topic: str, replicas: Iterable[str]) -> None:
        """Set a topic's {leader,follower}.replication.throttled.replicas: `partition:broker` entries, or `*`."""
        entries = [entry.partition(":") for entry in replicas]
        if any(entry[0] == _ALL for entry in entries):
            self._topics[topic] = None
            return
        mine = frozenset(int(index) for index, _, broker in entries if int(broker) == self._node_id)
        if mine:
            self._topics[topic] = mine
        else:
            self._topics.pop(topic, None)

    def forget_topic(self, topic: str) -> None:
        """Forget a topic that was deleted."""
        self._topics.pop(topic, None)

    def applies_to(self, tp: TopicPartition) -> bool:
        """Whether this partition is throttled here."""
        if tp.topic not in self._topics:
            return False
        partitions = self._topics[tp.topic]
        return partitions is None or tp.partition in partitions

    def record_bytes(self, size: int, now_ns: int) -> None:
        """Count `size` bytes of throttled partitions."""
        self._recent.record_bytes(size, now_ns)

    def is_exceeded(self, now_ns: int) -> bool:
        """Whether throttled partitions have to wait."""
        return self._rate < UNLIMITED and self._recent.per_second(now_ns) > self._rate

    @property
    def is_idle(self) -> bool:
        """Whether no partition is throttled: the usual case, checked first on the hot path."""
        return not self._topics


class Throttles:
    """Both directions of one broker."""

    __slots__ = ("follower", "leader")

    def __init__(self, node_id: int, samples: int, sample_seconds: int) -> None:
        self.leader = Throttle(node_id, samples, sample_seconds)
        self.follower = Throttle(node_id, samples, sample_seconds)

    def set_rates(self, leader_rate: int, follower_rate: int) -> None:
        """Set the broker's rates, in bytes per second."""
        self.leader.set_rate(leader_rate)
        self.follower.set_rate(follower_rate)

    def mark_topic(self, topic: str, leader_replicas: Iterable[str], follower_replicas: Iterable[str]) -> None:
        """Set a topic's throttled replicas."""
        self.leader.mark_topic(topic, leader_replicas)
        self.follower.mark_topic(topic, follower_replicas)

    def forget_topic(self, topic: str) -> None:
        """Forget a topic that was deleted."""
        self.leader.forget_topic(topic)
        self.follower.forget_topic(topic)
