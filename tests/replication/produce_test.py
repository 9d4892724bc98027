"""Produce, over the wire, against a broker on simulated disk and time."""

from __future__ import annotations

import pytest

from ottla.errors import ErrorCode
from ottla.record.batch import Record, batches_of, encode_batch
from ottla.sim.disks.drive_faults import DiskOperation
from ottla.sim.machines.machine import Death
from ottla.wire.messages import FindCoordinatorRequest, ProduceRequest


def test_offsets_are_dense_whatever_the_acks(node) -> None:
    assert node.produce("t", b"a", b"b", acks=1).base_offset == 0
    assert node.produce("t", b"c", acks=-1).base_offset == 2
    silent = node.send(node.produce_request("t", b"d", acks=0), 9)
    assert silent.answered
    assert silent.parts == []
    assert node.values("t") == [b"a", b"b", b"c", b"d"]


def test_many_partitions_are_answered_in_their_order(node) -> None:
    node.create("many", partitions=3)
    request = node.produce_request("many", b"x", partition=2)
    for extra in (node.produce_request("many", b"y", partition=0), node.produce_request("t", b"z")):
        request.topic_data += extra.topic_data
    answers = node.ask(request, 9).responses
    assert [(topic.name, [row.index for row in topic.partition_responses]) for topic in answers] in (
        [("many", [2]), ("many", [0]), ("t", [0])],
        [("many", [2, 0]), ("t", [0])],
    )
    assert {row.error_code for topic in answers for row in topic.partition_responses} == {0}


@pytest.mark.parametrize("version", range(14))
def test_every_version_is_answered(node, version: int) -> None:
    request = node.produce_request("t", b"v")
    request.topic_data[0].topic_id = node.topic_id("t")
    row = node.ask(request, version).responses[0].partition_responses[0]
    assert (row.error_code, row.base_offset) == (0, 0)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"acks": 2}, ErrorCode.INVALID_REQUIRED_ACKS),
        ({"acks": -2}, ErrorCode.INVALID_REQUIRED_ACKS),
        ({"partition": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"name": "nowhere"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"control": True}, ErrorCode.INVALID_RECORD),
    ],
)
def test_batches_that_cannot_be_appended_get_an_error_and_a_text(node, change: dict, code: ErrorCode) -> None:
    name = change.pop("name", "t")
    row = node.produce(name, b"a", **change)
    assert row.error_code == code
    assert row.base_offset == -1
    assert row.error_message
    assert node.values("t") == []


def test_no_records_and_unknown_ids_have_their_errors(node) -> None:
    assert node.produce("t").error_code == ErrorCode.INVALID_RECORD
    request = node.produce_request("t", b"a")
    request.topic_data[0].topic_id = b"\7" * 16
    answer = node.ask(request, 13).responses[0]
    assert answer.topic_id == b"\7" * 16
    assert answer.partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_clients_may_not_write_to_an_internal_topic(node) -> None:
    node.ask(FindCoordinatorRequest(key="group"), 1)
    assert node.broker.hosted.find_partition("__consumer_offsets", 0) is not None
    row = node.produce("__consumer_offsets", b"mine")
    assert row.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_an_error_with_acks_0_closes_the_connection(node) -> None:
    node.send(node.produce_request("t", b"a", acks=0, partition=9), 9)
    (why,) = node.network.closed
    assert "UNKNOWN_TOPIC_OR_PARTITION" in why


def test_min_isr_asks_a_topic_with_one_replica_for_one(node, records_in) -> None:
    """What is refused where there are more replicas: replicated_requests_test."""
    node.create("safe", min_insync_replicas="2")
    assert node.produce("safe", b"a", acks=-1).base_offset == 0
    assert node.produce("safe", b"b", acks=1).base_offset == 1
    seen = node.fetch("safe", 0)
    assert seen.high_watermark == 2
    assert [each.value for each in records_in(seen.records)] == [b"a", b"b"]


def test_append_time_is_stamped_answered_and_stored(node, records_in) -> None:
    node.create("stamped", message_timestamp_type="LogAppendTime")
    row = node.produce("stamped", b"a")
    assert row.log_append_time_ms > 0
    stored = node.fetch("stamped", 0)
    ((_, header),) = batches_of(memoryview(bytes(stored.records)))
    assert header.is_append_time
    assert header.max_timestamp == row.log_append_time_ms
    assert node.produce("t", b"a").log_append_time_ms == -1


@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", [0, 3])
def test_a_topic_with_its_own_codec_stores_in_it(node, wanted: str, sent: int) -> None:
    node.create("coded", compression_type=wanted)
    values = [b"value" * 50, b"other" * 50]
    assert node.produce("coded", *values, codec=sent).base_offset == 0
    assert node.produce("coded", b"last").base_offset == 2
    assert node.values("coded") == [*values, b"last"]
    stored = memoryview(bytes(node.fetch("coded", 0).records))
    codec = ("uncompressed", "gzip", "snappy", "lz4", "zstd").index(wanted)
    assert {header.codec for _, header in batches_of(stored)} == {codec}


def test_a_damaged_batch_is_not_recompressed_into_a_good_one(node) -> None:
    node.create("coded", compression_type="gzip")
    request = node.produce_request("coded", b"value" * 50)
    records = bytearray(request.topic_data[0].partition_data[0].records)
    records[-1] ^= 1
    request.topic_data[0].partition_data[0].records = memoryview(records)
    assert node.ask(request, 9).responses[0].partition_responses[0].error_code == ErrorCode.CORRUPT_MESSAGE
    assert node.values("coded") == []


def idempotent(node, sequence: int, *values: bytes, epoch: int = 0):
    return node.produce("t", *values, producer_id=5, producer_epoch=epoch, base_sequence=sequence)


def test_resend_without_idempotence(node) -> None:
    for value in (b"x1", b"x2", b"x2"):
        node.produce("t", value)
    assert node.values("t") == [b"x1", b"x2", b"x2"]


def test_resend_with(node) -> None:
    first = idempotent(node, 0, b"x1", b"y1")
    lost = idempotent(node, 2, b"x2", b"y2")
    again = idempotent(node, 2, b"x2", b"y2")
    assert (lost.error_code, again.error_code) == (0, 0)
    assert (first.base_offset, lost.base_offset, again.base_offset) == (0, 2, 2)
    assert node.values("t") == [b"x1", b"y1", b"x2", b"y2"]


def test_a_gap_an_old_epoch_and_a_long_gone_batch_have_their_errors(node) -> None:
    for at in range(7):
        assert idempotent(node, at, b"v").error_code == 0
    assert idempotent(node, 9, b"v").error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert idempotent(node, 0, b"v").error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert idempotent(node, 0, b"v", epoch=1).error_code == 0
    assert idempotent(node, 7, b"v").error_code == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_does_not_forget_the_producer(node, clean: bool) -> None:
    assert idempotent(node, 0, b"a").base_offset == 0
    if clean:
        node.process.post_turn(0, "stop", node.broker.stop_broker, lambda _: None)
        node.pass_ms(5000)
    node.restart()
    assert idempotent(node, 0, b"a").base_offset == 0
    assert idempotent(node, 1, b"b").base_offset == 1
    assert node.values("t") == [b"a", b"b"]


def test_a_second_batch_in_one_partition_is_refused(node) -> None:
    batch = bytes(encode_batch([Record(0, 1, None, b"a", ())]))
    data = ProduceRequest.PartitionProduceData(index=0, records=memoryview(batch + batch))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    row = node.ask(ProduceRequest(acks=-1, timeout_ms=1, topic_data=[topic]), 9).responses[0].partition_responses[0]
    assert row.error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("acks", [1, -1])
def test_flush_messages_answers_when_the_disk_has_it(node, acks: int) -> None:
    node.create("safe", flush_messages="1")
    sent = [
        node.send(node.produce_request("safe", value, acks=acks), 9, peer=type(node.peer)()) for value in (b"a", b"b")
    ]
    log = node.broker.hosted.find_partition("safe", 0).log
    assert log.end_offset == 2
    assert not any(place.answered for place in sent), "the sync is under way"
    assert node.answer(sent[1]).responses[0].partition_responses[0].error_code == 0
    assert sent[0].answered
    assert log.recovery_point == 2
    node.restart(Death.POWER_LOSS)
    assert node.values("safe") == [b"a", b"b"]


def test_flush_messages_counts_and_only_the_one_that_reaches_it_waits(node) -> None:
    node.create("some", flush_messages="3")
    for value in (b"a", b"b"):
        assert node.send(node.produce_request("some", value, acks=1), 9).answered
    third = node.send(node.produce_request("some", b"c", acks=1), 9)
    assert not third.answered
    assert node.answer(third).responses[0].partition_responses[0].base_offset == 2


def test_a_sync_that_fails_is_an_error_and_not_an_acknowledgement(node) -> None:
    node.create("safe", flush_messages="1")
    node.faults.arm_error(DiskOperation.SYNC)
    row = node.produce("safe", b"a")
    assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "not synced" in row.error_message


@pytest.mark.parametrize(
    ("version", "code"), [(3, ErrorCode.NOT_LEADER_OR_FOLLOWER), (4, ErrorCode.KAFKA_STORAGE_ERROR)]
)
def test_old_versions_get_not_leader_for_storage_errors(node, version: int, code) -> None:
    node.create("safe", flush_messages="1")
    node.faults.arm_error(DiskOperation.SYNC)
    assert node.produce("safe", b"a", version=version).error_code == code
