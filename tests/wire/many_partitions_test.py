"""What reads requests of many partitions finds the same in them as the decoders of whole requests.

Zone: pure.
"""

from __future__ import annotations

import pytest

from ottla.wire.codec import decode, encode, encode_bytes
from ottla.wire.errors import MalformedMessage
from ottla.wire.hot import MANY, ManyPartitions, decode_fetch, decode_produce, encode_fetch
from ottla.wire.many_partitions import TAGS, FetchPieces, FetchWalk, ProduceWalk, read_chunks
from ottla.wire.messages import FetchRequest, FetchResponse, ProduceRequest
from ottla.wire.primitives import uvarint

ODD = "n\udcff"
"""A name that is no UTF-8."""


def topic_ids(number: int) -> dict[str, object]:
    return {"topic_id": number.to_bytes(16, "big")}


def produce(version: int, topics: int = 3, partitions: int = 3) -> memoryview:
    data, topic = ProduceRequest.PartitionProduceData, ProduceRequest.TopicProduceData
    contents = [None, memoryview(b""), memoryview(b"x" * 300)]
    rows = [data(index=index, records=contents[index % 3]) for index in range(partitions)]
    named = [topic(name=f"{ODD}{number}", **topic_ids(number), partition_data=rows) for number in range(topics)]
    message = ProduceRequest(acks=-1, timeout_ms=7, topic_data=[*named, topic(name="empty", **topic_ids(99))])
    if version >= 3:
        message.transactional_id = "tx"
    return memoryview(encode_bytes(message, version))


def fetch(version: int) -> memoryview:
    part, topic, gone = FetchRequest.FetchPartition, FetchRequest.FetchTopic, FetchRequest.ForgottenTopic
    rows = [part(partition=number, fetch_offset=number * 3, partition_max_bytes=9) for number in range(3)]
    for number, row in enumerate(rows):
        if version >= 12:
            row.last_fetched_epoch = number
        if version >= 17:
            row.replica_directory_id = bytes(16) if number else b"d" * 16
    topics = [topic(topic=f"{ODD}{number}", **topic_ids(number), partitions=rows) for number in range(3)]
    message = FetchRequest(max_wait_ms=5, min_bytes=6, topics=topics)
    if version >= 7:
        message.session_id, message.session_epoch = 8, 9
        message.forgotten_topics_data = [gone(topic="gone", **topic_ids(77), partitions=[1, 2])]
    if version >= 11:
        message.rack_id = "rack"
    if version >= 15:
        message.replica_state = FetchRequest.ReplicaState(replica_id=3, replica_epoch=44)
    return memoryview(encode_bytes(message, version))


@pytest.mark.parametrize("version", ProduceRequest.VERSIONS)
def test_a_produce_request_is_read_alike(version: int) -> None:
    frame = produce(version)
    walk = ProduceWalk(version, frame, 0)
    entries = [entry for chunk in read_chunks(walk.walk_entries(), 2) for entry in chunk]
    assert (walk.transactional_id, walk.acks, walk.timeout_ms, entries) == decode_produce(version)(frame, 0)


@pytest.mark.parametrize("version", FetchRequest.VERSIONS)
def test_a_fetch_request_is_read_alike(version: int) -> None:
    frame = fetch(version)
    walk = FetchWalk(version, frame, 0)
    asked = [each for run in walk.walk_runs(2) for each in run]
    forgotten = [each for chunk in read_chunks(walk.walk_forgotten(), 2) for each in chunk]
    whole = decode_fetch(version)(frame, 0)
    assert (asked, forgotten) == (whole.partitions, whole.forgotten)
    for name in ("replica_id", "max_wait_ms", "min_bytes", "max_bytes", "isolation_level", "session_id"):
        assert getattr(walk, name) == getattr(whole, name), name
    assert (walk.session_epoch, walk.rack_id, walk.replica_epoch) == (
        whole.session_epoch,
        whole.rack_id,
        whole.replica_epoch,
    )


def read_whole_fetch(frame: memoryview) -> None:
    walk = FetchWalk(12, frame, 0)
    list(walk.walk_runs(10))
    list(read_chunks(walk.walk_forgotten(), 10))


@pytest.mark.parametrize("version", [0, 8, 9, 13])
def test_a_cut_request_is_malformed(version: int) -> None:
    frame = produce(version)
    for end in range(len(frame)):
        with pytest.raises(MalformedMessage):
            list(read_chunks(ProduceWalk(version, frame[:end], 0).walk_entries(), 10))
    frame = fetch(12)
    for end in range(len(frame)):
        with pytest.raises(MalformedMessage):
            read_whole_fetch(frame[:end])


@pytest.mark.parametrize("version", ProduceRequest.VERSIONS)
@pytest.mark.parametrize("topics", [1, 60, MANY + 1])
def test_a_produce_of_many_partitions_is_not_decoded_as_a_whole(version: int, topics: int) -> None:
    partitions = MANY // topics + 1
    with pytest.raises(ManyPartitions):
        decode_produce(version)(produce(version, topics, partitions), 0)
    _, _, _, entries = decode_produce(version)(produce(version, 1, 400), 0)
    assert len(entries) == 400


@pytest.mark.parametrize(("partitions", "is_whole"), [(1, False), (100, False), (0, True)])
def test_tags_count_as_partitions(partitions: int, is_whole: bool) -> None:
    """The unknown tagged fields of 300 partitions took 2.5 s of one turn."""
    tags = uvarint(10_000) + b"".join(uvarint(tag) + b"\0" for tag in range(10_000))
    rows = (b"\0\0\0\1\2x" + tags) * partitions + b"\0\0\0\1\2x\1\5\1z"
    body = b"\0\0\1\0\0\0\7\2\2t" + uvarint(partitions + 2) + rows + b"\0\0"
    whole = (None, 1, 7, [("t", 1, b"x")])
    if is_whole:
        assert decode_produce(9)(memoryview(body), 0) == whole
    else:
        with pytest.raises(ManyPartitions):
            decode_produce(9)(memoryview(body), 0)
    walked = list(ProduceWalk(9, memoryview(body), 0).walk_entries())
    assert [entry for entry in walked if entry] == [("t", 1, b"x")] * (partitions + 1)
    assert len(walked) >= partitions * 10_000 // TAGS
    assert walked[1 : 1 + 10_000 // TAGS] == [None] * (10_000 // TAGS) or not partitions, "they end slices themselves"


def test_tags_of_a_fetch_count_as_partitions() -> None:
    """Each tag section is of 10,000 tags, so slices end within one."""
    tags = uvarint(10_000) + b"".join(uvarint(tag) + b"\0" for tag in range(10_000))
    row = FetchRequest.FetchPartition(partition=3)
    topic = FetchRequest.FetchTopic(topic="t", partitions=[row])
    plain = encode_bytes(FetchRequest(topics=[topic], max_bytes=9), 12)
    at = plain.rindex(b"\0\0\1\1\0")  # tags of the partition and of the topic, nothing forgotten, no rack, no tags
    frame = memoryview(plain[:at] + tags + tags + plain[at + 2 :])
    walk = FetchWalk(12, frame, 0)
    runs = list(walk.walk_runs(4))
    assert [each[1] for run in runs for each in run] == [3]
    assert len(runs) >= 2 * 10_000 // TAGS
    assert list(read_chunks(walk.walk_forgotten(), 4)) == []


def test_partitions_without_tags_are_read_many_at_a_time() -> None:
    rows = [FetchRequest.FetchPartition(partition=number) for number in range(10)]
    frame = memoryview(encode_bytes(FetchRequest(topics=[FetchRequest.FetchTopic(topic="t", partitions=rows)]), 12))
    runs = list(FetchWalk(12, frame, 0).walk_runs(4))
    assert [[each[1] for each in run] for run in runs] == [[], [0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_empty_items_count_and_are_left_out() -> None:
    assert list(read_chunks([None, 1, None, None, 2, 3], 2)) == [[1], [], [2, 3]]


@pytest.mark.parametrize("version", FetchResponse.VERSIONS)
def test_an_answer_in_pieces_is_the_whole_one(version: int) -> None:
    rows = [(number, 3, 1, 2, 0, [(5, 6)] if number else None, -1, b"r" * number) for number in range(3)]
    topics = [("" if version >= 13 else f"t{number}", number.to_bytes(16, "big"), rows) for number in range(200)]
    pieces = FetchPieces(version)
    pieces.add_topics(topics[:130])
    pieces.add_topics([])
    pieces.add_topics(topics[130:])
    body = b"".join(pieces.body_parts(7 if version >= 7 else 0))
    assert body == b"".join(encode_fetch(version)(topics, 0, 0, 7))
    assert decode(FetchResponse, version, body)[1] == len(body)


@pytest.mark.parametrize("version", FetchResponse.VERSIONS)
def test_topics_of_an_answer_that_are_encoded_already_count(version: int) -> None:
    """Those with current leaders or diverging epochs, which the declared message encodes."""
    rows = [(number, 3, 1, 2, 0, None, -1, b"r" * number) for number in range(3)]
    topics = [("" if version >= 13 else f"t{number}", number.to_bytes(16, "big"), rows) for number in range(260)]
    whole = b"".join(encode_fetch(version)(topics, 0, 0, 0))
    response, _ = decode(FetchResponse, version, whole)
    pieces = FetchPieces(version)
    for begin, end in ((0, 2), (2, 130), (130, 260)):
        pieces.add_topics(topics[begin : begin + 1])
        declared = FetchResponse(responses=response.responses[begin + 1 : end])
        pieces.add_encoded(encode(declared, version), len(declared.responses))
    assert b"".join(pieces.body_parts(0)) == whole
