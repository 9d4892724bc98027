"""What the partitions of one broker share: their settings, whom they tell, and their counts.

Zone: deterministic. One object per broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.replication.safeguards import ReplicationSafeguards

_NS_PER_MS: Final = 1_000_000


class PartitionContext:
    """What all partitions of one broker share."""

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
        "safeguards",
        "verifies",
    )

    def __init__(
        self,
        check: Callable[[object], object] | None = None,
        lag_ms: int = 30_000,
        safeguards: ReplicationSafeguards | None = None,
    ) -> None:
        """`check` is called with a partition: an event, for whoever waits for it in the purgatory.

        `lag_ms` is replica.lag.time.max.ms.
        """
        self.check = check or _do_nothing
        self.on_cut: Callable[[object], object] = _do_nothing
        """Told, at once, of a partition whose log was cut or begins anew."""
        self.on_role: Callable[[object], object] = _do_nothing
        """Told of a partition whose leader or leader epoch has changed, or that is out of service."""
        self.on_marker: Callable[[object, int, int, bool, int], object] = _unmarked
        """Told of a transaction's end that a leader here has appended: partition, producer id, producer epoch, whether
        it commits, offset. At once, for whatever is appended next comes after it."""
        self.lag_ns = lag_ms * _NS_PER_MS
        self.safeguards = safeguards or ReplicationSafeguards()
        self.verifies = False
        """Whether leaders here take only transactions that their coordinators know of; see `verification`."""
        self.isr_shrinks = 0
        """Members that left an ISR, as the controller has confirmed; the other counts likewise."""
        self.isr_expands = 0
        self.failed_isr_updates = 0
        self.replication_bytes_in = 0
        """Bytes that followers here appended."""
        self.replication_bytes_out = 0
        """Bytes given to followers of leaders here."""


def _do_nothing(_: object) -> None:
    """Nobody waits."""


def _unmarked(_partition: object, _producer_id: int, _epoch: int, _commit: bool, _offset: int) -> None:
    """Nobody coordinates."""
