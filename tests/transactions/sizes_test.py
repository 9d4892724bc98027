"""Names, numbers and lists of every size over the wire: each request gets its error, and leaves no state."""

from __future__ import annotations

from typing import Any

import pytest
from tests.handnode import Asker, Place
from tests.transactions.hand import Hand, X

from ottla.errors import ErrorCode
from ottla.utf8 import decode_text
from ottla.wire.apis import API_TABLE
from ottla.wire.codec import encode_bytes
from ottla.wire.header import encode_request_header
from ottla.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)

INT32 = (-(2**31), -1, 0, 2**31 - 1)
WHO = {"transactional_id": "abcd", "producer_id": 0, "producer_epoch": 0}
NAMED = [
    (InitProducerIdRequest(transactional_id="abcd", transaction_timeout_ms=1), 5),
    (AddOffsetsToTxnRequest(**WHO, group_id="g"), 4),
    (AddOffsetsToTxnRequest(**(WHO | {"transactional_id": "x"}), group_id="abcd"), 0),
    (EndTxnRequest(**WHO, committed=True), 5),
    (TxnOffsetCommitRequest(**WHO, group_id="g"), 6),
    (DescribeTransactionsRequest(transactional_ids=["abcd"]), 0),
    (ListTransactionsRequest(transactional_id_pattern="abcd"), 2),
]


@pytest.fixture
def hand() -> Hand:
    return Hand().started()


def kept(hand: Hand) -> set[str]:
    """The transactional ids in memory."""
    return {name for each in hand.node.broker._coordinators.transactions.machines() for name in each.transactions}


@pytest.mark.parametrize("raw", [b"\xff\xfe\xfd\xfc", b"\xc3\x28ab", b"\xed\xa0\x80\x80"])
@pytest.mark.parametrize(("request_", "version"), NAMED, ids=[type(each).__name__ for each, _ in NAMED])
def test_names_that_are_not_utf8_are_accepted(hand: Hand, request_: object, version: int, raw: bytes) -> None:
    key = next(key for key, api in API_TABLE.items() if api.request is type(request_))
    frame = encode_request_header(key, version, 7, "hand") + encode_bytes(request_, version)
    assert frame.count(b"abcd") == 1
    place = Place(Asker(), key, version)
    spoiled = memoryview(bytearray(frame.replace(b"abcd", raw)))
    hand.node.process.post_turn(0, "frame", lambda: hand.node.broker.on_frame(place, spoiled))
    hand.node.pass_ms(10)
    assert place.answered
    assert hand.node.network.closed == []
    assert kept(hand) <= {X, decode_text(raw)}


@pytest.mark.parametrize("timeout_ms", INT32)
def test_timeouts_of_every_size(hand: Hand, timeout_ms: int) -> None:
    for version in (0, 3, 5):
        answer = hand.init(version, "y", transaction_timeout_ms=timeout_ms)
        assert answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert kept(hand) == {X}


@pytest.mark.parametrize("producer_id", [-(2**63), -1, 2**63 - 1])
@pytest.mark.parametrize("epoch", [-(2**15), -1, 2**15 - 1])
def test_producers_of_every_size(hand: Hand, producer_id: int, epoch: int) -> None:
    who: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": epoch}
    expected = {ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}
    assert set(hand.add(**who).values()) <= expected
    assert hand.add_offsets(**who) in expected
    assert hand.end(**who).error_code in expected
    assert hand.commit_offset(1, **who) in expected | {ErrorCode.NOT_COORDINATOR}
    assert hand.init(**who).error_code in {ErrorCode.NONE, ErrorCode.INVALID_REQUEST, *expected}
    assert kept(hand) == {X}
    assert hand.state == "Empty"


def test_offsets_larger_than_a_batch_go_in_parts(hand: Hand) -> None:
    hand.add_offsets()
    hand.find("g", 0)
    part = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(committed_offset=1, committed_metadata="x" * 4096)
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name="t", partitions=[part] * 300)
    answer = hand.ask(TxnOffsetCommitRequest(**hand.who, group_id="g", topics=[topic]), 3)
    assert {each.error_code for each in answer.topics[0].partitions} == {ErrorCode.NONE}
    assert hand.offset(stable=True)[1] == ErrorCode.UNSTABLE_OFFSET_COMMIT, "pending, as each part of it"


def test_a_hundred_thousand_unknown_partitions(hand: Hand) -> None:
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=list(range(100_000)))
    old = {f"v3_and_below_{key}": value for key, value in hand.who.items()}
    answer = hand.ask(AddPartitionsToTxnRequest(**old, v3_and_below_topics=[topic]), 3)
    rows = answer.results_by_topic_v3_and_below[0].results_by_partition
    codes = [each.partition_error_code for each in rows]
    assert codes[:2] == [ErrorCode.OPERATION_NOT_ATTEMPTED] * 2
    assert set(codes[2:]) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert hand.state == "Empty"


def test_a_thousand_markers_of_a_client(hand: Hand) -> None:
    """None of them is written, and none opens, ends or fences anything."""
    hand.add()
    assert hand.produce(b"a") == 0
    place = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="t", partition_indexes=[0, 1, 9, -1])
    markers = [
        WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=hand.producer_id + at, producer_epoch=7, transaction_result=True, topics=[place]
        )
        for at in range(1000)
    ]
    ends = [hand.node.broker.hosted.find_partition("t", at).log.end_offset for at in (0, 1)]
    answer = hand.ask(WriteTxnMarkersRequest(markers=markers), 1)
    codes = {part.error_code for each in answer.markers for topic in each.topics for part in topic.partitions}
    assert ErrorCode.NONE not in codes
    assert [hand.node.broker.hosted.find_partition("t", at).log.end_offset for at in (0, 1)] == ends
    assert hand.produce(b"b") == 0
    assert hand.end().error_code == 0


def test_refused_requests_leave_no_state(hand: Hand) -> None:
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    for at in range(200):
        name = f"nobody{at}"
        assert hand.add(transactional_id=name) == {("t", 0): mapping}
        assert hand.add_offsets(transactional_id=name) == mapping
        assert hand.end(transactional_id=name).error_code == mapping
        assert hand.describe(name)[0].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert kept(hand) == {X}
