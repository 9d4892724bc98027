"""Produce to compacted topics: every record is inspected before the append."""

from __future__ import annotations

import pytest
from tests.handnode import Node, records

from ottla.errors import ErrorCode
from ottla.record.batch import Record, encode_batch, header_at, put_header, seal_crc
from ottla.replication.produce.produce_items import IN_TURN
from ottla.wire.messages import IncrementalAlterConfigsRequest, ProduceRequest

LARGE = 40_000
"""Bytes of a value that goes to a worker."""


@pytest.fixture
def compacted(node: Node) -> Node:
    node.create("c", cleanup_policy="compact")
    return node


def produce(node: Node, *keys: bytes | None, version: int = 9, value: bytes = b"v", name: str = "c", **batch):
    return send(node, bytes(batch_of(node, *keys, value=value, **batch)), version, name)


def batch_of(node: Node, *keys: bytes | None, value: bytes = b"v", **batch) -> bytearray:
    now = node.process.clock.now().wall_ms
    return encode_batch([Record(at, now, key, value) for at, key in enumerate(keys)], **batch)


def send(node: Node, batch: bytes, version: int = 9, name: str = "c"):
    data = ProduceRequest.PartitionProduceData(index=0, records=memoryview(batch))
    topic = ProduceRequest.TopicProduceData(name=name, partition_data=[data])
    if version >= 13:
        topic.topic_id = node.topic_id(name)
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
    return node.ask(request, version).responses[0].partition_responses[0]


def set_policy(node: Node, policy: str) -> None:
    change = IncrementalAlterConfigsRequest.AlterableConfig(name="cleanup.policy", value=policy)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name="c", configs=[change])
    assert node.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0].error_code == 0


def keys(node: Node) -> list[bytes | None]:
    return [record.key for record in records(node.fetch("c", 0).records)]


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("value", [b"v", b"v" * LARGE], ids=["in the loop", "in a worker"])
def test_a_record_without_a_key_is_refused_and_named_where_the_version_can(
    compacted: Node, version: int, value: bytes
) -> None:
    row = produce(compacted, b"a", None, b"b", None, version=version, value=value)
    assert (row.error_code, row.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    if version >= 8:
        assert [one.batch_index for one in row.record_errors] == [1, 3]
        assert all("key" in one.batch_index_error_message for one in row.record_errors)
        assert row.error_message.startswith("2 of 4 records are refused")
    else:
        assert row.record_errors == []
    assert keys(compacted) == []
    assert produce(compacted, b"a", b"", value=value).base_offset == 0
    assert keys(compacted) == [b"a", b""]


@pytest.mark.parametrize("policy", ["compact,delete", "delete"])
@pytest.mark.parametrize("codec", [0, 1])
def test_only_compacted_topics_need_keys(node: Node, policy: str, codec: int) -> None:
    node.create("c", cleanup_policy=policy)
    code = produce(node, None, codec=codec).error_code
    assert code == (ErrorCode.INVALID_RECORD if "compact" in policy else ErrorCode.NONE)


def test_keys_are_needed_as_soon_as_the_policy_changes(node: Node) -> None:
    node.create("c")
    assert produce(node, None).error_code == 0
    set_policy(node, "compact")
    assert produce(node, None).error_code == ErrorCode.INVALID_RECORD
    set_policy(node, "delete")
    assert produce(node, None).error_code == 0


@pytest.mark.parametrize("count", [1, 2, 4, 300])
def test_a_lying_record_count_never_reaches_the_log(compacted: Node, count: int) -> None:
    batch = batch_of(compacted, b"a", b"b", b"c", value=b"v" * 1000)
    put_header(batch, header_at(batch)._replace(record_count=count, last_offset_delta=count - 1))
    seal_crc(batch, 0, len(batch))
    assert send(compacted, bytes(batch)).error_code == ErrorCode.INVALID_RECORD
    assert keys(compacted) == []


@pytest.mark.slow
def test_a_bomb_is_refused_and_its_neighbours_are_not(compacted: Node) -> None:
    """A batch that expands too far for the loop goes to a worker; one that is also too much for that is refused."""
    assert produce(compacted, b"a", value=bytes(10_000_000), codec=1).error_code == 0
    assert produce(compacted, b"b", value=bytes(101 * 1024 * 1024), codec=4).error_code == ErrorCode.CORRUPT_MESSAGE
    assert keys(compacted) == [b"a"]


def test_a_compacted_topic_with_its_own_codec_also_needs_keys(node: Node) -> None:
    node.create("c", cleanup_policy="compact", compression_type="zstd")
    row = produce(node, b"a", None)
    assert row.error_code == ErrorCode.INVALID_RECORD
    assert [one.batch_index for one in row.record_errors] == [1]
    assert produce(node, b"a", value=b"v" * LARGE).error_code == 0


def test_a_retry_of_an_idempotent_batch_is_the_same_batch(compacted: Node) -> None:
    producer = {"producer_id": 5, "producer_epoch": 0}
    assert produce(compacted, b"a", base_sequence=0, **producer).base_offset == 0
    assert produce(compacted, None, base_sequence=1, **producer).error_code == ErrorCode.INVALID_RECORD
    assert produce(compacted, b"b", base_sequence=1, value=b"v" * LARGE, **producer).base_offset == 1
    assert produce(compacted, b"a", base_sequence=0, **producer).base_offset == 0
    assert keys(compacted) == [b"a", b"b"]


@pytest.mark.parametrize("policy", ["compact", "delete"])
@pytest.mark.parametrize("size", [500, LARGE, 100_000], ids=["in the loop", "in a worker", "beyond the loop"])
def test_max_decompressed_message_bytes_limits_a_compressed_record(node: Node, policy: str, size: int) -> None:
    """max.decompressed.message.bytes, also where nothing else has a batch looked into."""
    node.create("c", cleanup_policy=policy, max_decompressed_message_bytes="400")
    assert produce(node, b"a", value=bytes(size), codec=1).error_code == ErrorCode.INVALID_RECORD
    assert produce(node, b"b", value=bytes(350), codec=1).error_code == 0
    assert produce(node, b"c", value=bytes(size)).error_code == 0, "not compressed: max.message.bytes is its bound"
    assert keys(node) == [b"b", b"c"]


def test_of_many_small_batches_a_few_are_looked_into_in_a_turn(node: Node) -> None:
    node.create("c", partitions=40, cleanup_policy="compact")
    jobs: list[str] = []
    workers = node.broker._world.workers
    run = workers.run_job
    workers.run_job = lambda job, *more: (jobs.append(job), run(job, *more))
    rows = ProduceRequest.PartitionProduceData
    data = [rows(index=at, records=memoryview(bytes(batch_of(node, b"k")))) for at in range(40)]
    topic = ProduceRequest.TopicProduceData(name="c", partition_data=data)
    answer = node.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), 9).responses[0]
    assert {row.error_code for row in answer.partition_responses} == {0}
    assert len(jobs) == 40 // (IN_TURN + 1)
