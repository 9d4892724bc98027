"""One Fetch request that reads, and waits in the purgatory if it has not read enough.

Zone: deterministic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from ottla.purgatory.purgatory import DelayedOperation
from ottla.replication.fetch.fetch_session import FetchPartition, FetchSession
from ottla.replication.partition.partition import Partition
from ottla.requests import Rights
from ottla.seams import Slot
from ottla.types import NO_EPOCH
from ottla.wire.many_partitions import FetchPieces

NO_REPLICA: Final = -1
DEBUGGING_CONSUMER: Final = -2
"""The replica id of a consumer that compares replicas. As with Kafka's brokers before 2.4, it reads any of them in
versions before FOLLOWER_VERSION as well."""
FOLLOWER_VERSION: Final = 11
"""From this version on consumers may read from a follower."""


class FetchCompleting(Protocol):
    """Reads for pending fetches, and ends them."""

    def read_dirty(self, pending: PendingFetch) -> bool:
        """Read the partitions that may have news. Returns whether the response can be sent now."""
        ...

    def later(self, action: Callable[[], None]) -> None:
        """Call an action at the end of this turn."""
        ...

    def send_response(self, pending: PendingFetch) -> None:
        """Send the rows that were read."""
        ...

    def fail_request(self, pending: PendingFetch, error: Exception) -> None:
        """End a request after a defect. Raises HalfChanged."""
        ...


class PendingFetch(DelayedOperation):
    """One Fetch request, from its first read to its response."""

    __slots__ = (
        "_completion",
        "bytes_read",
        "cold",
        "committed",
        "correlation_id",
        "full",
        "max_bytes",
        "min_bytes",
        "overdue",
        "partial",
        "rack",
        "reads_followers",
        "replica_epoch",
        "replica_id",
        "rights",
        "scheduled",
        "session",
        "settled",
        "slot",
        "touched",
        "unknown",
        "version",
    )

    def __init__(
        self,
        completion: FetchCompleting,
        slot: Slot,
        version: int,
        correlation_id: int,
        session: FetchSession,
        full: bool,
    ) -> None:
        self.bucket = None  # as the constructors of the base classes do; inlined to save two calls per fetch
        self.deadline_ms = 0
        self.completed = False
        self._completion = completion
        self.slot = slot
        self.version = version
        self.correlation_id = correlation_id
        self.session = session
        self.full = full
        self.committed = False
        self.replica_id = NO_REPLICA
        self.replica_epoch = NO_EPOCH
        self.reads_followers = version >= FOLLOWER_VERSION
        """Whether the consumer may read from a replica that does not lead."""
        self.rights: Rights | None = None
        """What the consumer may read; None: everything."""
        self.rack = ""
        """The consumer's rack; empty if it reads from the leader in any case."""
        self.min_bytes = 0
        self.max_bytes = 0
        self.bytes_read = 0
        self.cold = 0
        """Partitions whose bytes are being brought into memory."""
        self.partial: list[tuple[FetchPartition, Partition]] = []
        """Partitions with records that may grow: watched if the request has to wait for more."""
        self.touched: dict[FetchPartition, None] = {}
        self.unknown: FetchPieces | None = None
        """Of a large request: the encoded response for partitions that are not here."""
        self.settled = False
        self.scheduled = False
        self.overdue = False

    def try_complete(self) -> bool:
        """Case A: enough bytes. Case B: an error, or bytes of a segment that cannot grow any more. Case C: overdue, and
        only waited for cold bytes. Otherwise the request continues to wait."""
        # Set before the reading: a partition that changes while it is read schedules one more look.
        self.scheduled = False
        if not self.completed and (self._completion.read_dirty(self) or (self.overdue and not self.cold)):
            return self.force_complete()
        return self.completed

    def expire(self) -> None:
        """Complete at the time-out, unless cold bytes are being read into memory: then as soon as they are there."""
        self.overdue = True
        if not self.cold:
            super().expire()

    def wake(self) -> None:
        """Look again at the end of this turn, because a partition has changed."""
        # However many partitions change in a turn, the request is looked at once: at the end of it.
        if not self.scheduled:
            self.scheduled = True
            self._completion.later(self._look_again)

    def _look_again(self) -> None:
        try:
            self.try_complete()
        except Exception as error:  # noqa: BLE001  # reading changes nothing, and the session goes
            self._completion.fail_request(self, error)

    def on_warmed(self) -> None:
        """Note that cold bytes of a partition are in memory now."""
        self.cold -= 1
        self.wake()

    def on_complete(self) -> None:
        self.session.on_dirty = None
        try:
            self._completion.send_response(self)
        except Exception as error:  # noqa: BLE001  # an answer changes nothing but the session, which goes
            self._completion.fail_request(self, error)

    def abandon_request(self) -> None:
        """End without a response: the connection has ended."""
        super().abandon_request()
        self.session.on_dirty = None
        # A session that lives on keeps its partitions for the next request, which may come by another connection.
        if not self.session.session_id or self.session.closed:
            self.session.release_partitions()
