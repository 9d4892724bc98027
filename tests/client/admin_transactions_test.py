"""Listing, terminating and aborting transactions, with a scripted broker."""

from __future__ import annotations

import pytest
from tests.client.conftest import Request, ScriptedBroker

from ottla.client import ClientConfig, Cluster, RefusedError
from ottla.client.admin.transactions import TransactionAdmin
from ottla.errors import ErrorCode
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    FindCoordinatorResponse,
    InitProducerIdResponse,
    ListTransactionsResponse,
    WriteTxnMarkersResponse,
)

WHERE = TopicPartition("t", 1)


def marked(*codes: ErrorCode):
    """Answers one WriteTxnMarkers request with each code."""
    left = list(codes)

    def send_response(request: Request) -> bytes:
        result = WriteTxnMarkersResponse
        row = result.WritableTxnMarkerPartitionResult(partition_index=1, error_code=left.pop(0))
        topic = result.WritableTxnMarkerTopicResult(name="t", partitions=[row])
        marker = result.WritableTxnMarkerResult(producer_id=9, topics=[topic])
        return request.reply(WriteTxnMarkersResponse(markers=[marker]))

    return send_response


@pytest.fixture
def admin(broker: ScriptedBroker):
    broker.topics = {"t": 2}
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": broker.bootstrap})) as cluster:
        yield TransactionAdmin(cluster)


def test_an_abort_marker_is_written_by_the_leader(broker: ScriptedBroker, admin: TransactionAdmin):
    broker.on[ApiKey.WRITE_TXN_MARKERS] = marked(ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE)
    admin.abort_transaction(WHERE, 9, 3, 4)
    _, again = broker.asked(ApiKey.WRITE_TXN_MARKERS)
    (marker,) = again.message().markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (9, 3, 4)
    assert not marker.transaction_result
    assert [(topic.name, list(topic.partition_indexes)) for topic in marker.topics] == [("t", [1])]


def test_a_refused_abort_marker_is_raised(broker: ScriptedBroker, admin: TransactionAdmin):
    broker.on[ApiKey.WRITE_TXN_MARKERS] = marked(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    with pytest.raises(RefusedError, match="marker of producer 9 in t-1") as refused:
        admin.abort_transaction(WHERE, 9, 3, 0)
    assert refused.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_a_transaction_is_terminated_without_its_producer(broker: ScriptedBroker, admin: TransactionAdmin):
    coordinator = FindCoordinatorResponse.Coordinator(key="a", node_id=0, host="127.0.0.1", port=broker.port)
    broker.on[ApiKey.FIND_COORDINATOR] = lambda request: request.reply(
        FindCoordinatorResponse(coordinators=[coordinator])
    )
    codes = [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    broker.on[ApiKey.INIT_PRODUCER_ID] = lambda request: request.reply(
        InitProducerIdResponse(error_code=int(codes.pop(0)))
    )
    admin.terminate_transaction("a")
    first, again = (request.message() for request in broker.asked(ApiKey.INIT_PRODUCER_ID))
    assert first == again
    assert (again.transactional_id, again.producer_id, again.producer_epoch) == ("a", -1, -1)
    with pytest.raises(RefusedError, match="transactional id a"):
        admin.terminate_transaction("a")


def test_a_pattern_of_ids_is_sent(broker: ScriptedBroker, admin: TransactionAdmin):
    broker.on[ApiKey.LIST_TRANSACTIONS] = lambda request: request.reply(ListTransactionsResponse())
    admin.list_transactions(pattern="x.*")
    admin.list_transactions()
    patterns = [request.message().transactional_id_pattern for request in broker.asked(ApiKey.LIST_TRANSACTIONS)]
    assert patterns == ["x.*", None]
