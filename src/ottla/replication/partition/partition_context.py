"""Settings, event callbacks and counters that the partitions of one broker share.

Zone: deterministic. One object per broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_NS_PER_MS: Final = 1_000_000


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

    def __init__(
        self,
        check: Callable[[object], object] | None = None,
        lag_ms: int = 30_000,
    ) -> None:
        """`check` is called with a partition after a change, so that its delayed operations look again.

        `lag_ms` is replica.lag.time.max.ms.
        """
        self.check = check or _do_nothing
        self.on_cut: Callable[[object], object] = _do_nothing
        """Called, at once, with a partition whose log was truncated or restarted."""
        self.on_role: Callable[[object], object] = _do_nothing
        """Called with a partition whose leader or leader epoch has changed, or that is out of service."""
        self.on_marker: Callable[[object, int, int, bool, int], object] = _ignore_marker
        """Called after a leader here has appended a marker: partition, producer id, producer epoch, whether it
        commits, offset. Called at once, before anything else can be appended after the marker."""
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


def _do_nothing(_: object) -> None:
    """Ignore the event: the default of a callback."""


def _ignore_marker(_partition: object, _producer_id: int, _epoch: int, _commit: bool, _offset: int) -> None:
    """Ignore a marker: the default of the callback, without coordinators on this broker."""
