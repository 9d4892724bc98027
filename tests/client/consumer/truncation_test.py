"""Leaders whose log differs from the records that were read, and leaders that redirect readers to their rack."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ottla.client import ConfigError, LogTruncatedError, TopicPartition
from ottla.client.consumer import Consumer, OffsetAndMetadata
from ottla.client.consumer.reset import OffsetReset, parse_reset
from ottla.errors import ErrorCode
from ottla.wire.apis import ApiKey
from ottla.wire.messages import FetchResponse, OffsetForLeaderEpochResponse

T0 = TopicPartition("t", 0)


class Leader:
    """One partition; a new leader, of epoch 1, whose log of epoch 0 ends at 3."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.epoch = 0
        broker.topics = {"t": 1}
        broker.on[ApiKey.METADATA] = self.metadata
        broker.on[ApiKey.FETCH] = self.fetch
        broker.on[ApiKey.OFFSET_FOR_LEADER_EPOCH] = self.epoch_end

    def metadata(self, request: Any) -> bytes:
        answer = self.broker.metadata_of(["t"])
        answer.topics[0].partitions[0].leader_epoch = self.epoch
        return request.reply(answer)

    def fetch(self, request: Any) -> bytes:
        (topic,) = request.message().topics
        (part,) = topic.partitions
        error = ErrorCode.NONE if part.current_leader_epoch == 1 else ErrorCode.FENCED_LEADER_EPOCH
        self.epoch = 1
        row = FetchResponse.PartitionData(partition_index=0, error_code=error, high_watermark=3)
        rows = [FetchResponse.FetchableTopicResponse(topic="t", topic_id=topic.topic_id, partitions=[row])]
        return request.reply(FetchResponse(responses=rows))

    def epoch_end(self, request: Any) -> bytes:
        part = OffsetForLeaderEpochResponse.EpochEndOffset(partition=0, leader_epoch=0, end_offset=3)
        rows = [OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic="t", partitions=[part])]
        return request.reply(OffsetForLeaderEpochResponse(topics=rows))

    def offsets(self) -> list[int]:
        """The offsets that were fetched from the new leader."""
        parts = [request.message().topics[0].partitions[0] for request in self.broker.asked(ApiKey.FETCH)]
        return [part.fetch_offset for part in parts if part.current_leader_epoch == 1]


def consumer(broker: Any, policy: str, **more: Any) -> Consumer:
    return Consumer({"bootstrap.servers": broker.bootstrap, "auto.offset.reset": policy, "retry.backoff.ms": 1, **more})


def poll_until(reader: Consumer, leader: Leader) -> None:
    for _ in range(1000):
        reader.poll(0.01)
        if leader.offsets():
            return
    pytest.fail("the new leader was not asked")


def test_a_log_that_was_cut_is_read_from_where_both_agree(broker: Any) -> None:
    leader = Leader(broker)
    with consumer(broker, "latest") as reader:
        reader.assign([T0])
        reader.seek(T0, OffsetAndMetadata(5, 0))
        poll_until(reader, leader)
        assert reader.position(T0) == 3
    assert leader.offsets()[0] == 3


def test_polls_shorter_than_a_leaders_answer_make_progress(broker: Any) -> None:
    leader = Leader(broker)

    def slowly(request: Any) -> bytes:
        time.sleep(0.1)
        return leader.epoch_end(request)

    broker.on[ApiKey.OFFSET_FOR_LEADER_EPOCH] = slowly
    with consumer(broker, "latest") as reader:
        reader.assign([T0])
        reader.seek(T0, OffsetAndMetadata(5, 0))
        poll_until(reader, leader)
        assert reader.position(T0) == 3


def test_a_log_that_was_cut_is_an_error_without_a_policy(broker: Any) -> None:
    leader = Leader(broker)
    with consumer(broker, "none") as reader:
        reader.assign([T0])
        reader.seek(T0, OffsetAndMetadata(5, 0))
        with pytest.raises(LogTruncatedError) as cut:
            poll_until(reader, leader)
        assert (cut.value.tp, cut.value.position, cut.value.diverged_at) == (T0, 5, 3)
        poll_until(reader, leader)
    assert leader.offsets()[0] == 3


def test_a_log_that_was_not_cut_is_read_on(broker: Any) -> None:
    leader = Leader(broker)
    with consumer(broker, "none", **{"client.rack": "here"}) as reader:
        reader.assign([T0])
        reader.seek(T0, OffsetAndMetadata(3, 0))
        poll_until(reader, leader)
    assert leader.offsets()[0] == 3
    assert broker.asked(ApiKey.FETCH)[0].message().rack_id == "here"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", OffsetReset(-2)),
        ("LATEST", OffsetReset(-1)),
        ("none", OffsetReset(None)),
        ("by_duration:P1DT2H3M4.5S", OffsetReset(None, 93_784_500)),
        ("by_duration:PT0.5S", OffsetReset(None, 500)),
    ],
)
def test_policies_are_read(text: str, expected: OffsetReset) -> None:
    assert parse_reset(text) == expected


@pytest.mark.parametrize("text", ["", "first", "by_duration", "by_duration:P", "by_duration:PT", "by_duration:-PT1S"])
def test_other_policies_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"auto\.offset\.reset"):
        parse_reset(text)


def test_a_duration_is_counted_back_from_now() -> None:
    assert parse_reset("by_duration:PT1S").timestamp_at(5_000) == 4_000
    assert parse_reset("by_duration:P9D").timestamp_at(5_000) == 0
