"""ISR proposals on their way to the controller, which is played by hand."""

from __future__ import annotations

import threading
from collections import deque

import pytest

from ottla.broker.assembly.forward import Forward
from ottla.broker_client import BrokerClient
from ottla.errors import ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.alter_partition import AlterPartitionChannel
from ottla.replication.control import ControlFence
from ottla.replication.partition.replica_state import IsrOutcome, IsrProposal
from ottla.seams import Failure, Instant, Kind
from ottla.types import TopicPartition
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.header import decode_request_header, response_header
from ottla.wire.messages import AlterPartitionRequest, AlterPartitionResponse

TOPIC = b"t" * 16
MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.ns = 0

    def now(self) -> Instant:
        return Instant(self.ns, 0)

    def set_alarm(self, mono_ns: int | None) -> None:
        self.wanted = mono_ns


class Line:
    """The network: keeps what is sent until the test answers it."""

    def __init__(self) -> None:
        self.sent: deque = deque()

    def call_broker(self, node: int, frame: bytes, deadline_ns: int, done, lane: str = "") -> None:
        header = decode_request_header(frame)
        request, _ = decode(AlterPartitionRequest, header.api_version, frame, header.body_pos)
        self.sent.append((node, request, done))


class Led:
    """A leader as the channel sees it."""

    def __init__(self, index: int) -> None:
        self.replica = self
        self.tp = TopicPartition("t", index)
        self.topic_id = TOPIC
        self.told: list[IsrOutcome] = []

    def on_alter_partition_response(self, outcome: IsrOutcome) -> None:
        self.told.append(outcome)


class World:
    def __init__(self) -> None:
        self.clock, self.line, self.turn = Clock(), Line(), deque()
        new_controller: Forward[[]] = Forward("a new controller")
        self.fence = ControlFence(1, None, new_controller)
        self.fence.broker_epoch = 90
        self.purgatory = Purgatory(self.clock)
        peers = BrokerClient(self.line, self.clock, 1)
        self.channel = AlterPartitionChannel(self.fence, peers, self.purgatory, self.turn.append, 30_000)
        new_controller.bind(self.channel.on_new_controller)
        self.fence.check_request(2, 1, 90)
        self.drain()

    def drain(self) -> None:
        while self.turn:
            self.turn.popleft()()

    def propose(self, *leds: Led, isr=(1, 2), partition_epoch: int = 4) -> None:
        for led in leds:
            self.channel.propose_isr(led, IsrProposal(isr, (-1, 77), 3, partition_epoch))
        self.drain()

    def answer(self, *rows: tuple[int, int], error: int = 0) -> None:
        """The controller's answer to the oldest request: (partition, error) each."""
        _, _, done = self.line.sent.popleft()
        data = AlterPartitionResponse.PartitionData
        partitions = [
            data(partition_index=index, error_code=code, leader_id=1, leader_epoch=3, isr=[1, 2], partition_epoch=5)
            for index, code in rows
        ]
        topic = AlterPartitionResponse.TopicData(topic_id=TOPIC, partitions=partitions)
        response = AlterPartitionResponse(error_code=error, topics=[topic] if partitions else [])
        done(memoryview(response_header(56, 3, 1) + encode_bytes(response, 3)))
        self.drain()

    def pass_ms(self, ms: int) -> None:
        for _ in range(ms):
            self.clock.ns += MS
            self.purgatory.on_alarm()
            self.drain()


@pytest.fixture
def world() -> World:
    return World()


def test_proposals_of_one_turn_travel_together_with_epochs(world: World) -> None:
    first, second = Led(0), Led(1)
    world.propose(first, second)
    ((node, request, _),) = world.line.sent
    assert (node, request.broker_id, request.broker_epoch) == (2, 1, 90)
    (topic,) = request.topics
    assert topic.topic_id == TOPIC
    assert [(one.partition_index, one.leader_epoch, one.partition_epoch) for one in topic.partitions] == [
        (0, 3, 4),
        (1, 3, 4),
    ]
    members = [(each.broker_id, each.broker_epoch) for each in topic.partitions[0].new_isr_with_epochs]
    assert members == [(1, 90), (2, 77)], "the leader's own epoch is put in by the channel"


def test_one_request_at_a_time_carries_all_gathered_proposals(world: World) -> None:
    first, second, third = Led(0), Led(1), Led(2)
    world.propose(first)
    world.propose(second)
    world.propose(third)
    assert len(world.line.sent) == 1
    world.answer((0, 0))
    assert first.told == [IsrOutcome(IsrProposal((1, 2), (-1, 77), 3, 4), ErrorCode.NONE, (1, 2), 3, 5)]
    ((_, request, _),) = world.line.sent
    assert [one.partition_index for one in request.topics[0].partitions] == [1, 2]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.INVALID_REQUEST,
    ],
)
def test_a_definite_refusal_is_reported_and_not_repeated(world: World, code: ErrorCode) -> None:
    led = Led(0)
    world.propose(led)
    world.answer((0, code))
    assert [each.error for each in led.told] == [code]
    world.pass_ms(200)
    assert not world.line.sent
    assert not len(world.channel)


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH, ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_a_refused_request_is_sent_again(world: World, code: ErrorCode) -> None:
    led = Led(0)
    world.propose(led)
    world.answer(error=code)
    assert not led.told
    world.fence.broker_epoch = 91
    world.pass_ms(49)
    assert not world.line.sent
    world.pass_ms(2)
    ((_, request, _),) = world.line.sent
    assert request.broker_epoch == 91, "as of now, not as of then"
    world.answer((0, 0))
    assert len(led.told) == 1


def test_a_repeated_refusal_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ottla.replication")
    world.propose(Led(0))
    for code in (ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH):
        world.answer(error=code)
        world.pass_ms(51)
    ours = [
        record for record in caplog.records if record.thread == threading.get_ident()
    ]  # brokers of other tests live
    assert [record.getMessage().partition(": ")[2] for record in ours] == [
        "NOT_CONTROLLER; retrying every 50 ms",
        "STALE_BROKER_EPOCH; retrying every 50 ms",
    ]


def test_no_answer_and_no_word_on_a_partition_are_asked_again(world: World) -> None:
    first, second = Led(0), Led(1)
    world.propose(first, second)
    world.line.sent.popleft()[2](Failure(Kind.UNKNOWN, "lost"))
    world.drain()
    world.pass_ms(51)
    world.answer((0, 0))
    assert (len(first.told), len(second.told)) == (1, 0)
    world.pass_ms(51)
    ((_, request, _),) = world.line.sent
    assert [one.partition_index for one in request.topics[0].partitions] == [1]
    world.answer((1, ErrorCode.REQUEST_TIMED_OUT))
    assert not second.told, "the outcome is not known"
    world.pass_ms(51)
    world.answer((1, ErrorCode.INVALID_UPDATE_VERSION))
    assert [each.error for each in second.told] == [ErrorCode.INVALID_UPDATE_VERSION]


def test_a_new_controller_gets_open_proposals_and_late_answers_are_ignored(world: World) -> None:
    led = Led(0)
    world.propose(led)
    _, _, old = world.line.sent.popleft()
    world.fence.check_request(3, 2, 90)
    world.drain()
    assert [node for node, _, _ in world.line.sent] == [3]
    response = AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)
    old(memoryview(response_header(56, 3, 1) + encode_bytes(response, 3)))
    world.drain()
    world.answer((0, 0))
    assert [each.error for each in led.told] == [ErrorCode.NONE]


def test_a_newer_proposal_takes_the_place_of_the_older_one(world: World) -> None:
    led = Led(0)
    world.propose(led)
    world.propose(led, isr=(1, 3), partition_epoch=6)
    assert [each.error for each in led.told] == [ErrorCode.OPERATION_NOT_ATTEMPTED]
    world.answer((0, 0))
    assert len(led.told) == 1, "the answer is to the proposal that was given up"
    world.answer((0, 0))
    assert led.told[-1].proposal.isr == (1, 3)


def test_before_a_controller_is_known_it_waits(world: World) -> None:
    world.fence.controller_id = -1
    led = Led(0)
    world.propose(led)
    world.pass_ms(120)
    assert not world.line.sent
    world.fence.check_request(2, 2, 90)
    world.drain()
    assert len(world.line.sent) == 1
