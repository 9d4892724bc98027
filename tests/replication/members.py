"""One partition on several brokers: real Partition objects over simulated disks, a controller played by hand.

Zone: real. A round of `fetch` is what a follower's fetcher and its leader do, in one step, or in two to lose an answer.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import pytest
from tests.ignoring import ignore, partition_events

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import Record, batches_of, encode_batch, records_of
from ottla.replication.follower.truncation import where_to_cut
from ottla.replication.partition.leader_role import LeaderRole
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.partition_context import PartitionContext
from ottla.replication.partition.replica_state import EpochEnd, IsrOutcome, IsrProposal, PartitionState
from ottla.sim.disks.disk import SimDisk
from ottla.sim.disks.drive import Drive, JournalLoss
from ottla.sim.disks.drive_faults import DriveFaults
from ottla.sim.disks.inode import LossPattern
from ottla.sim.entropy import Streams
from ottla.sim.machines.machine import Death, Machine
from ottla.sim.world import MS, SECOND, Timeline
from ottla.storage.log_manager import LogManager
from ottla.types import TopicPartition

TP = TopicPartition("t", 0)
TOPIC_ID = bytes(range(16))
MAX_BYTES = 1 << 20


class Contact:
    """A fetch session."""

    def __init__(self) -> None:
        self.used_ns = self.previous_ns = -1
        self.is_requested = True
        self.others = 0
        """How often a fetch of another session came after one of this."""

    def on_replaced(self) -> None:
        self.others += 1

    def touch(self, now_ns: int) -> None:
        self.previous_ns, self.used_ns = self.used_ns, now_ns


class Answer(NamedTuple):
    """A leader's response to a fetch."""

    parts_at: EpochEnd | None
    records: memoryview
    high_watermark: int
    log_start: int
    error: ErrorCode = ErrorCode.NONE


class Member:
    """A broker with one replica."""

    def __init__(self, cluster: Cluster, node_id: int, config: TopicConfig) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.config = config
        self.checked: list[object] = []
        self.shared = PartitionContext(partition_events(self.checked.append))
        self.drive = Drive(f"data{node_id}")
        self.machine = Machine(node_id, cluster.timeline, Streams(node_id), [self.drive])
        self.machine.loss = (LossPattern.NONE, JournalLoss.ALL)
        self.broker_epoch = 0
        self.alive = False
        self.boot()

    def boot(self) -> None:
        process = self.machine.boot_process()
        self.clock = process.clock
        self.faults = DriveFaults()
        disk = SimDisk(self.drive, self.faults, process)
        self.logs = LogManager([disk], process.clock, process.entropy, BrokerConfig(), ignore)
        self.logs.load_logs(lambda _: self.config)
        self.alive = True
        self.broker_epoch = self.cluster.next_zxid()
        self.host()

    def host(self) -> None:
        """The replica, over the log that is there or a new one."""
        self.log = self.logs.adopt_log(TP, TOPIC_ID) or self.logs.create_log(TP, TOPIC_ID, self.config)
        self.partition = Partition(self.log, self.config, self.node_id, self.cluster, self.shared)
        self.contact = Contact()
        self.cluster.settle()

    def die(self, death: Death = Death.KILL) -> None:
        """The broker is gone; its disk stays, less what that death takes."""
        self.alive = False
        self.machine.end_process(death)

    def wipe(self) -> None:
        """An empty log where the old one was."""
        self.logs.delete_log(TP)
        self.host()

    def save(self, mark: bool = True) -> None:
        """Bring the log, and the high watermark, to the disk."""
        self.log.flush(lambda _: None)
        if mark:
            self.logs.dirs[0].offsets.checkpoint_high_watermarks()
        self.cluster.settle()

    def produce(self, *values: bytes, acks: int = 1) -> tuple[int, int, int]:
        """Append one batch; returns the result of `append`."""
        records = [Record(at, 1_700_000_000_000, None, value, ()) for at, value in enumerate(values)]
        return self.partition.leader_role.append(memoryview(encode_batch(records)), acks, self.clock.now())

    # -- following ---------------------------------------------------------------------------------------------------

    def ask(self, leader: Member, **changed: int) -> Answer:
        """One request: the leader's part."""
        log, now = self.log, leader.clock.now()
        self.contact.touch(now.mono_ns)
        asked = {
            "broker_epoch": self.broker_epoch,
            "leader_epoch": self.partition.leader_epoch,
            "offset": log.end_offset,
            "last_epoch": log.epochs.latest,
            "log_start": log.start_offset,
            **changed,
        }
        led = leader.partition
        try:
            parts_at = led.leader_role.note_fetch(self.node_id, **asked, now=now, contact=self.contact)
            region = (
                led.read(asked["offset"], MAX_BYTES, led.log.end_offset, True, warmed=True)
                if parts_at is None
                else None
            )
        except ApiError as error:
            return Answer(None, memoryview(b""), -1, -1, error.code)
        content = bytearray(0 if region is None else region.size)
        if region is not None:
            region.file.read_now(region.pos, memoryview(content))
        return Answer(parts_at, memoryview(content), led.high_watermark, led.log.start_offset)

    def take(self, answer: Answer) -> None:
        """The answer arrives: the follower's part."""
        log, partition = self.log, self.partition
        if answer.parts_at is not None:
            cut = where_to_cut(*answer.parts_at, log.epochs.end_offset_for, log.end_offset, partition.high_watermark)
            partition.follower_role.truncate_to(cut.offset)
        elif answer.error is ErrorCode.NONE:
            if len(answer.records):
                partition.follower_role.append(answer.records, partition.leader_epoch)
            partition.follower_role.take_from_leader(answer.high_watermark, answer.log_start)

    def fetch(self, rounds: int = 1) -> ErrorCode:
        """Whole rounds: request, response. Out of range, it continues at the leader's log end (as Kafka)."""
        code = ErrorCode.NONE
        for _ in range(rounds):
            leader = self.cluster.members[self.partition.leader]
            answer = self.ask(leader)
            code = answer.error
            if code is ErrorCode.OFFSET_OUT_OF_RANGE and self.log.end_offset > leader.log.end_offset:
                self.partition.follower_role.truncate_to(leader.log.end_offset)
            self.take(answer)
        return code

    # -- what it holds -----------------------------------------------------------------------------------------------

    @property
    def leo(self) -> int:
        return self.log.end_offset

    @property
    def hw(self) -> int:
        return self.partition.high_watermark

    def remote(self, other: Member) -> int:
        """This leader's memory of another's LEO; -1: none. Kafka begins with -1, the sources' tables with 0."""
        return self.partition.leader_role.in_sync.replicas[other.node_id].end_offset

    def values(self, offset: int = 0, limit: int | None = None) -> list[bytes | None]:
        """Values in the log from an offset on, all or those below `limit`."""
        found: list[bytes | None] = []
        limit = self.leo if limit is None else limit
        while offset < limit:
            region = self.partition.read(offset, MAX_BYTES, limit, True, warmed=True)
            assert region is not None
            content = bytearray(region.size)
            region.file.read_now(region.pos, memoryview(content))
            for pos, header in batches_of(memoryview(content)):
                records = records_of(memoryview(content), pos, max_bytes=1 << 24)
                found += [record.value for record in records if record.offset >= offset]
                offset = header.last_offset + 1
        return found


class Cluster:
    """Brokers 1…n; the test plays their controller."""

    def __init__(self, count: int = 2, config: TopicConfig | None = None) -> None:
        self.timeline = Timeline()
        self._zxid = 100
        self.proposals: deque[tuple[LeaderRole, IsrProposal]] = deque()
        self.state = PartitionState(-1, -1, (), 0, tuple(range(1, count + 1)))
        self.members: dict[int, Member] = {}
        for node_id in self.state.replicas:
            self.members[node_id] = Member(self, node_id, config or TopicConfig())

    def next_zxid(self) -> int:
        self._zxid += 1
        return self._zxid

    def settle(self, ms: int = 1000) -> None:
        """Let what is under way on the disks arrive."""
        self.timeline.run_until(self.timeline.now_ns + ms * MS)
        for member in self.members.values():
            assert not member.machine.crashes, member.machine.crashes[0]

    def pass_seconds(self, seconds: float) -> None:
        self.timeline.run_until(self.timeline.now_ns + int(seconds * SECOND))

    # -- the controller ----------------------------------------------------------------------------------------------

    def elect(self, leader: int, isr: tuple[int, ...] | None = None) -> None:
        """Begin a new leader epoch, and send it to all live brokers."""
        state = self.state
        self.state = state._replace(
            leader=leader,
            leader_epoch=state.leader_epoch + 1,
            isr=state.isr if isr is None else isr,
            partition_epoch=state.partition_epoch + 1,
        )
        self.proposals.clear()
        for member in self.members.values():
            self.send_state(member)

    def send_state(self, member: Member) -> None:
        """LeaderAndIsr."""
        if not member.alive:
            return
        now = member.clock.now()
        if self.state.leader == member.node_id:
            member.partition.make_leader(self.state, now)
        else:
            member.partition.make_follower(self.state, now)

    def propose_isr(self, leader: LeaderRole, proposal: IsrProposal) -> None:
        """AlterPartition arrives."""
        self.proposals.append((leader, proposal))

    def decide(self) -> IsrOutcome:
        """Answer the oldest proposal as a controller does (KIP-497, KIP-903)."""
        leader, proposal = self.proposals.popleft()
        outcome = self._judge(proposal)
        leader.on_alter_partition_response(outcome)
        return outcome

    def _judge(self, proposal: IsrProposal) -> IsrOutcome:
        if proposal.leader_epoch != self.state.leader_epoch:
            return IsrOutcome(proposal, ErrorCode.FENCED_LEADER_EPOCH)
        if proposal.partition_epoch != self.state.partition_epoch:
            return IsrOutcome(proposal, ErrorCode.INVALID_UPDATE_VERSION)
        for node_id, epoch in zip(proposal.isr, proposal.broker_epochs, strict=True):
            member = self.members[node_id]
            if not member.alive or epoch not in (-1, member.broker_epoch):
                return IsrOutcome(proposal, ErrorCode.INELIGIBLE_REPLICA)
        epoch = self.state.partition_epoch + 1
        self.state = self.state._replace(isr=proposal.isr, partition_epoch=epoch)
        return IsrOutcome(proposal, ErrorCode.NONE, proposal.isr, self.state.leader_epoch, epoch)

    def restart(self, node_id: int) -> Member:
        """Restart a dead broker, and send it the present state."""
        member = self.members[node_id]
        member.boot()
        self.send_state(member)
        return member


TWO = TopicConfig(min_insync_replicas=2)
DURABLE = TopicConfig(min_insync_replicas=2, flush_messages=1)


def led(count: int = 2, isr: tuple[int, ...] = (1, 2), config: TopicConfig | None = None) -> Cluster:
    """Broker 1 leads."""
    cluster = Cluster(count, config)
    cluster.elect(1, isr=isr)
    return cluster


def refusal(call, *arguments) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        call(*arguments)
    return caught.value.code


def bounds_hold(member: Member) -> bool:
    """KAFKA-9491, 7414, 15510, 16452: at any time."""
    partition, log = member.partition, member.log
    return log.start_offset <= partition.high_watermark == log.high_watermark <= log.end_offset
