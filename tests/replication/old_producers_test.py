"""Produce of versions 0 to 2, which carry message sets, over the wire, against a broker on simulated disk and time."""

from __future__ import annotations

import pytest
from tests.messagesets import GZIP, LZ4, SNAPPY, message, message_set, wrapper

from ottla.errors import ErrorCode
from ottla.record.batch import Record, batches_of, encode_batch
from ottla.replication.produce.message_sets import AT_ONCE
from ottla.seams import Gate

CONVERSIONS = "kafka_server_brokertopicmetrics_producemessageconversions_total"
FORMAT = {0: 0, 1: 0, 2: 1}
"""Version of Produce → format."""


def request_of(node, content: bytes, name: str = "t", acks: int = -1):
    request = node.produce_request(name, b"a", acks=acks)
    request.topic_data[0].partition_data[0].records = memoryview(content)
    return request


def produce(node, content: bytes, version: int = 2, name: str = "t"):
    return node.ask(request_of(node, content, name), version).responses[0].partition_responses[0]


def rows(node, count: int = 3, size: int = 5) -> list:
    now = node.process.clock.now().wall_ms
    return [(b"k%d" % at, b"v" * size, now + at) for at in range(count)]


def stored(node, records_in, name: str = "t") -> list:
    found = records_in(node.fetch(name, 0, partition_max_bytes=1 << 24, max_bytes=1 << 24).records)
    return [(r.offset, r.key, r.value, r.timestamp) for r in found]


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("codec", [0, GZIP, SNAPPY, LZ4])
def test_a_message_set_is_stored_as_one_batch(node, records_in, version: int, codec: int) -> None:
    sent = rows(node)
    answers = [produce(node, message_set(FORMAT[version], codec, sent), version) for _ in range(2)]
    assert [(row.error_code, row.base_offset) for row in answers] == [(0, 0), (0, 3)]
    assert node.broker.metrics.value_of(CONVERSIONS, topic="t") == 6
    expected = [(key, value, stamp if version == 2 else -1) for key, value, stamp in sent]
    found = stored(node, records_in)
    assert [row[0] for row in found] == list(range(6))
    assert [row[1:] for row in found] == expected * 2
    headers = [header for _, header in batches_of(memoryview(bytes(node.fetch("t", 0).records)))]
    assert [(h.magic, h.codec, h.producer_id, h.record_count) for h in headers] == [(2, codec, -1, 3)] * 2


def test_batches_of_format_v2_are_also_accepted_in_these_versions(node) -> None:
    """Kafka takes them."""
    assert [node.produce("t", b"a", version=version).base_offset for version in (0, 1, 2)] == [0, 1, 2]
    assert node.broker.metrics.value_of(CONVERSIONS, topic="t") == 0


@pytest.mark.parametrize("version", range(3, 9))
def test_zstd_is_refused_in_versions_without_it(node, version: int) -> None:
    batch = encode_batch([Record(0, node.process.clock.now().wall_ms, None, b"v" * 100)], codec=4)
    expected = ErrorCode.NONE if version >= 7 else ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert produce(node, bytes(batch), version).error_code == expected


@pytest.mark.parametrize("version", range(3, 13))
def test_a_message_set_in_a_later_version_is_refused(node, version: int) -> None:
    row = produce(node, message_set(1, 0, rows(node)), version)
    assert row.error_code == ErrorCode.INVALID_RECORD
    assert node.values("t") == []


@pytest.mark.parametrize("codec", [0, GZIP])
def test_a_large_message_set_is_converted_by_a_worker_while_the_connection_waits(node, records_in, codec: int) -> None:
    sent = rows(node, 40, AT_ONCE // 20)
    waiting = node.send(request_of(node, message_set(1, codec, sent)), 2)
    assert waiting.gate is Gate.WAIT
    assert not waiting.answered
    other = produce(node, message_set(1, codec, rows(node)))
    assert other.base_offset == 0, "other connections continue"
    assert node.answer(waiting).responses[0].partition_responses[0].base_offset == 3
    assert [row[1:] for row in stored(node, records_in)[3:]] == sent
    assert node.broker.metrics.value_of(CONVERSIONS, topic="t") == 43


def test_a_small_message_set_is_converted_in_its_turn(node) -> None:
    place = node.send(request_of(node, message_set(1, GZIP, rows(node))), 2)
    assert place.gate is Gate.NEXT
    assert place.answered


def test_a_bomb_goes_to_a_worker_and_is_refused(node) -> None:
    bomb = wrapper(1, GZIP, message(1, b"k", bytes(110 << 20)))
    waiting = node.send(request_of(node, bomb), 2)
    assert waiting.gate is Gate.WAIT
    assert node.answer(waiting).responses[0].partition_responses[0].error_code == ErrorCode.CORRUPT_MESSAGE
    assert node.values("t") == []


@pytest.mark.parametrize("size", [5, AT_ONCE])
def test_errors_are_each_partitions_own(node, size: int) -> None:
    node.create("many", partitions=4)
    good, late = message_set(1, 0, rows(node, size=size)), message(1, b"k", b"v", timestamp=2**60)
    request = request_of(node, good, "many")
    for partition, content in enumerate((good[:-1] + b"\0", late, good), 1):
        more = node.produce_request("many", b"x", partition=partition)
        more.topic_data[0].partition_data[0].records = memoryview(content)
        request.topic_data[0].partition_data += more.topic_data[0].partition_data
    found = [row.error_code for row in node.ask(request, 2).responses[0].partition_responses]
    assert found == [0, ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_TIMESTAMP, 0]


def test_too_large_for_the_topic(node) -> None:
    node.create("small", max_message_bytes="1000")
    assert produce(node, message_set(1, 0, rows(node, 1, 2000)), name="small").error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert produce(node, message_set(1, 0, rows(node, 20, 90)), name="small").error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert produce(node, message_set(1, 0, rows(node, 3, 90)), name="small").error_code == 0


def test_an_empty_set_is_taken_and_nothing_is_written(node) -> None:
    node.create("other")
    row = produce(node, b"")
    assert (row.error_code, row.base_offset) == (0, -1)
    request = request_of(node, b"")
    request.topic_data += request_of(node, message_set(1, 0, rows(node, 3, AT_ONCE)), "other").topic_data
    found = [topic.partition_responses[0] for topic in node.ask(request, 2).responses]
    assert [(row.error_code, row.base_offset) for row in found] == [(0, -1), (0, 0)]
    assert node.values("t") == []
    nowhere = produce(node, b"", name="nowhere")
    assert nowhere.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    node.send_state(leader=2, isr=(1, 2))
    assert produce(node, b"").error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(("version", "told"), [(0, -1), (1, -1), (2, None)])
def test_append_time_is_in_the_response_from_version_2_on(node, records_in, version: int, told) -> None:
    node.create("stamped", message_timestamp_type="LogAppendTime")
    sent = [(b"k", b"v", 2**60)]
    row = produce(node, message_set(FORMAT[version], 0, sent), version, "stamped")
    assert row.error_code == 0
    ((_, _, _, stamp),) = stored(node, records_in, "stamped")
    assert abs(stamp - node.process.clock.now().wall_ms) < 1000
    assert row.log_append_time_ms == (stamp if told is None else told)


@pytest.mark.parametrize("size", [5, AT_ONCE])
def test_a_topic_with_its_own_codec_gets_it_at_once(node, records_in, size: int) -> None:
    node.create("coded", compression_type="lz4")
    sent = rows(node, 3, size)
    assert produce(node, message_set(1, GZIP, sent), name="coded").error_code == 0
    assert [row[1:] for row in stored(node, records_in, "coded")] == sent
    ((_, header),) = batches_of(memoryview(bytes(node.fetch("coded", 0).records)))
    assert header.codec == LZ4


def test_a_compacted_topic_needs_keys(node) -> None:
    node.create("compacted", cleanup_policy="compact")
    assert produce(node, message(1, None, b"v"), name="compacted").error_code == ErrorCode.INVALID_RECORD
    assert produce(node, message(1, b"k", b"v"), name="compacted").error_code == 0


def test_acks_0_is_silent_and_an_error_closes_the_connection(node) -> None:
    silent = node.send(request_of(node, message_set(0, 0, rows(node)), acks=0), 0)
    assert silent.answered
    assert silent.parts == []
    node.send(request_of(node, b"\0" * 40, acks=0), 0)
    (why,) = node.network.closed
    assert "CORRUPT_MESSAGE" in why
    assert len(node.values("t")) == 3
