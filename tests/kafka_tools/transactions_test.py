"""kafka-transactions with transactions that hang, and with brokers that refuse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.client.conftest import Request, ScriptedBroker

from ottla.errors import ErrorCode
from ottla.kafka_tools.main import load_tool, run_tool
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ListTransactionsResponse,
    WriteTxnMarkersResponse,
)


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    scripted = ScriptedBroker()
    scripted.topics = {"t": 2}
    scripted.on[ApiKey.DESCRIBE_PRODUCERS] = answer_producers
    scripted.on[ApiKey.LIST_TRANSACTIONS] = lambda request: request.reply(ListTransactionsResponse())
    yield scripted
    scripted.close()


def answer_producers(request: Request) -> bytes:
    """In partition 1 a transaction is open since offset 20, of a producer without any marker yet."""
    asked = request.message()
    assert isinstance(asked, DescribeProducersRequest)
    kind = DescribeProducersResponse
    hanging = kind.ProducerState(
        producer_id=9,
        producer_epoch=3,
        last_sequence=4,
        last_timestamp=1_700_000_000_000,
        coordinator_epoch=-1,
        current_txn_start_offset=20,
    )
    topics = [
        kind.TopicResponse(
            name=topic.name,
            partitions=[
                kind.PartitionResponse(partition_index=index, active_producers=[hanging] if index == 1 else [])
                for index in topic.partition_indexes
            ],
        )
        for topic in asked.topics
    ]
    return request.reply(kind(topics=topics))


def answer_markers(code: ErrorCode):
    result = WriteTxnMarkersResponse
    row = result.WritableTxnMarkerPartitionResult(partition_index=1, error_code=int(code))
    topic = result.WritableTxnMarkerTopicResult(name="t", partitions=[row])
    answer = result(markers=[result.WritableTxnMarkerResult(producer_id=9, topics=[topic])])
    return lambda request: request.reply(answer)


def run(broker: ScriptedBroker, words: str) -> int:
    return run_tool(load_tool("kafka-transactions"), ["--bootstrap-server", broker.bootstrap, *words.split()])


@pytest.mark.parametrize("scope", ["--topic t", "--broker-id 0", "--topic t --partition 1"])
def test_hanging_transactions_are_found(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str], scope: str) -> None:
    assert run(broker, f"find-hanging {scope}") == 0
    head, row = capsys.readouterr().out.splitlines()
    names = ["Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset", "LastTimestamp"]
    assert head.split("\t") == [
        *(name.ljust(13) if name == "LastTimestamp" else name for name in names),
        *head.split("\t")[7:],
    ]
    cells = row.split("\t")
    assert [cell.strip() for cell in cells[:7]] == ["t", "1", "9", "3", "-1", "20", "1700000000000"]
    assert [len(cell) for cell in cells] == [len(cell) for cell in head.split("\t")], "cells are padded to the widest"
    assert cells[-1] == "", "a tab follows each cell"


@pytest.mark.parametrize(
    "scope", ["--topic t --partition 0", "--broker-id 7", "--topic t --max-transaction-timeout 2000000000"]
)
def test_other_transactions_do_not_hang(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str], scope: str) -> None:
    assert run(broker, f"find-hanging {scope}") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_an_abort_by_its_first_offset(broker: ScriptedBroker) -> None:
    broker.on[ApiKey.WRITE_TXN_MARKERS] = answer_markers(ErrorCode.NONE)
    assert run(broker, "abort --topic t --partition 1 --start-offset 20") == 0
    (asked,) = broker.asked(ApiKey.WRITE_TXN_MARKERS)
    (marker,) = asked.message().markers
    # No coordinator has written a marker: epoch 0, as Kafka's tool sends.
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (9, 3, 0)


def test_an_offset_below_zero_is_no_transaction(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(broker, "abort --topic t --partition 0 --start-offset -1") == 1
    assert not broker.asked(ApiKey.WRITE_TXN_MARKERS)
    assert "any open transactions starting at offset -1 on partition t-0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "failed due to cluster authorization error"),
        (ErrorCode.INVALID_PRODUCER_EPOCH, "failed due an invalid producer epoch. Enable"),
        (
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            "failed since the provided coordinator epoch 0 has been fenced by the active coordinator. Enable",
        ),
        (ErrorCode.INVALID_TXN_STATE, "failed due to unexpected error: The producer attempted a transactional"),
    ],
)
def test_an_abort_that_is_refused(
    broker: ScriptedBroker, capsys: pytest.CaptureFixture[str], code: ErrorCode, reason: str
) -> None:
    broker.on[ApiKey.WRITE_TXN_MARKERS] = answer_markers(code)
    assert run(broker, "abort --topic t --partition 1 --producer-id 9 --producer-epoch 3 --coordinator-epoch 0") == 1
    spec = "AbortTransactionSpec(topicPartition=t-1, producerId=9, producerEpoch=3, coordinatorEpoch=0)"
    start = f"Failed to abort transaction {spec}: WriteTxnMarkers request with {spec} {reason}"
    assert capsys.readouterr().err.startswith(start)


def test_a_pattern_needs_a_broker_that_knows_it(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    broker.versions[ApiKey.LIST_TRANSACTIONS] = (0, 1)
    assert run(broker, "list --transactional-id-pattern x.*") == 1
    assert "broker 0 cannot filter transactional ids by a pattern" in capsys.readouterr().err
    assert not broker.asked(ApiKey.LIST_TRANSACTIONS)


def test_the_help_of_a_command(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(broker, "abort -h") == 1
    shown = capsys.readouterr().err
    assert shown.startswith("usage: kafka-transactions.sh --bootstrap-server host:port abort [-h]\n")
    assert "--start-offset" in shown
    assert "--transactionalId" not in shown


def test_the_version_by_its_letter(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(load_tool("kafka-transactions"), ["-v"]) == 0
    assert capsys.readouterr().out.startswith("4.4.0 ")
