"""/metrics of a real broker with groups and transactions: the names that dashboards use, with values."""

from __future__ import annotations

import http.client
import re
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.record.batch import Record, encode_batch
from ottla.server.embedded import EmbeddedBroker
from ottla.wire.apis import API_TABLE
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.header import encode_request_header, response_body_pos
from ottla.wire.messages import (
    AddPartitionsToTxnRequest,
    CreateTopicsRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    ProduceRequest,
    SyncGroupRequest,
)

GROUPS = "kafka_coordinator_group_groupmetadatamanager_"
TRANSACTIONS = "kafka_coordinator_transaction_transactionstatemanager_"
MARKERS = "kafka_coordinator_transaction_transactionmarkerchannelmanager_"
REPLICAS = "kafka_server_replicamanager_"
T0 = '{topic="t",partition="0"}'
EXPECTED = {
    # Producers and transactions: three plain records, then two of a transaction that is open.
    f"{REPLICAS}produceridcount": 1,
    f"{REPLICAS}partitionswithlatetransactionscount": 0,
    f"kafka_cluster_partition_laststableoffset{T0}": 3,
    f"kafka_cluster_partition_laststableoffsetlag{T0}": 2,
    f"{TRANSACTIONS}numtransactionalids": 1,
    f"{TRANSACTIONS}numongoing": 1,
    f"{TRANSACTIONS}numempty": 0,
    f"{TRANSACTIONS}partitionsloading": 0,
    f"{MARKERS}pendingtransactions": 0,
    # Groups: one with a member that has committed offset 1, and one without members that has stored 5.
    f"{GROUPS}numgroups": 2,
    f"{GROUPS}numgroupsstable": 1,
    f"{GROUPS}numgroupsempty": 1,
    f"{GROUPS}numgroupspreparingrebalance": 0,
    f"{GROUPS}numgroupscompletingrebalance": 0,
    f"{GROUPS}numoffsets": 2,
    f"{GROUPS}rebalances_total": 1,
    'kafka_consumergroup_members{consumergroup="g"}': 1,
    'kafka_consumergroup_members{consumergroup="idle"}': 0,
    'kafka_consumergroup_current_offset{consumergroup="g",topic="t",partition="0"}': 1,
    'kafka_consumergroup_current_offset_sum{consumergroup="idle",topic="t"}': 5,
    'kafka_consumergroup_lag{consumergroup="g",topic="t",partition="0"}': 4,
    'kafka_consumergroup_lag{consumergroup="idle",topic="t",partition="0"}': 0,
    'kafka_consumergroup_lag_sum{consumergroup="g",topic="t"}': 4,
    # The rows of a lag exporter about topics and brokers.
    f"kafka_topic_partition_current_offset{T0}": 5,
    f"kafka_topic_partition_oldest_offset{T0}": 0,
    f"kafka_topic_partition_leader{T0}": 1,
    f"kafka_topic_partition_leader_is_preferred{T0}": 1,
    f"kafka_topic_partition_replicas{T0}": 1,
    f"kafka_topic_partition_in_sync_replica{T0}": 1,
    f"kafka_topic_partition_under_replicated_partition{T0}": 0,
    'kafka_topic_partitions{topic="t"}': 2,
    "kafka_brokers": 1,
}


class Wire:
    """A client that sends one request at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=180)

    def ask(self, request: object, version: int) -> Any:
        key = next(key for key, api in API_TABLE.items() if api.request is type(request))
        frame = encode_request_header(key, version, 7, "wire") + encode_bytes(request, version)
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        content = memoryview(self._read(*struct.unpack(">i", self._read(4))))
        return decode(API_TABLE[key].response, version, content, response_body_pos(key, version, content))[0]

    def _read(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            content += self._socket.recv(size - len(content))
        return content

    def settled(self, request: object, version: int, code: Any) -> Any:
        """The first answer without a temporary error."""
        for _ in range(1000):
            answer = self.ask(request, version)
            if code(answer) not in (14, 15, 16):
                assert code(answer) == 0, answer
                return answer
        raise AssertionError("the coordinator never came")

    def close(self) -> None:
        self._socket.close()


def produce(wire: Wire, *values: bytes, **batch: Any) -> None:
    content = encode_batch([Record(at, 1, None, value, ()) for at, value in enumerate(values)], **batch)
    data = ProduceRequest.PartitionProduceData(index=0, records=memoryview(bytes(content)))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    name = "x" if batch else None
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic], transactional_id=name)
    assert wire.ask(request, 9).responses[0].partition_responses[0].error_code == 0


def begin_transaction(wire: Wire) -> None:
    wire.ask(FindCoordinatorRequest(coordinator_keys=["x"], key_type=1), 4)
    init = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
    who = wire.settled(init, 4, lambda answer: answer.error_code).producer_id
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0])
    wire.ask(
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=who,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[topic],
        ),
        3,
    )
    produce(wire, b"d", b"e", producer_id=who, producer_epoch=0, base_sequence=0, transactional=True)


def commit(wire: Wire, group: str, offset: int, **member: Any) -> None:
    part = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[part])
    request = OffsetCommitRequest(group_id=group, topics=[topic], **member)
    wire.settled(request, 7, lambda answer: answer.topics[0].partitions[0].error_code)


def begin_group(wire: Wire) -> None:
    wire.ask(FindCoordinatorRequest(coordinator_keys=["g"], key_type=0), 4)
    commit(wire, "idle", 5)
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    join = JoinGroupRequest(
        group_id="g", session_timeout_ms=45_000, rebalance_timeout_ms=1000, protocol_type="c", protocols=[protocol]
    )
    member = wire.settled(join, 3, lambda answer: answer.error_code).member_id
    wire.ask(SyncGroupRequest(group_id="g", generation_id=1, member_id=member), 3)
    commit(wire, "g", 1, generation_id_or_member_epoch=1, member_id=member)


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    """The text of /metrics after groups and transactions have begun their work."""
    settings = {"ottla.http.listener": "127.0.0.1:0", "group.initial.rebalance.delay.ms": "0"}
    with EmbeddedBroker(config=settings | {"offsets.topic.num.partitions": "2"}) as broker:
        wire = Wire(int(broker.bootstrap.rpartition(":")[2]))
        topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2, replication_factor=1)
        wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 5)
        produce(wire, b"a", b"b", b"c")
        begin_transaction(wire)
        begin_group(wire)
        client = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=180)
        client.request("GET", "/metrics")
        yield client.getresponse().read().decode()
        client.close()
        wire.close()


def test_groups_and_transactions_are_observed(page: str) -> None:
    rows = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert {name: float(rows[name]) for name in EXPECTED if name in rows} == EXPECTED
    assert re.search(r'^kafka_broker_info\{id="1",address="127.0.0.1:\d+"\} 1$', page, re.MULTILINE)


def test_how_long_rebalances_took(page: str) -> None:
    counts = re.findall(rf'^{GROUPS}rebalance_ms_count{{partition="\d"}} (\d+)$', page, re.MULTILINE)
    assert [int(count) for count in counts if count != "0"] == [1]


def test_every_row_has_a_help_and_a_kind(page: str) -> None:
    told = set(re.findall(r"^# HELP (\S+) \S", page, re.MULTILINE))
    for name in EXPECTED:
        assert name.partition("{")[0] in told
