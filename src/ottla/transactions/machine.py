"""The machine of one partition of `__transaction_state`.

Zone: pure. Which transactional ids there are, what is still to be marked, and what is due in time; what a request
makes of a transactional id is `rules`'.

A transaction that is decided waits for its markers in `unmarked`; that is not journaled: after a failover all markers
are written again, and partitions that have them say so. Answers wait until what they stand on is committed, those that
only tell somebody to try again do not.
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
from ottla.transactions.safeguards import TransactionSafeguards
from ottla.transactions.state import UNBUMPED, ProducerIdentity, Transaction, TransactionStatus, completed
from ottla.types import TopicPartition

W = TypeVar("W", AddPartitions, VerifyPartitions, EndTransaction)

ABORTS_PER_STEP: Final = 50
PARTITIONS_PER_STEP: Final = 5000
"""Of transactions that are aborted in one batch, so that it does not get too large."""
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
    version: int = 2
    """The transaction version of this broker (0, 1, 2; KIP-890)."""
    safeguards: TransactionSafeguards = TransactionSafeguards()


class TransactionEffects(Protocol):
    """What a machine needs done. Nothing of it calls back into the machine within the call."""

    def take_id(self, command: InitProducerId | EndTransaction) -> None:
        """Get a producer id and ask again with it; its ticket gets the error otherwise."""
        ...

    def send(self, markers: Markers) -> None:
        """Write markers until all partitions have them, and say so with MarkersWritten."""
        ...

    def resume(self, transactional_id: str) -> None:
        """Ask with ResumeMarkers: a decision is made, but not committed yet."""
        ...


class TakeId(NamedTuple):
    """The effect of getting a producer id for a command."""

    outside: TransactionEffects
    command: InitProducerId | EndTransaction

    def perform(self) -> None:
        """Get it."""
        self.outside.take_id(self.command)

    def drop(self, error: ApiError) -> None:
        """Whoever asked is told by the runtime."""


class SendMarkers(NamedTuple):
    """The effect of writing markers, which must not begin before the decision is committed."""

    outside: TransactionEffects
    markers: Markers

    def perform(self) -> None:
        """Begin."""
        self.outside.send(self.markers)

    def drop(self, error: ApiError) -> None:  # noqa: ARG002  # whatever it was, the machine is asked
        """Either nothing was decided, or it took long to be committed: the machine knows which."""
        self.outside.resume(self.markers.transactional_id)


class Acknowledged(NamedTuple):
    """A volatile event: partitions have their marker."""

    transactional_id: str
    partitions: Sequence[TopicPartition]


class Looked(NamedTuple):
    """A volatile event: what is due was looked for, and when to look again (monotonic ns)."""

    timeouts_ns: int = -1
    """-1: as it was."""
    expiry_ns: int = -1


class TransactionMachine:
    """Implements `Shard`. All transactional ids of one partition."""

    def __init__(self, policy: Policy, outside: TransactionEffects, coordinator_epoch: int) -> None:
        """`coordinator_epoch`: the leader epoch of the partition; markers carry it, so that older ones are refused."""
        self.transactions: dict[str, Transaction] = {}
        """By transactional id, the one that was changed last at the end."""
        self.unmarked: dict[str, set[TopicPartition]] = {}
        """Partitions of decided transactions that have not said that they have their marker."""
        self._ongoing: dict[str, None] = {}
        self._complete: dict[str, None] = {}
        """Decided transactions without partitions, which need no markers."""
        self._policy = policy
        self._checks_epochs = policy.safeguards.epoch_check
        self._outside = outside
        self._coordinator_epoch = coordinator_epoch
        self._timeouts_ns = 0
        self._begun = False
        """Whether a transaction has begun since late ones were looked for: else there are none to look for."""
        self._expiry_ns = 0

    # -- commands ------------------------------------------------------------------------------------------------------

    def handle(self, command: TransactionCommand, now: Instant) -> Decision:
        """Decide. Changes nothing."""
        try:
            return self._RULES[type(command)](self, command, now.wall_ms)
        except ApiError as error:
            answer = (_answer_command(command, error.as_value()),)
            at_once = error.code is ErrorCode.CONCURRENT_TRANSACTIONS
            return Decision(now=answer) if at_once else Decision(committed=answer)
        except rules.FreshIdNeeded:
            assert isinstance(command, InitProducerId | EndTransaction), "only these ever need an id"
            return Decision(now=(TakeId(self._outside, command),))

    def _initialise(self, command: InitProducerId, now_ms: int) -> Decision:
        rules.check_id(command.transactional_id)
        self._check_timeout(command.timeout_ms)
        txn = self.transactions.get(command.transactional_id)
        after = rules.initialise(txn, command, now_ms, rules.version_of_aborts(self._policy.version))
        safeguards = self._policy.safeguards
        after = _bumped(txn, after, safeguards.bump_at_abort if after.status.ending else safeguards.bump_at_start)
        if not after.status.ending:
            return self._become(command, command.transactional_id, after, after.identity)
        aborting = ApiError(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"the open transaction of {command.transactional_id!r} is being aborted; try again",
        )
        return self._become(command, command.transactional_id, after, aborting)

    def _check_timeout(self, timeout_ms: int) -> None:
        limit = self._policy.max_timeout_ms
        if not 0 < timeout_ms <= limit:
            raise ApiError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"a transaction may take 1 to {limit} ms (transaction.max.timeout.ms), not {timeout_ms}",
            )

    def _widen(self, command: AddPartitions, now_ms: int) -> Decision:
        txn = self.transactions.get(command.transactional_id)
        after = rules.widen(txn, command if self._checks_epochs else _believed(command, txn), now_ms)
        if after is txn:
            return Decision(committed=(_answer_command(command, None),))
        return self._become(command, command.transactional_id, after, None)

    def _verify(self, command: VerifyPartitions, _: int) -> Decision:
        txn = self.transactions.get(command.transactional_id)
        verdict = rules.verify(txn, command if self._checks_epochs else _believed(command, txn))
        return Decision(committed=(_answer_command(command, verdict),))

    def _end(self, command: EndTransaction, now_ms: int) -> Decision:
        txn = self.transactions.get(command.transactional_id)
        after = rules.end(txn, command if self._checks_epochs else _believed(command, txn), now_ms)
        if after is txn:
            return Decision(committed=(_answer_command(command, after.successor),))
        after = _bumped(txn, after, self._policy.safeguards.bump_at_end)
        return self._become(command, command.transactional_id, after, after.successor)

    def _become(self, command: TransactionCommand, name: str, after: Transaction, answer: object) -> Decision:
        """Journal a transition, and tell whoever asked when it holds."""
        records, markers = self._transition(name, after)
        told = _new(AnswerEffect, (command.ticket, answer))
        if not self._policy.safeguards.decided_before_marked:
            return Decision(records=records, now=markers, committed=(told,))
        return _new(Decision, ((), records, (), (told, *markers), None))

    def _transition(self, name: str, after: Transaction) -> tuple[list[Entry], list[SendMarkers]]:
        """Entries and markers of a next state. What is decided and has no partitions is complete at once."""
        entry = _new(Entry, (name, after))
        if not after.status.ending:
            return [entry], []
        if not after.partitions:
            return [entry, Entry(name, completed(after, after.update_ms))], []
        markers = [self._markers(name, after, after.partitions)]
        if not self._policy.safeguards.complete_when_marked:
            return [entry, Entry(name, completed(after, after.update_ms))], markers
        return [entry], markers

    def _markers(
        self, transactional_id: str, txn: Transaction, partitions: frozenset[TopicPartition] | set[TopicPartition]
    ) -> SendMarkers:
        identity, commits, places = txn.identity, txn.status.commits, tuple(sorted(partitions))
        fields = transactional_id, identity, commits, self._coordinator_epoch, txn.version, places
        return _new(SendMarkers, (self._outside, _new(Markers, fields)))

    # -- markers -------------------------------------------------------------------------------------------------------

    def _acknowledge(self, command: MarkersWritten, now_ms: int) -> Decision:
        txn = self._ending(command.transactional_id, command.identity)
        answer = _answer_command(command, None)
        if txn is None:  # said twice, or of a transaction that is over
            return Decision(now=(answer,))
        if self.unmarked[command.transactional_id].difference(command.partitions):
            event = Acknowledged(command.transactional_id, command.partitions)
            return Decision(volatile=(event,), now=(answer,))
        done = _new(Entry, (command.transactional_id, completed(txn, now_ms)))
        return _new(Decision, ((), (done,), (answer,), (), None))

    def _resume(self, command: ResumeMarkers, _: int) -> Decision:
        txn = self.transactions.get(command.transactional_id)
        answer = _answer_command(command, None)
        if txn is None or not txn.status.ending:
            return Decision(now=(answer,))
        missing = self.unmarked[command.transactional_id]
        again = (self._markers(command.transactional_id, txn, missing),) if missing else ()
        return Decision(now=(answer,), committed=again)

    def _ending(self, transactional_id: str, identity: ProducerIdentity) -> Transaction | None:
        txn = self.transactions.get(transactional_id)
        return txn if txn is not None and txn.status.ending and txn.identity == identity else None

    # -- views ---------------------------------------------------------------------------------------------------------

    def _describe(self, command: DescribeTransaction, _: int) -> Decision:
        rules.check_id(command.transactional_id)
        txn = self.transactions.get(command.transactional_id)
        if txn is None:
            text = f"transactional id {command.transactional_id!r} is not known"
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, text)
        return Decision(committed=(_answer_command(command, self._shown(command.transactional_id, txn)),))

    def _list(self, command: ListTransactions, _: int) -> Decision:
        everything = {name: self._shown(name, txn) for name, txn in self.transactions.items()}
        return Decision(committed=(_answer_command(command, everything),))

    def _shown(self, transactional_id: str, txn: Transaction) -> Transaction:
        """Of a decided transaction the partitions that still wait for their marker."""
        unmarked = self.unmarked.get(transactional_id)
        return txn if unmarked is None else txn._replace(partitions=frozenset(unmarked))

    # -- state ---------------------------------------------------------------------------------------------------------

    def apply(self, entry: object, origin: EntryOrigin) -> None:  # noqa: ARG002  # all is in the entry
        """Take a record or a volatile event. The only method that changes the state."""
        if isinstance(entry, Entry):
            self._store(entry.transactional_id, entry.transaction)
        elif isinstance(entry, Acknowledged):
            self.unmarked[entry.transactional_id].difference_update(entry.partitions)
        elif isinstance(entry, Looked):
            if entry.timeouts_ns >= 0:
                self._timeouts_ns, self._begun = entry.timeouts_ns, bool(self._ongoing)
            self._expiry_ns = self._expiry_ns if entry.expiry_ns < 0 else entry.expiry_ns

    def _store(self, transactional_id: str, txn: Transaction | None) -> None:
        before = self.transactions.pop(transactional_id, None)
        if before is not None and before.status.ending:
            self.unmarked.pop(transactional_id, None)
            self._complete.pop(transactional_id, None)
        elif before is not None and (txn is None or txn.status is not TransactionStatus.ONGOING):
            self._ongoing.pop(transactional_id, None)
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
        """Markers of what was decided are written again, once it is known that the decision holds."""
        policy = self._policy
        unmarked = self.unmarked if policy.safeguards.marked_again else {}
        markers = [self._markers(name, self.transactions[name], left) for name, left in unmarked.items() if left]
        looked = Looked(self._next(now, policy.abort_interval_ms), self._next(now, policy.expire_interval_ms))
        return Decision(volatile=(looked,), committed=markers)

    def waiting(self) -> Sequence[Refusal]:
        """Nobody: whoever has to wait is told to try again."""
        return ()

    # -- time ----------------------------------------------------------------------------------------------------------

    def deadline(self) -> int | None:
        """When to look for what has timed out, or for what is to be forgotten."""
        if self._complete:
            return 0
        if self._begun:  # not only while it is open: short ones would ask for a look each time
            return min(self._timeouts_ns, self._expiry_ns)
        return self._expiry_ns if self.transactions else None

    def on_time(self, now: Instant) -> Decision:
        """Abort some of what has timed out, or forget some of what nobody uses."""
        if self._complete:
            names = list(islice(self._complete, ABORTS_PER_STEP))
            return Decision(records=[Entry(name, completed(self.transactions[name], now.wall_ms)) for name in names])
        if self._begun and self._timeouts_ns <= now.mono_ns:
            return self._abort_some(now)
        if self._expiry_ns <= now.mono_ns:
            return self._forget_some(now)
        return NOTHING

    def _abort_some(self, now: Instant) -> Decision:
        version = rules.version_of_aborts(self._policy.version)
        records: list[Entry] = []
        markers: list[SendMarkers] = []
        for name in self._timed_out(now.wall_ms):
            before = self.transactions[name]
            after = rules.abort_timed_out(before, now.wall_ms, version)
            after = _bumped(before, after, self._policy.safeguards.bump_at_abort)
            entries, effects = self._transition(name, after)
            records += entries
            markers += effects
        # Where there were some there may be more: another step follows at once.
        looked = () if records else (Looked(timeouts_ns=self._next(now, self._policy.abort_interval_ms)),)
        return Decision(looked, records, (), markers)

    def _timed_out(self, now_ms: int) -> Iterator[str]:
        transactions, partitions, found = self.transactions, 0, 0
        for name in self._ongoing:
            if rules.timed_out(transactions[name], now_ms):
                partitions += len(transactions[name].partitions)
                if found and (found == ABORTS_PER_STEP or partitions > PARTITIONS_PER_STEP):
                    return
                found += 1
                yield name

    def _forget_some(self, now: Instant) -> Decision:
        names = list(self._expired(now.wall_ms))
        looked = () if names else (Looked(expiry_ns=self._next(now, self._policy.expire_interval_ms)),)
        return Decision(looked, [Entry(name, None) for name in names])

    def _expired(self, now_ms: int) -> Iterator[str]:
        """The least recently changed ones come first, so that those in use are not looked at."""
        characters, after_ms = 0, self._policy.expiration_ms
        for found, (name, txn) in enumerate(self.transactions.items()):
            if txn.status.resting and not rules.expired(txn, now_ms, after_ms):
                return
            if found == FORGOTTEN_PER_STEP or (characters and characters + len(name) > KEY_CHARACTERS_PER_STEP):
                return
            if txn.status.resting:
                characters += len(name)
                yield name

    def _next(self, now: Instant, interval_ms: int) -> int:
        return now.mono_ns + interval_ms * _NS_PER_MS

    _RULES: ClassVar[Mapping[type, Callable[[TransactionMachine, Any, int], Decision]]] = {
        InitProducerId: _initialise,
        AddPartitions: _widen,
        VerifyPartitions: _verify,
        EndTransaction: _end,
        MarkersWritten: _acknowledge,
        ResumeMarkers: _resume,
        DescribeTransaction: _describe,
        ListTransactions: _list,
    }
    """The rule of each command. Of the class: a machine that held its own methods would die in a cycle."""


def _bumped(before: Transaction | None, after: Transaction, guarded: bool) -> Transaction:
    """The transition as the rules want it; without its safeguard the epoch stays what it was."""
    if guarded or before is None or before.producer_id != after.producer_id:
        return after
    return after._replace(epoch=before.epoch, version=UNBUMPED)


def _believed(command: W, txn: Transaction | None) -> W:
    """The command of a producer whose epoch is believed: without that safeguard every epoch is the present one."""
    return command if txn is None else command._replace(identity=txn.identity)


def _answer_command(command: TransactionCommand, value: object) -> AnswerEffect:
    """The ticket of a command takes what the command's rule gives."""
    return _new(AnswerEffect, (command.ticket, value))
