"""The state machine in its runtime: a real log on a simulated disk; the test plays the network of markers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from tests.coordinator import bench as runtime
from tests.ignoring import partition_events
from tests.transactions.bench import T0, T1, Ticket

from ottla.broker_client import BrokerClient
from ottla.config.topic import TopicConfig
from ottla.coordinator.coordinator import Coordinator
from ottla.coordinator.shard_runtime import RuntimeContext
from ottla.errors import ApiError, ErrorCode
from ottla.record.control import Marker
from ottla.replication.marker_handlers import TransactionEnd
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.partition_context import PartitionContext
from ottla.seams import Failure, Kind
from ottla.sim.machines.machine import Death
from ottla.transactions.codec import TransactionCodec
from ottla.transactions.commands import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    TransactionCommand,
    VerifyPartitions,
)
from ottla.transactions.machine import Policy, TransactionMachine
from ottla.transactions.service import FEW_ENDS, TOPIC, Transactions
from ottla.transactions.state import ProducerIdentity, TransactionStatus
from ottla.types import TopicPartition
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.header import decode_request_header, response_header
from ottla.wire.messages.end_txn import WriteTxnMarkersRequest, WriteTxnMarkersResponse

MS = 1_000_000
TP = TopicPartition(TOPIC, 0)


class Wire:
    """Brokers that write every marker, or answer with the errors that the test sets."""

    def __init__(self, process: object) -> None:
        self.process = process
        self.calls: list[tuple[int, WriteTxnMarkersRequest]] = []
        self.code = ErrorCode.NONE
        self.silent = False

    def call_broker(self, node: int, frame: bytes, deadline_ns: int, done: Callable, lane: str = "") -> None:
        header = decode_request_header(frame)
        request, _ = decode(WriteTxnMarkersRequest, header.api_version, frame, header.body_pos)
        self.calls.append((node, request))
        answer = self.answer(request)
        head = response_header(header.api_key, header.api_version, header.correlation_id)
        body = head + encode_bytes(answer, header.api_version)
        said = Failure(Kind.TIMEOUT) if self.silent else memoryview(body)
        self.process.post_done(MS, "answer", done, lambda: said)

    def answer(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        results = WriteTxnMarkersResponse
        return results(
            markers=[
                results.WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        results.WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                results.WritableTxnMarkerPartitionResult(partition_index=index, error_code=self.code)
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )

    def shown(self) -> list[tuple[int, int, int, bool, int, list[int]]]:
        """(node, producer, epoch, commit, coordinator epoch, partitions) of the requests since the last call."""
        rows = [
            (
                node,
                marker.producer_id,
                marker.producer_epoch,
                marker.transaction_result,
                marker.coordinator_epoch,
                list(marker.topics[0].partition_indexes),
            )
            for node, request in self.calls
            for marker in request.markers
        ]
        self.calls.clear()
        return rows


class Service(runtime.Bench):
    """One broker that leads partition 0 of `__transaction_state`, and its clients."""

    def boot(self) -> None:
        runtime.Bench.boot(self)
        clock = self.process.clock
        self.log = self.logs.adopt_log(TP, b"t" * 16) or self.logs.create_log(TP, b"t" * 16, self.config)
        tools = RuntimeContext(
            clock, self.purgatory, self.effects.queue_effect, TransactionCodec(), commit_timeout_ms=2000
        )
        self.wire = Wire(self.process)
        self.leaders: dict[TopicPartition, int | None] = {T0: 1, T1: 2}
        self.next_id = getattr(self, "next_id", 1000)
        self.broken: Failure | None = None
        self.is_next = False
        peers = BrokerClient(self.wire, clock, 1)  # type: ignore[arg-type]  # all of the network that is used
        self.service = Transactions(tools, Policy(), self, peers, self, None, 5000)
        self.coordinator: Coordinator[TransactionMachine] = self.service.coordinator  # type: ignore[assignment]
        self.shared = PartitionContext(partition_events(on_role=self.service.on_role))
        self.partition = Partition(self.log, self.config, 1, runtime.Proposals(), self.shared)

    # -- the environment -----------------------------------------------------------------------------------------------

    def take_producer_id(self, done: Callable[[int | Failure], None]) -> None:
        self.next_id += 1
        done(self.broken or self.next_id - 1)

    def index_of(self, transactional_id: str) -> int:
        return 0

    def is_to_lead(self, index: int) -> bool:
        return self.is_next

    def epoch_of(self, index: int) -> int:
        assert index == 0
        return self.partition.leader_epoch

    def leader_of(self, tp: TopicPartition) -> int | None:
        return self.leaders[tp]

    # -- clients -------------------------------------------------------------------------------------------------------

    def send(self, command: TransactionCommand) -> Ticket:
        self.turn(lambda: self.service.submit_command(command))  # type: ignore[arg-type]
        assert isinstance(command.ticket, Ticket)
        return command.ticket

    def init(self, name: str = "a") -> Ticket:
        return self.send(InitProducerId(name, 60_000, None, Ticket()))

    def add(self, epoch: int, *partitions: TopicPartition, name: str = "a", producer_id: int = 1000) -> Ticket:
        return self.send(AddPartitions(name, ProducerIdentity(producer_id, epoch), partitions, 2, Ticket()))

    def end(self, epoch: int, commit: bool = True, name: str = "a", producer_id: int = 1000) -> Ticket:
        return self.send(EndTransaction(name, ProducerIdentity(producer_id, epoch), commit, 2, Ticket()))

    def status(self, name: str = "a") -> TransactionStatus:
        return self.machine_of().transactions[name].status

    def machine_of(self) -> TransactionMachine:
        found = self.runner.machine
        assert isinstance(found, TransactionMachine)
        return found


@pytest.fixture
def service() -> Service:
    made = Service()
    made.lead()
    return made


def test_a_transaction(service: Service) -> None:
    assert service.init().value == ProducerIdentity(1000, 0)
    assert service.add(0, T0, T1).value is None
    assert service.end(0).value == ProducerIdentity(1000, 1)
    assert service.wire.shown() == [(1, 1000, 1, True, 1, [0]), (2, 1000, 1, True, 1, [1])]
    assert service.status() is TransactionStatus.PREPARE_COMMIT
    service.pass_ms(1)
    assert service.status() is TransactionStatus.COMPLETE_COMMIT
    assert service.add(1, T0).value is None


def test_no_marker_before_the_decision_is_committed() -> None:
    service = Service((1, 2))
    service.lead()
    started = service.init()
    assert not started, "the identity is answered when its record is committed"
    service.replicate()
    added = service.add(0, T0)
    verified = service.send(VerifyPartitions("a", ProducerIdentity(1000, 0), (T0,), Ticket()))
    service.replicate()
    assert (started.value, added.value, verified.value) == (ProducerIdentity(1000, 0), None, {T0: ErrorCode.NONE})
    ended = service.end(0)
    service.pass_ms(10)
    assert (len(ended), service.wire.shown()) == (0, [])
    service.replicate()
    service.pass_ms(10)
    assert ended.value == ProducerIdentity(1000, 1)
    assert service.wire.shown() == [(1, 1000, 1, True, 1, [0])]


def test_a_slow_commit_gets_its_markers() -> None:
    service = Service((1, 2))
    service.lead()
    service.init()
    service.replicate()
    service.add(0, T0)
    service.replicate()
    ended = service.end(0)
    service.pass_ms(7000)
    assert (ended.value, service.wire.shown()) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])
    service.replicate()
    service.pass_ms(10)
    assert service.wire.shown() == [(1, 1000, 1, True, 1, [0])]


@pytest.mark.parametrize("lost", [True, False])
def test_markers_are_written_again_until_they_are_there(service: Service, lost: bool) -> None:
    service.init()
    service.add(0, T0)
    service.wire.silent, service.wire.code = lost, ErrorCode.NOT_LEADER_OR_FOLLOWER
    service.end(0, commit=False)
    service.pass_ms(500)
    assert len(service.wire.shown()) == 5
    service.wire.silent, service.wire.code, service.leaders[T0] = False, ErrorCode.NONE, 3
    service.pass_ms(1000)
    assert service.wire.shown() == [(3, 1000, 1, False, 1, [0])]
    assert service.status() is TransactionStatus.COMPLETE_ABORT


def test_a_partition_without_a_leader_and_a_deleted_one(service: Service) -> None:
    service.init()
    service.add(0, T0, T1)
    service.leaders[T0] = None
    del service.leaders[T1]
    service.end(0)
    service.pass_ms(100)
    assert service.wire.shown() == []
    service.leaders[T0] = 1
    service.pass_ms(100)
    assert service.wire.shown() == [(1, 1000, 1, True, 1, [0])]
    assert service.status() is TransactionStatus.COMPLETE_COMMIT


def test_transactions_that_end_together_share_requests(service: Service) -> None:
    for number in range(10):
        service.init(f"x{number}")
        service.add(0, T0, name=f"x{number}", producer_id=1000 + number)
    ends = [EndTransaction(f"x{number}", ProducerIdentity(1000 + number, 0), True, 2, Ticket()) for number in range(10)]
    service.turn(lambda: [service.service.submit_command(end) for end in ends])
    assert len(service.wire.calls) == 1
    service.pass_ms(10)
    assert all(service.status(f"x{number}") is TransactionStatus.COMPLETE_COMMIT for number in range(10))


def test_partitions_of_this_broker_get_markers_without_a_request(service: Service) -> None:
    written: list[tuple[TransactionEnd, TopicPartition]] = []
    answers = [[ErrorCode.NOT_LEADER_OR_FOLLOWER], [ErrorCode.NONE]]

    def write(
        places: Iterator[tuple[TransactionEnd, TopicPartition]], done: Callable[[Sequence[ErrorCode]], None]
    ) -> None:
        written.extend(places)
        done(answers.pop(0))

    service.service.here = 1, write
    service.init()
    service.add(0, T0, T1)
    assert service.end(0).value == ProducerIdentity(1000, 1)
    assert service.wire.shown() == [(2, 1000, 1, True, 1, [1])], "T1 is led by another broker"
    first = (TransactionEnd(1000, 1, Marker(True, 1), True), T0)
    assert written == [first]
    assert service.status() is TransactionStatus.PREPARE_COMMIT
    service.pass_ms(100)
    assert written == [first, first], "it was refused, and is written again"
    assert service.status() is TransactionStatus.COMPLETE_COMMIT
    assert service.service.pending_count == 0


class Here:
    """The partitions of this broker, which answer when the test decides."""

    def __init__(self, service: Service) -> None:
        self.calls: list[list[TopicPartition]] = []
        self.answers: list[Callable[[Sequence[ErrorCode]], None]] = []
        service.leaders[T1] = 1
        service.service.here = 1, self.write

    def write(
        self, places: Iterator[tuple[TransactionEnd, TopicPartition]], done: Callable[[Sequence[ErrorCode]], None]
    ) -> None:
        self.calls.append([tp for _, tp in places])
        self.answers.append(done)


@pytest.mark.parametrize("codes", [(0, 0), (0, ErrorCode.NOT_LEADER_OR_FOLLOWER)])
def test_markers_of_this_broker_alone_need_no_request(service: Service, codes: Sequence[ErrorCode]) -> None:
    here = Here(service)
    service.init()
    service.add(0, T0, T1)
    assert service.end(0).value == ProducerIdentity(1000, 1)
    assert service.status() is TransactionStatus.PREPARE_COMMIT
    assert service.service.pending_count == 1
    service.turn(lambda: here.answers[0](codes))
    refused = any(codes)
    assert service.status() is (TransactionStatus.PREPARE_COMMIT if refused else TransactionStatus.COMPLETE_COMMIT)
    assert here.calls == [[T0, T1]]
    if refused:
        service.pass_ms(100)
        assert here.calls == [[T0, T1]] * 2, "after a while both are written again"
        service.turn(lambda: here.answers[1]([ErrorCode.NONE, ErrorCode.NONE]))
        assert service.status() is TransactionStatus.COMPLETE_COMMIT
    assert service.service.pending_count == 0
    assert service.wire.shown() == []


def test_a_late_answer_to_a_former_coordinator_changes_nothing(service: Service) -> None:
    here = Here(service)
    service.init()
    service.add(0, T0, T1)
    service.end(0)
    service.follow()
    service.turn(lambda: here.answers[0]([ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2))
    service.pass_ms(5000)
    assert len(here.calls) == 1
    assert service.service.pending_count == 0


def test_a_coordinator_that_loads_writes_few_markers_without_the_queue(service: Service) -> None:
    here = Here(service)
    count = FEW_ENDS + 20
    for number in range(count):
        service.init(f"x{number}")
        service.add(0, T0, T1, name=f"x{number}", producer_id=1000 + number)
        service.turn(
            lambda number=number: service.service.submit_command(
                EndTransaction(f"x{number}", ProducerIdentity(1000 + number, 0), True, 2, Ticket())
            )
        )
    here.calls.clear()
    service.lead()
    service.pass_ms(1000)
    assert sorted(map(len, here.calls)) == [2] * FEW_ENDS + [2 * 20], "the others share a batch"


@pytest.mark.parametrize("crash", [True, False])
def test_the_next_coordinator_continues(service: Service, crash: bool) -> None:
    service.init()
    service.add(0, T0, T1)
    service.wire.silent = True
    service.end(0)
    service.wire.shown()
    if crash:
        service.restart(Death.KILL)
    service.lead()
    service.wire.silent = False
    service.pass_ms(2000)
    rows = service.wire.shown()
    assert {row[4] for row in rows} == {service.epoch}, "only markers of the present epoch"
    assert service.status() is TransactionStatus.COMPLETE_COMMIT
    assert service.end(0).value == ProducerIdentity(1000, 1), "the end is still known"


def test_a_former_coordinator_writes_no_markers(service: Service) -> None:
    service.init()
    service.add(0, T0)
    service.wire.silent = True
    service.end(0)
    service.pass_ms(50)
    service.follow()
    service.wire.shown()
    service.pass_ms(5000)
    assert service.wire.shown() == []
    assert service.end(0).value is ErrorCode.NOT_COORDINATOR


def test_a_coordinator_that_loads_or_leads_nothing() -> None:
    service = Service()
    assert service.init().value is ErrorCode.NOT_COORDINATOR
    service.lead()
    for number in range(30):
        service.init(f"x{number}")
    service.lead(load=False)
    assert service.init().value is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    service.pass_ms(1000)
    assert isinstance(service.init().value, ProducerIdentity)


def test_a_coordinator_that_is_about_to_be_one() -> None:
    service = Service()
    service.is_next = True
    assert service.init().value is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "others would send its clients here again"


def test_a_journal_that_refuses_appends(service: Service) -> None:
    service.init()
    service.partition.replicas = (1, 2)  # of which one is in sync
    service.partition.apply_config(TopicConfig(min_insync_replicas=2))
    assert service.add(0, T0).value is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert service.status() is TransactionStatus.EMPTY


def test_no_producer_id_is_available(service: Service) -> None:
    service.broken = Failure(Kind.TIMEOUT, "the store is away")
    ticket = service.init()
    assert ticket.value is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert isinstance(ticket[0], ApiError)
    assert "the store is away" in ticket[0].message
    service.broken = None
    assert isinstance(service.init().value, ProducerIdentity)


def test_a_transaction_that_takes_too_long(service: Service) -> None:
    service.init()
    service.add(0, T0)
    service.pass_ms(75_000)
    assert service.wire.shown() == [(1, 1000, 1, False, 1, [0])]
    told = service.send(DescribeTransaction("a", Ticket()))
    assert told[0].status is TransactionStatus.COMPLETE_ABORT


def test_stopped(service: Service) -> None:
    service.init()
    service.add(0, T0)
    service.wire.silent = True
    service.end(0)
    service.turn(service.service.stop_coordinator)
    service.wire.shown()
    service.pass_ms(5000)
    assert service.wire.shown() == []
    assert service.end(0).value is ErrorCode.NOT_COORDINATOR


def test_written_markers_that_cannot_be_recorded_are_recorded_later(service: Service) -> None:
    service.init()
    service.add(0, T0)
    service.end(0)
    service.partition.replicas = (1, 2)  # of which one is in sync
    service.partition.apply_config(TopicConfig(min_insync_replicas=2))
    service.pass_ms(300)
    assert service.status() is TransactionStatus.PREPARE_COMMIT
    service.partition.apply_config(TopicConfig(min_insync_replicas=1))
    service.pass_ms(1000)
    assert service.status() is TransactionStatus.COMPLETE_COMMIT
