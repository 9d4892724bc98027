"""The first batch of a transaction in a partition is verified with its coordinator (KIP-890), over the wire.

The test plays the coordinator. Safeguards are also switched off, to see the damage.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given as anything
from hypothesis import strategies as st
from tests.handnode import Asker
from tests.replication.leading_test import led
from tests.replication.marker_requests_test import codes, marker, send
from tests.replication.replicated_requests_test import produced

from ottla.broker.dispatch import ColdApi
from ottla.errors import ErrorCode
from ottla.record.batch import Record, batches_of, encode_batch
from ottla.replication.partition.verification_guards import VerificationGuards
from ottla.replication.produce.verification import beginning_producer, producer_error
from ottla.replication.produce.verifier import VerificationCodes, VerificationRequest
from ottla.requests import Context, handlers_of, handles
from ottla.seams import Gate
from ottla.sim.mutants.ablation import without_safeguard
from ottla.wire.apis import ApiKey
from ottla.wire.messages import IncrementalAlterConfigsRequest, ProduceRequest
from ottla.wire.messages.add_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse


class Coordinator:
    """Answers a configured code for every partition, at once or when `let` is called."""

    def __init__(self) -> None:
        self.code = ErrorCode.NONE
        self.held: list[tuple[Context, AddPartitionsToTxnRequest]] | None = None
        self.asked: list[list[tuple[str, int, int, bool, list[tuple[str, int]]]]] = []

    @handles(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, inter_broker=True)
    def add(self, context: Context, request: AddPartitionsToTxnRequest) -> None:
        self.asked.append(
            [
                (one.transactional_id, one.producer_id, one.producer_epoch, one.verify_only, _pairs(one.topics))
                for one in request.transactions
            ]
        )
        if self.held is None:
            self._answer(context, request)
        else:
            self.held.append((context, request))

    def let(self, node) -> None:
        """Answer the held requests."""
        held, self.held = self.held, None
        for each in held or ():
            node.process.post_turn(0, "answer", self._answer, *each)
        node.pass_ms(5)

    def _answer(self, context: Context, request: AddPartitionsToTxnRequest) -> None:
        part = AddPartitionsToTxnResponse
        results = [
            part.AddPartitionsToTxnResult(
                transactional_id=one.transactional_id,
                topic_results=[
                    part.AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=[
                            part.AddPartitionsToTxnPartitionResult(partition_index=at, partition_error_code=self.code)
                            for at in topic.partitions
                        ],
                    )
                    for topic in one.topics
                ],
            )
            for one in request.transactions
        ]
        context.send_reply(part(results_by_transaction=results))


def _pairs(topics) -> list[tuple[str, int]]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


@pytest.fixture
def coordinator(node) -> Coordinator:
    return given(node)


def given(node) -> Coordinator:
    """The broker's own, in the place of the real one."""
    made = Coordinator()
    ((declaration, handler),) = handlers_of(made)
    node.broker._dispatch.cold[ApiKey.ADD_PARTITIONS_TO_TXN] = ColdApi(declaration, handler)
    node.broker.verifier.coordinator_of = lambda _: 1
    return made


def asking(node, sequence: int = 0, *, epoch: int = 0, producer_id: int = 7, name: str = "t", **more) -> ProduceRequest:
    identity = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    request = node.produce_request(name, b"v", transactional=True, **identity, **more)
    request.transactional_id = f"tx{producer_id}"
    request.topic_data[0].topic_id = node.topic_id(name)
    return request


def code(node, request: ProduceRequest, version: int = 11) -> ErrorCode:
    return ErrorCode(node.ask(request, version).responses[0].partition_responses[0].error_code)


@pytest.mark.parametrize("version", [3, 9, 11, 12, 13])
def test_only_the_first_batch_of_a_transaction_is_verified(node, coordinator, version: int) -> None:
    assert code(node, asking(node), version) is ErrorCode.NONE
    assert coordinator.asked == [[("tx7", 7, 0, version < 12, [("t", 0)])]], "from 12 on it is added"
    assert code(node, asking(node, 1), version) is ErrorCode.NONE
    assert node.produce("t", b"plain").error_code == 0
    assert len(coordinator.asked) == 1
    node.answer(send(node, marker()))
    assert code(node, asking(node, epoch=1), version) is ErrorCode.NONE
    assert len(coordinator.asked) == 2, "another transaction"
    assert len(node.partition().leader_role.guards) == 0


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("version", [9, 12])
def test_a_local_coordinator_that_answers_at_once_does_not_hold_the_request(node, is_late: bool, version: int) -> None:
    later: list[partial[None]] = []

    def here(question: VerificationRequest, done: Callable[[VerificationCodes], None]) -> bool:
        assert node.partition().log.end_offset == 0
        answer = partial(done, dict.fromkeys(question.partitions, ErrorCode.NONE))
        later.append(answer) if is_late else answer()
        return True

    node.broker.verifier.ask_local = here
    place = node.send(asking(node), version)
    assert place.gate is (Gate.WAIT if is_late else Gate.NEXT)
    assert place.answered is not is_late
    for answer in later:
        node.process.post_turn(0, "answer", lambda answer=answer: (answer(), node.broker.end_turn()))
    node.pass_ms(1)
    assert produced(node, place).base_offset == 0
    assert not node.partition().leader_role.guards


def test_the_connection_waits_and_its_answer_comes(node, coordinator) -> None:
    coordinator.held = []
    place = node.send(asking(node), 9)
    assert place.gate is Gate.WAIT
    assert not place.answered
    node.pass_ms(50)
    assert node.partition().log.end_offset == 0
    coordinator.let(node)
    assert produced(node, place).base_offset == 0
    assert node.send(asking(node, 1), 9).gate is Gate.NEXT


@pytest.mark.parametrize(
    ("said", "version", "expected"),
    [
        (ErrorCode.INVALID_TXN_STATE, 9, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.PRODUCER_FENCED, 12, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 12, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.NOT_COORDINATOR, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_the_coordinators_code_is_mapped_for_the_produce_version(node, coordinator, said, version, expected) -> None:
    coordinator.code = said
    row = node.ask(asking(node), version).responses[0].partition_responses[0]
    assert (ErrorCode(row.error_code), row.base_offset) == (expected, -1)
    assert row.error_message
    assert node.partition().log.end_offset == 0
    assert len(node.partition().leader_role.guards) == 0


def test_without_a_verifier_transactions_are_refused() -> None:
    assert producer_error(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 12).code is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("nobody", [None, 9])
def test_a_coordinator_that_cannot_be_asked_is_asked_again_by_the_producer(node, coordinator, nobody) -> None:
    node.broker.verifier.coordinator_of = lambda _: nobody
    assert code(node, asking(node)) is ErrorCode.NOT_ENOUGH_REPLICAS
    node.broker.verifier.coordinator_of = lambda _: 1
    assert code(node, asking(node, 1)) is ErrorCode.NOT_ENOUGH_REPLICAS, "it came after one that was refused"
    assert code(node, asking(node)) is ErrorCode.NONE
    assert code(node, asking(node, 1)) is ErrorCode.NONE


def test_a_producer_of_version_2_that_is_not_known_begins_at_0(node, coordinator) -> None:
    """The missing batches are late, not deleted: to begin after them would lose them (KIP-890)."""
    assert code(node, asking(node, 1), 12) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert node.partition().log.end_offset == 0
    assert len(node.partition().leader_role.guards) == 0
    assert code(node, asking(node), 12) is ErrorCode.NONE
    assert code(node, asking(node, 1), 12) is ErrorCode.NONE
    assert code(node, asking(node, 1, producer_id=8), 11) is ErrorCode.NONE, "older producers may begin at any sequence"


def test_the_leader_of_its_partition_is_the_coordinator(node) -> None:
    node.create("names", partitions=3)
    assert node.broker._leaders.coordinator_of("names", "any") == 1
    assert node.broker._leaders.coordinator_of("nowhere", "any") is None


def test_a_marker_written_before_the_answer_voids_it(node, coordinator) -> None:
    coordinator.held = []
    place = node.send(asking(node), 9)
    node.pass_ms(5)
    assert codes(node, send(node, marker(epoch=0, version=0))) == [[("t", 0, 0)]]
    coordinator.let(node)
    assert produced(node, place).error_code == ErrorCode.INVALID_TXN_STATE
    assert node.fetch("t", 0).last_stable_offset == node.partition().log.end_offset == 1
    assert code(node, asking(node)) is ErrorCode.NONE, "asked again, it is about the transaction of now"


def test_a_producer_continues_while_markers_of_its_last_transaction_are_in_flight(node, coordinator) -> None:
    """Transaction version 2: the marker has the epoch of the next transaction, and ends the one before."""
    assert code(node, asking(node), 12) is ErrorCode.NONE
    coordinator.held = []
    late = node.send(asking(node, 1, name="t"), 12, Asker())
    following = node.send(asking(node, epoch=1), 12, Asker())
    node.pass_ms(5)
    assert produced(node, late).error_code == 0, "its transaction is still open"
    node.answer(send(node, marker(epoch=1)))
    coordinator.let(node)
    assert produced(node, following).base_offset == 3
    late = node.send(asking(node, 1), 12, Asker())
    assert produced(node, late).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("bumped", [True, False])
def test_a_marker_voids_verifications_of_the_transactions_it_ends(bumped: bool) -> None:
    guards = VerificationGuards()
    asked = {
        (producer_id, epoch): guards.begin_verification(producer_id, epoch)
        for producer_id in (7, 8)
        for epoch in range(4)
    }
    guards.void_ended(7, 2, bumped)
    left = [(7, 2), (7, 3)] if bumped else [(7, 3)]
    for guard in asked.values():
        guard.passed = True
    assert [key for key in asked if key[0] == 7 and guards.may_open(*key)] == left
    assert all(guards.may_open(8, epoch) for epoch in range(4))
    for guard in asked.values():
        guards.end_verification(guard)
    assert len(guards) == 0


@without_safeguard("replication.verification_guard")
def test_without_that_a_transaction_stays_open_for_ever(node, coordinator) -> None:
    coordinator.held = []
    place = node.send(asking(node), 9)
    node.pass_ms(5)
    send(node, marker(epoch=0, version=0))
    coordinator.let(node)
    assert produced(node, place).error_code == 0
    assert node.fetch("t", 0).last_stable_offset == 1, "its coordinator thinks that it has ended"


def test_a_batch_that_comes_after_its_transaction_opens_none(node, coordinator) -> None:
    coordinator.code = ErrorCode.TRANSACTION_ABORTABLE
    send(node, marker(epoch=0, version=0))
    assert code(node, asking(node)) is ErrorCode.TRANSACTION_ABORTABLE
    with without_safeguard("replication.verify_transactions"):
        node.broker._replicas.apply_broker_config(node.broker.config)
    assert code(node, asking(node)) is ErrorCode.NONE
    assert node.fetch("t", 0).last_stable_offset == 1 < node.partition().log.end_offset, "a hanging transaction"


def test_one_request_at_a_time_to_a_coordinator_carries_all_questions(node, coordinator) -> None:
    coordinator.held = []
    node.create("many", partitions=2)
    places = [node.send(asking(node, producer_id=1), 9, Asker())]
    for producer_id in (2, 3):
        places.append(node.send(asking(node, producer_id=producer_id), 9, Asker()))
    second = asking(node, producer_id=3, name="many")
    second.topic_data += asking(node, producer_id=3, name="many", partition=1).topic_data
    places.append(node.send(second, 9, Asker()))
    node.pass_ms(5)
    assert [[each[0] for each in request] for request in coordinator.asked] == [["tx1"]]
    coordinator.let(node)
    assert [produced(node, place).error_code for place in places] == [0] * 4
    assert [[(each[0], each[4]) for each in request] for request in coordinator.asked[1:]] == [
        [("tx2", [("t", 0)]), ("tx3", [("t", 0)])],
        [("tx3", [("many", 0), ("many", 1)])],
    ]


def test_a_transaction_that_is_about_to_be_complete_is_given_a_moment(node, coordinator) -> None:
    coordinator.code = ErrorCode.CONCURRENT_TRANSACTIONS
    place = node.send(asking(node), 12)
    node.pass_ms(50)
    assert not place.answered
    coordinator.code = ErrorCode.NONE
    assert produced(node, place).error_code == 0
    assert 2 <= len(coordinator.asked) <= 4
    coordinator.code = ErrorCode.CONCURRENT_TRANSACTIONS
    impatient = node.send(asking(node, producer_id=8), 12)
    node.pass_ms(150)
    assert produced(node, impatient).error_code == ErrorCode.CONCURRENT_TRANSACTIONS, "these producers know it"
    coordinator.code = ErrorCode.NONE
    assert code(node, asking(node, 1, producer_id=8), 12) is ErrorCode.CONCURRENT_TRANSACTIONS, "it came after that one"
    assert [code(node, asking(node, at, producer_id=8), 12) for at in (0, 1)] == [ErrorCode.NONE] * 2


def test_leadership_lost_meanwhile(node, coordinator) -> None:
    coordinator.held = []
    place = node.send(asking(node, acks=1), 9)
    node.send_state(2, (1, 2))
    coordinator.let(node)
    assert produced(node, place).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    node.send_state(1, (1, 2))
    coordinator.held = []
    place = node.send(asking(node, acks=1), 9)
    node.send_state(2, (1, 2))
    node.send_state(1, (1, 2))
    coordinator.let(node)
    assert produced(node, place).error_code == ErrorCode.NOT_ENOUGH_REPLICAS, "the other one may have had a marker"
    assert code(node, asking(node, acks=1), 9) is ErrorCode.NONE, "asked again"


def test_a_new_epoch_of_the_same_leader_does_not_fail_the_transaction(node, coordinator) -> None:
    """The controller raises the epoch when a follower's broker is gone. aiokafka would commit without the batch."""
    node.send_state(1, (1, 2))
    coordinator.held = []
    place = node.send(asking(node, acks=1), 9)
    node.send_state(1, (1,))
    coordinator.let(node)
    assert produced(node, place).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert node.partition().log.end_offset == 0
    assert code(node, asking(node, acks=1), 9) is ErrorCode.NONE


def test_a_partition_that_comes_to_this_broker_while_another_is_verified(node, coordinator) -> None:
    node.create("other")
    node.send_state(2, (1, 2))
    two = asking(node, name="other", acks=1)
    two.topic_data += asking(node).topic_data
    coordinator.held = []
    place = node.send(two, 9)
    node.send_state(1, (1, 2))
    coordinator.let(node)
    rows = [topic.partition_responses[0].error_code for topic in node.answer(place).responses]
    assert rows == [0, ErrorCode.NOT_ENOUGH_REPLICAS]
    assert code(node, asking(node, acks=1), 9) is ErrorCode.NONE


def test_a_transaction_that_ends_here_while_another_partition_is_verified(node, coordinator) -> None:
    node.create("other")
    assert code(node, asking(node), 9) is ErrorCode.NONE
    two = asking(node, name="other")
    two.topic_data += asking(node, 1).topic_data
    coordinator.held = []
    place = node.send(two, 9, Asker())
    assert codes(node, send(node, marker(epoch=0, version=0))) == [[("t", 0, 0)]]
    coordinator.let(node)
    rows = [topic.partition_responses[0].error_code for topic in node.answer(place).responses]
    assert rows == [0, ErrorCode.NOT_ENOUGH_REPLICAS]


def test_a_duplicate_is_not_verified(node, coordinator) -> None:
    assert code(node, asking(node)) is ErrorCode.NONE
    send(node, marker(epoch=0, version=0))
    coordinator.code = ErrorCode.TRANSACTION_ABORTABLE
    row = node.ask(asking(node), 11).responses[0].partition_responses[0]
    assert (row.error_code, row.base_offset) == (0, 0)
    assert code(node, asking(node, 5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    node.answer(send(node, marker(epoch=3)))
    assert code(node, asking(node, 1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert len(coordinator.asked) == 1


def test_a_restart_does_not_forget_open_transactions(node, coordinator) -> None:
    assert code(node, asking(node)) is ErrorCode.NONE
    node.restart()
    assert code(node, asking(node, 1)) is ErrorCode.NONE
    assert len(coordinator.asked) == 1


def test_requests_that_are_not_those_of_a_producer(node, coordinator) -> None:
    unnamed = asking(node)
    unnamed.transactional_id = None
    assert code(node, unnamed) is ErrorCode.INVALID_TXN_STATE
    node.create("other")
    two = asking(node)
    two.topic_data += asking(node, producer_id=8, name="other").topic_data
    rows = [topic.partition_responses[0].error_code for topic in node.ask(two, 11).responses]
    assert rows == [0, ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    control = asking(node, epoch=4, control=True)
    assert code(node, control) is ErrorCode.INVALID_RECORD
    plain = node.produce_request("t", b"v")
    plain.transactional_id = "tx7"
    assert code(node, plain) is ErrorCode.NONE
    assert len(coordinator.asked) == 1


@anything(st.binary(max_size=200), st.booleans())
def test_malformed_batches_are_not_verified(content: bytes, adds: bool) -> None:
    partition = led(1, isr=(1,)).members[1].partition
    partition.shared.verifies = True
    batch = bytearray(encode_batch([Record(0, 1, None, b"v", ())], producer_id=7, producer_epoch=0, transactional=True))
    assert beginning_producer(partition, memoryview(batch), adds) == (7, 0)
    batch[16 : 16 + len(content)] = content
    found = beginning_producer(partition, memoryview(batch), adds)
    assert found is None or (batch[16] == 2 and min(found) >= 0)


def test_a_batch_is_recompressed_before_it_is_asked_about(node, coordinator) -> None:
    node.create("small", compression_type="zstd")
    assert code(node, asking(node, name="small")) is ErrorCode.NONE
    assert code(node, asking(node, 1, name="small")) is ErrorCode.NONE
    assert [header.codec for _, header in _batches(node, "small")] == [4, 4]
    assert len(coordinator.asked) == 1


def _batches(node, name: str):
    return list(batches_of(memoryview(bytes(node.fetch(name, 0).records))))


@pytest.mark.parametrize("version", [11, 12])
def test_it_can_be_switched_off_but_not_for_transaction_version_2(node, version: int) -> None:
    """Producers that rely on the leaders to add partitions would have transactions without partitions."""
    node.properties["transaction.partition.verification.enable"] = "false"
    node.restart()
    coordinator = given(node)
    assert code(node, asking(node), version) is ErrorCode.NONE
    assert [request[0][3] for request in coordinator.asked] == ([] if version == 11 else [False])


def test_a_verification_after_the_stop_is_ignored(node, coordinator) -> None:
    coordinator.held = []
    place = node.send(asking(node), 9)
    node.pass_ms(5)
    node.process.post_turn(0, "stop", node.broker.stop_broker, lambda _: None)
    node.pass_ms(1000)
    coordinator.let(node)
    assert not place.answered
    assert codes(node, send(node, marker())) == [[("t", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER)]]
    assert node.partition().log.end_offset == 0


def test_it_is_switched_while_the_broker_runs(node, coordinator) -> None:
    part = IncrementalAlterConfigsRequest
    change = part.AlterableConfig(name="transaction.partition.verification.enable", value="false")
    resource = part.AlterConfigsResource(resource_type=4, resource_name="", configs=[change])
    assert node.ask(part(resources=[resource]), 1).responses[0].error_code == 0
    node.pass_ms(100)
    assert code(node, asking(node)) is ErrorCode.NONE
    assert coordinator.asked == []
