"""The hand-written codec of a follower's Fetch agrees with the compiled codec."""

from __future__ import annotations

import random
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.wire import hot
from ottla.wire.codec import encode_bytes
from ottla.wire.errors import MalformedMessage
from ottla.wire.hot_replica import Limits, decode_replica_fetch, encode_replica_fetch
from ottla.wire.messages import FetchRequest, FetchResponse

LIMITS = Limits(3, 500, 1, 10 << 20)
INT32, INT64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)


def topics(version: int) -> st.SearchStrategy[str | bytes]:
    return st.binary(min_size=16, max_size=16) if version >= 13 else st.text("abc", min_size=1, max_size=5)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([11, 12, 13, 14, 15, 16, 17]), st.data())
def test_a_request_is_read_by_a_leader_as_it_was_meant(version: int, data: st.DataObject) -> None:
    topic = topics(version)
    last_epoch = INT32 if version >= 12 else st.just(-1)
    wanted = data.draw(st.lists(st.tuples(topic, INT32, INT32, INT64, last_epoch, INT64, INT32), max_size=200))
    forgotten = data.draw(st.lists(st.tuples(topic, INT32), max_size=150))
    epochs = (data.draw(INT64), data.draw(INT32), data.draw(INT32))
    body = encode_replica_fetch(version, LIMITS)(*epochs, wanted, forgotten)
    read = hot.decode_fetch(version)(memoryview(body), 0)
    assert read[:7] == (3, 500, 1, 10 << 20, 0, *epochs[1:])
    by_topic = {row[0]: at for at, row in reversed(list(enumerate(wanted)))}
    assert read.partitions == sorted(wanted, key=lambda row: by_topic[row[0]])
    by_topic = {row[0]: at for at, row in reversed(list(enumerate(forgotten)))}
    assert read.forgotten == sorted(forgotten, key=lambda row: by_topic[row[0]])
    assert read.replica_epoch == (epochs[0] if version >= 15 else -1)


def flattened(response: FetchResponse, version: int):
    rows = []
    for topic in response.responses:
        for one in topic.partitions:
            parting = one.diverging_epoch
            known = parting.epoch >= 0 or parting.end_offset >= 0
            diverging = (parting.epoch, parting.end_offset) if known else None
            name = topic.topic_id if version >= 13 else topic.topic
            where = (name, one.partition_index, one.error_code, one.high_watermark, one.log_start_offset, diverging)
            rows.append((*where, bytes(one.records or b"")))
    return response.error_code, response.session_id, rows


def read(frame: bytes, version: int, pos: int = 0):
    error, session_id, rows = decode_replica_fetch(version)(memoryview(frame), pos)
    return error, session_id, [(*row[:6], bytes(row[6])) for row in rows]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(range(11, 19)), st.randoms(use_true_random=False))
def test_an_answer_is_read_alike(grammar: ModuleType, version: int, rng: random.Random) -> None:
    response = grammar.message(rng, FetchResponse, version)
    assert read(b"head" + encode_bytes(response, version), version, 4) == flattened(response, version)


@pytest.mark.parametrize("count", [0, 1, 2, 126, 127, 200])
def test_a_usual_answer_of_every_length(count: int) -> None:
    partition = FetchResponse.PartitionData
    for records in (b"", b"r", bytes(126), bytes(127), bytes(20_000)):
        rows = [partition(partition_index=at, high_watermark=at, records=records) for at in range(count)]
        topic = FetchResponse.FetchableTopicResponse(topic_id=b"t" * 16, partitions=rows)
        response = FetchResponse(session_id=5, responses=[topic, topic])
        assert read(encode_bytes(response, 17), 17) == flattened(response, 17)


def test_a_cut_answer_is_refused_at_every_byte() -> None:
    row = FetchResponse.PartitionData(high_watermark=4, records=b"records")
    topic = FetchResponse.FetchableTopicResponse(topic_id=b"t" * 16, partitions=[row])
    frame = encode_bytes(FetchResponse(responses=[topic]), 17)
    for size in range(len(frame)):
        with pytest.raises(MalformedMessage):
            decode_replica_fetch(17)(memoryview(frame[:size]), 0)


def test_records_are_not_copied() -> None:
    row = FetchResponse.PartitionData(records=bytes(1000))
    topic = FetchResponse.FetchableTopicResponse(topic_id=b"t" * 16, partitions=[row])
    frame = bytearray(encode_bytes(FetchResponse(responses=[topic]), 17))
    records = decode_replica_fetch(17)(memoryview(frame), 0).rows[0][6]
    assert records.obj is frame


def test_a_request_has_no_fields_beyond_the_usual() -> None:
    body = encode_replica_fetch(17, LIMITS)(9, 4, 2, [(b"i" * 16, 1, 2, 3, 4, 5, 6)], [(b"o" * 16, 7)])
    request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=10 << 20, session_id=4, session_epoch=2)
    request.replica_state = FetchRequest.ReplicaState(replica_id=3, replica_epoch=9)
    one = FetchRequest.FetchPartition(partition=1, current_leader_epoch=2, fetch_offset=3, last_fetched_epoch=4)
    one.log_start_offset, one.partition_max_bytes = 5, 6
    request.topics = [FetchRequest.FetchTopic(topic_id=b"i" * 16, partitions=[one])]
    request.forgotten_topics_data = [FetchRequest.ForgottenTopic(topic_id=b"o" * 16, partitions=[7])]
    assert body == encode_bytes(request, 17)
