"""Begins pending fetches, and ends them: by their response, by a defect, or with their connection.

Zone: deterministic. Many partitions are read, and answered, in slices: no turn handles more than MANY of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

from ottla.purgatory.purgatory import Purgatory
from ottla.replication.fetch.down_conversion import V2_VERSION, DownConversions
from ottla.replication.fetch.fetch_quota import NO_QUOTA, FetchQuota
from ottla.replication.fetch.fetch_reading import FetchReader
from ottla.replication.fetch.fetch_responses import (
    FetchResponder,
    LeaderHint,
    encode_tail,
    rare_topics,
    rows_to_send,
)
from ottla.replication.fetch.fetch_session import FetchPartition, FetchSessions
from ottla.replication.fetch.pending_fetch import NO_REPLICA, PendingFetch
from ottla.replication.partition_registry import HostedTopic
from ottla.requests import Contain, RunSteps, Steps
from ottla.seams import Gate, Peer, Slot
from ottla.wire.apis import ApiKey
from ottla.wire.codec import encode
from ottla.wire.many_partitions import FetchPieces

SLICE: Final = 500
"""Partitions of a slice."""
MANY: Final = 1_000
"""Most partitions of a session that are read, or answered, in one turn."""
_READ_US: Final = 2_500
_ANSWER_US: Final = 2_500


class FetchCompletion:
    """The fetches that read or wait. Implements `pending_fetch.FetchCompleting`."""

    def __init__(
        self,
        purgatory: Purgatory,
        sessions: FetchSessions,
        reader: FetchReader,
        responder: FetchResponder,
        down_conversions: DownConversions,
        later: Callable[[Callable[[], None]], None],
        contain: Contain,
        run_steps: RunSteps,
        quota: FetchQuota = NO_QUOTA,
    ) -> None:
        """`later`: calls a function at the end of this turn. `contain` handles defects in later turns; `run_steps` runs
        the steps of many partitions."""
        self._purgatory = purgatory
        self._sessions = sessions
        self._reader = reader
        self.read_dirty = reader.read_dirty
        self._responder = responder
        self._down_conversions = down_conversions
        self.later = later
        self._contain = contain
        self._run_steps = run_steps
        self.quota = quota
        self._waiting: dict[Peer, PendingFetch] = {}

    def start_pending(self, pending: PendingFetch, max_wait_ms: int) -> Gate:
        """Read, then respond or wait."""
        if self.quota.is_active:
            self._apply_quota(pending)
        if self.read_dirty(pending):  # it is not in the purgatory yet, so there is nothing to take out of it
            pending.completed = True
            if pending.version >= V2_VERSION:
                return self._send_collected(pending)
            self.send_response(pending)
            return self._down_conversions.gate_of(pending.slot.peer)
        # After the first read, in the same turn: whatever changes later wakes the request, and what was there has been
        # read.
        pending.session.on_dirty = pending.wake
        self._waiting[pending.slot.peer] = pending
        self._purgatory.arm_timer(pending, max(0, max_wait_ms))
        return Gate.NEXT if pending.completed else Gate.WAIT

    def start_many(self, pending: PendingFetch, max_wait_ms: int) -> Gate:
        """Read many partitions slice by slice, then respond or wait."""
        pending.min_bytes = min(pending.min_bytes, 1)
        self.expect_end(pending)
        steps = self.read_many(pending, max_wait_ms)
        return self.run_slices(pending.slot, pending.version, pending.correlation_id, steps)

    def expect_end(self, pending: PendingFetch) -> None:
        """Abandon the request if its connection ends."""
        self._waiting[pending.slot.peer] = pending

    def run_slices(self, slot: Slot, version: int, correlation_id: int, steps: Steps) -> Gate:
        """Run steps in later turns; the connection waits."""
        self._run_steps(slot, ApiKey.FETCH, version, correlation_id, lambda _: steps)
        return Gate.WAIT

    def read_many(self, pending: PendingFetch, max_wait_ms: int) -> Steps:
        """Read every dirty partition, then respond, or wait as any other Fetch."""
        if self.quota.is_active:
            self._apply_quota(pending)
        try:
            dirty = iter(list(pending.session.dirty))
            while chunk := list(islice(dirty, SLICE)):
                self._reader.read_partitions(pending, chunk)
                yield _READ_US
            if pending.unknown is not None:
                pending.settled = True
            if pending.settled or (not pending.cold and pending.bytes_read >= pending.min_bytes):
                pending.completed = True
                self.send_response(pending)
            else:
                self.start_pending(pending, max_wait_ms)
        except Exception as error:  # noqa: BLE001  # reading changes nothing, and the session goes
            self.fail_request(pending, error)
        return None

    def send_response(self, pending: PendingFetch) -> None:
        """Send the collected rows; for old readers, convert them first."""
        self._waiting.pop(pending.slot.peer, None)
        if pending.version < V2_VERSION:
            # These versions have no sessions, so nothing continues this one: its partitions need not watch for changes
            # during the conversion, which may take several turns.
            pending.session.close_session()
            self._down_conversions.start_conversion(
                pending.slot.peer, pending.version, pending.touched, lambda: self._send_collected(pending)
            )
        else:
            self._send_collected(pending)

    def _send_collected(self, pending: PendingFetch) -> Gate:
        """Send the collected rows in their format. A response of many partitions is encoded in later turns."""
        session = pending.session
        if self.quota.is_active and not self._is_admitted(pending):
            return self._send_throttled(pending)
        if pending.unknown is not None or len(session.partitions if pending.full else pending.touched) > MANY:
            return self.run_slices(pending.slot, pending.version, pending.correlation_id, self._answer_many(pending))
        told: list[LeaderHint] = []
        topics, rare = rows_to_send(pending, session.partitions.values() if pending.full else pending.touched, told)
        if not session.session_id or session.closed:
            session.release_partitions()
        if rare:
            self._responder.send_rare(pending, told)
        else:
            self._responder.send_rows(
                pending.slot, pending.version, pending.correlation_id, topics, 0, session.session_id
            )
        return Gate.NEXT

    def _apply_quota(self, pending: PendingFetch) -> None:
        """Bound a consumer's response; exempt a follower."""
        if pending.replica_id != NO_REPLICA:
            self.quota.exempt_follower(pending.slot.peer)
        else:
            pending.max_bytes = self.quota.most_fetched(pending.slot, pending.max_bytes)
            pending.min_bytes = min(pending.min_bytes, pending.max_bytes)

    def _is_admitted(self, pending: PendingFetch) -> bool:
        return pending.replica_id != NO_REPLICA or self.quota.admit_fetch(pending.slot, pending.bytes_read)

    def _send_throttled(self, pending: PendingFetch) -> Gate:
        """Send an empty response, because the client has to wait; its next fetch reads the same records.

        A session that this request began ends: the reader begins it again.
        """
        session = pending.session
        if pending.full:
            self._sessions.end_session(session)
        for each in pending.touched:
            self._drop_region(pending, each)
            if not session.closed:
                session.dirty[each] = None
        session_id = 0 if pending.full else session.session_id
        if session.closed:
            session.release_partitions()
        self._responder.send_rows(pending.slot, pending.version, pending.correlation_id, [], 0, session_id)
        return Gate.NEXT

    def _drop_region(self, pending: PendingFetch, each: FetchPartition) -> None:
        """Drop records that were read and counted, and are not sent."""
        if each.region is None:
            return
        hosted = self._responder.hosted
        topics: Mapping[Any, HostedTopic] = hosted.by_id if pending.session.by_id else hosted.by_name
        topic = topics.get(each.topic)
        partition = None if topic is None else topic.partitions.get(each.index)
        if partition is not None:
            partition.bytes_out -= each.region.size
        each.region = None

    def _answer_many(self, pending: PendingFetch) -> Steps:
        """Encode the response slice by slice. It names no current leaders of partitions that are not here."""
        session, version, responder = pending.session, pending.version, self._responder
        pieces = pending.unknown or FetchPieces(version)
        nodes: dict[int, None] = {}
        partitions = iter(list(session.partitions.values() if pending.full else pending.touched))
        try:
            while chunk := list(islice(partitions, SLICE)):
                told: list[LeaderHint] = []
                topics, rare = rows_to_send(pending, chunk, told)
                if rare:
                    response = rare_topics(told, version, responder.hosted, responder.leaders, nodes)
                    pieces.add_encoded(encode(response, version), len(response.responses))
                else:
                    pieces.add_topics(topics)
                yield _ANSWER_US
        except Exception as error:  # noqa: BLE001  # an answer changes nothing but the session, which goes
            self.fail_request(pending, error)
            return None
        finally:
            if not session.session_id or session.closed:
                session.release_partitions()
        tail = encode_tail(nodes, version, responder.leaders, pending.slot.peer.listener) if nodes else b"\0"
        responder.send_body(pending.slot, version, pending.correlation_id, pieces.body_parts(session.session_id, tail))
        return None

    def fail_request(self, pending: PendingFetch, error: Exception) -> None:
        """End a request after a defect, and close its session, which may count rows as sent. Raises HalfChanged."""
        pending.completed = True
        pending.cancel()
        pending.session.on_dirty = None
        self._waiting.pop(pending.slot.peer, None)
        session = pending.session
        try:
            self._contain(
                error, pending.slot, ApiKey.FETCH, pending.version, pending.correlation_id, session.as_request
            )
        finally:
            self._sessions.end_session(session)

    def on_gone(self, peer: Peer) -> None:
        """Abandon the waiting request of a connection that has ended."""
        pending = self._waiting.pop(peer, None)
        if pending is not None:
            pending.abandon_request()
        self._down_conversions.on_gone(peer)
