"""The hand-written codecs of Produce and Fetch agree with the compiled codec, and refuse the same input."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.peak import peak_of

from ottla.seams import Part, Region
from ottla.wire import hot
from ottla.wire.codec import decode, encode, encode_bytes
from ottla.wire.errors import ImpossibleLength, MalformedMessage
from ottla.wire.limits import ALLOWANCE, AMPLIFICATION
from ottla.wire.messages import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse
from ottla.wire.primitives import uvarint

PRODUCE = st.sampled_from(ProduceRequest.VERSIONS)
FETCH = st.sampled_from(FetchRequest.VERSIONS)
INT16, INT32, INT64 = (st.integers(-(1 << bits), (1 << bits) - 1) for bits in (15, 31, 63))
NAMES = st.text(max_size=12) | st.sampled_from(["topic", "a" * 126, "b" * 127, "c" * 249])
IDS = st.binary(min_size=16, max_size=16)
RECORDS = st.binary(max_size=40) | st.sampled_from([bytes(126), bytes(127), bytes(128), bytes(16383), bytes(16384)])


def flattened_produce(request: ProduceRequest, version: int) -> tuple[Any, ...]:
    entries = [
        (topic.topic_id if version >= 13 else topic.name, partition.index, partition.records)
        for topic in request.topic_data
        for partition in topic.partition_data
    ]
    return request.transactional_id, request.acks, request.timeout_ms, entries


def flattened_fetch(r: FetchRequest, version: int) -> tuple[Any, ...]:
    wanted, forgotten = [], []
    for topic in r.topics:
        for p in topic.partitions:
            where = (topic.topic_id if version >= 13 else topic.topic, p.partition, p.current_leader_epoch)
            wanted.append((*where, p.fetch_offset, p.last_fetched_epoch, p.log_start_offset, p.partition_max_bytes))
    for gone in r.forgotten_topics_data:
        forgotten += [(gone.topic_id if version >= 13 else gone.topic, p) for p in gone.partitions]
    head = (r.max_wait_ms, r.min_bytes, r.max_bytes, r.isolation_level, r.session_id, r.session_epoch)
    replica = r.replica_state.replica_id if version >= 15 else r.replica_id
    return (replica, *head, wanted, forgotten, r.rack_id, r.replica_state.replica_epoch)


def produce_request(topics: int, partitions: int, records: bytes | None, tid: str | None = None) -> ProduceRequest:
    data = ProduceRequest.PartitionProduceData
    return ProduceRequest(
        transactional_id=tid,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=f"topic-{t}",
                topic_id=bytes([t % 256]) * 16,
                partition_data=[data(index=p, records=records) for p in range(partitions)],
            )
            for t in range(topics)
        ],
    )


def fetch_request(topics: int, partitions: int) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        topics=[
            FetchRequest.FetchTopic(
                topic=f"topic-{t}",
                topic_id=bytes([t % 256]) * 16,
                partitions=[FetchRequest.FetchPartition(partition=p, fetch_offset=1 << 40) for p in range(partitions)],
            )
            for t in range(topics)
        ],
    )


# Requests.

SHAPES = [(0, 0), (1, 0), (1, 1), (1, 2), (2, 1), (3, 5), (1, 126), (1, 127), (1, 200), (126, 1), (127, 1), (130, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_produce_of_every_shape(shape: tuple[int, int]) -> None:
    for version in ProduceRequest.VERSIONS:
        small = shape[0] * shape[1] < 100
        for records in (b"", b"r", bytes(127), bytes(20_000), None) if small else (b"r",):
            for tid in (None, "", "tx", "t" * 200) if version >= 3 and small else (None,):
                request = produce_request(*shape, records, tid)
                frame = memoryview(bytearray(b"head" + encode_bytes(request, version)))
                assert hot.decode_produce(version)(frame, 4) == flattened_produce(request, version)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fetch_of_every_shape(shape: tuple[int, int]) -> None:
    for version in FetchRequest.VERSIONS:
        request = fetch_request(*shape)
        frame = memoryview(bytearray(b"head" + encode_bytes(request, version)))
        assert hot.decode_fetch(version)(frame, 4) == flattened_fetch(request, version)


@settings(max_examples=60, deadline=None)
@given(PRODUCE, st.randoms(use_true_random=False))
def test_produce_requests_are_read_alike(grammar: ModuleType, version: int, rng: random.Random) -> None:
    request = grammar.message(rng, ProduceRequest, version)
    data = encode_bytes(request, version)
    assert hot.decode_produce(version)(memoryview(data), 0) == flattened_produce(request, version)


@settings(max_examples=60, deadline=None)
@given(FETCH, st.randoms(use_true_random=False))
def test_fetch_requests_are_read_alike(grammar: ModuleType, version: int, rng: random.Random) -> None:
    request = grammar.message(rng, FetchRequest, version)
    data = encode_bytes(request, version)
    assert hot.decode_fetch(version)(memoryview(data), 0) == flattened_fetch(request, version)


def test_a_follower_names_itself_in_a_tag() -> None:
    request = fetch_request(1, 2)
    request.replica_state = FetchRequest.ReplicaState(replica_id=5, replica_epoch=77)
    for version in range(15, 19):
        fetched = hot.decode_fetch(version)(memoryview(encode_bytes(request, version)), 0)
        assert (fetched.replica_id, fetched.replica_epoch, len(fetched.partitions)) == (5, 77, 2)
    request = fetch_request(1, 2)
    request.replica_id = 5
    assert hot.decode_fetch(12)(memoryview(encode_bytes(request, 12)), 0).replica_id == 5


@pytest.mark.parametrize("tags", [b"\1\1\x08" + bytes(8), b"\1\0\x10" + bytes(16), b"\1\0\2ab", b"\1\1\2ab", b"\1\7\0"])
def test_tags_of_a_partition(tags: bytes) -> None:
    for version in range(12, 19):
        plain = encode_bytes(fetch_request(1, 1), version)
        at = len(plain) - len(b"\0\0\1\1\0")  # partition's tags, topic's tags, nothing forgotten, no rack, tags
        assert plain[at:] == b"\0\0\1\1\0"
        both(hot.decode_fetch(version), plain[:at] + tags + plain[at + 1 :], FetchRequest, version, flattened_fetch)


def test_racks() -> None:
    request = fetch_request(1, 1)
    for request.rack_id in ("", "r", "zone-a" * 40):
        for version in range(11, 19):
            fetched = hot.decode_fetch(version)(memoryview(encode_bytes(request, version)), 0)
            assert fetched.rack_id == request.rack_id


@pytest.mark.parametrize("behind", [b"", b"\1\0\0", b"\1\0\1\0"])
@pytest.mark.parametrize("name_id", [b"\0", b"\2a"])
def test_a_produce_without_topics_ends_where_the_compiled_codec_says(name_id: bytes, behind: bytes) -> None:
    frame = name_id + b"\xff\xff\0\0\0\1" + b"\1" + behind  # acks, time-out, an empty array of topics
    for version in range(9, 14):
        both(hot.decode_produce(version), frame, ProduceRequest, version, flattened_produce)


def test_null_records_may_be_written_in_many_bytes() -> None:
    for null in (b"\0", b"\x80\0", b"\x80\x80\0", b"\x80\x80\x80\0"):
        frame = b"\0\xff\xff\0\0\0\1" + b"\2\2a" + b"\2\0\0\0\0" + null + b"\0\0\0"
        both(hot.decode_produce(9), frame, ProduceRequest, 9, flattened_produce)
        frame = b"\0\xff\xff\0\0\0\1" + b"\2" + bytes(16) + b"\2\0\0\0\0" + null + b"\0\0\0"
        both(hot.decode_produce(13), frame, ProduceRequest, 13, flattened_produce)


def test_record_data_is_a_slice_of_the_frame() -> None:
    for version in ProduceRequest.VERSIONS:
        frame = bytearray(encode_bytes(produce_request(1, 1, b"batch"), version))
        ((_, _, records),) = hot.decode_produce(version)(memoryview(frame), 0)[3]
        assert records is not None
        frame[frame.index(b"batch")] = ord("B")
        assert records == b"Batch"


def both(fast: Callable[[memoryview, int], Any], data: bytes, cls: type[Any], version: int, flat: Any) -> None:
    """The hand-written decoder and the compiled one agree about any bytes."""
    try:
        expected = flat(decode(cls, version, memoryview(data))[0], version)
    except MalformedMessage:
        with pytest.raises(MalformedMessage):
            fast(memoryview(data), 0)
    else:
        assert fast(memoryview(data), 0) == expected


@pytest.mark.slow
def test_truncated_at_every_byte() -> None:
    produce = produce_request(2, 2, bytes(130), "tx")
    fetch = fetch_request(2, 2)
    fetch.rack_id = "r"
    for version in ProduceRequest.VERSIONS:
        if version < 3:
            produce.transactional_id = None
        data = encode_bytes(produce, version)
        produce.transactional_id = "tx"
        for cut in range(len(data)):
            with pytest.raises(MalformedMessage):
                hot.decode_produce(version)(memoryview(data)[:cut], 0)
    for version in FetchRequest.VERSIONS:
        data = encode_bytes(fetch, version)
        for cut in range(len(data)):
            with pytest.raises(MalformedMessage):
                hot.decode_fetch(version)(memoryview(data)[:cut], 0)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(PRODUCE, st.randoms(use_true_random=False))
def test_mutated_produce(grammar: ModuleType, version: int, rng: random.Random) -> None:
    data = grammar.mutate(rng, encode_bytes(grammar.message(rng, ProduceRequest, version), version))
    both(hot.decode_produce(version), data, ProduceRequest, version, flattened_produce)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(FETCH, st.randoms(use_true_random=False))
def test_mutated_fetch(grammar: ModuleType, version: int, rng: random.Random) -> None:
    data = grammar.mutate(rng, encode_bytes(grammar.message(rng, FetchRequest, version), version))
    both(hot.decode_fetch(version), data, FetchRequest, version, flattened_fetch)


def partition_bomb(size: int) -> bytes:
    """A v9 Produce of empty record sets, 6 bytes each, in topics of 100."""
    partitions = b"\0\0\0\0\1\0" * 100
    topics = size // len(partitions)
    return b"\0\0\1\0\0\0\0" + uvarint(topics + 1) + (b"\1" + uvarint(101) + partitions + b"\0") * topics + b"\0"


def forgotten_bomb(size: int) -> bytes:
    """A v12 Fetch that forgets very many partitions of a topic without a name."""
    return bytes(25) + b"\1\2\1" + uvarint(size // 4 + 1) + b"\0\1\2\3" * (size // 4) + b"\0\1\0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("decoder", "body"),
    [
        (hot.decode_produce(9), partition_bomb(60_000)),
        (hot.decode_produce(9), partition_bomb(6_000)),
        (hot.decode_fetch(12), forgotten_bomb(200_000)),
        (hot.decode_fetch(4), encode_bytes(fetch_request(1, 5000), 4)),
        (hot.decode_fetch(16), encode_bytes(fetch_request(1, 5000), 16)),
    ],
    ids=["produce", "small produce", "forgotten", "old fetch", "new fetch"],
)
def test_memory_is_bounded_by_the_bytes_received(decoder: Callable[[memoryview, int], object], body: bytes) -> None:
    def read() -> None:
        with contextlib.suppress(MalformedMessage, hot.ManyPartitions):
            decoder(memoryview(body), 0)

    read()  # what is compiled on the way is not the message's
    assert peak_of(read) <= AMPLIFICATION * len(body) + ALLOWANCE


# Responses.

PRODUCED = st.lists(
    st.tuples(NAMES, IDS, st.lists(st.tuples(INT32, INT16, INT64, INT64, INT64), max_size=3)), max_size=3
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(PRODUCE, PRODUCED, INT32)
def test_produce_responses_are_written_alike(
    version: int, topics: list[tuple[str, bytes, list[tuple[int, int, int, int, int]]]], throttle_ms: int
) -> None:
    response = ProduceResponse(throttle_time_ms=throttle_ms)
    for name, topic_id, answers in topics:
        answer = ProduceResponse.PartitionProduceResponse
        rows = [
            answer(index=p, error_code=e, base_offset=b, log_append_time_ms=t, log_start_offset=s)
            for p, e, b, t, s in answers
        ]
        topic = ProduceResponse.TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=rows)
        response.responses.append(topic)
    assert hot.encode_produce(version)(topics, throttle_ms) == encode_bytes(response, version)


ABORTED = st.none() | st.lists(st.tuples(INT64, INT64), max_size=3)
FETCHED = st.lists(
    st.tuples(
        NAMES,
        IDS,
        st.lists(st.tuples(INT32, INT16, INT64, INT64, INT64, ABORTED, INT32, st.none() | RECORDS), max_size=3),
    ),
    max_size=3,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(FETCH, FETCHED, INT32, INT16, INT32)
def test_fetch_responses_are_written_alike(
    version: int, topics: list[tuple[str, bytes, list[Any]]], throttle_ms: int, error: int, session_id: int
) -> None:
    response = FetchResponse(throttle_time_ms=throttle_ms, error_code=error, session_id=session_id)
    for name, topic_id, answers in topics:
        topic = FetchResponse.FetchableTopicResponse(topic=name, topic_id=topic_id)
        topic.partitions = [declared(answer) for answer in answers]
        response.responses.append(topic)
    parts = hot.encode_fetch(version)(topics, throttle_ms, error, session_id)
    assert b"".join(memory(part) for part in parts) == encode_bytes(response, version)
    records = [answer[7] for _, _, answers in topics for answer in answers if answer[7]]
    assert [part for part in parts if any(part is r for r in records)] == records, "record data is not copied"
    assert len(parts) <= 2 * len(records) + 1


def declared(answer: tuple[Any, ...]) -> FetchResponse.PartitionData:
    partition, error, high, stable, start, aborted, preferred, records = answer
    pair = FetchResponse.AbortedTransaction
    return FetchResponse.PartitionData(
        partition_index=partition,
        error_code=error,
        high_watermark=high,
        last_stable_offset=stable,
        log_start_offset=start,
        aborted_transactions=None if aborted is None else [pair(producer_id=p, first_offset=o) for p, o in aborted],
        preferred_read_replica=preferred,
        records=records,
    )


def memory(part: Part) -> bytes:
    assert not isinstance(part, Region)
    return bytes(part)


def test_regions_are_parts_and_counted_by_their_size() -> None:
    region = Region(None, 0, 20_000, 0)  # type: ignore[arg-type]  # the file is not looked at
    for version in FetchResponse.VERSIONS:
        topics = [("t", bytes(16), [(0, 0, 5, 5, 0, None, -1, region), (1, 0, 5, 5, 0, None, -1, None)])]
        head, kept, tail = hot.encode_fetch(version)(topics, 0, 0, 0)
        assert kept is region
        data = memory(head) + bytes(20_000) + memory(tail)
        first, second = decode(FetchResponse, version, data)[0].responses[0].partitions
        assert (first.records, second.records) == (bytes(20_000), None)


@pytest.mark.parametrize("size", [-1, -2, -13, -20_000])
def test_a_region_of_less_than_nothing_is_refused(size: int) -> None:
    """-1 is how null is written, and -13 would be 115 as a varint's first byte."""
    region = Region(None, 0, size, 0)  # type: ignore[arg-type]  # the file is not looked at
    for version in FetchResponse.VERSIONS:
        row = (0, 0, 5, 5, 0, None, -1, region)
        topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=[declared(row)])
        with pytest.raises(ImpossibleLength):
            hot.encode_fetch(version)([("t", bytes(16), [row])], 0, 0, 0)
        with pytest.raises(ImpossibleLength):
            encode(FetchResponse(responses=[topic]), version)


@pytest.mark.parametrize("version", range(5, 14))
@given(st.text(max_size=99), st.binary(min_size=16, max_size=16), st.integers(0, 2**31 - 1), st.integers(-1, 2**63 - 1))
def test_the_usual_produce_answer_is_the_compiled_one(version, name, topic_id, partition, number) -> None:
    one = hot.OneAnswer(version)
    written = one.head_bytes(name, topic_id) + one.pack(partition, 0, number, number, number, *one.constants)
    row = ProduceResponse.PartitionProduceResponse(
        index=partition, base_offset=number, log_append_time_ms=number, log_start_offset=number, error_message=None
    )
    topic = ProduceResponse.TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=[row])
    assert written == encode_bytes(ProduceResponse(responses=[topic]), version)
