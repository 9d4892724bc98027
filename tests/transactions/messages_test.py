"""Requests and responses of every version, and the views of administrators."""

from __future__ import annotations

import pytest
from tests.transactions.bench import T0, T1, T2, Bench, Ticket

from ottla.errors import ApiError, ErrorCode
from ottla.transactions import messages
from ottla.transactions.commands import AddPartitions, VerifyPartitions
from ottla.transactions.machine import Policy
from ottla.transactions.state import ProducerIdentity, TransactionVersion
from ottla.types import TopicPartition
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.messages.add_to_txn import AddOffsetsToTxnRequest, AddPartitionsToTxnRequest
from ottla.wire.messages.end_txn import EndTxnRequest
from ottla.wire.messages.list_transactions import DescribeTransactionsResponse, ListTransactionsRequest
from ottla.wire.messages.producer_ids import InitProducerIdRequest
from ottla.wire.schema import Message

FENCED = ApiError(ErrorCode.PRODUCER_FENCED)


def over_the_wire(message: Message, version: int) -> Message:
    return decode(type(message), version, encode_bytes(message, version))[0]


def asked(bench: Bench, version: int, request: AddPartitionsToTxnRequest) -> list[tuple[str, dict]]:
    outcomes = []
    for wanted in messages.wanted_in(over_the_wire(request, version), version):
        told = Ticket()
        bench._submit(wanted.to_command(version, told))
        bench.settle()
        outcomes.append((wanted.transactional_id, *told))
    return outcomes


def topics(*partitions: TopicPartition) -> list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]:
    return [
        AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=tp.topic, partitions=[tp.partition]) for tp in partitions
    ]


def batched(name: str, epoch: int, verify: bool, *partitions: TopicPartition) -> Message:
    return AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=name, producer_id=1000, producer_epoch=epoch, verify_only=verify, topics=topics(*partitions)
    )


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id(version: int) -> None:
    bench = Bench()
    request = over_the_wire(InitProducerIdRequest(transactional_id="a", transaction_timeout_ms=5000), version)
    command = messages.init_command(request, Ticket())
    told = bench.ask(command)
    response = over_the_wire(messages.init_response(version, told[0]), version)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (0, 1000, 0)
    assert bench.state("a").timeout_ms == 5000
    refused = over_the_wire(messages.init_response(version, FENCED), version)
    known = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert (refused.error_code, refused.producer_id, refused.producer_epoch) == (known, -1, -1)


def test_half_a_producer_identity_is_refused() -> None:
    whole = InitProducerIdRequest(transactional_id="a", producer_id=3, producer_epoch=0)
    assert messages.init_command(whole, Ticket()).expected == ProducerIdentity(3, 0)
    for half in ({"producer_id": 3}, {"producer_epoch": 0}):
        with pytest.raises(ApiError, match="INVALID_REQUEST"):
            messages.init_command(InitProducerIdRequest(transactional_id="a", **half), Ticket())


@pytest.mark.parametrize("version", range(4))
def test_partitions_of_one_transaction(version: int) -> None:
    bench = Bench()
    bench.init("a")
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="a",
        v3_and_below_producer_id=1000,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=topics(T0, T2, T0),
    )
    outcomes = asked(bench, version, request)
    assert outcomes == [("a", {T0: ErrorCode.NONE, T2: ErrorCode.NONE})]
    assert bench.state("a").version == 0
    request.v3_and_below_producer_epoch = 5
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    response = over_the_wire(messages.add_response(version, asked(bench, version, request)), version)
    (topic,) = response.results_by_topic_v3_and_below
    assert [(part.partition_index, part.partition_error_code) for part in topic.results_by_partition] == [
        (0, fenced),
        (2, fenced),
    ]


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_ask_for_several_transactions_at_once(version: int) -> None:
    bench = Bench()
    bench.init("a")
    request = AddPartitionsToTxnRequest(
        transactions=[
            batched("a", 0, False, T0),
            batched("a", 0, True, T0, T1),
            batched("b", 0, True, T0),
            batched("a", 1, False, T1),
            batched("", 0, True, T1),
        ]
    )
    kinds = [type(wanted.to_command(version, Ticket())) for wanted in messages.wanted_in(request, version)]
    assert kinds == [AddPartitions, VerifyPartitions, VerifyPartitions, AddPartitions, VerifyPartitions]
    outcomes = asked(bench, version, request)
    response = over_the_wire(messages.add_response(version, outcomes), version)
    said = [
        (one.transactional_id, [ErrorCode(part.partition_error_code).name for part in topic.results_by_partition])
        for one in response.results_by_transaction
        for topic in one.topic_results
    ]
    assert said == [
        ("a", ["NONE"]),
        ("a", ["NONE", "TRANSACTION_ABORTABLE"]),
        ("b", ["INVALID_PRODUCER_ID_MAPPING"]),
        ("a", ["PRODUCER_FENCED"]),
        ("", ["INVALID_REQUEST"]),
    ]
    assert bench.state("a").version == 2


def test_one_wrong_partition_prevents_the_others() -> None:
    wanted = messages.RequestedPartitions("a", ProducerIdentity(1000, 0), False, [T0, T1])
    assert wanted.not_attempted({T1: ErrorCode.TOPIC_AUTHORIZATION_FAILED}) == {
        T0: ErrorCode.OPERATION_NOT_ATTEMPTED,
        T1: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    assert wanted.refuse_all(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED) == {
        T0: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        T1: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }


@pytest.mark.parametrize("version", range(5))
def test_offsets_of_a_group_join(version: int) -> None:
    bench = Bench()
    bench.init("a")
    request = AddOffsetsToTxnRequest(transactional_id="a", producer_id=1000, producer_epoch=0, group_id="g")
    offsets = TopicPartition("__consumer_offsets", 19)
    told = bench.ask(messages.add_offsets_command(over_the_wire(request, version), offsets, Ticket()))
    assert over_the_wire(messages.add_offsets_response(version, told[0]), version).error_code == 0
    assert bench.state("a").partitions == {offsets}
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert messages.add_offsets_response(version, FENCED).error_code == fenced


@pytest.mark.parametrize("version", range(6))
def test_end_of_a_transaction(version: int) -> None:
    bench = Bench()
    bench.init("a")
    bench.add("a", ProducerIdentity(1000, 0), T0)
    request = EndTxnRequest(transactional_id="a", producer_id=1000, producer_epoch=0, committed=True)
    told = bench.ask(messages.end_command(over_the_wire(request, version), version, Ticket()))
    response = over_the_wire(messages.end_response(version, told[0]), version)
    goes_on = (1000, 1) if version >= 5 else (-1, -1)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (0, *goes_on)
    assert bench.sent[0].version == (2 if version >= 5 else 0)
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert over_the_wire(messages.end_response(version, FENCED), version).error_code == fenced


def test_described() -> None:
    bench = Bench()
    bench.init("a", timeout_ms=7000)
    bench.pass_ms(500)
    bench.add("a", ProducerIdentity(1000, 0), T1, T0, TopicPartition("u", 3))
    shown = messages.description_row("a", bench.describe("a")[0])
    assert shown == DescribeTransactionsResponse.TransactionState(
        transactional_id="a",
        transaction_state="Ongoing",
        transaction_timeout_ms=7000,
        transaction_start_time_ms=1_000_500,
        producer_id=1000,
        producer_epoch=0,
        topics=[
            DescribeTransactionsResponse.TopicData(topic="t", partitions=[0, 1]),
            DescribeTransactionsResponse.TopicData(topic="u", partitions=[3]),
        ],
    )
    bench.end("a", ProducerIdentity(1000, 0), commit=True)
    bench.written("a", ProducerIdentity(1000, 1), T0, T1)
    shown = messages.description_row("a", bench.describe("a")[0])
    assert (shown.transaction_state, shown.topics[0].topic, len(shown.topics)) == ("PrepareCommit", "u", 1)
    gone = messages.description_row("b", bench.describe("b")[0])
    assert (gone.error_code, gone.transactional_id) == (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "b")
    assert messages.description_row("", bench.describe("")[0]).error_code == ErrorCode.INVALID_REQUEST


def test_listed() -> None:
    bench = Bench()
    for name in ("a", "b", "c"):
        bench.init(name)
    bench.add("a", ProducerIdentity(1000, 0), T0)
    bench.pass_ms(1000)
    bench.add("b", ProducerIdentity(1001, 0), T0)
    everything = bench.listed()[0]

    def names(**filters: object) -> list[str]:
        request = ListTransactionsRequest(**filters)
        return sorted(row.transactional_id for row in messages.list_rows(request, everything, bench.now.wall_ms))

    assert names() == ["a", "b", "c"]
    assert names(state_filters=["Ongoing"]) == ["a", "b"]
    assert names(state_filters=["Ongoing", "Empty"], producer_id_filters=[1000, 1002]) == ["a", "c"]
    compared = []

    class Filter(int):
        __hash__ = int.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return int.__eq__(self, other)

    assert names(producer_id_filters=[Filter(number) for number in range(900, 1_002)]) == ["a", "b"]
    assert len(compared) == 2, "a filter is looked up, not searched, for each transaction"
    assert names(duration_filter=0) == ["a"]
    assert names(duration_filter=1000) == []
    assert names(state_filters=["ongoing"]) == []
    assert messages.unknown_states(ListTransactionsRequest(state_filters=["ongoing", "Empty"])) == ["ongoing"]
    picked = messages.list_rows(ListTransactionsRequest(), everything, bench.now.wall_ms, lambda name: name > "a")
    assert sorted((row.transactional_id, row.producer_id, row.transaction_state) for row in picked) == [
        ("b", 1001, "Ongoing"),
        ("c", 1002, "Empty"),
    ]


def test_a_broker_of_an_older_transaction_version_aborts_by_its_rules() -> None:
    bench = Bench(Policy(version=TransactionVersion(1)))
    bench.init("a")
    bench.add("a", ProducerIdentity(1000, 0), T0, version=0)
    bench.pass_ms(80_000)
    (markers,) = bench.sent
    assert (markers.version, markers.identity, markers.commit) == (0, ProducerIdentity(1000, 1), False)
