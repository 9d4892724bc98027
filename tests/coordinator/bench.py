"""A small state machine and its runtime, over a partition on a simulated disk; the test plays the follower.

Zone: real.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.ignoring import ignore, partition_events

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.coordinator.coordinator import Coordinator
from ottla.coordinator.shard import NOTHING, AnswerEffect, Decision, EntryOrigin, JournalProducer, TransactionEnd
from ottla.coordinator.shard_runtime import RuntimeContext, ShardRuntime, ShardState
from ottla.effects import Effects
from ottla.errors import ApiError
from ottla.purgatory.purgatory import Purgatory
from ottla.record.batch import Record, encode_batch
from ottla.record.control import ControlType, control_key, marker_value
from ottla.record.errors import CorruptRecord
from ottla.replication.partition.leader_role import LeaderRole
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.partition_context import PartitionContext
from ottla.replication.partition.replica_state import PartitionState
from ottla.seams import Instant
from ottla.sim.disks.disk import SimDisk
from ottla.sim.disks.drive import Drive, JournalLoss
from ottla.sim.disks.drive_faults import DriveFaults
from ottla.sim.disks.inode import LossPattern
from ottla.sim.entropy import Streams
from ottla.sim.machines.machine import Death, Machine
from ottla.sim.world import MS, Timeline
from ottla.storage.log_manager import LogManager
from ottla.types import TopicPartition

TOPIC = "__ledger"
TP = TopicPartition(TOPIC, 0)
TOPIC_ID = bytes(range(16))


class Line(NamedTuple):
    """The only type of record: an account and its balance; None closes it."""

    account: str
    balance: int | None


class Visit(NamedTuple):
    """A volatile event: a guest visits an account, and stays until a time."""

    account: str
    ticket: Callable[[object], None] | None
    until_ns: int


class Ask(NamedTuple):
    """A command: `verb` of an account."""

    verb: str
    account: str
    amount: int
    ticket: Callable[[object], None]
    producer: JournalProducer | None = None


class LedgerCodec:
    def __init__(self, newest_only: bool = False) -> None:
        self.newest_only = newest_only

    def encode(self, entry: object) -> tuple[bytes, bytes | None]:
        assert isinstance(entry, Line)
        key = b"L" + entry.account.encode()
        return key, None if entry.balance is None else struct.pack(">q", entry.balance)

    def decode(self, key: bytes | None, value: bytes | None) -> object | None:
        if key is None or not key:
            raise CorruptRecord("a line without an account")
        if key[:1] != b"L":
            return None
        if value is not None and len(value) != 8:
            raise CorruptRecord(f"a balance of {len(value)} bytes")
        return Line(key[1:].decode(), None if value is None else struct.unpack(">q", value)[0])


class Ledger:
    """Balances. put: journaled; get: a read; wait: answered by the next put; visit: volatile; close: at a deadline."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.balances: dict[str, int] = {}
        self.pending: dict[int, list[Line]] = {}
        self.guests: dict[str, Visit] = {}
        self.log: list[tuple[object, EntryOrigin]] = []
        self.loaded = 0

    def handle(self, command: Ask, now: Instant) -> Decision:
        assert command.verb != "break", "a command that breaks the machine"
        if command.verb == "get":
            return Decision(committed=(AnswerEffect(command.ticket, self.balances.get(command.account)),))
        if command.verb == "ping":
            return Decision(now=(AnswerEffect(command.ticket, "pong"),))
        if command.verb == "wait" and command.account in self.guests:
            return Decision(now=(AnswerEffect(command.ticket, "taken"),))
        if command.verb == "wait":
            return Decision(volatile=(Visit(command.account, command.ticket, now.mono_ns + command.amount * MS),))
        if command.verb == "spoil":
            return Decision(volatile=("spoiled",), now=(AnswerEffect(command.ticket, "never"),))
        records = [Line(command.account, command.amount)]
        if command.verb == "fill":
            records = [Line(f"{command.account}{at}", at) for at in range(command.amount)]
        guest = self.guests.get(command.account)
        leaving = () if guest is None else (Visit(command.account, None, 0),)
        told = () if guest is None else (AnswerEffect(guest.ticket, command.amount),)
        return Decision(leaving, records, told, (AnswerEffect(command.ticket, command.amount),), command.producer)

    def apply(self, entry: object, origin: EntryOrigin) -> None:
        assert entry != "spoiled", "an event that cannot be applied"
        if isinstance(entry, Visit):
            if entry.ticket is None:
                self.guests.pop(entry.account)
            else:
                self.guests[entry.account] = entry
            return
        self.log.append((entry, origin))
        if isinstance(entry, TransactionEnd):
            for line in self.pending.pop(entry.producer_id, ()):
                if entry.commit:
                    self._write(line)
        elif origin.producer_id >= 0:
            self.pending.setdefault(origin.producer_id, []).append(entry)
        else:
            self._write(entry)

    def _write(self, line: Line) -> None:
        if line.balance is None:
            self.balances.pop(line.account, None)
        else:
            self.balances[line.account] = line.balance

    def on_loaded(self, now: Instant) -> Decision:
        self.loaded += 1
        return NOTHING

    def next_deadline(self) -> int | None:
        return min((guest.until_ns for guest in self.guests.values()), default=None)

    def on_time(self, now: Instant) -> Decision:
        """Remove the first guest whose time is over, and close its account."""
        account = min(self.guests, key=lambda name: self.guests[name].until_ns)
        ticket = self.guests[account].ticket
        return Decision((Visit(account, None, 0),), (Line(account, None),), (), (AnswerEffect(ticket, "too late"),))

    def waiting_tickets(self) -> Sequence[Callable[[ApiError], None]]:
        return [guest.ticket for guest in self.guests.values()]


class Listener(list):
    """Collects the results of tickets, and checks that each ticket is called once."""

    def ticket(self, name: object) -> Callable[[object], None]:
        answered: list[object] = []

        def send_response(value: object) -> None:
            assert not answered, f"{name} is answered twice: {answered}, {value}"
            answered.append(value)
            self.append((name, value.code.name if isinstance(value, ApiError) else value))

        return send_response


class Proposals(list):
    """A controller that records requests and never answers."""

    def propose_isr(self, leader: LeaderRole, proposal: object) -> None:
        self.append(proposal)


class Contact:
    def __init__(self) -> None:
        self.used_ns = self.previous_ns = -1
        self.lasts = True

    def on_replaced(self) -> None:
        pass


class Bench:
    """One broker's coordinator over partition 0 of its topic."""

    def __init__(self, replicas: tuple[int, ...] = (1,), newest_only: bool = False, **tools: int) -> None:
        self.replicas = replicas
        self.newest_only = newest_only
        self.tools = tools
        self.timeline = Timeline()
        self.drive = Drive("data")
        self.machine = Machine(1, self.timeline, Streams(1), [self.drive])
        self.machine.loss = (LossPattern.NONE, JournalLoss.ALL)
        self.said = Listener()
        self.epoch = 0
        self.config = TopicConfig(min_insync_replicas=1)
        self.boot()

    def boot(self) -> None:
        self.process = self.machine.boot_process()
        self.process.inputs = self
        self.effects = Effects()
        clock = self.process.clock
        self.purgatory = Purgatory(clock)
        self.faults = DriveFaults()
        disk = SimDisk(self.drive, self.faults, self.process)
        self.logs = LogManager([disk], clock, self.process.entropy, BrokerConfig(), ignore)
        self.logs.load_logs(lambda _: self.config)
        self.log = self.logs.adopt_log(TP, TOPIC_ID) or self.logs.create_log(TP, TOPIC_ID, self.config)
        tools = RuntimeContext(
            clock, self.purgatory, self.effects.queue_effect, LedgerCodec(self.newest_only), **self.tools
        )
        self.coordinator: Coordinator[Ledger] = Coordinator(TOPIC, tools, Ledger)
        self.shared = PartitionContext(partition_events(on_role=self.coordinator.on_role))
        self.partition = Partition(self.log, self.config, 1, Proposals(), self.shared)

    def restart(self, death: Death = Death.KILL) -> None:
        self.machine.end_process(death)
        self.boot()

    # -- inputs --------------------------------------------------------------------------------------------------------

    def on_alarm(self) -> None:
        self.purgatory.on_alarm()
        self.end_turn()

    def end_turn(self) -> None:
        self.effects.drain_effects()

    def run_background(self, budget_ns: int) -> bool:
        return False

    def turn(self, action: Callable[[], object]) -> None:
        """Run one input in a turn of its own."""
        self.process.post_turn(0, "input", lambda: (action(), self.end_turn()))
        self.pass_ms(0)

    def pass_ms(self, ms: int) -> None:
        self.timeline.run_until(self.timeline.now_ns + ms * MS)
        assert not self.machine.crashes, self.machine.crashes[0]

    # -- leadership and replication ------------------------------------------------------------------------------------

    def lead(self, isr: tuple[int, ...] | None = None, load: bool = True) -> None:
        """Become leader in the next epoch, and load."""
        self.epoch += 1
        state = PartitionState(1, self.epoch, isr or self.replicas, self.epoch, self.replicas)
        self.turn(lambda: self.partition.make_leader(state, self.process.clock.now()))
        if load:
            self.pass_ms(1000)

    def follow(self) -> None:
        """Become a follower of another leader."""
        self.epoch += 1
        state = PartitionState(2, self.epoch, (2,), self.epoch, (1, 2))
        self.turn(lambda: self.partition.make_follower(state, self.process.clock.now()))

    def replicate(self, upto: int | None = None) -> None:
        """The follower fetches."""
        offset = self.log.end_offset if upto is None else upto
        now = self.process.clock.now
        self.turn(
            lambda: self.partition.leader_role.note_fetch(2, 1, self.epoch, offset, -1, 0, now(), Contact())  # type: ignore[arg-type]
        )

    def end_transaction(self, producer: JournalProducer, commit: bool) -> None:
        """Do what WriteTxnMarkers does: append the control batch, then call the coordinator."""
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        record = Record(0, 1, control_key(kind), marker_value(0), ())
        batch = encode_batch(
            [record], producer_id=producer.producer_id, producer_epoch=producer.epoch, transactional=True, control=True
        )

        def append() -> None:
            offset = self.partition.leader_role.append_own(memoryview(batch), self.process.clock.now())
            self.coordinator.end_transaction(self.partition, TransactionEnd(*producer, commit), offset)

        self.turn(append)

    # -- commands ------------------------------------------------------------------------------------------------------

    def ask(self, verb: str, account: str = "a", amount: int = 0, producer: JournalProducer | None = None) -> object:
        """Submit a command. Returns its answer so far (None: it waits)."""
        ticket = self.said.ticket((verb, account, amount))
        command = Ask(verb, account, amount, ticket, producer)
        before = len(self.said)
        self.turn(lambda: self.coordinator.submit_command(0, command))
        own = [value for name, value in self.said[before:] if name == (verb, account, amount)]
        return own[0] if own else None

    @property
    def runner(self) -> ShardRuntime:
        found = self.coordinator.find_shard(0)
        assert found is not None
        return found

    @property
    def ledger(self) -> Ledger:
        machine = self.runner.machine
        assert isinstance(machine, Ledger)
        return machine

    @property
    def state(self) -> ShardState:
        return self.runner.state
