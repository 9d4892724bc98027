"""Aborting a hanging transaction, with a scripted broker."""

from __future__ import annotations

import pytest
from tests.client.conftest import Request, ScriptedBroker

from ottla.client import ClientConfig, Cluster, RefusedError
from ottla.client.admin.transactions import TransactionAdmin
from ottla.errors import ErrorCode
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import WriteTxnMarkersResponse

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
