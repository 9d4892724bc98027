"""A transaction that hangs: a late transactional batch opens it, and no coordinator will end it.

Zone: real. It needs a broker with `transaction.partition.verification.enable=false`: others refuse such a batch.
"""

from __future__ import annotations

from ottla.client import ClientConfig, Cluster
from ottla.record.batch import Record, encode_batch
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import ProduceRequest, ProduceResponse

PRODUCER_ID = 900
"""A producer id that no coordinator knows."""
EPOCH = 3
WRITTEN_MS = 1_000
"""Milliseconds since 1970: long ago."""


def hang(address: str, topic: str, partition: int = 1, sequence: int = 0) -> None:
    """Write one record of PRODUCER_ID's transaction; the next one to the same partition has the next sequence."""
    batch = encode_batch([Record(0, WRITTEN_MS, None, b"late", ())], producer_id=PRODUCER_ID, producer_epoch=EPOCH,
                         base_sequence=sequence, transactional=True)  # fmt: skip
    part = ProduceRequest.PartitionProduceData(index=partition, records=memoryview(bytes(batch)))
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    request = ProduceRequest(transactional_id="late", acks=-1, timeout_ms=5000, topic_data=[data])
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": address})) as cluster:
        leader = cluster.leader(TopicPartition(topic, partition))
        answer = cluster.send_request(ApiKey.PRODUCE, lambda _: request, ProduceResponse, node=leader, at_most=9)
    assert answer.responses[0].partition_responses[0].error_code == 0
