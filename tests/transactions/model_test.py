"""Any history of two producers, a slow network, commits, refusals and failovers, against a model without the rules.

The model is the purpose of transactions: partitions that hold values until a marker commits or aborts them, and
producers that remember the answers they got. It does not see the states of the state machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transactions.bench import Bench, Ticket

from ottla.coordinator.shard import EntryOrigin
from ottla.errors import ApiError, ErrorCode
from ottla.transactions.commands import AddPartitions, EndTransaction, InitProducerId, Markers, VerifyPartitions
from ottla.transactions.state import MAX_EPOCH, ProducerIdentity, Transaction
from ottla.types import TopicPartition

NAME = "a"
PARTITIONS = [TopicPartition("t", index) for index in range(3)]
DEAD = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_TXN_STATE)


class Value(NamedTuple):
    """The values that a producer wrote, and their transaction."""

    transaction: int
    number: int


class Partition:
    """A partition that holds values; its leader verifies as in KIP-890."""

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.open: dict[int, list[Value]] = {}
        self.outcome: dict[Value, bool] = {}
        self.coordinator_epoch = 0

    def append(self, identity: ProducerIdentity, value: Value, verified: Callable[[], bool]) -> bool:
        written = value in self.outcome or any(value in held for held in self.open.values())
        if identity.epoch < self.epochs.get(identity.producer_id, -1) or written or not verified():
            return False
        self.epochs[identity.producer_id] = identity.epoch
        self.open.setdefault(identity.producer_id, []).append(value)
        return True

    def mark(self, markers: Markers) -> bool:
        """Whether the partition has the marker now."""
        producer_id, epoch = markers.identity
        known = self.epochs.get(producer_id, -1)
        if markers.coordinator_epoch < self.coordinator_epoch or epoch < known:
            return False
        if epoch == known:
            return producer_id not in self.open
        self.coordinator_epoch = markers.coordinator_epoch
        self.epochs[producer_id] = epoch
        for value in self.open.pop(producer_id, ()):
            self.outcome[value] = markers.commit
        return True


class Client:
    """A producer of version 2 that repeats requests without an answer, and gives up when it is fenced."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.identity: ProducerIdentity | None = None
        self.transaction = -1
        self.values = 0
        self.commit: bool | None = None
        """The end that it has requested; None: none yet."""
        self.waiting: tuple[object, Ticket] | None = None

    def step(self, choice: int) -> None:
        if self.waiting is not None and not self._look(*self.waiting):
            return
        if self.identity is None:
            self.waiting = self.world.send(InitProducerId(NAME, 60_000, None, Ticket()))
        elif self.commit is not None:
            self._end(self.commit)
        elif choice < 3:
            self._write(PARTITIONS[choice])
        elif self.values:
            self._end(choice == 3)

    def _write(self, tp: TopicPartition) -> None:
        if self.transaction < 0:
            self.transaction = self.world.next_transaction()
        value = Value(self.transaction, self.values)
        self.values += 1
        if self.world.write(self.identity, tp, value):
            self.world.written.setdefault(self.transaction, []).append((tp, value))
        else:
            self._forget(None)  # a fatal error: it starts again under the same transactional id

    def _end(self, commit: bool) -> None:
        self.commit = commit
        if self.waiting is None:
            self.world.asked.setdefault(self.transaction, commit)
            self.waiting = self.world.send(EndTransaction(NAME, self.identity, commit, 2, Ticket()))

    def _look(self, command: object, ticket: Ticket) -> bool:
        """Process an answer. Returns False while there is none, or when the request must be repeated."""
        if not ticket:
            return False
        self.waiting = None
        if isinstance(ticket.value, ErrorCode):
            if ticket.value in DEAD:
                self._forget(None)
                return False
            self.waiting = self.world.send(command._replace(ticket=Ticket()))  # type: ignore[attr-defined]
            return False
        if isinstance(command, EndTransaction):
            self.world.told[self.transaction] = command.commit
        assert isinstance(ticket.value, ProducerIdentity)
        self._forget(ticket.value)
        self.world.hand_out(ticket.value, self)
        return True

    def _forget(self, identity: ProducerIdentity | None) -> None:
        self.identity, self.transaction, self.values, self.commit = identity, -1, 0, None


class World:
    def __init__(self) -> None:
        self.bench = Bench()
        self.partitions = {tp: Partition() for tp in PARTITIONS}
        self.clients = [Client(self), Client(self)]
        self.network: list[Markers] = []
        self.sent: list[object] = []
        self.writes: list[tuple[ProducerIdentity, TopicPartition, Value]] = []
        self.written: dict[int, list[tuple[TopicPartition, Value]]] = {}
        self.asked: dict[int, bool] = {}
        self.told: dict[int, bool] = {}
        self.owners: dict[ProducerIdentity, Client] = {}
        self.transactions = 0

    def next_transaction(self) -> int:
        self.transactions += 1
        return self.transactions

    def hand_out(self, identity: ProducerIdentity, client: Client) -> None:
        assert identity.epoch < MAX_EPOCH
        assert self.owners.setdefault(identity, client) is client, f"{identity} belongs to two"

    def send(self, command: object) -> tuple[object, Ticket]:
        self.sent.append(command)
        return command, self.bench.ask(command)

    def write(self, identity: ProducerIdentity, tp: TopicPartition, value: Value) -> bool:
        self.writes.append((identity, tp, value))
        return self.partitions[tp].append(identity, value, lambda: self.verified(identity, tp))

    def verified(self, identity: ProducerIdentity, tp: TopicPartition) -> bool:
        """The leader adds itself to the transaction, and appends only when that is committed."""
        added = self.bench.ask(AddPartitions(NAME, identity, (tp,), 2, Ticket()))
        if not added or isinstance(added[0], ApiError):
            return False
        verdict = self.bench.ask(VerifyPartitions(NAME, identity, (tp,), Ticket()))
        return bool(verdict) and verdict[0] == {tp: ErrorCode.NONE}

    # -- events --------------------------------------------------------------------------------------------------------

    def play(self, what: str, number: int) -> None:
        getattr(self, f"_{what}")(number)
        self.network += self.bench.sent
        self.bench.sent.clear()

    def _first(self, number: int) -> None:
        self.clients[0].step(number)

    def _second(self, number: int) -> None:
        self.clients[1].step(number)

    def _mark(self, number: int) -> None:
        """A marker arrives, possibly late or repeated; its answer arrives or is lost."""
        if self.network:
            markers = self.network[number // 6 % len(self.network)]
            tp = markers.partitions[number % len(markers.partitions)]
            if self.partitions[tp].mark(markers) and number % 2 == 0:
                self.bench.written(markers.transactional_id, markers.identity, tp)

    def _again(self, number: int) -> None:
        """A request arrives once more, much later; its answer is lost."""
        if self.sent:
            before = len(self.bench.records)
            command = self.sent[number % len(self.sent)]
            present = self.bench.machine.transactions.get(NAME)
            self.bench.ask(command._replace(ticket=Ticket()))  # type: ignore[attr-defined]
            if isinstance(command, EndTransaction) and present and command.identity != present.identity:
                assert len(self.bench.records) == before, "an end of before changes nothing"

    def _rewrite(self, number: int) -> None:
        """A batch arrives once more, much later."""
        if self.writes:
            identity, tp, value = self.writes[number % len(self.writes)]
            present = self.bench.machine.transactions.get(NAME)
            done = self.partitions[tp].append(identity, value, lambda: self.verified(identity, tp))
            assert not done or (present and present.identity == identity), "only the producer of now writes"

    def _hold(self, number: int) -> None:
        self.bench.held = number % 2 == 0
        self.bench.settle()

    def _refuse(self, number: int) -> None:
        self.bench.refused = number % 2 == 0

    def _lead(self, number: int) -> None:
        self.bench.lead(lose=number % 2 == 0)

    def _impatient(self, _: int) -> None:
        self.bench.lose_patience()

    def _pass(self, number: int) -> None:
        self.bench.pass_ms(number * 10_000)

    # -- the end -------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        self.bench.held = self.bench.refused = False
        self.bench.settle()
        for client in self.clients:
            if client.waiting is not None and client.waiting[1]:
                client._look(*client.waiting)
        for _ in range(3):
            self.bench.lead()
            self.bench.pass_ms(80_000)
            for markers in self.bench.sent:
                for tp in markers.partitions:
                    if self.partitions[tp].mark(markers):
                        self.bench.written(markers.transactional_id, markers.identity, tp)
            self.bench.sent.clear()

    def check(self) -> None:
        for tp, partition in self.partitions.items():
            assert not partition.open, f"{tp} has an open transaction for ever"
        for transaction, values in self.written.items():
            outcomes = {self.partitions[tp].outcome[value] for tp, value in values}
            assert len(outcomes) == 1, f"transaction {transaction} is torn"
            if transaction in self.told:
                assert outcomes == {self.told[transaction]}, f"transaction {transaction} ended the other way"
            if not self.asked.get(transaction, False):
                assert outcomes == {False}, f"transaction {transaction} is committed, and nobody wanted that"


STEPS = ["first"] * 8 + ["second"] * 3 + ["mark"] * 5
STEPS += ["again", "again", "rewrite", "rewrite", "hold", "hold", "refuse", "lead", "impatient", "pass"]
HISTORIES = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 11)), max_size=60)


@pytest.mark.slow
def test_long_histories() -> None:
    """Longer histories than Hypothesis could shrink."""
    told = 0
    for seed in range(150):
        draw, world = random.Random(seed), World()
        for _ in range(120):
            what = draw.choice(STEPS)
            world.play(what, draw.randrange(5 if what in ("first", "second") else 12))
        world.heal()
        world.check()
        told += len(world.told)
    assert told > 50, "some transactions end, and their producers get the answer"


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(HISTORIES)
def test_transactions_are_whole(history: list[tuple[str, int]]) -> None:
    world = World()
    for what, number in history:
        world.play(what, number % 5 if what in ("first", "second") else number)
    world.heal()
    world.check()


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(HISTORIES)
def test_any_prefix_of_the_records_loads_to_its_state(history: list[tuple[str, int]]) -> None:
    world = World()
    seen: dict[int, dict[str, Transaction]] = {0: {}}
    for what, number in history:
        world.play(what, number % 5 if what in ("first", "second") else number)
        end = len(world.bench.records)
        seen = {length: state for length, state in seen.items() if length < end}
        seen[end] = dict(world.bench.machine.transactions)
    records = world.bench.records
    machine = world.bench.load(())
    for offset, (key, value) in enumerate(records):
        assert seen.get(offset, dict(machine.transactions)) == machine.transactions
        machine.apply(world.bench.codec.decode(key, value), EntryOrigin(offset))
    assert machine.transactions == world.bench.machine.transactions
    again = world.bench.load(records)
    assert list(again.transactions) == list(world.bench.machine.transactions), "the least recently changed ones first"
