"""What a replica does while it leads: appends, the high watermark, and its view of the followers.

Zone: deterministic. Contains the rules of an append; `isr` tracks the in-sync replicas, the log stores bytes, the
handlers handle requests. The state that both roles share is in `local_replica`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn, Protocol

from ottla.changes import HalfChanged, changes_state, half_changed
from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import MAGIC_V2, TRANSACTIONAL, set_append_time, unpack_header
from ottla.record.control import Marker, marker_batch
from ottla.record.header_fields import ATTRIBUTES, BASE_SEQUENCE, PRODUCER_EPOCH, PRODUCER_ID, RECORD_COUNT
from ottla.record.validation import HeaderTuple, validate_produced
from ottla.replication.partition.isr import FetchProgress, FollowerContact, InSyncReplicas, ProposalVerdict
from ottla.replication.partition.local_replica import NO_LIMIT, LocalReplica
from ottla.replication.partition.lowered_append import append_lowered, append_time_of
from ottla.replication.partition.replica_errors import out_of_range_error, unconfirmed_gap_error, unknown_replica_error
from ottla.replication.partition.replica_state import (
    EpochEnd,
    IsrOutcome,
    IsrProposal,
    PartitionState,
    effective_min_isr,
    next_high_watermark,
)
from ottla.replication.partition.sequence_gaps import NEW_LEADER_NS, SequenceGaps
from ottla.replication.partition.verification_guards import VerificationGuards
from ottla.seams import Failure, Instant
from ottla.types import NO_EPOCH, NO_TIMESTAMP


class IsrChannel(Protocol):
    """Sends proposals of leaders to the controller."""

    def propose_isr(self, leader: LeaderRole, proposal: IsrProposal) -> None:
        """Ask the controller for another ISR; `LeaderRole.on_alter_partition_response` follows in a later turn, exactly
        once.

        The outcome is always a decision: after lost connections, time-outs and NOT_CONTROLLER the channel asks again.
        OPERATION_NOT_ATTEMPTED: the proposal was certainly not carried out.
        """
        ...


class LeaderRole:
    """The leader's part of one replica. It exists while others lead as well, and then refuses to append."""

    __slots__ = (
        "_alone",
        "_isr_changes",
        "_led_ns",
        "_refusals",
        "guarded",
        "guards",
        "in_sync",
        "min_isr",
        "replica",
    )

    def __init__(self, replica: LocalReplica, isr_changes: IsrChannel) -> None:
        self.replica = replica
        log = replica.log
        # No method of this object or of the log: a deleted replica has to be freed without the garbage collector.
        self.in_sync = InSyncReplicas(
            replica.node_id, replica.shared, partial(log.home.bounds_due.setdefault, log.tp, None)
        )
        self._isr_changes = isr_changes
        self._refusals = SequenceGaps()
        self._led_ns = 0
        """When this broker became the leader, in the present epoch."""
        self.guards = VerificationGuards()
        """Verifications in progress: transactions whose coordinators are being asked."""
        self.refresh_guards()

    def apply_state(self, state: PartitionState, newly: bool, now: Instant) -> None:
        """Lead with this state of the controller, which the replica has taken; `newly` in a new leader epoch."""
        replica, log = self.replica, self.replica.log
        if newly:
            # At once, although the epoch has no record yet: a follower that asks where the epoch before ended gets this
            # offset, and does not take later records for records of that epoch (KIP-101).
            log.begin_epoch(state.leader_epoch)
            self._led_ns = now.mono_ns
            # A producer may still have batches in flight to the leader before. An only replica has had no other leader.
            log.producers.cautious = len(state.replicas) > 1
        self.in_sync.apply_state(state, log.end_offset if newly else None, now.mono_ns)
        self.refresh_guards()
        if replica.syncs and log.recovery_point < log.flush_policy.awaited_offset:
            log.flush(_ignore_flush)  # records that a recovery found are not durable; the high watermark waits for them
        self.advance_high_watermark()

    def refresh_guards(self) -> None:
        """Cache for the hot path what follows from role, ISR and settings; called after each change of those."""
        replica = self.replica
        self.min_isr = effective_min_isr(replica.config.min_insync_replicas, replica.replicas, replica.adding)
        self.guarded = not replica.is_leader or self.isr_too_small
        self._alone = not self.guarded and not replica.syncs and len(replica.replicas) == 1

    @property
    def isr_too_small(self) -> bool:
        """Whether fewer replicas are in sync than min.insync.replicas requires."""
        return len(self.in_sync.isr) < self.min_isr

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(self, records: memoryview, acks: int, now: Instant) -> tuple[int, int, int]:
        """Append one produced batch. Patches its header in place, and does not read its records.

        Returns base offset, append time in ms (LogAppendTime; else -1), and the offset that the high watermark must
        reach before the response to acks=all. Raises ApiError with Kafka's code."""
        replica = self.replica
        if self.guarded:  # 1. may this replica take it?
            self._check_append(acks, records, now)
        size, before_ms, after_ms = len(records), replica.before_max_ms, replica.after_max_ms
        try:  # 2. is the batch intact, and within the topic's limits?
            header = validate_produced(records, 0, size, now[1], replica.max_bytes, before_ms, after_ms)
        except ApiError as error:
            self._refuse_records(records, error.as_value(), now)
        log = replica.log
        if header[PRODUCER_ID] >= 0:  # 3. of an idempotent producer: the next, a duplicate, or out of order?
            if self._refusals.waiting:
                self._refusals.check_missing(header, log.producers, now)
            try:
                duplicate = log.check_producer(header)
            except ApiError as error:
                self._check_sequence_gap(header, error.as_value(), acks, now)
                duplicate = None
            if duplicate is not None:
                stamp = duplicate.timestamp if replica.append_time else NO_TIMESTAMP
                return duplicate.base_offset, stamp, duplicate.last_offset + 1
            if header[ATTRIBUTES] & TRANSACTIONAL and replica.shared.verifies:  # 4. is it of a known transaction?
                self._check_verified(header[PRODUCER_ID], header[PRODUCER_EPOCH], header[BASE_SEQUENCE])
        stamp = NO_TIMESTAMP
        if replica.append_time:
            stamp = now.wall_ms if log.prepared is None else append_time_of(log, records, now.wall_ms)
            set_append_time(records, 0, stamp)
        write = log.append if log.magic == MAGIC_V2 else self._lowered_append(header)
        try:
            base_offset = write(records, header, replica.leader_epoch, now)
            replica.bytes_in += size
            replica.messages_in += header[RECORD_COUNT]
            if self._alone:
                replica.high_watermark = log.high_watermark = log.end_offset
                if replica.watchers:
                    replica.wake_watchers()
            else:
                if replica.end_watchers:
                    replica.wake_end_watchers()
                if not self.in_sync.counted:  # else followers hold it back: they do not have this batch yet
                    self.advance_high_watermark()
        except ApiError as error:
            self._refuse_records(records, error.as_value(), now)
        except Exception as error:  # a change (`ottla.changes`)
            raise half_changed(f"an append to {replica.tp}") from error
        return base_offset, stamp, base_offset + header[RECORD_COUNT]

    def _lowered_append(self, header: HeaderTuple) -> Callable[[memoryview, HeaderTuple, int, Instant], int]:
        """The append for a log with an older message format; counts the records as converted."""
        self.replica.produce_conversions += header[RECORD_COUNT]
        return partial(append_lowered, self.replica.log)

    def _check_verified(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Raises ApiError INVALID_TXN_STATE for a batch that would open a transaction without verification.

        Under transaction version 2 each transaction has its own epoch, so the batches of an unknown producer begin at
        sequence 0: OUT_OF_ORDER_SEQUENCE_NUMBER if not. Before, earlier ones may have been deleted (KIP-360)."""
        replica = self.replica
        producers = replica.log.producers
        if producers.is_open(producer_id, epoch):
            return
        guard = self.guards.passing_guard(producer_id, epoch)
        if guard is None:
            raise ApiError(ErrorCode.INVALID_TXN_STATE, f"{replica.tp}: no open transaction of {producer_id}/{epoch}")
        if guard.adds and sequence > 0 and producers.get(producer_id) is None:
            text = f"does not know producer {producer_id}, which has to begin at sequence 0, not {sequence}"
            raise ApiError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{replica.tp} {text}")

    def append_own(self, batch: memoryview, now: Instant) -> int:
        """Append a batch of a coordinator on this broker, as with acks=all. Returns the offset of its first record.

        Checks its size only: such batches may be transactional without a sequence, or control batches, and are for
        internal topics. Raises ApiError as `append` does."""
        replica = self.replica
        if self.guarded:
            self._check_append(-1, batch, now)
        if len(batch) > replica.max_bytes:
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"{len(batch)} bytes, max.message.bytes is {replica.max_bytes}")
        return self._write_own(batch, now)

    @changes_state
    def append_marker(self, producer_id: int, epoch: int, marker: Marker, bumped: bool, now: Instant) -> int:
        """End a producer's transaction here, as with acks=all. Returns the offset that the high watermark must reach.

        A marker that is in the log already is not written again. `bumped`: transaction version 2 (`ProducerState`).
        Raises ApiError as `append` does, and TRANSACTION_COORDINATOR_FENCED, INVALID_PRODUCER_EPOCH."""
        replica = self.replica
        batch = memoryview(marker_batch(producer_id, epoch, marker, now.wall_ms))
        if self.guarded:
            self._check_append(-1, batch, now)
        producers = replica.log.producers
        producers.check_coordinator(producer_id, marker.coordinator_epoch)  # the sender may have been replaced
        if not producers.needs_marker(producer_id, epoch, bumped):
            # The marker is somewhere below the end; once the high watermark is there, it is committed.
            return replica.log.end_offset
        if replica.append_time:
            set_append_time(batch, 0, now.wall_ms)
        offset = self._write_own(batch, now, marker)
        # Answers about this transaction that are still to come are outdated.
        self.guards.void_ended(producer_id, epoch, bumped)
        replica.shared.on_marker(replica, producer_id, epoch, marker.commit, offset)
        return offset + 1

    def _write_own(self, batch: memoryview, now: Instant, marker: Marker | None = None) -> int:
        replica = self.replica
        log = replica.log
        header = unpack_header(batch, 0)
        try:
            base_offset = log.append(batch, header, replica.leader_epoch, now, marker)
            replica.bytes_in += len(batch)
            replica.messages_in += header[RECORD_COUNT]
            if replica.end_watchers:
                replica.wake_end_watchers()
            if self._alone:
                replica.high_watermark = log.high_watermark = log.end_offset
                if replica.watchers:
                    replica.wake_watchers()
            else:
                self.advance_high_watermark()
        except (ApiError, Failure, HalfChanged):
            raise
        except Exception as error:  # a change (`ottla.changes`)
            raise half_changed(f"an append to {replica.tp}") from error
        return base_offset

    def _check_append(self, acks: int, records: memoryview, now: Instant) -> None:
        """Raises ApiError if this replica does not lead, or if its ISR is too small for acks=all."""
        replica = self.replica
        try:
            replica.check_leader(NO_EPOCH)
            if acks < 0 and self.isr_too_small:
                raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, self._isr_too_small_text())
        except ApiError as error:
            self._refuse_records(records, error.as_value(), now)

    def _check_sequence_gap(self, header: HeaderTuple, error: ApiError, acks: int, now: Instant) -> None:
        """Decide on a batch with an unexpected sequence: raises ApiError, or returns if it may be appended anyway."""
        replica = self.replica
        producers = replica.log.producers
        # 1. A duplicate of a batch too old to be remembered. Producers take the error for success, so under acks=all it
        #    is reported only when the batch surely is committed.
        if (
            error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
            and acks < 0
            and not self._has_committed(header[PRODUCER_ID])
        ):
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, f"{error.message}; it may not be committed yet")
        if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            raise error
        # 2. A gap soon after an election: earlier batches may still come from the old leader. Producers retry.
        if now.mono_ns - self._led_ns > NEW_LEADER_NS:
            producers.cautious = False
        if producers.cautious and self._refusals.may_be_overtaken(header, producers, self.in_sync.epoch_start, now):
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{error.message}; earlier batches may still arrive, retry")
        # 3. A gap of a known producer; first make sure that no successor leads and has the missing batches. An unknown
        #    producer may begin at any sequence: its earlier batches may have been deleted (KIP-360).
        if producers.get(header[PRODUCER_ID]) is not None:
            doubted = self._refusals.is_doubted(header, self.in_sync.follows_since, now)
            raise unconfirmed_gap_error(error) if doubted else error

    def _has_committed(self, producer_id: int) -> bool:
        """Whether all batches of a producer before the oldest one that is remembered are committed."""
        replica = self.replica
        known = replica.log.producers.get(producer_id)
        if known is None or not known.batches:
            return True
        _, last_offset, delta, _ = known.batches[0]
        return replica.high_watermark >= last_offset - delta

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
        replica = self.replica
        log = replica.log
        # 1. With flush.messages this broker's disk first. A directory that has failed syncs nothing any more, so the
        # answer is an error, although followers may have the record. 2. Leadership and ISR. 3. The high watermark, for
        # acks=all.
        if replica.syncs and log.recovery_point < offset <= log.flush_policy.awaited_offset:
            if log.home.offline is not None:
                text = f"{replica.tp} was appended, but not synced: {log.home.offline}"
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, text)
            replica.check_leader(NO_EPOCH)
            return False
        if self.guarded:
            replica.check_leader(NO_EPOCH)
            if acks < 0 and self.isr_too_small:
                raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, self._isr_too_small_text())
        return acks > 0 or replica.high_watermark >= offset

    def _isr_too_small_text(self) -> str:
        tp, isr = self.replica.tp, list(self.in_sync.isr)
        return f"{tp} has the ISR {isr}, but min.insync.replicas requires {self.min_isr} replicas"

    # -- the high watermark --------------------------------------------------------------------------------------------

    def _own_end(self) -> int:
        """This replica's end offset for the high watermark; with flush.messages only durable records count."""
        log = self.replica.log
        if self.replica.syncs and log.recovery_point < log.flush_policy.awaited_offset:
            return log.recovery_point
        return log.end_offset

    def advance_high_watermark(self) -> None:
        """Advance the high watermark if the replicas allow it, and wake what waits for it."""
        replica = self.replica
        lowest = self.in_sync.lowest_end(self._own_end())
        mark = next_high_watermark(replica.high_watermark, (lowest,), len(self.in_sync.isr), self.min_isr)
        if mark != replica.high_watermark:
            replica.move_high_watermark(mark)

    # -- followers of this leader --------------------------------------------------------------------------------------

    def readable_at(self, offset: int) -> Iterator[tuple[int, int, int]]:
        """In-sync replicas that have `offset`: (node, LEO, last caught up in ns), the leader first."""
        replica = self.replica
        yield replica.node_id, replica.log.end_offset, NO_LIMIT
        replicas = self.in_sync.replicas
        for node in self.in_sync.isr:
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
        replica = self.replica
        replica.check_leader(leader_epoch)
        in_sync = self.in_sync
        if replica_id not in in_sync.replicas:
            raise unknown_replica_error(replica.tp, replica_id, leader_epoch)
        log, end = replica.log, replica.log.end_offset
        # Before anything is noted: the offset of a log with another history acknowledges no record of this one.
        parts_at = None if last_epoch < 0 else replica.find_divergence(offset, last_epoch)
        if parts_at is not None:
            return parts_at
        # Above the end: the follower's log is the longer one, after an unclean election. Below the start: it was away
        # while records were deleted.
        if not log.start_offset <= offset <= end:
            raise out_of_range_error(replica.tp, log.start_offset, end, offset)
        news = in_sync.on_follower_fetch(replica_id, broker_epoch, offset, log_start, end, now.mono_ns, contact)
        if news is FetchProgress.END:
            self.advance_high_watermark()
        # Nothing to read has changed, so no listener is woken: DeleteRecords alone waits for the log starts of
        # followers.
        elif news is FetchProgress.START:
            replica.shared.check(replica)
        # After the high watermark has moved: to join, a follower needs every record that is committed by now.
        if replica_id not in in_sync.isr:
            self._send_proposal(in_sync.propose_joiner(replica_id, replica.high_watermark, now.mono_ns))
        return None

    def note_cleaned(self, replica_id: int, broker_epoch: int, until: int) -> int:
        """Note that a follower has cleaned its log up to `until`. Returns the new bound."""
        self.in_sync.note_cleaned(replica_id, broker_epoch, until)
        return self.bound_removals()

    def bound_removals(self) -> int:
        """The offset up to which all assigned replicas have cleaned their logs; also bounds the own cleaner."""
        log = self.replica.log
        log.removable_below = bound = self.in_sync.cleaned_by_all(log.cleaned_until)
        return bound

    @changes_state
    def shrink_if_lagging(self, now: Instant) -> None:
        """Propose an ISR without replicas that have lagged for replica.lag.time.max.ms; else one with a joiner."""
        replica = self.replica
        if replica.is_leader:
            in_sync, end, mark = self.in_sync, replica.log.end_offset, replica.high_watermark
            self._send_proposal(
                in_sync.propose_shrink(end, now.mono_ns) or in_sync.propose_retry(mark, end, now.mono_ns)
            )

    def _send_proposal(self, proposal: IsrProposal | None) -> None:
        if proposal is not None:
            self._isr_changes.propose_isr(self, proposal)

    def on_alter_partition_response(self, outcome: IsrOutcome) -> None:
        """Apply the controller's answer to a proposal; the partition's state may have changed since the proposal."""
        replica = self.replica
        if replica.offline is not None:
            return  # its leader is another broker by then, or the partition is deleted
        verdict = self.in_sync.on_alter_partition_response(outcome)
        if verdict is ProposalVerdict.AGAIN:
            self._send_proposal(outcome.proposal)
        elif verdict is ProposalVerdict.CHANGED:
            # The version that the controller wrote: a LeaderAndIsr that it sent before that has a smaller one, and is
            # ignored.
            replica.partition_epoch = self.in_sync.partition_epoch
            self.refresh_guards()
            self.advance_high_watermark()
            replica.shared.check(replica)
            self._send_proposal(self.in_sync.next_joiner(replica.high_watermark))

    @changes_state
    def raise_start(self, offset: int) -> None:
        """Raise the log start to `offset`, which is at most the high watermark. Raises ApiError."""
        replica = self.replica
        try:
            replica.log.set_start_offset(offset)
        except Failure as failure:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, failure.message) from failure
        replica.wake_watchers()
        replica.wake_end_watchers()

    def log_starts(self) -> Iterator[tuple[int, int]]:
        """(Node, log start) of the other replicas; -1 for one that has not fetched in this leader epoch."""
        return ((node, replica.log_start) for node, replica in self.in_sync.replicas.items())

    @property
    def knows_latest(self) -> bool:
        """Whether the high watermark has reached the start of the leader epoch; before that it may be old."""
        return self.replica.high_watermark >= self.in_sync.epoch_start


def _ignore_flush(_: object) -> None:
    """Ignore the result of a flush: the log keeps it (`recovery_point`, `offline`)."""
