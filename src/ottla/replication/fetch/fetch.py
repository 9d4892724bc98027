"""Fetch: regions of segment files on their way to a reader; no byte of them passes through here.

Zone: deterministic.

API 1. Versions 0-18. Readers older than version 4 get message sets of format v0 or v1 (from version 2 on) instead of
batches; a reader older than version 10 is answered with an error in a topic whose compression.type is zstd.

Behaviour
- Answered when `min_bytes` are there, a partition has an error, or `max_wait_ms` has passed; until then the request
  waits in the purgatory, and the next request of the connection behind it.
- At least one whole batch is returned to the first partition that has one, however large (KIP-74).
- read_committed stops at the last stable offset and carries the aborted transactions in the order of first offsets.
- A fetch of a replica (replica_id ≥ 0) acknowledges what lies below its offset, and reads up to the log end. A log that
  parts from the leader's is answered with the place, and with nothing else (KIP-595).
- Consumers may read from followers from version 11 on, up to the high watermark those know; with a rack and
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
    fail_partition,
    read_as_consumer,
    read_partition,
    say_only,
)
from ottla.replication.fetch.fetch_responses import FetchResponses, LeaderHint, leader_hints, rare_answer
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
from ottla.replication.fetch.sessionless_fetch import FEW, READ_COMMITTED, reading_for
from ottla.replication.leaders import Leaders, NoLeaders, missing
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
"""Followers need the right to act in the cluster, and none on topics."""
MAX_VERSION: Final = DECLARATION.max_version
_ERROR_VERSION: Final = 7
_TOPIC_ID_VERSION: Final = 13


class PendingFetch(DelayedOperation):
    """One Fetch request, from its first look at the logs to its answer."""

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
        self.bucket = None  # as in the base classes: a call each less per fetch
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
        """The consumer's, where another replica than the leader may be nearer to it."""
        self.min_bytes = 0
        self.max_bytes = 0
        self.bytes_read = 0
        self.cold = 0
        """Partitions whose bytes are being brought into memory."""
        self.partial: list[tuple[FetchPartition, Partition]] = []
        """Partitions that had something just now: if that is not enough, their next change counts too."""
        self.touched: dict[FetchPartition, None] = {}
        self.unknown: FetchPieces | None = None
        """Of a large request: the answer for partitions that are not here."""
        self.settled = False
        self.scheduled = False
        self.overdue = False

    def try_complete(self) -> bool:
        """Case A: enough bytes. Case B: a partition has an error, or bytes of a segment that will not grow any more.

        Case C: overdue, and only warming kept it. Anything else goes on waiting."""
        self.scheduled = False
        if not self.completed and (self._handler.collect(self) or (self.overdue and not self.cold)):
            return self.complete()
        return self.completed

    def expire(self) -> None:
        """Time is up; bytes that are on their way into memory are still waited for, for they are there to be read."""
        self.overdue = True
        if not self.cold:
            super().expire()

    def wake(self) -> None:
        """A partition has changed: look again once this turn's input is through."""
        if not self.scheduled:
            self.scheduled = True
            self._handler.later(self._look_again)

    def _look_again(self) -> None:
        try:
            self.try_complete()
        except Exception as error:  # noqa: BLE001  # reading changes nothing, and the session goes
            self._handler.fail_request(self, error)

    def warmed(self) -> None:
        """Bytes that were cold are in memory now."""
        self.cold -= 1
        self.wake()

    def on_complete(self) -> None:
        self.session.on_dirty = None
        try:
            self._handler.send_response(self)
        except Exception as error:  # noqa: BLE001  # an answer changes nothing but the session, which goes
            self._handler.fail_request(self, error)

    def abandon(self) -> None:
        """The reader is gone."""
        super().abandon()
        self.session.on_dirty = None
        if not self.session.session_id or self.session.closed:
            self.session.release()


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
        for answers that name other brokers. `throttle`: what followers may be given (leader.replication.throttled.*).
        `contain`: for answers that are made in a later turn. `run_steps`: for requests of many partitions."""
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
        self._alone: dict[Peer, tuple[int, int]] = {}
        """Replicas that have fetched without a session: who, and when last."""
        self.lowerings = DownConversions(world, hosted)
        self._decode = [hot.decode_fetch(version) for version in range(MAX_VERSION + 1)]
        self._encode = [hot.encode_fetch(version) for version in range(MAX_VERSION + 1)]
        self._header = [response_header(1, version, 0)[4:] for version in range(MAX_VERSION + 1)]

    def on_request(self, slot: Slot, frame: memoryview, version: int, correlation_id: int, pos: int) -> Gate:
        """Decode, read what is there, answer or wait. Raises MalformedMessage."""
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
            if version < _ERROR_VERSION:  # its answer has no place for an error of the whole request
                self.close(slot, error.as_value())
                return Gate.WAIT
            self.send(slot, version, correlation_id, [], error.code, 0)
            return Gate.NEXT
        except Exception:
            self.sessions.close(session_id)  # it may have taken half of what the request brings
            raise
        pending = PendingFetch(self, slot, version, correlation_id, session, full)
        pending.committed = isolation == READ_COMMITTED
        pending.min_bytes = min(min_bytes, max_bytes) if max_wait_ms > 0 else 0
        pending.max_bytes = max_bytes
        if version < V2_VERSION:  # its answer is made in memory
            pending.min_bytes, pending.max_bytes = min(pending.min_bytes, ANSWER_MAX), min(max_bytes, ANSWER_MAX)
            session.dirty = self.lowerings.rotated(session.dirty)
        if of_replica:
            self.for_replica(pending, request)
        elif self.selector is not None:
            pending.rack = request.rack_id
        if len(session.dirty) > MANY:
            return self._read_in_slices(pending, max_wait_ms)
        try:
            return self.start(pending, max_wait_ms)
        except Exception as error:  # noqa: BLE001  # reading changes nothing, and the session goes
            self.fail_request(pending, error)
            return Gate.NEXT

    def _answers_at_once(self, slot: Slot, version: int, correlation_id: int, request: hot.FetchRequest) -> bool:
        reading = None if self.selector is not None else reading_for(version, request, self.hosted)
        found = None if reading is None else reading.read(request.partitions)
        if reading is None or found is None:
            return False
        if reading.bytes_read < min(request.min_bytes, request.max_bytes) and request.max_wait_ms > 0:
            return False
        reading.count_bytes()
        self.send(slot, version, correlation_id, found, 0, NO_SESSION)
        return True

    def new_pending(
        self, slot: Slot, version: int, correlation_id: int, session: FetchSession, full: bool
    ) -> PendingFetch:
        """A request that is about to read."""
        return PendingFetch(self, slot, version, correlation_id, session, full)

    def close(self, slot: Slot, error: ApiError) -> None:
        """Refuse a request whose version has no place for an error of the whole."""
        self._world.network.close(slot.peer, f"Fetch failed: {error}")

    def _run_in_slices(self, slot: Slot, frame: memoryview, version: int, correlation_id: int, pos: int) -> Gate:
        held = self._world.network.hold(slot, frame)
        return self._run(
            slot, version, correlation_id, LargeFetch(self, slot, version, correlation_id, held, pos).steps()
        )

    def _read_in_slices(self, pending: PendingFetch, max_wait_ms: int) -> Gate:
        pending.min_bytes = min(pending.min_bytes, 1)
        self.waiting[pending.slot.peer] = pending  # a connection that ends abandons it from now on
        steps = read_many(self, pending, max_wait_ms)
        return self._run(pending.slot, pending.version, pending.correlation_id, steps)

    def _run(self, slot: Slot, version: int, correlation_id: int, steps: Steps) -> Gate:
        self._run_steps(slot, ApiKey.FETCH, version, correlation_id, lambda _: steps)
        return Gate.WAIT

    def fail_request(self, pending: PendingFetch, error: Exception) -> None:
        """A request met a defect: its session, which may have told half of it, is closed. Raises HalfChanged."""
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

    def start(self, pending: PendingFetch, max_wait_ms: int) -> Gate:
        if self.collect(pending):  # nothing waits for it yet, so it completes without more ado
            pending.completed = True
            if pending.version >= V2_VERSION:
                return self._send_collected(pending)
            self.send_response(pending)
            return self.lowerings.gate(pending.slot.peer)
        pending.session.on_dirty = pending.wake
        self.waiting[pending.slot.peer] = pending
        self._purgatory.arm(pending, max(0, max_wait_ms))
        return Gate.NEXT if pending.completed else Gate.WAIT

    def for_replica(self, pending: PendingFetch, request: hot.FetchRequest) -> None:
        pending.replica_id = request.replica_id
        pending.replica_epoch = request.replica_epoch
        pending.committed = False
        # Who lets consumers read from followers does not let them wait for the next record to learn what is committed.
        session = pending.session
        session.waits_for = END if self.selector is None else END | MARK
        if session.session_id == NO_SESSION:  # one request follows the answer to the other by its connection only
            before, used_ns = self._alone.get(pending.slot.peer, (NO_REPLICA, NEVER))
            session.previous_ns = used_ns if before == request.replica_id else NEVER
            self._alone[pending.slot.peer] = request.replica_id, session.used_ns
        session.registered(request.replica_epoch)
        session.dirty.update(session.unsaid)
        session.unsaid.clear()

    def on_gone(self, peer: Peer) -> None:
        """The connection is over: whatever waits for it need not."""
        self._alone.pop(peer, None)
        pending = self.waiting.pop(peer, None)
        if pending is not None:
            pending.abandon()
        self.lowerings.on_gone(peer)

    # -- reading ---------------------------------------------------------------------------------------------------

    def collect(self, pending: PendingFetch) -> bool:
        """Read the partitions that may have something new. True when the request can be answered now."""
        self.look_at(pending, list(pending.session.dirty))
        if pending.settled or (not pending.cold and pending.bytes_read >= pending.min_bytes):
            return True
        for each, partition in pending.partial:
            each.watch(partition)
        pending.partial.clear()
        return False

    def look_at(self, pending: PendingFetch, partitions: list[FetchPartition]) -> None:
        """Read these partitions."""
        topics: Any = self.hosted.by_id if pending.version >= _TOPIC_ID_VERSION else self.hosted.by_name
        for each in partitions:
            pending.touched[each] = None
            topic = topics.get(each.topic)
            partition = None if topic is None else topic.partitions.get(each.index)
            if partition is None:
                fail_partition(pending, each, missing(self.leaders, each.topic, each.index).code)
                continue
            self.read_partition(pending, each, partition)
            if topic is not None and each.row is not None and each.row[1]:
                topic.failed_fetches += 1

    def read_partition(self, pending: PendingFetch, each: FetchPartition, partition: Partition) -> None:
        try:
            if pending.replica_id != NO_REPLICA:
                self._read_as_replica(pending, each, partition)
            elif not pending.rack or not self._elsewhere(pending, each, partition):
                read_as_consumer(pending, each, partition)
        except ApiError as error:
            fail_partition(pending, each, error.code)
        except Cold as reason:
            pending.cold += 1
            each.warmed = True
            partition.log.disk.warm(reason.regions, lambda _: pending.warmed())
        except Failure:
            fail_partition(pending, each, ErrorCode.KAFKA_STORAGE_ERROR)

    def _read_as_replica(self, pending: PendingFetch, each: FetchPartition, partition: Partition) -> None:
        """Take the fetch offset as an acknowledgement, then look for what lies behind it."""
        now = self._now()
        try:
            each.diverging = partition.note_fetch(
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
            say_only(pending, each, partition)
            return
        start = partition.log.start_offset
        if each.told_log_start not in (start, -1) or (
            self.selector is not None and 0 <= each.told_high_watermark < partition.high_watermark
        ):
            pending.settled = True
        if self._throttle is None or self._throttle.idle or not self._throttle.applies(partition.tp):
            read_partition(pending, each, partition, partition.log.end_offset, None)
        else:
            self._read_throttled(pending, each, partition, self._throttle)

    def _read_throttled(
        self, pending: PendingFetch, each: FetchPartition, partition: Partition, throttle: Throttle
    ) -> None:
        """A replica in sync is never held back; another one gets nothing while too much has been given (KIP-73)."""
        now_ns = self._now().mono_ns
        taken = 0 if each.region is None else each.region.size
        hold = pending.replica_id not in partition.isr and throttle.exceeded(now_ns)
        read_partition(pending, each, partition, each.fetch_offset if hold else partition.log.end_offset, None)
        if each.region is not None:
            throttle.record(each.region.size - taken, now_ns)
        elif hold:
            pending.session.dirty[each] = None  # time alone changes that: its next fetch looks again

    def _elsewhere(self, pending: PendingFetch, each: FetchPartition, partition: Partition) -> bool:
        """Send a consumer to a replica nearer to it, if there is one."""
        partition.check_reader(each.leader_epoch, pending.version >= FOLLOWER_VERSION)
        assert self.selector is not None
        if not partition.is_leader:
            return False
        views = [
            ReplicaView(node, end_offset, caught_up_ns, at.rack)
            for node, end_offset, caught_up_ns in partition.readable_at(each.fetch_offset)
            if (at := self.leaders.address(node, pending.slot.peer.listener)) is not None
        ]
        preferred = self.selector(partition.node_id, views, pending.rack)
        if preferred == partition.node_id:
            return False
        say_only(pending, each, partition, preferred)
        return True

    # -- answering -------------------------------------------------------------------------------------------------

    def send_response(self, pending: PendingFetch) -> None:
        """Send what was collected, to old readers once it is converted."""
        self.waiting.pop(pending.slot.peer, None)
        if pending.version < V2_VERSION:
            pending.session.close()
            self.lowerings.start(
                pending.slot.peer, pending.version, pending.touched, lambda: self._send_collected(pending)
            )
        else:
            self._send_collected(pending)

    def _send_collected(self, pending: PendingFetch) -> Gate:
        """Keep the session ready for its next request. An answer of many partitions is made in later turns."""
        session = pending.session
        if pending.unknown is not None or len(session.partitions if pending.full else pending.touched) > MANY:
            return self._run(pending.slot, pending.version, pending.correlation_id, answer_many(self, pending))
        told: list[LeaderHint] = []
        topics, rare = leader_hints(pending, session.partitions.values() if pending.full else pending.touched, told)
        if not session.session_id or session.closed:
            session.release()
        if rare:
            self._send_rare(pending, told)
        else:
            self.send(pending.slot, pending.version, pending.correlation_id, topics, 0, session.session_id)
        return Gate.NEXT

    def _send_rare(self, pending: PendingFetch, told: list[LeaderHint]) -> None:
        slot, version = pending.slot, pending.version
        session_id, listener = pending.session.session_id, slot.peer.listener
        body = rare_answer(told, version, session_id, self.hosted, self.leaders, listener)
        self.send_body(slot, version, pending.correlation_id, body)

    def send_body(self, slot: Slot, version: int, correlation_id: int, body: Sequence[Part]) -> None:
        """Answer with what is encoded."""
        head = correlation_id.to_bytes(4, "big", signed=True) + self._header[version]
        self._world.network.reply(slot, [head, *body])

    def send(
        self,
        slot: Slot,
        version: int,
        correlation_id: int,
        topics: FetchResponses,
        error: int,
        session_id: int,
    ) -> None:
        head = correlation_id.to_bytes(4, "big", signed=True) + self._header[version]
        self._world.network.reply(slot, [head, *self._encode[version](topics, 0, error, session_id)])
