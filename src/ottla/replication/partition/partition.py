"""One partition on this broker, in both roles; all appends to its log happen here.

Zone: deterministic. Contains the roles, the rules of an append, the leader's high watermark and its view of followers.
`local_replica` has what every replica does, followers above all; `isr` tracks the in-sync replicas; the log stores
bytes; the handlers handle requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from ottla.changes import HalfChanged, changes_state, half_changed
from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import MAGIC_V2, TRANSACTIONAL, set_append_time, unpack_header
from ottla.record.control import Marker, marker_batch
from ottla.record.validation import HeaderTuple, validate_produced
from ottla.replication.partition.isr import FetchProgress, FollowerContact, InSyncReplicas, ProposalVerdict
from ottla.replication.partition.local_replica import NO_LIMIT, LocalReplica, ignore_flush
from ottla.replication.partition.partition_context import PartitionContext
from ottla.replication.partition.replica_errors import out_of_range_error, unconfirmed_gap_error, unknown_replica_error
from ottla.replication.partition.replica_state import (
    NO_LEADER,
    EpochEnd,
    IsrChannel,
    IsrOutcome,
    IsrProposal,
    PartitionState,
    effective_min_isr,
    next_high_watermark,
)
from ottla.replication.partition.sequence_gaps import NEW_LEADER_NS, SequenceGaps
from ottla.replication.partition.verification_guards import VerificationGuards
from ottla.seams import Failure, Instant
from ottla.storage.log import Log
from ottla.storage.log_files import UNBOUNDED
from ottla.types import NO_EPOCH, NO_TIMESTAMP


class Partition(LocalReplica):
    """One replica of a partition, and while it leads, its knowledge of the other replicas."""

    __slots__ = (
        "_alone",
        "_guarded",
        "_in_sync",
        "_isr_changes",
        "_led_ns",
        "_refusals",
        "adding",
        "guards",
        "min_isr",
        "partition_epoch",
        "removing",
        "replicas",
    )

    def __init__(
        self,
        log: Log,
        config: TopicConfig,
        node_id: int,
        isr_changes: IsrChannel,
        shared: PartitionContext | None = None,
    ) -> None:
        """There is no leader before `make_leader` or `make_follower`. `node_id` is this broker's."""
        super().__init__(log, config, node_id, shared or PartitionContext())
        self.partition_epoch = NO_EPOCH
        self.replicas: tuple[int, ...] = ()
        """The assigned replicas (AR), the preferred leader first."""
        self.adding: tuple[int, ...] = ()
        self.removing: tuple[int, ...] = ()
        self._isr_changes = isr_changes
        self._in_sync = InSyncReplicas(node_id, self.shared)
        self._refusals = SequenceGaps()
        self._led_ns = 0
        """When this broker became the leader, in the present epoch."""
        self.guards = VerificationGuards()
        """Verifications in progress: transactions whose coordinators are being asked."""
        self._refresh_guards()
        log.on_synced(self._on_synced)

    def apply_config(self, config: TopicConfig) -> None:
        """Apply a changed topic config; with another min.insync.replicas the high watermark may move."""
        super().apply_config(config)
        self._refresh_guards()
        if self.is_leader:
            self._advance_high_watermark()

    # -- roles ---------------------------------------------------------------------------------------------------------

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync replicas, as the controller has confirmed them."""
        return self._in_sync.isr

    @property
    def spare_in_sync(self) -> int:
        """In-sync replicas beyond min.insync.replicas; negative: too few of them."""
        return len(self._in_sync.isr) - self.min_isr

    @property
    def isr_too_small(self) -> bool:
        """Whether fewer replicas are in sync than min.insync.replicas requires."""
        return self.spare_in_sync < 0

    @property
    def under_replicated(self) -> bool:
        """Whether this broker leads and an assigned replica is not in sync; one that is being added does not count."""
        return self.is_leader and len(self.replicas) - len(self.adding) > len(self._in_sync.isr)

    def make_leader(self, state: PartitionState, now: Instant) -> bool:
        """Lead. Returns whether that is a new leader epoch, which starts at the present log end (KIP-101).

        The caller refuses states with an older leader epoch or partition epoch than the present one.
        """
        assert state.leader == self.node_id, f"{self.tp} is led by {state.leader}"
        newly = not self.is_leader or state.leader_epoch > self.leader_epoch
        log = self.log
        self._take_state(state)
        if newly:
            log.begin_epoch(state.leader_epoch)
            self._led_ns = now.mono_ns
            log.producers.cautious = len(state.replicas) > 1
        self._in_sync.apply_state(state, log.end_offset if newly else None, now.mono_ns)
        self._refresh_guards()
        if self.syncs and log.recovery_point < log.sync_awaited:
            log.flush(ignore_flush)  # records that a recovery found are not durable; the high watermark waits for them
        self._advance_high_watermark()
        if newly:
            self._on_role_change()
        elif self._guarded:  # the ISR may have become too small: delayed produces look at it
            self.shared.check(self)
        return newly

    def make_follower(self, state: PartitionState, now: Instant) -> bool:
        """Follow. Returns whether the leader or its epoch changed. Older states: see `make_leader`.

        The fetcher truncates the log where it diverges from the leader's.
        """
        assert state.leader != self.node_id, f"{self.tp} is led here"
        changed = (state.leader, state.leader_epoch) != (self.leader, self.leader_epoch)
        self._take_state(state)
        self._in_sync.apply_state(state, 0, now.mono_ns)
        self._refresh_guards()
        if changed:
            self._on_role_change()
        return changed

    def step_back(self) -> None:
        """Stop leading until the controller sends a state; the leader epoch stays."""
        self.leader = NO_LEADER
        self.is_leader = False
        self._refresh_guards()
        self._on_role_change()

    def _take_state(self, state: PartitionState) -> None:
        if (state.leader, state.leader_epoch, state.replicas) != (self.leader, self.leader_epoch, self.replicas):
            self.log.removable_below = 0 if len(state.replicas) > 1 else UNBOUNDED
        self.leader = state.leader
        self.is_leader = state.leader == self.node_id
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.adding = state.adding
        self.removing = state.removing

    def go_offline(self, why: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> None:
        """Refuse all requests: the log directory failed, or (UNKNOWN_TOPIC_OR_PARTITION) the replica is deleted."""
        self.offline = why
        self.is_leader = False
        self._refresh_guards()
        self._on_role_change()

    def _refresh_guards(self) -> None:
        """Cache for the hot path what follows from role, ISR and settings; called after each change of those."""
        self.min_isr = effective_min_isr(self.config.min_insync_replicas, self.replicas, self.adding)
        self._guarded = not self.is_leader or self.isr_too_small
        self._alone = not self._guarded and not self.syncs and len(self.replicas) == 1

    def _on_role_change(self) -> None:
        """After a change of role: void verifications, and wake everything that waits for this partition."""
        self.guards.void_all()
        self.wake_watchers()
        self._wake_end_watchers()
        self.shared.check(self)
        self.shared.on_role(self)

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(self, records: memoryview, acks: int, now: Instant) -> tuple[int, int, int]:
        """Append one produced batch. Patches its header in place, and does not read its records.

        Returns base offset, append time in ms (LogAppendTime; else -1), and the offset that the high watermark must
        reach before the response to acks=all. Raises ApiError with Kafka's code."""
        if self._guarded:  # 1. may this replica take it?
            self._check_append(acks, records, now)
        size, before_ms, after_ms = len(records), self._before_max_ms, self._after_max_ms
        try:  # 2. is the batch intact, and within the topic's limits?
            header = validate_produced(records, 0, size, now[1], self._max_bytes, before_ms, after_ms)
        except ApiError as error:
            self._refuse_records(records, error.as_value(), now)
        log = self.log
        if header[9] >= 0:  # 3. of an idempotent producer: is it the next batch, a duplicate, or out of order?
            if self._refusals.waiting:
                self._refusals.check_missing(header, log.producers, now)
            try:
                duplicate = log.check_producer(header)
            except ApiError as error:
                self._check_sequence_gap(header, error.as_value(), acks, now)
                duplicate = None
            if duplicate is not None:
                stamp = duplicate.timestamp if self._append_time else NO_TIMESTAMP
                return duplicate.base_offset, stamp, duplicate.last_offset + 1
            if header[5] & TRANSACTIONAL and self.shared.verifies:  # 4. does its coordinator know the transaction?
                self._check_verified(header[9], header[10], header[11])
        stamp = NO_TIMESTAMP
        if self._append_time:
            stamp = now.wall_ms if log.prepared is None else log.append_time_of(records, now.wall_ms)
            set_append_time(records, 0, stamp)
        write = log.append if log.magic == MAGIC_V2 else self._lowered_append(header)
        try:
            base_offset = write(records, header, self.leader_epoch, now)
            self.bytes_in += size
            self.messages_in += header[12]
            if self._alone:
                self.high_watermark = log.high_watermark = log.end_offset
                if self.watchers:
                    self.wake_watchers()
            else:
                if self.end_watchers:
                    self._wake_end_watchers()
                if not self._in_sync.counted:  # else followers hold it back: they do not have this batch yet
                    self._advance_high_watermark()
        except ApiError as error:
            self._refuse_records(records, error.as_value(), now)
        except Exception as error:  # a change (`ottla.changes`)
            raise half_changed(f"an append to {self.tp}") from error
        return base_offset, stamp, base_offset + header[12]

    def _check_verified(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Raises ApiError INVALID_TXN_STATE for a batch that would open a transaction without verification.

        Under transaction version 2 each transaction has its own epoch, so the batches of an unknown producer begin at
        sequence 0: OUT_OF_ORDER_SEQUENCE_NUMBER if not. Before, earlier ones may have been deleted (KIP-360)."""
        producers = self.log.producers
        if producers.is_open(producer_id, epoch):
            return
        guard = self.guards.passing_guard(producer_id, epoch)
        if guard is None:
            raise ApiError(ErrorCode.INVALID_TXN_STATE, f"{self.tp}: no open transaction of {producer_id}/{epoch}")
        if guard.adds and sequence > 0 and producers.get(producer_id) is None:
            text = f"{self.tp} does not know producer {producer_id}, which has to begin at sequence 0, not {sequence}"
            raise ApiError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, text)

    def append_own(self, batch: memoryview, now: Instant) -> int:
        """Append a batch of a coordinator on this broker, as with acks=all. Returns the offset of its first record.

        Checks its size only: such batches may be transactional without a sequence, or control batches, and are for
        internal topics. Raises ApiError as `append` does."""
        if self._guarded:
            self._check_append(-1, batch, now)
        if len(batch) > self._max_bytes:
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"{len(batch)} bytes, max.message.bytes is {self._max_bytes}")
        return self._write_own(batch, now)

    @changes_state
    def append_marker(self, producer_id: int, epoch: int, marker: Marker, bumped: bool, now: Instant) -> int:
        """End a producer's transaction here, as with acks=all. Returns the offset that the high watermark must reach.

        A marker that is in the log already is not written again. `bumped`: transaction version 2 (`ProducerState`).
        Raises ApiError as `append` does, and TRANSACTION_COORDINATOR_FENCED, INVALID_PRODUCER_EPOCH."""
        batch = memoryview(marker_batch(producer_id, epoch, marker, now.wall_ms))
        if self._guarded:
            self._check_append(-1, batch, now)
        producers = self.log.producers
        producers.check_coordinator(producer_id, marker.coordinator_epoch)
        if not producers.needs_marker(producer_id, epoch, bumped):
            return self.log.end_offset
        if self._append_time:
            set_append_time(batch, 0, now.wall_ms)
        offset = self._write_own(batch, now, marker)
        self.guards.void_ended(producer_id, epoch, bumped)  # answers about this transaction that are still to come
        self.shared.on_marker(self, producer_id, epoch, marker.commit, offset)
        return offset + 1

    def _write_own(self, batch: memoryview, now: Instant, marker: Marker | None = None) -> int:
        log = self.log
        header = unpack_header(batch, 0)
        try:
            base_offset = log.append(batch, header, self.leader_epoch, now, marker)
            self.bytes_in += len(batch)
            self.messages_in += header[12]
            if self.end_watchers:
                self._wake_end_watchers()
            if self._alone:
                self.high_watermark = log.high_watermark = log.end_offset
                if self.watchers:
                    self.wake_watchers()
            else:
                self._advance_high_watermark()
        except (ApiError, Failure, HalfChanged):
            raise
        except Exception as error:  # a change (`ottla.changes`)
            raise half_changed(f"an append to {self.tp}") from error
        return base_offset

    def _check_append(self, acks: int, records: memoryview, now: Instant) -> None:
        """Raises ApiError if this replica does not lead, or if its ISR is too small for acks=all."""
        try:
            self.check_leader(NO_EPOCH)
            if acks < 0 and self.isr_too_small:
                raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, self._isr_too_small_text())
        except ApiError as error:
            self._refuse_records(records, error.as_value(), now)

    def _check_sequence_gap(self, header: HeaderTuple, error: ApiError, acks: int, now: Instant) -> None:
        """Decide on a batch with an unexpected sequence: raises ApiError, or returns if it may be appended anyway."""
        producers = self.log.producers
        # 1. A duplicate of a batch too old to be remembered. Producers take the error for success, so under acks=all it
        #    is reported only when the batch surely is committed.
        if error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and acks < 0 and not self._has_committed(header[9]):
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, f"{error.message}; it may not be committed yet")
        if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            raise error
        # 2. A gap soon after an election: earlier batches may still come from the old leader. Producers retry.
        if now.mono_ns - self._led_ns > NEW_LEADER_NS:
            producers.cautious = False
        if producers.cautious and self._refusals.may_be_overtaken(header, producers, self._in_sync.epoch_start, now):
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{error.message}; earlier batches may still arrive, retry")
        # 3. A gap of a known producer; first make sure that no successor leads and has the missing batches. An unknown
        #    producer may begin at any sequence: its earlier batches may have been deleted (KIP-360).
        if producers.get(header[9]) is not None:
            doubted = self._refusals.is_doubted(header, self._in_sync.follows_since, now)
            raise unconfirmed_gap_error(error) if doubted else error

    def _has_committed(self, producer_id: int) -> bool:
        """Whether all batches of a producer before the oldest one that is remembered are committed."""
        known = self.log.producers.get(producer_id)
        if known is None or not known.batches:
            return True
        _, last_offset, delta, _ = known.batches[0]
        return self.high_watermark >= last_offset - delta

    def _refuse_records(self, records: memoryview, error: ApiError, now: Instant) -> NoReturn:
        self.note_refused(records, error, now)
        raise error

    def note_refused(self, records: memoryview, error: ApiError, now: Instant) -> None:
        """Note that a batch was refused before it was written: its producer's later batches have to wait for it."""
        self._refusals.note_refused(records, error, now)

    def is_settled(self, offset: int, acks: int) -> bool:
        """Whether records up to `offset` can be acknowledged: committed for acks=all, synced with flush.messages.

        Raises ApiError when that will not happen: NOT_LEADER_OR_FOLLOWER (leadership is lost),
        NOT_ENOUGH_REPLICAS_AFTER_APPEND (the ISR became too small meanwhile), KAFKA_STORAGE_ERROR (the sync failed)."""
        log = self.log
        if self.syncs and log.recovery_point < offset <= log.sync_awaited:
            if log.offline is not None:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.tp} was appended, but not synced: {log.offline}")
            self.check_leader(NO_EPOCH)
            return False
        if self._guarded:
            self.check_leader(NO_EPOCH)
            if acks < 0 and self.isr_too_small:
                raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, self._isr_too_small_text())
        return acks > 0 or self.high_watermark >= offset

    def _isr_too_small_text(self) -> str:
        return f"{self.tp} has the ISR {list(self.isr)}, but min.insync.replicas requires {self.min_isr} replicas"

    # -- the high watermark --------------------------------------------------------------------------------------------

    def _own_end(self) -> int:
        """This replica's end offset for the high watermark; with flush.messages only durable records count."""
        log = self.log
        if self.syncs and log.recovery_point < log.sync_awaited:
            return log.recovery_point
        return log.end_offset

    def _advance_high_watermark(self) -> None:
        """Advance the high watermark if the replicas allow it, and wake what waits for it."""
        lowest = self._in_sync.lowest_end(self._own_end())
        mark = next_high_watermark(self.high_watermark, (lowest,), len(self.isr), self.min_isr)
        if mark != self.high_watermark:
            self._move_high_watermark(mark)

    def _on_synced(self) -> None:
        """Advance the high watermark after a flush."""
        if self.is_leader:
            self._advance_high_watermark()
        self.shared.check(self)

    # -- followers of this leader --------------------------------------------------------------------------------------

    def readable_at(self, offset: int) -> Iterator[tuple[int, int, int]]:
        """Leader: in-sync replicas that have `offset`: (node, LEO, last caught up in ns), the leader first."""
        yield self.node_id, self.log.end_offset, NO_LIMIT
        replicas = self._in_sync.replicas
        for node in self.isr:
            if node in replicas and replicas[node].log_start <= offset <= replicas[node].end_offset:
                yield node, replicas[node].end_offset, replicas[node].caught_up_ns

    def note_fetch(
        self,
        replica_id: int,
        broker_epoch: int,
        leader_epoch: int,
        offset: int,
        last_epoch: int,
        log_start: int,
        now: Instant,
        contact: FollowerContact,
    ) -> EpochEnd | None:
        """Note a follower's fetch from `offset` on, which acknowledges all records before it.

        Returns where its log diverges from this one (its last record is of `last_epoch`): then nothing was noted, and
        it has to truncate before it fetches again. Raises ApiError FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
        NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE."""
        self.check_leader(leader_epoch)
        in_sync = self._in_sync
        if replica_id not in in_sync.replicas:
            raise unknown_replica_error(self.tp, replica_id, leader_epoch)
        log, end = self.log, self.log.end_offset
        parts_at = None if last_epoch < 0 else self.find_divergence(offset, last_epoch)
        if parts_at is not None:
            return parts_at
        if not log.start_offset <= offset <= end:
            raise out_of_range_error(self.tp, log.start_offset, end, offset)
        news = in_sync.on_follower_fetch(replica_id, broker_epoch, offset, log_start, end, now.mono_ns, contact)
        if news is FetchProgress.END:
            self._advance_high_watermark()
        elif news is FetchProgress.START:
            self.shared.check(self)
        if replica_id not in in_sync.isr:
            self._send_proposal(in_sync.propose_joiner(replica_id, self.high_watermark, now.mono_ns))
        return None

    def note_cleaned(self, replica_id: int, broker_epoch: int, until: int) -> int:
        """Leader: note that a follower has cleaned its log up to `until`. Returns the new bound."""
        self._in_sync.note_cleaned(replica_id, broker_epoch, until)
        return self.bound_removals()

    def bound_removals(self) -> int:
        """Leader: the offset up to which all assigned replicas have cleaned their logs; also bounds the own cleaner."""
        self.log.removable_below = bound = self._in_sync.cleaned_by_all(self.log.cleaned_until)
        return bound

    @changes_state
    def shrink_if_lagging(self, now: Instant) -> None:
        """Propose an ISR without replicas that have lagged for replica.lag.time.max.ms; else one with a joiner."""
        if self.is_leader:
            in_sync, end = self._in_sync, self.log.end_offset
            self._send_proposal(
                in_sync.propose_shrink(end, now.mono_ns) or in_sync.propose_retry(self.high_watermark, end, now.mono_ns)
            )

    def _send_proposal(self, proposal: IsrProposal | None) -> None:
        if proposal is not None:
            self._isr_changes.propose_isr(self, proposal)

    def on_alter_partition_response(self, outcome: IsrOutcome) -> None:
        """Apply the controller's answer to a proposal; the partition's state may have changed since the proposal."""
        verdict = self._in_sync.on_alter_partition_response(outcome)
        if verdict is ProposalVerdict.AGAIN:
            self._send_proposal(outcome.proposal)
        elif verdict is ProposalVerdict.CHANGED:
            self.partition_epoch = self._in_sync.partition_epoch
            self._refresh_guards()
            self._advance_high_watermark()
            self.shared.check(self)
            self._send_proposal(self._in_sync.next_joiner(self.high_watermark))

    @changes_state
    def raise_start(self, offset: int) -> None:
        """Leader: raise the log start to `offset`, which is at most the high watermark. Raises ApiError."""
        try:
            self.log.set_start_offset(offset)
        except Failure as failure:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, failure.message) from failure
        self.wake_watchers()
        self._wake_end_watchers()

    def log_starts(self) -> Iterator[tuple[int, int]]:
        """Leader: (node, log start) of the other replicas; -1 for one that has not fetched in this leader epoch."""
        return ((node, replica.log_start) for node, replica in self._in_sync.replicas.items())

    @property
    def knows_latest(self) -> bool:
        """Leader: whether the high watermark has reached the start of the leader epoch; before that it may be old."""
        return self.high_watermark >= self._in_sync.epoch_start
