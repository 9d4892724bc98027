"""Topics with `message.format.version` below 0.11: what is produced is written as messages of format v0 or v1."""

from __future__ import annotations

import pytest
from tests.handcluster import HandCluster
from tests.messagesets import GZIP, message_set

from ottla.errors import ErrorCode
from ottla.record.batch import Record, encode_batch
from ottla.record.down_conversion import EXPANDED_MAX, RECORDS_MAX
from ottla.record.legacy import message_at
from ottla.record.log_entries import entries_of, records_at
from ottla.replication.produce.legacy_format_writes import IN_TURN, TRIES
from ottla.seams import Gate

CONVERSIONS = "kafka_server_brokertopicmetrics_producemessageconversions_total"
VERSIONS = {"0.8.2": 0, "0.9.0.1": 0, "0.10.0-IV0": 1, "0.10.2": 1}


def stored(node, name: str = "old") -> list[tuple[int, Record]]:
    """(format, record) of all that a reader gets."""
    content = bytes(node.fetch(name, 0).records or b"")
    return [
        (header[3], record)
        for at, header in entries_of(content)
        for record in records_at(content, at, max_bytes=1 << 24)
    ]


def send(node, batch: bytearray | bytes, name: str = "old", version: int = 9):
    request = node.produce_request(name, b"a")
    request.topic_data[0].partition_data[0].records = memoryview(bytes(batch))
    return node.send(request, version)


def produce(node, batch: bytearray | bytes, name: str = "old", version: int = 9):
    return node.answer(send(node, batch, name, version)).responses[0].partition_responses[0]


def jobs_of(node) -> list[str]:
    """The jobs that workers are given from now on."""
    jobs: list[str] = []
    workers = node.broker._world.workers
    run = workers.run_job
    workers.run_job = lambda job, *more: (jobs.append(job), run(job, *more))
    return jobs


def records(node, count: int, **more) -> list[Record]:
    now = node.process.clock.now().wall_ms
    return [Record(at, now + at, b"k%d" % at, b"v" * 50, **more) for at in range(count)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_batches_are_written_in_the_topics_format(node, version: str, codec: int) -> None:
    magic = VERSIONS[version]
    node.create("old", message_format_version=version)
    sent = records(node, 3)
    rows = [produce(node, encode_batch(sent, codec=codec)) for _ in range(2)]
    assert [(row.error_code, row.base_offset) for row in rows] == [(0, 0), (0, 3)]
    assert node.broker.metrics.value_of(CONVERSIONS, topic="old") == 6
    found = stored(node)
    assert [(format_, record.offset) for format_, record in found] == [(magic, at) for at in range(6)]
    expected = [record._replace(timestamp=record.timestamp if magic else -1) for record in sent] * 2
    assert [record[1:] for _, record in found] == [record[1:] for record in expected]
    content = bytes(node.fetch("old", 0).records)
    messages = [message_at(content, at) for at, _ in entries_of(content)]
    assert {message.codec for message in messages} == {codec}
    assert all(message.valid for message in messages)
    assert len(messages) == (2 if codec else 6)


def test_messages_of_old_clients_are_stored_in_the_topics_format(node) -> None:
    node.create("old", message_format_version="0.9.0")
    jobs = jobs_of(node)
    for codec in (0, GZIP):
        assert produce(node, message_set(0, codec, [(b"k", b"v", -1)] * 2), version=0).error_code == 0
    assert [(magic, record[:4]) for magic, record in stored(node)] == [(0, (at, -1, b"k", b"v")) for at in range(4)]
    assert jobs == [], "it is little"
    assert node.broker.metrics.value_of(CONVERSIONS, topic="old") == 4


def test_the_leaders_time_is_that_of_the_messages(node) -> None:
    node.create("old", message_format_version="0.10.1", message_timestamp_type="LogAppendTime")
    for codec in (0, GZIP):
        row = produce(node, encode_batch(records(node, 2), codec=codec))
        assert row.log_append_time_ms == node.process.clock.now().wall_ms
    content = bytes(node.fetch("old", 0).records)
    assert {message_at(content, at).attributes & 8 for at, _ in entries_of(content)} == {8}
    assert {record.timestamp for _, record in stored(node)} == {row.log_append_time_ms}


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        ({"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        ({"codec": 4}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ],
)
@pytest.mark.parametrize("version", ["0.9.0", "0.10.0"])
def test_batches_that_the_format_cannot_hold_are_refused(node, version: str, batch: dict, code: ErrorCode) -> None:
    node.create("old", message_format_version=version)
    row = produce(node, encode_batch(records(node, 2), **batch))
    assert (row.error_code, row.base_offset) == (code, -1)
    row = produce(node, encode_batch(records(node, 2, headers=(("h", b"x"),))))
    assert row.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert "headers" in row.error_message
    assert stored(node) == []
    assert node.produce("old", b"a").base_offset == 0


def test_a_batch_that_takes_a_turn_too_long_is_refused(node) -> None:
    node.create("old", message_format_version="0.10.0")
    many = [Record(at, 5, None, None) for at in range(RECORDS_MAX + 1)]
    assert produce(node, encode_batch(many, codec=1)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    large = [Record(0, 5, None, bytes(EXPANDED_MAX))]
    assert produce(node, encode_batch(large, codec=1)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert stored(node) == []


def test_the_format_of_a_topic_may_change(node) -> None:
    node.create("old", message_format_version="0.9.0")
    partition = node.broker.hosted.find_partition("old", 0)
    for version in ("0.9.0", "0.10.2", "2.8", "0.10.2"):
        partition.apply_config(partition.config.with_overrides({"message.format.version": version}))
        assert produce(node, encode_batch(records(node, 2), codec=1)).error_code == 0
    assert [magic for magic, _ in stored(node)] == [0, 0, 1, 1, 2, 2, 1, 1]
    assert [record.offset for _, record in stored(node)] == list(range(8))


def test_a_set_larger_than_a_segment_is_refused(node) -> None:
    node.create("old", message_format_version="0.10.0", segment_bytes="1000")
    row = produce(node, encode_batch([Record(0, 5, None, b"v" * 990)]))
    assert row.error_code in (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.MESSAGE_TOO_LARGE)
    assert stored(node) == []


def test_a_coordinator_keeps_its_records_in_batches_whatever_the_brokers_default(node) -> None:
    partition = node.broker.hosted.find_partition("t", 0)
    partition.apply_config(partition.config.with_overrides({"message.format.version": "0.9.0"}))
    batch = encode_batch(records(node, 1), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    assert partition.append_own(memoryview(batch), node.process.clock.now()) == 0
    assert [magic for magic, _ in stored(node, "t")] == [2]


@pytest.mark.parametrize("version", ["0.9.0", "0.10.0"])
@pytest.mark.parametrize("codec", [0, 1])
def test_a_large_batch_is_converted_by_a_worker_while_the_connection_waits(node, version: str, codec: int) -> None:
    node.create("old", message_format_version=version)
    sent = records(node, 2000)
    jobs = jobs_of(node)
    waiting = send(node, encode_batch(sent, codec=codec))
    assert waiting.gate is Gate.WAIT
    assert not waiting.answered
    assert node.answer(waiting).responses[0].partition_responses[0].base_offset == 0
    assert jobs == ["ottla.record.down_conversion:lower_job"]
    assert [(record.offset, record.value) for _, record in stored(node)] == [(at, b"v" * 50) for at in range(2000)]
    assert {format_ for format_, _ in stored(node)} == {VERSIONS["0.9.0.1" if version == "0.9.0" else "0.10.2"]}


def test_an_append_in_between_causes_another_conversion(node) -> None:
    node.create("old", message_format_version="0.9.0")
    sent = records(node, 500)
    jobs = jobs_of(node)
    waiting = send(node, encode_batch(sent, codec=1))
    assert produce(node, encode_batch(records(node, 3), codec=1)).base_offset == 0, "it is small, and overtakes"
    assert node.answer(waiting).responses[0].partition_responses[0].base_offset == 3
    assert len(jobs) == 2
    assert [record.offset for _, record in stored(node)] == list(range(503))


def test_a_batch_converted_for_another_offset_is_not_written(node) -> None:
    """Another batch comes to the first partition while a worker has the second one's."""
    node.create("old", partitions=2, message_format_version="0.9.0")
    request = node.produce_request("old", b"a")
    request.topic_data[0].partition_data += node.produce_request("old", b"a", partition=1).topic_data[0].partition_data
    for data in request.topic_data[0].partition_data:
        data.records = memoryview(bytes(encode_batch(records(node, 500), codec=1)))
    jobs = jobs_of(node)
    waiting = node.send(request, 9)
    while len(jobs) < 2:
        node.pass_ms(1)
    assert produce(node, encode_batch(records(node, 3), codec=1)).base_offset == 0
    rows = node.answer(waiting).responses[0].partition_responses
    assert [(row.index, row.error_code, row.base_offset) for row in rows] == [(0, 0, 3), (1, 0, 0)]
    assert [record.offset for _, record in stored(node)] == list(range(503))


def test_a_batch_that_others_overtake_again_and_again_is_to_be_sent_again(node) -> None:
    """It is never converted in the loop."""
    node.create("old", message_format_version="0.9.0")
    jobs = jobs_of(node)
    waiting = send(node, encode_batch(records(node, 500), codec=1))
    for count in range(1, TRIES + 1):
        while len(jobs) < count:
            node.pass_ms(1)
        assert produce(node, encode_batch(records(node, 1))).error_code == 0
    row = node.answer(waiting).responses[0].partition_responses[0]
    assert (row.error_code, len(jobs)) == (ErrorCode.NOT_ENOUGH_REPLICAS, TRIES)
    assert len(stored(node)) == TRIES
    assert produce(node, encode_batch(records(node, 500), codec=1)).error_code == 0


def test_of_many_small_batches_a_few_are_converted_in_a_turn(node) -> None:
    node.create("old", partitions=20, message_format_version="0.10.2")
    request = node.produce_request("old", b"a")
    data = request.topic_data[0].partition_data
    for at in range(1, 20):
        data += node.produce_request("old", b"a", partition=at).topic_data[0].partition_data
    jobs = jobs_of(node)
    rows = node.ask(request, 9).responses[0].partition_responses
    assert {row.error_code for row in rows} == {0}
    assert len(jobs) == 20 - IN_TURN


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_batches_that_expand_far_are_not_converted_in_the_loop(node, kind: str) -> None:
    node.create("old", message_format_version="0.10.2", message_timestamp_type=kind)
    jobs = jobs_of(node)
    now = node.process.clock.now().wall_ms
    small = encode_batch([Record(0, now, b"k", bytes(200_000))], codec=1)
    assert len(small) < 1000
    row = produce(node, small)
    assert jobs == ["ottla.record.down_conversion:lower_job"]
    ((_, record),) = stored(node)
    assert (row.error_code, record.value) == (0, bytes(200_000))
    if kind == "LogAppendTime":
        assert now <= row.log_append_time_ms == record.timestamp


def test_a_worker_refuses_as_the_append_does(node) -> None:
    node.create("old", message_format_version="0.10.0")
    named = encode_batch(records(node, 500, headers=(("h", b"x"),)))
    assert produce(node, named).error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    owned = encode_batch(records(node, 500), producer_id=1, producer_epoch=0, base_sequence=0)
    assert produce(node, owned).error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    twice = bytes(encode_batch(records(node, 500)) * 2)
    assert produce(node, twice).error_code == ErrorCode.INVALID_RECORD
    assert stored(node) == []


def test_log_append_time_is_stamped_by_the_worker(node) -> None:
    node.create("old", message_format_version="0.10.0", message_timestamp_type="LogAppendTime")
    jobs = jobs_of(node)
    row = produce(node, encode_batch(records(node, 500)))
    assert {record.timestamp for _, record in stored(node)} == {row.log_append_time_ms}
    assert jobs == ["ottla.record.down_conversion:lower_job"]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.9.0", "0.10.0"])
def test_followers_have_the_leaders_messages_and_can_lead_with_them(version: str) -> None:
    """Messages do not contain a leader epoch; a former leader still finds out what was never committed."""
    three = HandCluster(brokers=3)
    three.create("old", (1, 2, 3), message_format_version=version, min_insync_replicas="2")
    first = three.leader("old")
    for codec in (0, 1, 2):
        batch = encode_batch(records(first, 3), codec=codec)
        request = first.produce_request("old", b"a")
        request.topic_data[0].partition_data[0].records = memoryview(bytes(batch))
        assert first.ask(request, 9).responses[0].partition_responses[0].error_code == 0
    three.until(lambda: all(m.partition("old").high_watermark == 9 for m in three), "all have it")
    assert {m.partition("old").log.epochs.entries for m in three} == {first.partition("old").log.epochs.entries}
    files = {bytes(m.read("old-0/00000000000000000000.log")) for m in three}
    assert len(files) == 1
    first.kill()
    second = three.leader("old", other_than=first.node_id)
    assert second.produce("old", b"second").base_offset == 9
    first.start()
    three.until(lambda: first.up and first.partition("old") is not None, "the first one is back")
    three.until(lambda: first.partition("old").high_watermark == 10, "and follows")
    assert [m.partition("old").log.epochs.entries for m in three].count(second.partition("old").log.epochs.entries) == 3
    assert len({bytes(m.read("old-0/00000000000000000000.log")) for m in three}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.9.0", "0.10.0"])
def test_uncommitted_messages_are_truncated_by_epochs(version: str) -> None:
    three = HandCluster(brokers=3)
    three.create("old", (1, 2, 3), message_format_version=version, min_insync_replicas="1")
    first = three.leader("old")
    assert first.produce("old", b"common").error_code == 0
    three.until(lambda: all(m.partition("old").high_watermark == 1 for m in three), "all have it")
    others = [member for member in three if member is not first]
    for member in others:
        member.kill()
    first.produce("old", b"lost", b"too", acks=1)
    first.kill()
    for member in others:
        member.start()
    second = three.leader("old", other_than=first.node_id)
    assert second.produce("old", b"kept").base_offset == 1
    first.start()
    three.until(lambda: first.up and first.partition("old") is not None, "the first one is back")
    three.until(lambda: first.partition("old").high_watermark == 2, "and follows")
    assert first.read("old-0/00000000000000000000.log") == second.read("old-0/00000000000000000000.log")
    assert second.values("old") == [b"common", b"kept"]
