"""WriteTxnMarkers: a coordinator's markers, over the wire, into partitions led here."""

from __future__ import annotations

import pytest
from tests.handnode import Caller, records

from ottla.errors import ErrorCode
from ottla.record.control import Marker, parse_marker
from ottla.replication.marker_handlers import MARKERS_PER_STEP
from ottla.wire.messages import DescribeProducersRequest
from ottla.wire.messages.end_txn import WriteTxnMarkersRequest

VERSIONS = range(3)


def marker(*partitions: tuple[str, int], producer_id: int = 7, epoch: int = 1, commit: bool = True, version: int = 2):
    topics: dict[str, list[int]] = {}
    for name, index in partitions or (("t", 0),):
        topics.setdefault(name, []).append(index)
    topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic
    return WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=commit,
        topics=[topic(name=name, partition_indexes=indexes) for name, indexes in topics.items()],
        coordinator_epoch=5,
        transaction_version=version,
    )


def send(node, *markers, version: int = 2):
    """As another broker sends it."""
    return node.send(WriteTxnMarkersRequest(markers=list(markers)), version, peer=Caller(""))


def codes(node, place) -> list[list[tuple[str, int, int]]]:
    """(topic, partition, code) of every marker."""
    return [
        [(topic.name, one.partition_index, one.error_code) for topic in marker.topics for one in topic.partitions]
        for marker in node.answer(place).markers
    ]


def write(node, *values: bytes, epoch: int = 0, producer_id: int = 7, sequence: int = 0) -> None:
    """Records of a transaction that the partition knows of: a batch of the coordinator's side."""
    identity = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    request = node.produce_request("t", *values, transactional=True, **identity)
    batch = memoryview(bytearray(request.topic_data[0].partition_data[0].records))
    node.process.post_turn(0, "write", lambda: node.partition().leader_role.append_own(batch, node.process.clock.now()))
    node.pass_ms(0)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_is_written_as_kafka_writes_it(node, version: int, commit: bool) -> None:
    write(node, b"a")
    assert codes(node, send(node, marker(commit=commit), version=version)) == [[("t", 0, 0)]]
    (record,) = records(node.fetch("t", 1).records)
    assert parse_marker(record.key, record.value) == Marker(commit, 5)
    assert node.fetch("t", 0).last_stable_offset == 2


def test_every_partition_has_its_own_answer(node) -> None:
    node.create("many", partitions=2)
    write(node, b"a")
    node.send_state(2, (1, 2))
    first = marker(("many", 1), ("t", 0), ("many", 9), ("none", 0))
    second = marker(("many", 0), producer_id=8)
    place = send(node, first, second, marker(producer_id=-1), marker(("many", 1), epoch=0))
    lost, unknown = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(node, place) == [
        [("many", 1, 0), ("many", 9, unknown), ("t", 0, lost), ("none", 0, unknown)],
        [("many", 0, 0)],
        [("t", 0, ErrorCode.INVALID_REQUEST)],
        [("many", 1, ErrorCode.INVALID_PRODUCER_EPOCH)],
    ]
    old = marker(("many", 1), epoch=2)
    old.coordinator_epoch = 4
    assert codes(node, send(node, old)) == [[("many", 1, ErrorCode.TRANSACTION_COORDINATOR_FENCED)]]
    assert codes(node, send(node)) == []


def test_the_answer_waits_for_the_commit(node) -> None:
    node.send_state(1, (1, 2))
    write(node, b"a")
    first = send(node, marker())
    again = send(node, marker())
    node.pass_ms(100)
    assert not first.answered
    assert not again.answered, "it is here, but may still be lost"
    node.replicate("t", 2)
    assert [codes(node, place) for place in (first, again)] == [[[("t", 0, 0)]]] * 2
    assert node.partition().log.end_offset == 2


def test_a_marker_that_is_not_committed_in_time_or_not_any_more(node) -> None:
    node.create("safe", min_insync_replicas="2")
    node.send_state(1, (1, 2), name="safe")
    waiting = send(node, marker(("safe", 0)))
    node.send_state(1, (1,), name="safe")
    assert codes(node, waiting) == [[("safe", 0, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]]
    assert codes(node, send(node, marker(("safe", 0), epoch=2))) == [[("safe", 0, ErrorCode.NOT_ENOUGH_REPLICAS)]]
    node.send_state(1, (1, 2))
    waiting = send(node, marker())
    node.pass_ms(29_000)
    assert not waiting.answered
    node.pass_ms(2000)
    assert codes(node, waiting) == [[("t", 0, ErrorCode.REQUEST_TIMED_OUT)]]
    node.send_state(1, (1, 2))
    waiting = send(node, marker(epoch=2))
    node.send_state(2, (1, 2))
    assert codes(node, waiting) == [[("t", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER)]]


def test_others_come_in_between_thousands_of_markers(node) -> None:
    many = [marker(producer_id=producer_id) for producer_id in range(5 * MARKERS_PER_STEP)]
    place = send(node, *many)
    ends = [node.partition().log.end_offset]
    assert not place.answered
    assert node.produce("t", b"between").base_offset == MARKERS_PER_STEP == ends[0]
    assert not place.answered
    assert codes(node, place) == [[("t", 0, 0)]] * len(many)


def described(node):
    """(producer id, epoch, last sequence, coordinator epoch, start of its open transaction) of every producer."""
    topic = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])
    (partition,) = node.ask(DescribeProducersRequest(topics=[topic]), 0).topics[0].partitions
    return [
        (
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            each.coordinator_epoch,
            each.current_txn_start_offset,
        )
        for each in partition.active_producers
    ]


def test_producers_are_described_with_their_transactions(node) -> None:
    node.produce("t", b"a")
    write(node, b"b", producer_id=7)
    write(node, b"c", producer_id=7, sequence=1)
    write(node, b"d", producer_id=8)
    assert described(node) == [(7, 0, 1, -1, 1), (8, 0, 0, -1, 3)]
    node.answer(send(node, marker(producer_id=7)))
    assert described(node) == [(7, 1, -1, 5, -1), (8, 0, 0, -1, 3)]


def test_metrics_of_transactions(node) -> None:
    def measured(name: str, **labels: str) -> float:
        return node.broker.metrics.value_of(name, **labels)

    def late() -> float:
        return measured("kafka_server_replicamanager_partitionswithlatetransactionscount")

    at = {"topic": "t", "partition": "0"}
    node.produce("t", b"a")
    write(node, b"b", producer_id=7)
    write(node, b"c", producer_id=8)
    assert measured("kafka_server_replicamanager_produceridcount") == 2
    assert measured("kafka_cluster_partition_laststableoffset", **at) == 1
    assert measured("kafka_cluster_partition_laststableoffsetlag", **at) == 2
    node.pass_ms(900_000 + 299_000)
    assert late() == 0
    write(node, b"d", producer_id=7, sequence=1)
    node.pass_ms(2000)
    assert late() == 1, "transaction.max.timeout.ms and five minutes after the last that was heard of it"
    node.answer(send(node, marker(producer_id=8)))
    assert late() == 0
    node.answer(send(node, marker(producer_id=7)))
    assert measured("kafka_cluster_partition_laststableoffsetlag", **at) == 0


def by_client(node, **more) -> int:
    """The code of a marker that a client sends."""
    sent = marker(commit=False, epoch=0, version=0)
    for key, value in ({"coordinator_epoch": 0} | more).items():
        setattr(sent, key, value)
    return codes(node, node.send(WriteTxnMarkersRequest(markers=[sent]), 2))[0][0][2]


def test_clients_may_only_abort_open_transactions(node) -> None:
    """KIP-664; a forged coordinator of a later epoch would shut the real one out."""
    node.broker._dispatch._is_alone = True
    assert by_client(node) == ErrorCode.INVALID_TXN_STATE
    write(node, b"a")
    assert by_client(node, transaction_result=True) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert by_client(node, coordinator_epoch=1) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert by_client(node, producer_epoch=1) == ErrorCode.INVALID_TXN_STATE
    assert node.partition().log.end_offset == 1
    assert by_client(node) == 0
    assert node.partition().last_stable_offset == 2
    assert codes(node, send(node, marker(epoch=0, version=0))) == [[("t", 0, 0)]]
    write(node, b"b", sequence=1)
    assert by_client(node, coordinator_epoch=4) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert by_client(node, coordinator_epoch=5) == 0
