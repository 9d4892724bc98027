"""The runtime of one shard: it loads, then appends → applies → performs effects, until its partition has a new leader.

Zone: deterministic. Only this module calls a state machine. An exception that escapes one is a defect of its code:

- in `handle`: nothing has changed, so only the request that caused it fails;
- in `apply` or a step of its own: the state may be half changed, so this shard (not the broker) is fenced, dropped and
  loaded from its log again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from ottla.changes import HalfChanged, half_changed
from ottla.coordinator.deferred_events import DeferredEventQueue, DeferredEvents
from ottla.coordinator.journal import PartitionJournal
from ottla.coordinator.loading import Loader
from ottla.coordinator.shard import (
    NOTHING,
    VOLATILE,
    AnswerEffect,
    Codec,
    Command,
    Decision,
    Effect,
    EntryOrigin,
    Refusal,
    Shard,
    TransactionEnd,
)
from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.purgatory.timing_wheel import Timer
from ottla.record.errors import CorruptRecord
from ottla.replication.partition.partition import Partition
from ottla.seams import Clock, Failure, Instant
from ottla.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

STEPS_PER_TURN: Final = 20
"""The most calls of `on_time` in one turn; the rest follows in the next turn."""
RECORDS_PER_TURN: Final = 500
"""Once a turn has written this many records, `on_time` is not called again in it."""
RETRY_MS: Final = 500
"""The delay before `on_time` is called again after the log refused its append."""
_NS_PER_MS: Final = 1_000_000
_logger = logging.getLogger(__name__)
_new = tuple.__new__  # a third of the time of the class's own, and this runs for every record


class ShardState(Enum):
    """The phases of a shard's life."""

    LOADING = 1
    ACTIVE = 2
    FENCED = 3
    """A defect in its state machine, or its log cannot be read."""
    GONE = 4
    """The partition has another leader or leader epoch."""


_REFUSALS: Final = {
    ShardState.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ShardState.FENCED: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ShardState.GONE: ErrorCode.NOT_COORDINATOR,
}
LINE_MS: Final = 10_000
"""Time between two lines of one shard about requests that failed."""
_NO_PRODUCER: Final = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
# Kafka's mapping. Clients of a coordinator do not expect errors of a partition: they would report them to the
# application, instead of looking for the coordinator again.
_TRY_ELSEWHERE: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
_TRY_LATER: Final = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT)


def coordinator_error(error: ApiError) -> ApiError:
    """The error that clients of a coordinator get for an error of its log. Errors of size are not mapped."""
    if error.code in _TRY_ELSEWHERE:
        return ApiError(ErrorCode.NOT_COORDINATOR, error.message)
    if error.code in _TRY_LATER:
        return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    return error


class RuntimeContext:
    """The dependencies and settings that all shards of one coordinator share."""

    __slots__ = ("buffer_size", "clock", "codec", "commit_timeout_ms", "compression", "later", "purgatory")

    def __init__(
        self,
        clock: Clock,
        purgatory: Purgatory,
        later: Callable[[Callable[[], None]], None],
        codec: Codec,
        *,
        commit_timeout_ms: int = 5000,
        buffer_size: int = 5_242_880,
        compression: int = 0,
    ) -> None:
        """`later` queues a call for the end of this turn. `commit_timeout_ms`: how long effects wait for a commit."""
        self.clock = clock
        self.purgatory = purgatory
        self.later = later
        self.codec = codec
        self.commit_timeout_ms = commit_timeout_ms
        self.buffer_size = buffer_size
        self.compression = compression


class ShardRuntime:
    """Runs one state machine during one leader epoch of its partition. Implements `PartitionListener`."""

    __slots__ = (
        "_alarm",
        "_alarm_ns",
        "_journal",
        "_loader",
        "_looking",
        "_on_defect",
        "_parking",
        "_patience",
        "_silent_until_ns",
        "_tools",
        "applied",
        "machine",
        "state",
    )

    def __init__(
        self,
        partition: Partition,
        machine: Shard[Command],
        tools: RuntimeContext,
        wake: Callable[[], None],
        on_defect: Callable[[ShardRuntime], None],
    ) -> None:
        """`wake` is called when loading can continue after a wait for the disk; `on_defect` when a defect has fenced
        this shard."""
        self._on_defect = on_defect
        self.machine = machine
        self.state = ShardState.LOADING
        self.applied = 0
        """The position of the journal up to which all records are applied."""
        self._tools = tools
        self._journal = PartitionJournal(partition, tools.compression)
        self._loader = Loader(partition, tools.codec, tools.buffer_size, wake)
        self._parking = DeferredEventQueue()
        self._alarm: Timer | None = None
        self._alarm_ns = 0
        self._patience: Timer | None = None
        """The timer of `commit_timeout_ms`. It is set when the first effect waits, and stays set until it expires."""
        self._looking = False
        self._silent_until_ns = 0

    @property
    def epoch(self) -> int:
        """The leader epoch of this shard."""
        return self._journal.epoch

    @property
    def partition(self) -> Partition:
        """The partition whose log is the journal."""
        return self._journal.partition

    @property
    def is_empty(self) -> bool:
        """Whether the log has no records to load."""
        log = self._journal.partition.log
        return log.start_offset == log.end_offset

    @property
    def _tp(self) -> TopicPartition:
        return self._journal.partition.tp

    @property
    def parked_count(self) -> int:
        """The number of decisions whose effects wait for a commit."""
        return len(self._parking)

    # -- loading -------------------------------------------------------------------------------------------------------

    def load_step(self) -> bool:
        """Load one chunk. Returns True when the next chunk can be loaded without waiting for the disk."""
        if self._journal.is_lost or self.state is not ShardState.LOADING:
            return False
        try:
            more = self._loader.load_step(self.machine.apply)
        except (ApiError, Failure, CorruptRecord) as error:
            self._fence_shard(f"cannot be loaded: {error}")
            return False
        except Exception:  # noqa: BLE001  # a defect in one state machine must not affect other shards
            self._fence_shard("cannot be loaded", broken=True)
            return False
        if more:
            # A loader that waits for the disk leaves the round-robin; `wake` brings it back.
            return not self._loader.warming
        self._begin_loading()
        return False

    def _begin_loading(self) -> None:
        # Records above the high watermark are loaded as well. Answers that depend on them wait for their commit,
        # because they wait for this position.
        self.applied = self._journal.partition.log.end_offset
        now = self._tools.clock.now()
        if not self.is_empty:
            _logger.info("%s: loaded up to offset %d in epoch %d", self._tp, self.applied, self.epoch)
        # The state is ACTIVE before `on_loaded` is asked: its decision is carried out like any other.
        self.state = ShardState.ACTIVE
        self._carry_out(self._run_query(lambda: self.machine.on_loaded(now)), now)
        self._arm_alarm(now)

    @property
    def is_serving(self) -> bool:
        """Whether the shard accepts commands."""
        journal = self._journal
        partition = journal.partition  # `is_lost`, without a call
        return self.state is ShardState.ACTIVE and partition.is_leader and partition.leader_epoch == journal.epoch

    # -- commands ------------------------------------------------------------------------------------------------------

    def submit_command(self, command: Command) -> None:
        """Have the state machine decide about a command, or refuse it when the shard does not serve."""
        partition = self._journal.partition
        # `is_serving`, without a call
        if (
            self.state is not ShardState.ACTIVE
            or not partition.is_leader
            or partition.leader_epoch != self._journal.epoch
        ):
            code = _REFUSALS.get(self.state, ErrorCode.NOT_COORDINATOR)
            command.ticket(ApiError(code, f"the coordinator in {self._tp} is {self.state.name.lower()}"))
            return
        now = self._tools.clock.now()
        try:
            outcome = self.machine.handle(command, now)
        except Exception as error:  # noqa: BLE001  # deciding changes nothing, so only this request fails
            self._refuse_defect(error, command.ticket)
            return
        self._carry_out(outcome, now, command.ticket)
        if self.state is ShardState.ACTIVE:  # `_arm_alarm`, without a call
            deadline_ns = self.machine.next_deadline()
            if deadline_ns is not None and (self._alarm is None or deadline_ns < self._alarm_ns):
                self._arm_deadline(deadline_ns, now)

    def apply_event(self, event: object, deadline_ns: int | None, now: Instant) -> bool:
        """Apply one volatile event that was decided without `handle`, and that changes only a deadline.

        Returns False when it cannot be applied; the shard is fenced then.
        """
        try:
            self.machine.apply(event, VOLATILE)
        except Exception:  # noqa: BLE001  # a defect in one state machine must not affect other shards
            self._fence_shard("an event cannot be applied", broken=True)
            return False
        if deadline_ns is not None and (self._alarm is None or deadline_ns < self._alarm_ns):
            self._arm_alarm(now)
        return True

    def end_transaction(self, end: TransactionEnd, offset: int) -> None:
        """A control batch has been appended at `offset`. A shard that is loading reads it from the log instead."""
        if self.state is not ShardState.ACTIVE:
            return
        # Before it is applied: answers that depend on this end wait until its control batch is committed.
        self.applied = offset + 1
        try:
            self.machine.apply(end, EntryOrigin(offset, end.producer_id, end.producer_epoch))
        except Exception:  # noqa: BLE001  # a defect in one state machine must not affect other shards
            self._fence_shard("a transaction's end cannot be applied", broken=True)
        self._arm_alarm(self._tools.clock.now())

    def _refuse_defect(self, error: Exception, asker: Refusal | None) -> None:
        """A defect prevented a decision. Nothing has changed; the request gets UNKNOWN_SERVER_ERROR."""
        if self._may_write():
            _logger.error("%s: a decision failed, nothing has changed: %r; please report this", self._tp, error)
        if asker is not None:
            asker(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "the coordinator failed at this request; see its log"))

    def _may_write(self) -> bool:
        """Whether a line about a failed request may be written: at most one in LINE_MS, as clients repeat requests."""
        now_ns = self._tools.clock.now().mono_ns
        if now_ns < self._silent_until_ns:
            return False
        self._silent_until_ns = now_ns + LINE_MS * 1_000_000
        return True

    def _run_query(self, question: Callable[[], Decision]) -> Decision:
        try:
            return question()
        except Exception:  # noqa: BLE001  # a defect in one state machine must not affect other shards
            self._fence_shard("a step failed", broken=True)
            return NOTHING

    # -- the one rule --------------------------------------------------------------------------------------------------

    def _carry_out(self, outcome: Decision, now: Instant, asker: Refusal | None = None) -> bool:
        """Append, apply, perform. Returns False when the append was refused: `asker` has the error, nothing changed."""
        volatile, records, at_once, committed, producer = outcome
        base = 0
        # 1. Append. A read has no records, but its answer may have to wait, so it passes the limit of waiters as well.
        if records or committed:
            try:
                base = self._append_records(outcome, now)
            except ApiError as error:
                if asker is not None:
                    asker(coordinator_error(error.as_value()))
                return False
            except HalfChanged:
                raise
            except Exception as error:  # noqa: BLE001  # records that cannot be encoded: nothing is written
                self._refuse_defect(error, asker)
                return False
        # 2. Apply. From here on the log has the records: an exception leaves the state half changed.
        try:
            producer_id, epoch = producer or _NO_PRODUCER
            for offset, entry in enumerate(records, base):
                self.machine.apply(entry, _new(EntryOrigin, (offset, producer_id, epoch, now.wall_ms)))
            for event in volatile:
                self.machine.apply(event, VOLATILE)
        except Exception:  # noqa: BLE001  # a defect in one state machine must not affect other shards
            self._fence_shard("what was decided cannot be applied", (*at_once, *committed), broken=True, asker=asker)
            return False
        # 3. Perform, last: an effect may start work whose result comes back as the next command.
        for effect in at_once:
            self._perform_effect(effect)
        if committed:
            self._perform_when_committed(committed, now)
        return True

    def _append_records(self, outcome: Decision, now: Instant) -> int:
        """Append the records, if there are any. Returns the offset of the first one. Raises ApiError."""
        if self._patience is not None and outcome.committed and self._parking.is_full:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many requests wait for a commit; try again")
        if not outcome.records:
            return 0
        encode, records = self._tools.codec.encode, outcome.records
        try:
            encoded = [encode(records[0])] if len(records) == 1 else [encode(entry) for entry in records]
            base, position = self._journal.append(encoded, outcome.producer, now)
        except ApiError as error:
            if self._may_write():
                _logger.warning("%s: the log refused an append, the decision is dropped: %s", self._tp, error)
            raise
        self.applied = position
        return base

    def _perform_when_committed(self, effects: Sequence[Effect], now: Instant) -> None:
        high_watermark = self._journal.partition.high_watermark
        # Effects keep the order of the journal: also committed ones wait while earlier ones do.
        if (self._patience is None or not self._parking) and high_watermark >= self.applied:
            for effect in effects:
                self._perform_effect(effect)
        else:
            timeout_ms = self._tools.commit_timeout_ms
            self._parking.add_events(DeferredEvents(self.applied, now.mono_ns + timeout_ms * _NS_PER_MS, effects))
            self._journal.add_listener(self)
            if self._patience is None:
                self._patience = self._tools.purgatory.continue_after(timeout_ms, self._lose_patience)

    def _perform_effect(self, effect: Effect) -> None:
        """Perform an effect. A failed answer costs its request only; any other failed effect stops the broker."""
        try:
            if type(effect) is AnswerEffect:
                effect.ticket(effect.value)  # `perform_effect`, without a call
            else:
                effect.perform_effect()
        except HalfChanged:
            raise
        except Exception as error:
            if not isinstance(effect, AnswerEffect):
                raise half_changed(f"an effect of {self._tp}") from error
            self._refuse_defect(error, effect.cancel_effect)

    # -- commits -------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """The high watermark or the role has changed. The check runs once, at the end of this turn."""
        if not self._looking:
            self._looking = True
            self._tools.later(self.perform_committed)

    def perform_committed(self) -> None:
        """Perform the effects whose records are committed, or resign when the journal is lost."""
        self._looking = False
        if self._journal.is_lost:
            self.resign_leadership()
            return
        # Only after the check above: in a later epoch the high watermark may have passed this position with other
        # records, because the log was truncated in between.
        for effect in self._parking.pop_committed(self._journal.committed_position):
            self._perform_effect(effect)
        if self._parking:
            self._journal.add_listener(self)

    def _lose_patience(self) -> None:
        self._patience = None
        now_ns = self._tools.clock.now().mono_ns
        # Not an abort: the records are in the log, and may still be committed after the client has this error.
        error = ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not committed in time; it may be committed yet")
        for effect in self._parking.pop_overdue(now_ns):
            effect.cancel_effect(error)
        deadline_ns = self._parking.deadline_ns
        if deadline_ns is not None:
            self._patience = self._tools.purgatory.continue_after(_ms_until(deadline_ns, now_ns), self._lose_patience)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _arm_alarm(self, now: Instant) -> None:
        """Set the timer for the state machine's deadline, unless one that expires earlier is set."""
        if self.state is not ShardState.ACTIVE:
            return
        deadline_ns = self.machine.next_deadline()
        if deadline_ns is not None and (self._alarm is None or deadline_ns < self._alarm_ns):
            self._arm_deadline(deadline_ns, now)

    def _arm_deadline(self, deadline_ns: int, now: Instant) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_ns = deadline_ns
        self._alarm = self._tools.purgatory.look_after(_ms_until(deadline_ns, now.mono_ns), self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        if self.state is not ShardState.ACTIVE or self._journal.is_lost:
            return
        now = self._tools.clock.now()
        written = 0
        for _ in range(STEPS_PER_TURN):
            deadline_ns = self.machine.next_deadline()
            if deadline_ns is None or deadline_ns > now.mono_ns or written >= RECORDS_PER_TURN:
                break
            outcome = self._run_query(lambda: self.machine.on_time(now))
            # Refused: the step is still due, so without a delay this would loop.
            if not self._carry_out(outcome, now):
                self._arm_deadline(now.mono_ns + RETRY_MS * _NS_PER_MS, now)
                return
            written += len(outcome.records)
        self._arm_alarm(now)

    # -- the end -------------------------------------------------------------------------------------------------------

    def resign_leadership(self) -> None:
        """The partition has another leader or epoch: waiting clients get NOT_COORDINATOR and find the new one."""
        self._end_shard(
            ShardState.GONE, ApiError(ErrorCode.NOT_COORDINATOR, f"{self._tp} has another leader"), (), None
        )

    def _fence_shard(
        self, why: str, effects: Sequence[Effect] = (), *, broken: bool = False, asker: Refusal | None = None
    ) -> None:
        until = "it is loaded again" if broken else "its partition has a new leader"
        _logger.error("the coordinator in %s is fenced until %s: %s", self._tp, until, why, exc_info=broken)
        # A log that cannot be read is not loaded again here: it would fail in the same way. Another leader may have a
        # whole one.
        if broken and self.state not in (ShardState.FENCED, ShardState.GONE):
            self._on_defect(self)
        error = ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the coordinator in {self._tp} is fenced")
        self._end_shard(ShardState.FENCED, error, effects, asker)

    def _end_shard(self, state: ShardState, error: ApiError, effects: Sequence[Effect], asker: Refusal | None) -> None:
        """Refuse all waiting requests, each once: a step that failed halfway may have left a ticket in two places."""
        ended = self.state in (ShardState.FENCED, ShardState.GONE)
        # A fenced shard can still lose its leadership; one that has lost it cannot be fenced.
        self.state = ShardState.GONE if self.state is ShardState.GONE else state
        if ended:
            return
        for timer in (self._alarm, self._patience):
            if timer is not None:
                timer.cancel()
        self._alarm = self._patience = None  # timers reference this runtime, and through it the partition's log
        # 1. Requests that the state holds. 2. Requests whose effects wait for a commit, or were decided but not
        #    performed. 3. The request of the decision that failed, unless it is among them.
        told = list(self.machine.waiting_tickets())
        for refuse in told:
            refuse(error)
        for effect in (*self._parking.drain_effects(), *effects):
            if not isinstance(effect, AnswerEffect):
                effect.cancel_effect(error)
            elif effect.ticket not in told:
                told.append(effect.ticket)
                effect.cancel_effect(error)
        if asker is not None and asker not in told:
            asker(error)


def _ms_until(deadline_ns: int, now_ns: int) -> int:
    # Rounded up: a timer that expires too early finds nothing due, and would be set again at once.
    return max(1, -(-(deadline_ns - now_ns) // _NS_PER_MS))
