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
  replica.selector.class the leader names the replica to read from instead of sending bytes (KIP-392).

Version notes: 1 throttle time, 2 format v1, 3 most bytes of an answer (KIP-74), 4 format v2 and isolation, 5 log start
offset, 6 KAFKA_STORAGE_ERROR (before: NOT_LEADER_OR_FOLLOWER), 7 sessions (KIP-227), 9 leader epochs (KIP-320),
11 rack, 12 flexible, diverging epoch, 13 topic ids (KIP-516), 15 the replica's broker epoch (KIP-903), 16 current
leaders and their addresses (KIP-951).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ottla.changes import half_changed
from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import DelayedOperation, Purgatory
from ottla.replication.fetch.down_conversion import ANSWER_MAX, V2_VERSION, DownConversions
from ottla.replication.fetch.fetch_reading import (
    FOLLOWER_VERSION,
    NO_REPLICA,
    answer_without_records,
    fail_partition,
    read_as_consumer,
    read_partition,
)
from ottla.replication.fetch.fetch_responses import FetchResponses, LeaderHint, encode_rare_response, rows_to_send
from ottla.replication.fetch.fetch_session import (
    END,
    FINAL_EPOCH,
    MARK,
    NO_SESSION,
    FetchPartition,
    FetchSession,
    FetchSessions,
)
from ottla.replication.fetch.large_fetch import LARGE, MANY, LargeFetch, answer_many, read_many
from ottla.replication.fetch.replica_selector import ReplicaSelector, ReplicaView
from ottla.replication.fetch.sessionless_fetch import FEW, READ_COMMITTED, sessionless_fetch_for
from ottla.replication.leaders import Leaders, NoLeaders, missing_partition_error
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.replica_state import NEVER
from ottla.replication.partition_registry import PartitionRegistry
from ottla.replication.throttle import Throttle
from ottla.requests import Contain, Declaration, RunSteps, Steps, raise_defect, refuse_steps
from ottla.seams import Failure, Gate, Part, Peer, Slot, World
from ottla.storage.errors import Cold
from ottla.types import NO_EPOCH
from ottla.wire import hot
from ottla.wire.apis import ApiKey
from ottla.wire.header import response_header
from ottla.wire.many_partitions import FetchPieces

DECLARATION: Final = Declaration(
    ApiKey.FETCH, 0, 18, resource="Topic", operation="Read", also=(("Cluster", "ClusterAction"),)
)
"""Followers need ClusterAction, and no right on topics."""
MAX_VERSION: Final = DECLARATION.max_version
_ERROR_VERSION: Final = 7
_TOPIC_ID_VERSION: Final = 13


class PendingFetch(DelayedOperation):
    """One Fetch request, from its first read to its response."""

    __slots__ = (
        "_handler",
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
        "replica_epoch",
        "replica_id",
        "scheduled",
        "session",
        "settled",
        "slot",
        "touched",
        "unknown",
        "version",
    )

    def __init__(
        self, handler: FetchHandler, slot: Slot, version: int, correlation_id: int, session: FetchSession, full: bool
    ) -> None:
        self.bucket = None  # as the constructors of the base classes do; inlined to save two calls per fetch
        self.deadline_ms = 0
        self.completed = False
        self._handler = handler
        self.slot = slot
        self.version = version
        self.correlation_id = correlation_id
        self.session = session
        self.full = full
        self.committed = False
        self.replica_id = NO_REPLICA
        self.replica_epoch = NO_EPOCH
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
        self.scheduled = False
        if not self.completed and (self._handler.read_dirty(self) or (self.overdue and not self.cold)):
            return self.force_complete()
        return self.completed

    def expire(self) -> None:
        """Complete at the time-out, unless cold bytes are being read into memory: then as soon as they are there."""
        self.overdue = True
        if not self.cold:
            super().expire()

    def wake(self) -> None:
        """Look again at the end of this turn, because a partition has changed."""
        if not self.scheduled:
            self.scheduled = True
            self._handler.later(self._look_again)

    def _look_again(self) -> None:
        try:
            self.try_complete()
        except Exception as error:  # noqa: BLE001  # reading changes nothing, and the session goes
            self._handler.fail_request(self, error)

    def on_warmed(self) -> None:
        """Note that cold bytes of a partition are in memory now."""
        self.cold -= 1
        self.wake()

    def on_complete(self) -> None:
        self.session.on_dirty = None
        try:
            self._handler.send_response(self)
        except Exception as error:  # noqa: BLE001  # an answer changes nothing but the session, which goes
            self._handler.fail_request(self, error)

    def abandon_request(self) -> None:
        """End without a response: the connection has ended."""
        super().abandon_request()
        self.session.on_dirty = None
        if not self.session.session_id or self.session.closed:
            self.session.release_partitions()


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
    ) -> None:
        """`is_broker`: whether the other end may fetch as a replica. `leaders`, `selector` (replica.selector.class):
        for responses that name other brokers. `throttle` limits followers (leader.replication.throttled.*).
        `contain` handles defects in responses of a later turn; `run_steps` runs requests of many partitions."""
        self._contain = contain
        self._run_steps = run_steps
        self._throttle = throttle
        self.is_broker = is_broker
        self._world = world
        self._now = world.clock.now
        self.leaders: Leaders = leaders or NoLeaders()
        self.selector = selector
        self.hosted = hosted
        self._purgatory = purgatory
        self.sessions = sessions
        self.later = later
        self.waiting: dict[Peer, PendingFetch] = {}
        self._sessionless: dict[Peer, tuple[int, int]] = {}
        """Replicas that have fetched without a session: broker id, and time of the latest fetch."""
        self.down_conversions = DownConversions(world, hosted)
        self._decode = [hot.decode_fetch(version) for version in range(MAX_VERSION + 1)]
        self._encode = [hot.encode_fetch(version) for version in range(MAX_VERSION + 1)]
        self._header = [response_header(1, version, 0)[4:] for version in range(MAX_VERSION + 1)]

    def on_request(self, slot: Slot, frame: memoryview, version: int, correlation_id: int, pos: int) -> Gate:
        """Decode, read, respond or wait. Raises MalformedMessage."""
        if len(frame) > LARGE:
            return self._run_in_slices(slot, frame, version, correlation_id, pos)
        request = self._decode[version](frame, pos)
        _, max_wait_ms, min_bytes, max_bytes, isolation, session_id, epoch, asked, forgotten, _, _ = request
        if epoch == FINAL_EPOCH and len(asked) > FEW and self._answers_at_once(slot, version, correlation_id, request):
            return Gate.NEXT
        try:
            by_id = version >= _TOPIC_ID_VERSION
            of_replica = request.replica_id > NO_REPLICA
            if of_replica and not self.is_broker(slot.peer):
                raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "only brokers fetch as replicas")
            session, full = self.sessions.session_for(session_id, epoch, asked, forgotten, by_id, of_replica)
        except ApiError as error:
            if version < _ERROR_VERSION:  # these responses have no field for an error of the whole request
                self.close_connection(slot, error.as_value())
                return Gate.WAIT
            self.send_rows(slot, version, correlation_id, [], error.code, 0)
            return Gate.NEXT
        except Exception:
            self.sessions.close_session(session_id)  # the request may be half applied to it
            raise
        pending = PendingFetch(self, slot, version, correlation_id, session, full)
        pending.committed = isolation == READ_COMMITTED
        pending.min_bytes = min(min_bytes, max_bytes) if max_wait_ms > 0 else 0
        pending.max_bytes = max_bytes
        if version < V2_VERSION:  # the converted response is held in memory
            pending.min_bytes, pending.max_bytes = min(pending.min_bytes, ANSWER_MAX), min(max_bytes, ANSWER_MAX)
            session.dirty = self.down_conversions.rotate_partitions(session.dirty)
        if of_replica:
            self.set_up_replica(pending, request)
        elif self.selector is not None:
            pending.rack = request.rack_id
        if len(session.dirty) > MANY:
            return self._read_in_slices(pending, max_wait_ms)
        try:
            return self.start_pending(pending, max_wait_ms)
        except Exception as error:  # noqa: BLE001  # reading changes nothing, and the session goes
            self.fail_request(pending, error)
            return Gate.NEXT

    def _answers_at_once(self, slot: Slot, version: int, correlation_id: int, request: hot.FetchRequest) -> bool:
        reading = None if self.selector is not None else sessionless_fetch_for(version, request, self.hosted)
        found = None if reading is None else reading.read(request.partitions)
        if reading is None or found is None:
            return False
        if reading.bytes_read < min(request.min_bytes, request.max_bytes) and request.max_wait_ms > 0:
            return False
        reading.count_bytes()
        self.send_rows(slot, version, correlation_id, found, 0, NO_SESSION)
        return True

    def new_pending(
        self, slot: Slot, version: int, correlation_id: int, session: FetchSession, full: bool
    ) -> PendingFetch:
        """Create a request that is about to read."""
        return PendingFetch(self, slot, version, correlation_id, session, full)

    def close_connection(self, slot: Slot, error: ApiError) -> None:
        """Refuse a request whose version has no field for an error of the whole request: close the connection."""
        self._world.network.close_connection(slot.peer, f"Fetch failed: {error}")

    def _run_in_slices(self, slot: Slot, frame: memoryview, version: int, correlation_id: int, pos: int) -> Gate:
        held = self._world.network.hold_frame(slot, frame)
        return self._run_slices(
            slot, version, correlation_id, LargeFetch(self, slot, version, correlation_id, held, pos).request_steps()
        )

    def _read_in_slices(self, pending: PendingFetch, max_wait_ms: int) -> Gate:
        pending.min_bytes = min(pending.min_bytes, 1)
        self.waiting[pending.slot.peer] = pending  # a connection that ends abandons it from now on
        steps = read_many(self, pending, max_wait_ms)
        return self._run_slices(pending.slot, pending.version, pending.correlation_id, steps)

    def _run_slices(self, slot: Slot, version: int, correlation_id: int, steps: Steps) -> Gate:
        self._run_steps(slot, ApiKey.FETCH, version, correlation_id, lambda _: steps)
        return Gate.WAIT

    def fail_request(self, pending: PendingFetch, error: Exception) -> None:
        """End a request after a defect, and close its session, which may count rows as sent. Raises HalfChanged."""
        pending.completed = True
        pending.cancel()
        pending.session.on_dirty = None
        self.waiting.pop(pending.slot.peer, None)
        session = pending.session
        try:
            self._contain(
                error, pending.slot, ApiKey.FETCH, pending.version, pending.correlation_id, session.as_request
            )
        finally:
            self.sessions.end_session(session)

    def start_pending(self, pending: PendingFetch, max_wait_ms: int) -> Gate:
        if self.read_dirty(pending):  # it is not in the purgatory yet, so there is nothing to take out of it
            pending.completed = True
            if pending.version >= V2_VERSION:
                return self._send_collected(pending)
            self.send_response(pending)
            return self.down_conversions.gate_of(pending.slot.peer)
        pending.session.on_dirty = pending.wake
        self.waiting[pending.slot.peer] = pending
        self._purgatory.arm_timer(pending, max(0, max_wait_ms))
        return Gate.NEXT if pending.completed else Gate.WAIT

    def set_up_replica(self, pending: PendingFetch, request: hot.FetchRequest) -> None:
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
        session.dirty.update(session.awaits_commit)
        session.awaits_commit.clear()

    def on_gone(self, peer: Peer) -> None:
        """Abandon the waiting request of a connection that has ended."""
        self._sessionless.pop(peer, None)
        pending = self.waiting.pop(peer, None)
        if pending is not None:
            pending.abandon_request()
        self.down_conversions.on_gone(peer)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read_dirty(self, pending: PendingFetch) -> bool:
        """Read the partitions that may have news. Returns whether the response can be sent now."""
        self.read_partitions(pending, list(pending.session.dirty))
        if pending.settled or (not pending.cold and pending.bytes_read >= pending.min_bytes):
            return True
        for each, partition in pending.partial:
            each.watch_partition(partition)
        pending.partial.clear()
        return False

    def read_partitions(self, pending: PendingFetch, partitions: list[FetchPartition]) -> None:
        """Read these partitions."""
        topics: Any = self.hosted.by_id if pending.version >= _TOPIC_ID_VERSION else self.hosted.by_name
        for each in partitions:
            pending.touched[each] = None
            topic = topics.get(each.topic)
            partition = None if topic is None else topic.partitions.get(each.index)
            if partition is None:
                fail_partition(pending, each, missing_partition_error(self.leaders, each.topic, each.index).code)
                continue
            self.read_partition(pending, each, partition)
            if topic is not None and each.row is not None and each.row[1]:
                topic.failed_fetches += 1

    def read_partition(self, pending: PendingFetch, each: FetchPartition, partition: Partition) -> None:
        try:
            if pending.replica_id != NO_REPLICA:
                self._read_as_replica(pending, each, partition)
            elif not pending.rack or not self._redirect_consumer(pending, each, partition):
                read_as_consumer(pending, each, partition)
        except ApiError as error:
            fail_partition(pending, each, error.code)
        except Cold as reason:
            pending.cold += 1
            each.warmed = True
            partition.log.disk.warm_regions(reason.regions, lambda _: pending.on_warmed())
        except Failure:
            fail_partition(pending, each, ErrorCode.KAFKA_STORAGE_ERROR)

    def _read_as_replica(self, pending: PendingFetch, each: FetchPartition, partition: Partition) -> None:
        """Take the fetch offset as an acknowledgement, then read from it on."""
        now = self._now()
        try:
            each.diverging = partition.leader_role.note_fetch(
                pending.replica_id,
                pending.replica_epoch,
                each.leader_epoch,
                each.fetch_offset,
                each.last_epoch,
                each.log_start,
                now,
                each,
            )
        except (ApiError, Failure):
            raise
        except Exception as error:
            raise half_changed("what a follower has acknowledged") from error
        if each.diverging is not None:
            answer_without_records(pending, each, partition)
            return
        # A new log start, or, for followers that serve consumers, a new high watermark: respond without records.
        start = partition.log.start_offset
        if each.sent_log_start not in (start, -1) or (
            self.selector is not None and 0 <= each.sent_high_watermark < partition.high_watermark
        ):
            pending.settled = True
        if self._throttle is None or self._throttle.is_idle or not self._throttle.applies_to(partition.tp):
            read_partition(pending, each, partition, partition.log.end_offset, None)
        else:
            self._read_throttled(pending, each, partition, self._throttle)

    def _read_throttled(
        self, pending: PendingFetch, each: FetchPartition, partition: Partition, throttle: Throttle
    ) -> None:
        """Read for a throttled replica: one out of sync gets nothing while the rate is exceeded (KIP-73)."""
        now_ns = self._now().mono_ns
        taken = 0 if each.region is None else each.region.size
        hold = pending.replica_id not in partition.isr and throttle.is_exceeded(now_ns)
        read_partition(pending, each, partition, each.fetch_offset if hold else partition.log.end_offset, None)
        if each.region is not None:
            throttle.record_bytes(each.region.size - taken, now_ns)
        elif hold:
            pending.session.dirty[each] = None  # no event ends the throttling, so its next fetch reads again

    def _redirect_consumer(self, pending: PendingFetch, each: FetchPartition, partition: Partition) -> bool:
        """Redirect a consumer to a nearer replica, if there is one. Returns whether it was."""
        partition.check_reader(each.leader_epoch, pending.version >= FOLLOWER_VERSION)
        assert self.selector is not None
        if not partition.is_leader:
            return False
        views = [
            ReplicaView(node, end_offset, caught_up_ns, at.rack)
            for node, end_offset, caught_up_ns in partition.leader_role.readable_at(each.fetch_offset)
            if (at := self.leaders.broker_address(node, pending.slot.peer.listener)) is not None
        ]
        preferred = self.selector(partition.node_id, views, pending.rack)
        if preferred == partition.node_id:
            return False
        answer_without_records(pending, each, partition, preferred)
        return True

    # -- answering -------------------------------------------------------------------------------------------------

    def send_response(self, pending: PendingFetch) -> None:
        """Send the collected rows; for old readers, convert them first."""
        self.waiting.pop(pending.slot.peer, None)
        if pending.version < V2_VERSION:
            pending.session.close_session()
            self.down_conversions.start_conversion(
                pending.slot.peer, pending.version, pending.touched, lambda: self._send_collected(pending)
            )
        else:
            self._send_collected(pending)

    def _send_collected(self, pending: PendingFetch) -> Gate:
        """Send the collected rows in their format. A response of many partitions is encoded in later turns."""
        session = pending.session
        if pending.unknown is not None or len(session.partitions if pending.full else pending.touched) > MANY:
            return self._run_slices(pending.slot, pending.version, pending.correlation_id, answer_many(self, pending))
        told: list[LeaderHint] = []
        topics, rare = rows_to_send(pending, session.partitions.values() if pending.full else pending.touched, told)
        if not session.session_id or session.closed:
            session.release_partitions()
        if rare:
            self._send_rare(pending, told)
        else:
            self.send_rows(pending.slot, pending.version, pending.correlation_id, topics, 0, session.session_id)
        return Gate.NEXT

    def _send_rare(self, pending: PendingFetch, told: list[LeaderHint]) -> None:
        slot, version = pending.slot, pending.version
        session_id, listener = pending.session.session_id, slot.peer.listener
        body = encode_rare_response(told, version, session_id, self.hosted, self.leaders, listener)
        self.send_body(slot, version, pending.correlation_id, body)

    def send_body(self, slot: Slot, version: int, correlation_id: int, body: Sequence[Part]) -> None:
        """Send a response with an encoded body."""
        head = correlation_id.to_bytes(4, "big", signed=True) + self._header[version]
        self._world.network.send_reply(slot, [head, *body])

    def send_rows(
        self,
        slot: Slot,
        version: int,
        correlation_id: int,
        topics: FetchResponses,
        error: int,
        session_id: int,
    ) -> None:
        head = correlation_id.to_bytes(4, "big", signed=True) + self._header[version]
        self._world.network.send_reply(slot, [head, *self._encode[version](topics, 0, error, session_id)])
