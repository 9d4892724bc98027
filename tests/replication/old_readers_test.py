"""Fetch of versions 0 to 3, whose readers know message sets only, against a broker on simulated disk and time."""

from __future__ import annotations

import pytest
from tests.messagesets import entries

from ottla.errors import ErrorCode
from ottla.record.batch import Record, encode_batch
from ottla.record.control import Marker, marker_batch
from ottla.record.legacy import messages_in
from ottla.replication.fetch.down_conversion import ANSWER_MAX, AT_ONCE
from ottla.seams import Gate
from ottla.sim.machines.machine import Death

CONVERSIONS = "kafka_server_brokertopicmetrics_fetchmessageconversions_total"
FORMAT = {0: 0, 1: 0, 2: 1, 3: 1}
"""Version of Fetch → format."""
LIMIT = 1 << 26


def messages(row) -> list:
    return [one for entry in entries(bytes(row.records)) for one in messages_in(entry, LIMIT)]


def values(row) -> list[bytes | None]:
    return [one.value for one in messages(row)]


def write(node, *records: Record, codec: int = 0, **batch) -> int:
    request = node.produce_request("t", b"x", acks=1)
    content = encode_batch(records, codec=codec, **batch)
    request.topic_data[0].partition_data[0].records = memoryview(bytes(content))
    row = node.ask(request, 9).responses[0].partition_responses[0]
    assert row.error_code == 0
    return row.base_offset


def mark(node, count: int = 1) -> None:
    """Markers of transactions that wrote nothing here."""
    partition, now = node.partition("t"), node.process.clock.now()

    def turn() -> None:
        for _ in range(count):
            partition.leader_role.append_own(memoryview(marker_batch(7, 0, Marker(True, 1), now.wall_ms)), now)
        node.broker.end_turn()

    node.process.post_turn(0, "marker", turn)
    node.pass_ms(0)


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_batches_come_as_message_sets(node, version: int, codec: int) -> None:
    now = node.process.clock.now().wall_ms
    for _ in range(2):
        write(node, *(Record(n, now + n, b"k", b"v%d" % n, (("h", b"x"),)) for n in range(3)), codec=codec)
    seen = node.fetch("t", 0, version)
    magic = FORMAT[version]
    assert (seen.error_code, seen.high_watermark) == (0, 6)
    assert [(m.offset, m.key, m.value) for m in messages(seen)] == [(n, b"k", b"v%d" % (n % 3)) for n in range(6)]
    assert {(m.magic, m.timestamp) for m in messages(seen)} == {(magic, now + n if magic else -1) for n in range(3)}
    assert [entry.codec for entry in entries(bytes(seen.records))] == [codec] * (2 if codec else 6)
    assert node.broker.metrics.value_of(CONVERSIONS, topic="t") == 6


def test_reading_from_the_midst_of_a_batch_begins_there(node) -> None:
    node.produce("t", b"a", b"b", b"c")
    assert values(node.fetch("t", 1, 2)) == [b"b", b"c"]


@pytest.mark.parametrize("version", [0, 3])
def test_a_large_region_is_converted_by_a_worker_while_the_connection_waits(node, version: int) -> None:
    sent = [b"%05d" % n + bytes(2 * AT_ONCE // 10) for n in range(20)]
    node.produce("t", *sent)
    waiting = node.send(node.fetch_request("t", 0), version)
    assert waiting.gate is Gate.WAIT
    assert not waiting.answered
    assert values(node.answer(waiting).responses[0].partitions[0]) == sent
    small = node.send(node.fetch_request("t", 20), version)
    assert small.gate is Gate.NEXT
    assert small.answered


def test_a_small_batch_that_expands_goes_to_the_worker(node) -> None:
    write(node, Record(0, 5, None, bytes(10 * AT_ONCE)), codec=1)
    waiting = node.send(node.fetch_request("t", 0), 2)
    assert waiting.gate is Gate.WAIT
    assert values(node.answer(waiting).responses[0].partitions[0]) == [bytes(10 * AT_ONCE)]


def test_a_bomb_is_refused(node) -> None:
    write(node, Record(0, 5, None, bytes(110 << 20)), codec=1)
    seen = node.fetch("t", 0, 2)
    assert (seen.error_code, bytes(seen.records)) == (ErrorCode.CORRUPT_MESSAGE, b"")


def test_an_answer_is_bounded_whatever_is_asked_for_and_every_partition_has_its_turn(node) -> None:
    node.create("many", partitions=4)
    big = bytes(ANSWER_MAX // 4)
    for partition in range(4):
        for _ in range(8):
            assert node.produce("many", big, partition=partition).error_code == 0
    request = node.fetch_request("many", 0, partition_max_bytes=2**31 - 1, max_bytes=2**31 - 1)
    for partition in range(1, 4):
        more = node.fetch_request("many", 0, partition=partition, partition_max_bytes=2**31 - 1)
        request.topics[0].partitions += more.topics[0].partitions
    served: set[int] = set()
    for _ in range(40):
        rows = node.ask(request, 1).responses[0].partitions
        assert sum(len(row.records) for row in rows) <= ANSWER_MAX
        served |= {row.partition_index for row in rows if len(row.records)}
    assert served == {0, 1, 2, 3}


def test_a_batch_larger_than_the_wish_comes_whole(node) -> None:
    node.produce("t", bytes(5000))
    assert values(node.fetch("t", 0, 0, partition_max_bytes=10)) == [bytes(5000)]


def test_control_batches_are_left_out(node) -> None:
    for value in (b"a", b"b", b"c"):
        node.produce("t", value)
        mark(node)
    assert values(node.fetch("t", 0, 2)) == [b"a", b"b", b"c"]
    assert values(node.fetch("t", 1, 2)) == [b"b", b"c"]
    assert values(node.fetch("t", 1, 0, partition_max_bytes=1)) == [b"b"]


def test_nothing_but_control_batches_is_nothing_to_read(node) -> None:
    """Else who reads at the end of a topic of transactions would ask without a pause."""
    node.produce("t", b"a")
    mark(node, 3)
    waiting = node.send(node.fetch_request("t", 1, max_wait_ms=500), 1)
    node.pass_ms(400)
    assert not waiting.answered
    node.produce("t", b"b")
    assert values(node.answer(waiting).responses[0].partitions[0]) == [b"b"]


@pytest.mark.parametrize("partition_max_bytes", [1, 1 << 20])
def test_any_number_of_control_batches_is_passed_over(node, partition_max_bytes: int) -> None:
    mark(node, 500)
    node.produce("t", b"a")
    seen = node.fetch("t", 0, 3, partition_max_bytes=partition_max_bytes)
    assert [(m.offset, m.value) for m in messages(seen)] == [(500, b"a")]


def test_nothing_to_read_waits_until_something_is_there(node) -> None:
    waiting = node.send(node.fetch_request("t", 0, max_wait_ms=500), 1)
    assert waiting.gate is Gate.WAIT
    node.pass_ms(499)
    assert not waiting.answered
    node.produce("t", b"a")
    assert values(node.answer(waiting).responses[0].partitions[0]) == [b"a"]


def test_zstd_has_its_error(node) -> None:
    node.produce("t", b"a", b"b")
    write(node, Record(0, 5, None, b"c"), codec=4)
    assert values(node.fetch("t", 0, 3)) == [b"a", b"b"]
    assert node.fetch("t", 2, 3).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    node.create("zstd", compression_type="zstd")
    node.produce("zstd", b"a")
    assert node.fetch("zstd", 0, 9).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert node.fetch("zstd", 0, 10).error_code == 0


def test_a_topic_may_refuse_to_convert(node) -> None:
    node.create("new", message_downconversion_enable="false")
    node.produce("new", b"a")
    assert node.fetch("new", 0, 3).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert node.fetch("new", 0, 4).error_code == 0


def test_out_of_range_and_unknown_have_their_errors(node) -> None:
    assert node.fetch("t", 9, 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert node.fetch("nowhere", 0, 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_cold_bytes_are_warmed_and_converted(node) -> None:
    node.produce("t", b"a", b"b")
    node.process.post_turn(0, "stop", node.broker.stop_broker, lambda _: None)
    node.pass_ms(5000)
    node.restart(Death.STOP)
    assert values(node.fetch("t", 0, 1)) == [b"a", b"b"]


def test_a_reader_that_is_gone_is_not_converted_for(node) -> None:
    node.produce("t", bytes(AT_ONCE * 2))
    waiting = node.send(node.fetch_request("t", 0), 2)
    node.process.post_turn(0, "gone", node.broker.on_gone, node.peer)
    node.pass_ms(1000)
    assert not waiting.answered
    assert values(node.fetch("t", 0, 2)) == [bytes(AT_ONCE * 2)], "the next one is served"


def test_damage_on_the_disk_gets_no_new_checksum(node) -> None:
    node.produce("t", b"value")
    log = node.partition("t").log.segments.active.file
    content = bytearray(log.size)
    log.read_now(0, memoryview(content))
    log.truncate(0)
    content[-3] ^= 1
    log.append([bytes(content)])
    seen = node.fetch("t", 0, 2)
    assert (seen.error_code, bytes(seen.records)) == (ErrorCode.CORRUPT_MESSAGE, b"")


@pytest.mark.parametrize(
    ("version", "code"), [(5, ErrorCode.NOT_LEADER_OR_FOLLOWER), (6, ErrorCode.KAFKA_STORAGE_ERROR)]
)
def test_old_versions_get_not_leader_for_storage_errors(node, version: int, code) -> None:
    node.partition("t").go_offline()
    assert node.fetch("t", 0, version).error_code == code
