"""The state machine of one partition of `__transaction_state`.

Zone: pure. It keeps the transactional ids, the markers that are still to be written, and the time-outs; `rules` decides
the transitions of a transactional id.

A decided transaction waits for its markers in `unmarked`, which is not journaled. After a failover all markers are
written again; a partition that has one already answers so. Answers wait until the state that they report is committed,
except for CONCURRENT_TRANSACTIONS, which only asks the client to try again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeVar

from ottla.coordinator.shard import NOTHING, AnswerEffect, Decision, EntryOrigin, Refusal
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Instant
from ottla.transactions import rules
from ottla.transactions.codec import Entry
from ottla.transactions.commands import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    ListTransactions,
    Markers,
    MarkersWritten,
    ResumeMarkers,
    TransactionCommand,
    VerifyPartitions,
)
from ottla.transactions.state import (
    ProducerIdentity,
    Transaction,
    TransactionStatus,
    TransactionVersion,
    VersionOfCluster,
    complete_transaction,
)
from ottla.types import TopicPartition

W = TypeVar("W", AddPartitions, VerifyPartitions, EndTransaction)

ABORTS_PER_STEP: Final = 50
PARTITIONS_PER_STEP: Final = 5000
"""The limits of one batch of timed-out transactions that are aborted: their number, and that of their partitions."""
FORGOTTEN_PER_STEP: Final = 1000
KEY_CHARACTERS_PER_STEP: Final = 100_000
_NS_PER_MS: Final = 1_000_000
_new = tuple.__new__  # a third of the time of the class's own


class Policy(NamedTuple):
    """The settings of a transaction coordinator; defaults are Kafka's."""

    max_timeout_ms: int = 900_000
    expiration_ms: int = 604_800_000
    abort_interval_ms: int = 10_000
    expire_interval_ms: int = 3_600_000
    version: VersionOfCluster = TransactionVersion()
    """The transaction version of the cluster (0, 1, 2; KIP-890)."""


class TransactionEffects(Protocol):
    """The actions outside the state machine. None of them calls back into the state machine within the call."""

    def take_id(self, command: InitProducerId | EndTransaction) -> None:
        """Fetch a producer id and submit the command again with it. On failure its ticket gets the error."""
        ...

    def send_markers(self, markers: Markers) -> None:
        """Write markers until all partitions have them, and submit MarkersWritten as they do."""
        ...

    def resume_markers(self, transactional_id: str) -> None:
        """Submit ResumeMarkers: a decision was made, but not committed in time."""
        ...


class TakeId(NamedTuple):
    """The effect that fetches a producer id for a command."""

    outside: TransactionEffects
    command: InitProducerId | EndTransaction

    def perform_effect(self) -> None:
        """Fetch the id."""
        self.outside.take_id(self.command)

    def cancel_effect(self, error: ApiError) -> None:
        """Nothing to do: the runtime passes the error to the ticket of the command."""


class SendMarkers(NamedTuple):
    """The effect that writes markers. It must not begin before the decision is committed."""

    outside: TransactionEffects
    markers: Markers

    def perform_effect(self) -> None:
        """Begin to write."""
        self.outside.send_markers(self.markers)

    def cancel_effect(self, error: ApiError) -> None:  # noqa: ARG002  # the state machine is asked after any error
        """Ask the state machine: either nothing was decided, or the decision was not committed in time."""
        self.outside.resume_markers(self.markers.transactional_id)


class Acknowledged(NamedTuple):
    """Volatile: partitions have their marker."""

    transactional_id: str
    partitions: Sequence[TopicPartition]


class Looked(NamedTuple):
    """Volatile: a search for time-outs or expired ids has found no more; the times of the next searches."""

    timeouts_ns: int = -1
    """Monotonic ns; -1: unchanged."""
    expiry_ns: int = -1
    """Monotonic ns; -1: unchanged."""


class TransactionMachine:
    """Implements `Shard`. All transactional ids of one partition."""

    def __init__(self, policy: Policy, outside: TransactionEffects, coordinator_epoch: int) -> None:
        """`coordinator_epoch`: the leader epoch of the partition. Markers carry it, so that older ones are refused."""
        self.transactions: dict[str, Transaction] = {}
        """By transactional id, in the order of the last change."""
        self.unmarked: dict[str, set[TopicPartition]] = {}
        """By transactional id, the partitions of decided transactions that have not confirmed their marker."""
        self._ongoing: dict[str, None] = {}
        self._complete: dict[str, None] = {}
        """Decided transactions without partitions, which need no markers."""
        self._policy = policy
        self._outside = outside
        self._coordinator_epoch = coordinator_epoch
        self._timeouts_ns = 0
        self._begun = False
        """Whether a transaction has begun since the last search for time-outs; if not, there is nothing to search."""
        self._expiry_ns = 0

    # -- commands ------------------------------------------------------------------------------------------------------

    def handle(self, command: TransactionCommand, now: Instant) -> Decision:
        """Decide about a command. Changes nothing."""
        try:
            return self._RULES[type(command)](self, command, now.wall_ms)
        except ApiError as error:
            # An error reports state as well (fenced by whom, in which epoch), so it waits for the commit of that state.
            # Only CONCURRENT_TRANSACTIONS, which asks the client to try again, goes out at once.
            answer = (_answer_command(command, error.as_value()),)
            at_once = error.code is ErrorCode.CONCURRENT_TRANSACTIONS
            return Decision(now=answer) if at_once else Decision(committed=answer)
        except rules.FreshIdNeeded:
            assert isinstance(command, InitProducerId | EndTransaction), "only these ever need an id"
            return Decision(now=(TakeId(self._outside, command),))

    def _init_producer_id(self, command: InitProducerId, now_ms: int) -> Decision:
        rules.check_id(command.transactional_id)
        self._check_timeout(command.timeout_ms)
        txn = self.transactions.get(command.transactional_id)
        after = rules.init_producer(txn, command, now_ms, rules.version_of_aborts(self._policy.version.level))
        if not after.status.ending:
            return self._journal_transition(command, command.transactional_id, after, after.identity)
        # The abort is journaled, and its answer is an error: as in Kafka the producer asks again until the markers are
        # written.
        aborting = ApiError(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"the open transaction of {command.transactional_id!r} is being aborted; try again",
        )
        return self._journal_transition(command, command.transactional_id, after, aborting)

    def _check_timeout(self, timeout_ms: int) -> None:
        limit = self._policy.max_timeout_ms
        if not 0 < timeout_ms <= limit:
            raise ApiError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"a transaction may take 1 to {limit} ms (transaction.max.timeout.ms), not {timeout_ms}",
            )

    def _add_partitions(self, command: AddPartitions, now_ms: int) -> Decision:
        txn = self.transactions.get(command.transactional_id)
        after = rules.add_partitions(txn, command, now_ms)
        if after is txn:
            return Decision(committed=(_answer_command(command, None),))
        return self._journal_transition(command, command.transactional_id, after, None)

    def _verify_partitions(self, command: VerifyPartitions, _: int) -> Decision:
        txn = self.transactions.get(command.transactional_id)
        verdict = rules.verify_partitions(txn, command)
        return Decision(committed=(_answer_command(command, verdict),))

    def _end_transaction(self, command: EndTransaction, now_ms: int) -> Decision:
        txn = self.transactions.get(command.transactional_id)
        after = rules.end_transaction(txn, command, now_ms)
        if after is txn:
            return Decision(committed=(_answer_command(command, after.successor),))
        return self._journal_transition(command, command.transactional_id, after, after.successor)

    def _journal_transition(
        self, command: TransactionCommand, name: str, after: Transaction, answer: object
    ) -> Decision:
        """Journal a transition; the command is answered when it is committed."""
        records, markers = self._entries_and_markers(name, after)
        told = _new(AnswerEffect, (command.ticket, answer))
        return _new(Decision, ((), records, (), (told, *markers), None))

    def _entries_and_markers(self, name: str, after: Transaction) -> tuple[list[Entry], list[SendMarkers]]:
        """The entries and markers of a next state. A decided transaction without partitions is complete at once."""
        entry = _new(Entry, (name, after))
        if not after.status.ending:
            return [entry], []
        # Both entries in one batch, so that no coordinator can die between them.
        if not after.partitions:
            return [entry, Entry(name, complete_transaction(after, after.update_ms))], []
        return [entry], [self._markers_effect(name, after, after.partitions)]

    def _markers_effect(
        self, transactional_id: str, txn: Transaction, partitions: frozenset[TopicPartition] | set[TopicPartition]
    ) -> SendMarkers:
        identity, commits, places = txn.identity, txn.status.commits, tuple(sorted(partitions))
        fields = transactional_id, identity, commits, self._coordinator_epoch, txn.version, places
        return _new(SendMarkers, (self._outside, _new(Markers, fields)))

    # -- markers -------------------------------------------------------------------------------------------------------

    def _on_markers_written(self, command: MarkersWritten, now_ms: int) -> Decision:
        txn = self._ending_transaction(command.transactional_id, command.identity)
        answer = _answer_command(command, None)
        # 1. A repeated report, or one of a transaction that is complete.
        if txn is None:
            return Decision(now=(answer,))
        # 2. Other partitions are missing. The progress is volatile: a new coordinator writes all markers again.
        if self.unmarked[command.transactional_id].difference(command.partitions):
            event = Acknowledged(command.transactional_id, command.partitions)
            return Decision(volatile=(event,), now=(answer,))
        # 3. All partitions have the marker. The answer need not wait: if the record is lost, markers are written again.
        done = _new(Entry, (command.transactional_id, complete_transaction(txn, now_ms)))
        return _new(Decision, ((), (done,), (answer,), (), None))

    def _resume_markers(self, command: ResumeMarkers, _: int) -> Decision:
        txn = self.transactions.get(command.transactional_id)
        answer = _answer_command(command, None)
        if txn is None or not txn.status.ending:
            return Decision(now=(answer,))
        missing = self.unmarked[command.transactional_id]
        again = (self._markers_effect(command.transactional_id, txn, missing),) if missing else ()
        # Without records of its own the effect waits for what was applied before: the decision that was committed late.
        return Decision(now=(answer,), committed=again)

    def _ending_transaction(self, transactional_id: str, identity: ProducerIdentity) -> Transaction | None:
        txn = self.transactions.get(transactional_id)
        return txn if txn is not None and txn.status.ending and txn.identity == identity else None

    # -- views ---------------------------------------------------------------------------------------------------------

    def _describe_transaction(self, command: DescribeTransaction, _: int) -> Decision:
        rules.check_id(command.transactional_id)
        txn = self.transactions.get(command.transactional_id)
        if txn is None:
            text = f"transactional id {command.transactional_id!r} is not known"
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, text)
        return Decision(committed=(_answer_command(command, self._visible_state(command.transactional_id, txn)),))

    def _list_transactions(self, command: ListTransactions, _: int) -> Decision:
        everything = {name: self._visible_state(name, txn) for name, txn in self.transactions.items()}
        return Decision(committed=(_answer_command(command, everything),))

    def _visible_state(self, transactional_id: str, txn: Transaction) -> Transaction:
        """The transaction as administrators see it: a decided one with the partitions that still lack their marker."""
        unmarked = self.unmarked.get(transactional_id)
        return txn if unmarked is None else txn._replace(partitions=frozenset(unmarked))

    # -- state ---------------------------------------------------------------------------------------------------------

    def apply(self, entry: object, origin: EntryOrigin) -> None:  # noqa: ARG002  # all is in the entry
        """Apply a record or a volatile event. The only method that changes the state."""
        if isinstance(entry, Entry):
            self._store_entry(entry.transactional_id, entry.transaction)
        elif isinstance(entry, Acknowledged):
            self.unmarked[entry.transactional_id].difference_update(entry.partitions)
        elif isinstance(entry, Looked):
            if entry.timeouts_ns >= 0:
                self._timeouts_ns, self._begun = entry.timeouts_ns, bool(self._ongoing)
            self._expiry_ns = self._expiry_ns if entry.expiry_ns < 0 else entry.expiry_ns

    def _store_entry(self, transactional_id: str, txn: Transaction | None) -> None:
        # 1. Remove the old state. The dict stays in the order of the last change, on which `_expired_ids` relies.
        before = self.transactions.pop(transactional_id, None)
        if before is not None and before.status.ending:
            self.unmarked.pop(transactional_id, None)
            self._complete.pop(transactional_id, None)
        elif before is not None and (txn is None or txn.status is not TransactionStatus.ONGOING):
            self._ongoing.pop(transactional_id, None)
        # 2. Add the new one.
        if txn is None:
            return
        self.transactions[transactional_id] = txn
        if txn.status is TransactionStatus.ONGOING:
            self._ongoing[transactional_id] = None
            self._begun = True
        elif txn.status.ending:
            self.unmarked[transactional_id] = set(txn.partitions)
            if not txn.partitions:
                self._complete[transactional_id] = None

    def on_loaded(self, now: Instant) -> Decision:
        """Write the markers of all decided transactions again, once the loaded decisions are committed."""
        policy = self._policy
        unmarked = self.unmarked.items()
        markers = [self._markers_effect(name, self.transactions[name], left) for name, left in unmarked if left]
        looked = Looked(
            self._next_search_ns(now, policy.abort_interval_ms), self._next_search_ns(now, policy.expire_interval_ms)
        )
        return Decision(volatile=(looked,), committed=markers)

    def waiting_tickets(self) -> Sequence[Refusal]:
        """None: a request that would have to wait gets CONCURRENT_TRANSACTIONS instead."""
        return ()

    # -- time ----------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Monotonic ns of the next search for timed-out transactions or expired ids; 0: there is work now."""
        if self._complete:
            return 0
        if self._begun:  # not only while one is open: each short transaction would set and clear the deadline
            return min(self._timeouts_ns, self._expiry_ns)
        return self._expiry_ns if self.transactions else None

    def on_time(self, now: Instant) -> Decision:
        """Decide about one step: complete, abort or remove some transactional ids."""
        # 1. Decided without partitions, but not complete. Kafka journals both in two batches, so its coordinator may
        #    have died in between; no marker will complete it.
        if self._complete:
            names = list(islice(self._complete, ABORTS_PER_STEP))
            return Decision(
                records=[Entry(name, complete_transaction(self.transactions[name], now.wall_ms)) for name in names]
            )
        # 2. Transactions that have timed out.
        if self._begun and self._timeouts_ns <= now.mono_ns:
            return self._abort_some(now)
        # 3. Transactional ids that are not used any more.
        if self._expiry_ns <= now.mono_ns:
            return self._forget_some(now)
        return NOTHING

    def _abort_some(self, now: Instant) -> Decision:
        version = rules.version_of_aborts(self._policy.version.level)
        records: list[Entry] = []
        markers: list[SendMarkers] = []
        for name in self._timed_out(now.wall_ms):
            before = self.transactions[name]
            after = rules.abort_timed_out(before, now.wall_ms, version)
            entries, effects = self._entries_and_markers(name, after)
            records += entries
            markers += effects
        # A step that found some may have left more: without a Looked event the next step follows at once.
        looked = () if records else (Looked(timeouts_ns=self._next_search_ns(now, self._policy.abort_interval_ms)),)
        return Decision(looked, records, (), markers)

    def _timed_out(self, now_ms: int) -> Iterator[str]:
        transactions, partitions, found = self.transactions, 0, 0
        for name in self._ongoing:
            if rules.has_timed_out(transactions[name], now_ms):
                # The first one is taken in any case: with more partitions than a step allows, it would never be
                # aborted.
                partitions += len(transactions[name].partitions)
                # The first one whatever its size: otherwise a transaction with very many partitions would never be
                # aborted.
                if found and (found == ABORTS_PER_STEP or partitions > PARTITIONS_PER_STEP):
                    return
                found += 1
                yield name

    def _forget_some(self, now: Instant) -> Decision:
        names = list(self._expired_ids(now.wall_ms))
        looked = () if names else (Looked(expiry_ns=self._next_search_ns(now, self._policy.expire_interval_ms)),)
        return Decision(looked, [Entry(name, None) for name in names])

    def _expired_ids(self, now_ms: int) -> Iterator[str]:
        """The expired ids of one step. The dict has the least recently changed first, so ids in use are not visited."""
        characters, after_ms = 0, self._policy.expiration_ms
        for found, (name, txn) in enumerate(self.transactions.items()):
            if txn.status.resting and not rules.has_expired(txn, now_ms, after_ms):
                return
            if found == FORGOTTEN_PER_STEP or (characters and characters + len(name) > KEY_CHARACTERS_PER_STEP):
                return
            if txn.status.resting:
                characters += len(name)
                yield name

    def _next_search_ns(self, now: Instant, interval_ms: int) -> int:
        return now.mono_ns + interval_ms * _NS_PER_MS

    _RULES: ClassVar[Mapping[type, Callable[[TransactionMachine, Any, int], Decision]]] = {
        InitProducerId: _init_producer_id,
        AddPartitions: _add_partitions,
        VerifyPartitions: _verify_partitions,
        EndTransaction: _end_transaction,
        MarkersWritten: _on_markers_written,
        ResumeMarkers: _resume_markers,
        DescribeTransaction: _describe_transaction,
        ListTransactions: _list_transactions,
    }
    """The rule of each command. It belongs to the class: bound methods in an instance would be a reference cycle."""


def _answer_command(command: TransactionCommand, value: object) -> AnswerEffect:
    """The effect that answers a command."""
    return _new(AnswerEffect, (command.ticket, value))
