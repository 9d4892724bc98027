"""What requests of few and of many partitions need before they read: sessions, and the state of replicas.

Zone: deterministic.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.replication.fetch.fetch_session import END, MARK, NO_SESSION, FetchSessions
from ottla.replication.fetch.pending_fetch import NO_REPLICA, PendingFetch
from ottla.replication.fetch.replica_selector import ReplicaSelector
from ottla.replication.leaders import Leaders
from ottla.replication.partition.replica_state import NEVER
from ottla.replication.partition_registry import PartitionRegistry
from ottla.requests import RightsOf, all_rights
from ottla.seams import Peer
from ottla.wire.hot import FetchRequest


class FetchSetup:
    """The readers of this broker's partitions."""

    def __init__(
        self,
        hosted: PartitionRegistry,
        sessions: FetchSessions,
        leaders: Leaders,
        selector: ReplicaSelector | None,
        is_broker: Callable[[Peer], bool],
        rights_of: RightsOf = all_rights,
    ) -> None:
        """`is_broker`: whether the other end may fetch as a replica. `selector`: of consumers' replicas. `rights_of`:
        what a consumer may do."""
        self.rights_of = rights_of
        self.hosted = hosted
        self.sessions = sessions
        self.leaders = leaders
        self.selector = selector
        self.is_broker = is_broker
        self._sessionless: dict[Peer, tuple[int, int]] = {}
        """Replicas that have fetched without a session: broker id, and time of the latest fetch."""

    def set_up_replica(self, pending: PendingFetch, request: FetchRequest) -> None:
        """Let a request read as a replica, and take the position of its session."""
        pending.replica_id = request.replica_id
        pending.replica_epoch = request.replica_epoch
        pending.committed = False
        # If consumers read from followers, followers must learn of a new high watermark without waiting for a record.
        session = pending.session
        session.waits_for = END if self.selector is None else END | MARK
        if session.session_id == NO_SESSION:  # then only its connection connects it with the request before
            before, used_ns = self._sessionless.get(pending.slot.peer, (NO_REPLICA, NEVER))
            session.previous_ns = used_ns if before == request.replica_id else NEVER
            self._sessionless[pending.slot.peer] = request.replica_id, session.used_ns
        session.note_broker_epoch(request.replica_epoch)
        # A follower whose high watermark is below its own end learns of a commit by its next fetch, though no record is
        # new.
        session.dirty.update(session.awaits_commit)
        session.awaits_commit.clear()

    def on_gone(self, peer: Peer) -> None:
        """Forget a connection that has ended."""
        self._sessionless.pop(peer, None)
