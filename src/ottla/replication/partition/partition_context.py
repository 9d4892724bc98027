"""Settings, event callbacks and counters that the partitions of one broker share.

Zone: deterministic. One object per broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

_NS_PER_MS: Final = 1_000_000


class PartitionEvents(NamedTuple):
    """Receivers of events of partitions. Each is called at once, with a `Partition`, whose module imports this one."""

    on_change: Callable[[Any], object]
    """Called after a change for which delayed operations may wait."""
    on_cut: Callable[[Any], object]
    """Called after the log was truncated or restarted."""
    on_role: Callable[[Any], object]
    """Called when the leader or the leader epoch has changed, or the partition is out of service."""
    on_marker: Callable[[Any, int, int, bool, int], object]
    """Called after a leader here has appended a marker, before anything else can be appended: partition, producer id,
    producer epoch, whether it commits, offset."""


class PartitionContext:
    """Shared by all partitions of one broker."""

    __slots__ = (
        "check",
        "failed_isr_updates",
        "isr_expands",
        "isr_shrinks",
        "lag_ns",
        "on_cut",
        "on_marker",
        "on_role",
        "replication_bytes_in",
        "replication_bytes_out",
        "verifies",
    )

    def __init__(self, events: PartitionEvents, lag_ms: int = 30_000) -> None:
        """`lag_ms` is replica.lag.time.max.ms."""
        # Each event is an attribute of its own, because they are on the path of Produce.
        self.check, self.on_cut, self.on_role, self.on_marker = events
        self.lag_ns = lag_ms * _NS_PER_MS
        self.verifies = False
        """Whether leaders here open transactions only after verification (see `verification`)."""
        self.isr_shrinks = 0
        """Changes that the controller has confirmed; likewise `isr_expands`."""
        self.isr_expands = 0
        self.failed_isr_updates = 0
        self.replication_bytes_in = 0
        """Bytes that followers here appended."""
        self.replication_bytes_out = 0
        """Bytes that leaders here sent to followers."""
