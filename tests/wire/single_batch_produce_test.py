"""The request of one batch by hand, and its answer, against the compiled codec.

Zone: real.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ottla.wire.apis import ApiKey
from ottla.wire.codec import encode_bytes
from ottla.wire.header import encode_request_header, response_header
from ottla.wire.messages import ProduceRequest, ProduceResponse
from ottla.wire.single_batch_produce import FIRST_VERSION, LoneAnswer, LoneProduce

VERSIONS = range(FIRST_VERSION, ProduceRequest.VERSIONS[-1] + 1)
versions = st.sampled_from(VERSIONS)
texts = st.text(st.characters(codec="utf-8"), max_size=200)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
TOPIC_ID = bytes(range(16))


def lone(version: int, topic: str = "t", partition: int = 3) -> LoneProduce:
    return LoneProduce(version, "c", None, -1, 30_000, topic, TOPIC_ID, partition)


@pytest.mark.slow
@given(
    versions,
    st.none() | texts,
    st.none() | texts,
    st.integers(-1, 1),
    int32s,
    texts,
    st.binary(min_size=16, max_size=16),
    int32s,
    st.integers(0, 2**31 - 1),
    st.sampled_from([0, 1, 61, 126, 127, 128, 16_382, 16_383, 16_384, 70_000]),
)
def test_a_request_is_what_the_compiled_codec_writes(
    version, client, transactional, acks, timeout_ms, topic, topic_id, partition, number, size
):
    records = bytes(size)
    request = ProduceRequest(
        transactional_id=transactional,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic,
                topic_id=topic_id,
                partition_data=[ProduceRequest.PartitionProduceData(index=partition, records=records)],
            )
        ],
    )
    expected = encode_request_header(ApiKey.PRODUCE, version, number, client) + encode_bytes(request, version)
    layout = LoneProduce(version, client, transactional, acks, timeout_ms, topic, topic_id, partition)
    found = layout.frame_head(number, size) + records + layout.tail
    assert found == len(expected).to_bytes(4, "big") + expected


def answer(version: int, part: ProduceResponse.PartitionProduceResponse, topic: str = "t", **more: object) -> bytes:
    one = ProduceResponse.TopicProduceResponse(name=topic, topic_id=TOPIC_ID, partition_responses=[part])
    header = response_header(ApiKey.PRODUCE, version, 77)
    return header + encode_bytes(ProduceResponse(responses=[one], **more), version)


@pytest.mark.slow
@given(versions, texts, int32s, int64s, int64s, int64s, int32s)
def test_the_usual_answer_is_read(version, topic, partition, base_offset, append_ms, log_start, throttle_ms):
    part = ProduceResponse.PartitionProduceResponse(
        index=partition, base_offset=base_offset, log_append_time_ms=append_ms, log_start_offset=log_start
    )
    frame = answer(version, part, topic, throttle_time_ms=throttle_ms)
    found = lone(version, topic, partition).read(memoryview(frame))
    assert found == LoneAnswer(base_offset, append_ms, throttle_ms)


UNUSUAL = {
    "an error": ({"error_code": 6}, {}, 0),
    "another partition": ({"index": 4}, {}, 0),
    "a text": ({"error_message": "x"}, {}, 8),
    "the records that are wrong": (
        {"record_errors": [ProduceResponse.BatchIndexAndErrorMessage(batch_index=0)]}, {}, 8
    ),
    "a leader": ({"current_leader": ProduceResponse.LeaderIdAndEpoch(leader_id=1, leader_epoch=2)}, {}, 10),
    "addresses": ({}, {"node_endpoints": [ProduceResponse.NodeEndpoint(node_id=1, host="h", port=9)]}, 10),
}  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_any_other_answer_is_left_to_the_compiled_codec(version):
    layout = lone(version)
    for what, (changed, more, since) in UNUSUAL.items():
        part = ProduceResponse.PartitionProduceResponse(**{"index": 3, "base_offset": 5, **changed})
        if version >= since:
            assert layout.read(memoryview(answer(version, part, **more))) is None, what
    part = ProduceResponse.PartitionProduceResponse(index=3, base_offset=5)
    if version < 13:
        assert layout.read(memoryview(answer(version, part, "u"))) is None, "another topic"
    two = ProduceResponse.TopicProduceResponse(name="t", topic_id=TOPIC_ID, partition_responses=[part, part])
    whole = response_header(ApiKey.PRODUCE, version, 77) + encode_bytes(ProduceResponse(responses=[two]), version)
    assert layout.read(memoryview(whole)) is None, "two partitions"


@given(versions, st.binary(max_size=120))
@example(9, b"")
def test_junk_is_not_a_response(version, junk):
    layout = lone(version)
    assert layout.read(memoryview(junk)) is None
    part = ProduceResponse.PartitionProduceResponse(index=3, base_offset=5)
    frame = answer(version, part)
    assert layout.read(memoryview(frame + b"\0")) is None
    for end in range(len(frame)):
        assert layout.read(memoryview(frame)[:end]) is None
