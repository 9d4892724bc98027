"""Fetch: finds regions of segment files for readers; the bytes themselves do not pass through this module.

Zone: deterministic.

API 1. Versions 0-18. Readers older than version 4 get message sets of format v0 or v1 (from version 2 on) instead of
batches; readers older than version 10 get an error for a topic whose compression.type is zstd.

Behaviour
- The response is sent when there are `min_bytes`, a partition has an error, or `max_wait_ms` has passed; until then the
  request waits in the purgatory, and the connection's next request waits for it.
- The first partition that has records gets at least one whole batch, however large (KIP-74).
- read_committed stops at the last stable offset and names the aborted transactions in the order of first offsets.
- A fetch of a replica (replica_id ≥ 0) acknowledges all records below its offset, and reads up to the log end. If its
  log diverges from the leader's, the response contains the diverging epoch and no records (KIP-595).
- From version 11 on consumers may read from followers, up to the high watermark that those know; with a rack and
  replica.selector.class the leader names the replica to read from instead of sending bytes (KIP-392). A debugging
  consumer (replica_id -2) may do so in every version, and is a consumer in all other respects.

Version notes: 1 throttle time, 2 format v1, 3 most bytes of an answer (KIP-74), 4 format v2 and isolation, 5 log start
offset, 6 KAFKA_STORAGE_ERROR (before: NOT_LEADER_OR_FOLLOWER), 7 sessions (KIP-227), 9 leader epochs (KIP-320),
11 rack, 12 flexible, diverging epoch, 13 topic ids (KIP-516), 15 the replica's broker epoch (KIP-903), 16 current
leaders and their addresses (KIP-951).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.fetch.down_conversion import ANSWER_MAX, V2_VERSION, DownConversions
from ottla.replication.fetch.fetch_completion import MANY, FetchCompletion
from ottla.replication.fetch.fetch_quota import NO_QUOTA, FetchQuota
from ottla.replication.fetch.fetch_reading import FetchReader
from ottla.replication.fetch.fetch_responses import FetchResponder
from ottla.replication.fetch.fetch_session import FINAL_EPOCH, NO_SESSION, FetchSessions
from ottla.replication.fetch.fetch_setup import FetchSetup
from ottla.replication.fetch.large_fetch import LARGE, LargeFetch
from ottla.replication.fetch.pending_fetch import DEBUGGING_CONSUMER, NO_REPLICA, PendingFetch
from ottla.replication.fetch.replica_selector import ReplicaSelector
from ottla.replication.fetch.sessionless_fetch import FEW, READ_COMMITTED, sessionless_fetch_for
from ottla.replication.leaders import Leaders, NoLeaders
from ottla.replication.partition_registry import PartitionRegistry
from ottla.replication.throttle import Throttle
from ottla.requests import Contain, Declaration, RightsOf, RunSteps, all_rights, raise_defect, refuse_steps
from ottla.seams import Gate, Peer, Slot, World
from ottla.wire import hot
from ottla.wire.apis import ApiKey

DECLARATION: Final = Declaration(
    ApiKey.FETCH, 0, 18, resource="Topic", operation="Read", also=(("Cluster", "ClusterAction"),)
)
"""Followers need ClusterAction, and no right on topics."""
MAX_VERSION: Final = DECLARATION.max_version
_TOPIC_ID_VERSION: Final = 13


class FetchHandler:
    """Answers Fetch requests."""

    def __init__(
        self,
        world: World,
        hosted: PartitionRegistry,
        purgatory: Purgatory,
        sessions: FetchSessions,
        later: Callable[[Callable[[], None]], None],
        is_broker: Callable[[Peer], bool],
        leaders: Leaders | None = None,
        selector: ReplicaSelector | None = None,
        throttle: Throttle | None = None,
        contain: Contain = raise_defect,
        run_steps: RunSteps = refuse_steps,
        rights_of: RightsOf | None = None,
        quota: FetchQuota = NO_QUOTA,
    ) -> None:
        """`is_broker`: whether the other end may fetch as a replica. `leaders`, `selector` (replica.selector.class):
        for responses that name other brokers. `throttle` limits followers (leader.replication.throttled.*).
        `contain` handles defects in responses of a later turn; `run_steps` runs requests of many partitions.
        `rights_of`: what a connection may do; None: there is no authorizer. `quota`: what clients may fetch."""
        self._rights_of = rights_of
        self._quota = quota
        leaders = leaders or NoLeaders()
        self.sessions = sessions
        self._is_broker = is_broker
        self._selector = selector
        self._hosted = hosted
        self._hold_frame = world.network.hold_frame
        self._setup = FetchSetup(hosted, sessions, leaders, selector, is_broker, rights_of or all_rights)
        self._responder = FetchResponder(world.network, hosted, leaders, MAX_VERSION)
        self._down_conversions = down_conversions = DownConversions(world, hosted)
        reader = FetchReader(hosted, leaders, world.clock, selector, throttle)
        self._completion = FetchCompletion(
            purgatory, sessions, reader, self._responder, down_conversions, later, contain, run_steps, quota
        )
        self._decode = [hot.decode_fetch(version) for version in range(MAX_VERSION + 1)]

    def on_request(self, slot: Slot, frame: memoryview, version: int, correlation_id: int, pos: int) -> Gate:
        """Decode, read, respond or wait. Raises MalformedMessage."""
        if len(frame) > LARGE:
            return self._run_in_slices(slot, frame, version, correlation_id, pos)
        request = self._decode[version](frame, pos)
        _, max_wait_ms, min_bytes, max_bytes, isolation, session_id, epoch, asked, forgotten, _, _ = request
        of_replica = request.replica_id > NO_REPLICA
        rights = None if self._rights_of is None or of_replica else self._rights_of(slot.peer)
        if (
            rights is None
            and epoch == FINAL_EPOCH
            and len(asked) > FEW
            and self._answers_at_once(slot, version, correlation_id, request)
        ):
            return Gate.NEXT
        try:
            by_id = version >= _TOPIC_ID_VERSION
            if of_replica and not self._is_broker(slot.peer):
                raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "only brokers fetch as replicas")
            session, full = self.sessions.session_for(session_id, epoch, asked, forgotten, by_id, of_replica)
        except ApiError as error:
            return self._responder.refuse_request(slot, version, correlation_id, error.as_value())
        except Exception:
            self.sessions.close_session(session_id)  # the request may be half applied to it
            raise
        pending = PendingFetch(self._completion, slot, version, correlation_id, session, full)
        pending.rights = rights
        pending.committed = isolation == READ_COMMITTED
        # More than the response may contain can never be collected, and a request that does not wait takes what there
        # is.
        pending.min_bytes = min(min_bytes, max_bytes) if max_wait_ms > 0 else 0
        pending.max_bytes = max_bytes
        if version < V2_VERSION:  # the converted response is held in memory
            pending.min_bytes, pending.max_bytes = min(pending.min_bytes, ANSWER_MAX), min(max_bytes, ANSWER_MAX)
            session.dirty = self._down_conversions.rotate_partitions(session.dirty)
        if of_replica:
            self._setup.set_up_replica(pending, request)
        elif self._selector is not None:
            pending.rack = request.rack_id
        if request.replica_id == DEBUGGING_CONSUMER:
            pending.reads_followers = True
        if len(session.dirty) > MANY:
            return self._completion.start_many(pending, max_wait_ms)
        try:
            return self._completion.start_pending(pending, max_wait_ms)
        except Exception as error:  # noqa: BLE001  # reading changes nothing, and the session goes
            self._completion.fail_request(pending, error)
            return Gate.NEXT

    def _answers_at_once(self, slot: Slot, version: int, correlation_id: int, request: hot.FetchRequest) -> bool:
        reading = (
            None
            if self._selector is not None or self._quota.is_active
            else sessionless_fetch_for(version, request, self._hosted)
        )
        found = None if reading is None else reading.read(request.partitions)
        if reading is None or found is None:
            return False
        if reading.bytes_read < min(request.min_bytes, request.max_bytes) and request.max_wait_ms > 0:
            return False
        reading.count_bytes()
        self._responder.send_rows(slot, version, correlation_id, found, 0, NO_SESSION)
        return True

    def _run_in_slices(self, slot: Slot, frame: memoryview, version: int, correlation_id: int, pos: int) -> Gate:
        held = self._hold_frame(slot, frame)
        rotate = self._down_conversions.rotate_partitions
        large = LargeFetch(self._setup, self._responder, self._completion, rotate, slot, version, correlation_id)
        return self._completion.run_slices(slot, version, correlation_id, large.request_steps(held, pos))

    def on_gone(self, peer: Peer) -> None:
        """Abandon the waiting request of a connection that has ended."""
        self._setup.on_gone(peer)
        self._completion.on_gone(peer)
