"""A transaction state machine over a journal in memory. The test plays commits, refusals, failovers and time.

Zone: real.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from ottla.coordinator.shard import VOLATILE, Decision, Effect, EntryOrigin
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Instant
from ottla.transactions.codec import Entry, TransactionCodec
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
from ottla.transactions.machine import Policy, TransactionMachine
from ottla.transactions.state import ProducerIdentity, Transaction
from ottla.types import TopicPartition

T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))
MS = 1_000_000


class Ticket(list):
    """Keeps its answer; a second answer is an error."""

    def __call__(self, value: object) -> None:
        assert not self, f"answered twice: {self[0]}, {value}"
        self.append(value)

    @property
    def value(self) -> object:
        (value,) = self
        return value.code if isinstance(value, ApiError) else value


class Bench:
    """One partition of `__transaction_state`: the one rule of the runtime, without logs and brokers."""

    def __init__(self, policy: Policy | None = None, first_id: int = 1000) -> None:
        self.policy = policy or Policy()
        self.codec = TransactionCodec()
        self.records: list[tuple[bytes, bytes | None]] = []
        self.high_watermark = 0
        self.held = False
        self.refused = False
        self.sent: list[Markers] = []
        self.now = Instant(0, 1_000_000)
        self.epoch = 0
        self.next_id = first_id
        self.ids_gone = False
        self._parked: deque[tuple[int, Sequence[Effect]]] = deque()
        self._later: deque[Callable[[], None]] = deque()
        self.lead()

    # -- effects -------------------------------------------------------------------------------------------------------

    def take_id(self, command: InitProducerId | EndTransaction) -> None:
        if self.ids_gone:
            self._later.append(lambda: command.ticket(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)))
            return
        fresh_id, self.next_id = self.next_id, self.next_id + 1
        self._later.append(lambda: self._submit(command._replace(fresh_id=fresh_id)))

    def send_markers(self, markers: Markers) -> None:
        self.sent.append(markers)

    def resume_markers(self, transactional_id: str) -> None:
        self._later.append(lambda: self._submit(ResumeMarkers(transactional_id, Ticket())))

    # -- the runtime ---------------------------------------------------------------------------------------------------

    def lead(self, lose: bool = False) -> None:
        """A new leader epoch; what was not committed is lost, or kept by the new leader."""
        for _, effects in self._parked:
            for effect in effects:
                effect.cancel_effect(ApiError(ErrorCode.NOT_COORDINATOR))
        self._parked.clear()
        self._later.clear()
        if lose:
            del self.records[self.high_watermark :]
        self.epoch += 1
        self.machine = self.load(self.records)
        self._carry_out(self.machine.on_loaded(self.now))
        self.settle()

    def load(self, records: Sequence[tuple[bytes, bytes | None]]) -> TransactionMachine:
        """A machine that has read these records."""
        machine = TransactionMachine(self.policy, self, self.epoch)
        for offset, (key, value) in enumerate(records):
            machine.apply(self.codec.decode(key, value), EntryOrigin(offset))
        return machine

    def _submit(self, command: TransactionCommand) -> None:
        outcome = self.machine.handle(command, self.now)
        if not self._carry_out(outcome):
            command.ticket(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def _carry_out(self, outcome: Decision) -> bool:
        if outcome.records and self.refused:
            return False
        for entry in outcome.records:
            self.records.append(self.codec.encode(entry))
            self.machine.apply(entry, EntryOrigin(len(self.records) - 1))
        for event in outcome.volatile:
            self.machine.apply(event, VOLATILE)
        for effect in outcome.now:
            effect.perform_effect()
        if outcome.committed:
            self._parked.append((len(self.records), outcome.committed))
        return True

    def settle(self) -> None:
        """Commit all records, perform the effects that waited for them, and all that follows."""
        while True:
            if not self.held:
                self.high_watermark = len(self.records)
            if self._parked and self._parked[0][0] <= self.high_watermark:
                for effect in self._parked.popleft()[1]:
                    effect.perform_effect()
            elif self._later:
                self._later.popleft()()
            elif not self._on_time():
                return

    def _on_time(self) -> bool:
        deadline_ns = self.machine.next_deadline()
        if deadline_ns is None or deadline_ns > self.now.mono_ns:
            return False
        return self._carry_out(self.machine.on_time(self.now))

    def lose_patience(self) -> None:
        """Effects that wait for a commit time out."""
        while self._parked:
            for effect in self._parked.popleft()[1]:
                effect.cancel_effect(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        self.settle()

    # -- commands ------------------------------------------------------------------------------------------------------

    def ask(self, command: TransactionCommand) -> Ticket:
        self._submit(command)
        self.settle()
        assert isinstance(command.ticket, Ticket)
        return command.ticket

    def init(self, name: str, expected: ProducerIdentity | None = None, timeout_ms: int = 60_000) -> Ticket:
        return self.ask(InitProducerId(name, timeout_ms, expected, Ticket()))

    def add(self, name: str, identity: ProducerIdentity, *partitions: TopicPartition, version: int = 2) -> Ticket:
        return self.ask(AddPartitions(name, identity, partitions, version, Ticket()))

    def verify(self, name: str, identity: ProducerIdentity, *partitions: TopicPartition) -> Ticket:
        return self.ask(VerifyPartitions(name, identity, partitions, Ticket()))

    def end(self, name: str, identity: ProducerIdentity, commit: bool, version: int = 2) -> Ticket:
        return self.ask(EndTransaction(name, identity, commit, version, Ticket()))

    def written(self, name: str, identity: ProducerIdentity, *partitions: TopicPartition) -> Ticket:
        return self.ask(MarkersWritten(name, identity, partitions, Ticket()))

    def write_all(self) -> None:
        """All markers that were sent are written."""
        while self.sent:
            markers = self.sent.pop(0)
            self.written(markers.transactional_id, markers.identity, *markers.partitions)

    def describe(self, name: str) -> Ticket:
        return self.ask(DescribeTransaction(name, Ticket()))

    def listed(self) -> Ticket:
        return self.ask(ListTransactions(Ticket()))

    def pass_ms(self, ms: int) -> None:
        self.now = Instant(self.now.mono_ns + ms * MS, self.now.wall_ms + ms)
        self.settle()

    def age(self, name: str, epoch: int) -> None:
        """Set the epoch of a producer, as after many transactions."""
        self._carry_out(Decision(records=(Entry(name, self.state(name)._replace(epoch=epoch)),)))
        self.settle()

    def state(self, name: str) -> Transaction:
        return self.machine.transactions[name]
