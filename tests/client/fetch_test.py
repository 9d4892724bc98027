"""Fetching from positions."""

from __future__ import annotations

import pytest

from ottla.client import (
    Cluster,
    CorruptBatchError,
    DeadlineError,
    Fetcher,
    MalformedReplyError,
    RefusedError,
    TopicPartition,
    fetch_range,
    records_in,
)
from ottla.errors import ErrorCode
from ottla.record.batch import Record, encode_batch
from ottla.wire.apis import ApiKey
from ottla.wire.messages import FetchResponse

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


def batch(offset: int, count: int = 1) -> bytes:
    return bytes(encode_batch([Record(offset + n, 0, None, b"v") for n in range(count)], base_offset=offset))


class Leader:
    """Serves batches of partitions, one per fetch."""

    def __init__(self, broker) -> None:
        self.broker = broker
        self.batches: dict[int, list[bytes]] = {0: [], 1: []}
        self.errors: list[int] = []
        self.high_watermark: int | None = None
        broker.topics = {"t": 2}
        broker.on[ApiKey.FETCH] = self.fetch

    def fetch(self, request):
        error = self.errors.pop(0) if self.errors else 0
        topics = []
        for topic in request.message().topics:
            parts = [self.part(part, error) for part in topic.partitions]
            answer = FetchResponse.FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=parts)
            topics.append(answer)
        return request.reply(FetchResponse(responses=topics))

    def part(self, part, error: int) -> FetchResponse.PartitionData:
        ends = [
            int.from_bytes(b[:8], "big") + int.from_bytes(b[23:27], "big") + 1 for b in self.batches[part.partition]
        ]
        found = [b for b, end in zip(self.batches[part.partition], ends, strict=True) if end > part.fetch_offset]
        high = max(ends, default=0) if self.high_watermark is None else self.high_watermark
        return FetchResponse.PartitionData(
            partition_index=part.partition,
            error_code=error,
            high_watermark=high,
            last_stable_offset=high,
            log_start_offset=0,
            aborted_transactions=None,
            records=memoryview(found[0] if found and not error else b""),
        )


@pytest.fixture
def leader(broker) -> Leader:
    return Leader(broker)


def read(fetcher: Fetcher, count: int) -> list[tuple[TopicPartition, int]]:
    seen: list[tuple[TopicPartition, int]] = []
    while len(seen) < count:
        for fetched in fetcher.poll(20_000):
            assert fetched.error is None
            seen += [(fetched.tp, record.offset) for record in records_in(fetched)]
    return seen


def test_positions_move_after_the_fetched_batches(leader, cluster) -> None:
    leader.batches = {0: [batch(0, 3), batch(3)], 1: [batch(0), batch(1)]}
    fetcher = Fetcher(cluster, {T0: 1, T1: 0})
    assert sorted(read(fetcher, 5)) == [(T0, 1), (T0, 2), (T0, 3), (T1, 0), (T1, 1)]
    assert fetcher.positions == {T0: 4, T1: 2}


def test_the_next_fetch_is_on_its_way_while_the_caller_works(leader, cluster) -> None:
    leader.batches[0] = [batch(0), batch(1)]
    fetcher = Fetcher(cluster, {T0: 0})
    fetcher.poll(20_000)
    cluster.refresh()  # its answer follows that of the second fetch
    assert [r.message().topics[0].partitions[0].fetch_offset for r in leader.broker.asked(ApiKey.FETCH)] == [0, 1]
    assert read(fetcher, 1) == [(T0, 1)]


def test_an_empty_answer_means_that_the_end_is_reached(leader, cluster) -> None:
    leader.high_watermark = 9  # compaction removed the records between
    (fetched,) = Fetcher(cluster, {T0: 5}).poll(20_000)
    assert (fetched.next_offset, fetched.end_offset, fetched.caught_up) == (5, 9, True)
    assert list(records_in(fetched)) == []


def test_out_of_range_stops_the_partition_until_seek(leader, cluster) -> None:
    leader.batches[0] = [batch(0)]
    leader.errors = [ErrorCode.OFFSET_OUT_OF_RANGE]
    fetcher = Fetcher(cluster, {T0: 99})
    (fetched,) = fetcher.poll(20_000)
    assert isinstance(fetched.error, RefusedError)
    assert fetched.error.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert "offset 99" in str(fetched.error)
    assert fetcher.poll(20_000) == []
    fetcher.seek(T0, 0)
    assert read(fetcher, 1) == [(T0, 0)]


def test_an_answer_from_before_a_seek_is_not_returned(leader, cluster) -> None:
    leader.batches[0] = [batch(0), batch(1), batch(2), batch(3)]
    fetcher = Fetcher(cluster, {T0: 0})
    fetcher.poll(20_000)  # the fetch from 1 is unanswered
    fetcher.seek(T0, 3)
    assert read(fetcher, 1) == [(T0, 3)]


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID])
def test_a_moved_leader_is_looked_up_again(leader, cluster, code: ErrorCode) -> None:
    leader.batches[0] = [batch(0)]
    leader.errors = [code, code]
    assert read(Fetcher(cluster, {T0: 0}), 1) == [(T0, 0)]
    assert len(leader.broker.asked(ApiKey.METADATA)) == 3


def test_a_lost_connection_is_made_again(leader, cluster) -> None:
    leader.batches[0] = [batch(0), batch(1)]
    answers = iter([None])
    leader.broker.on[ApiKey.FETCH] = lambda request: next(answers, leader.fetch(request))
    assert read(Fetcher(cluster, {T0: 0}), 2) == [(T0, 0), (T0, 1)]


@pytest.mark.slow  # waits for the whole timeout, which is long enough for a busy machine
def test_the_last_error_is_raised_when_nothing_succeeds_for_long(leader, config) -> None:
    leader.errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 10_000
    with Cluster(config(default_api_timeout_ms=1_000)) as cluster, pytest.raises(DeadlineError, match="NOT_LEADER"):
        Fetcher(cluster, {T0: 0}).poll(20_000)


def test_a_topic_that_does_not_exist(leader, cluster) -> None:
    with pytest.raises(RefusedError, match="topic nope: UNKNOWN_TOPIC_OR_PARTITION"):
        Fetcher(cluster, {TopicPartition("nope", 0): 0}).poll(20_000)


def test_data_of_a_partition_that_was_not_requested_is_refused(leader, cluster) -> None:
    part = FetchResponse.PartitionData(partition_index=1, records=memoryview(batch(0)))
    topics = [FetchResponse.FetchableTopicResponse(topic="t", topic_id=b"t".ljust(16, b"\1"), partitions=[part])]
    leader.broker.on[ApiKey.FETCH] = lambda request: request.reply(FetchResponse(responses=topics))
    with pytest.raises(MalformedReplyError, match="t-1, which was not requested"):
        Fetcher(cluster, {T0: 0}).poll(20_000)


@pytest.mark.parametrize("data", [b"x", batch(0)[:-1], batch(7)[:16] + b"\7" + batch(7)[17:]])
def test_corrupt_data_stops_its_partition_only(leader, cluster, data: bytes) -> None:
    leader.batches[1] = [batch(0)]
    plain = leader.part
    leader.part = lambda part, error: _with(plain(part, error), data) if part.partition == 0 else plain(part, error)
    fetcher = Fetcher(cluster, {T0: 0, T1: 0})
    results = {fetched.tp: fetched for fetched in fetcher.poll(20_000)}
    assert isinstance(results[T0].error, CorruptBatchError)
    assert len(results[T0].records) == 0
    assert [record.offset for record in records_in(results[T1])] == [0]


def _with(part: FetchResponse.PartitionData, data: bytes) -> FetchResponse.PartitionData:
    part.records = memoryview(data)
    return part


def test_a_range_ends_where_it_should(leader, cluster) -> None:
    leader.batches[0] = [batch(0, 3), batch(3, 3), batch(6, 3)]
    found = [record.offset for fetched in fetch_range(cluster, T0, 1, 5) for record in records_in(fetched)]
    assert found == [1, 2, 3, 4, 5], "whole batches: the last one reaches beyond"
    assert [r.message().topics[0].partitions[0].fetch_offset for r in leader.broker.asked(ApiKey.FETCH)] == [1, 3]


def test_a_range_ends_when_compaction_left_nothing(leader, cluster) -> None:
    leader.batches[0] = [batch(0)]
    leader.high_watermark = 10
    assert len(list(fetch_range(cluster, T0, 0, 10))) == 1


def test_an_empty_range_asks_nothing(leader, cluster) -> None:
    assert list(fetch_range(cluster, T0, 5, 5)) == []
    assert leader.broker.requests == []


def test_brokers_without_topic_ids_are_asked_by_name(leader, cluster) -> None:
    leader.broker.versions[ApiKey.METADATA] = (0, 9)
    leader.batches[0] = [batch(0)]
    assert read(Fetcher(cluster, {T0: 0}), 1) == [(T0, 0)]
    assert leader.broker.asked(ApiKey.FETCH)[0].version == 12


def test_partitions_end_one_by_one(leader, cluster) -> None:
    leader.batches = {0: [batch(0), batch(1)], 1: [batch(0)]}
    fetcher = Fetcher(cluster, {T0: 0, T1: 0}, until={T0: 2, T1: 1})
    assert len(read(fetcher, 3)) == 3
    assert not fetcher.active
    assert fetcher.poll(20_000) == []


def test_a_closed_fetcher_leaves_the_connection_to_others(leader, cluster) -> None:
    leader.batches[0] = [batch(0), batch(1), batch(2)]
    fetcher = Fetcher(cluster, {T0: 0})
    fetcher.poll(20_000)
    fetcher.close()
    assert not fetcher.active
    assert read(Fetcher(cluster, {T0: 2}), 1) == [(T0, 2)]
