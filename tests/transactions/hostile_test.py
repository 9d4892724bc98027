"""Requests about transactions with flipped bytes: answered or the connection is closed, and no shard is fenced."""

from __future__ import annotations

import random

import pytest
from tests.handnode import Asker, Place
from tests.transactions.hand import Hand, X

from ottla.coordinator.shard_runtime import ShardState
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

CASES = 3000


def requests(hand: Hand) -> list[object]:
    """One request of each API, with a value in every field; also the versions that brokers send."""
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0, 1])
    offsets = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
        topic_id=hand.node.topic_id("t"),
        partitions=[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=3)],
    )
    marker = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=hand.producer_id,
        producer_epoch=hand.epoch,
        topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
    )
    transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(**hand.who, topics=[topic])
    return [
        InitProducerIdRequest(transactional_id=X, transaction_timeout_ms=60_000),
        AddPartitionsToTxnRequest(transactions=[transaction]),
        AddOffsetsToTxnRequest(**hand.who, group_id="g"),
        EndTxnRequest(**hand.who, committed=True),
        TxnOffsetCommitRequest(**hand.who, group_id="g", topics=[offsets]),
        WriteTxnMarkersRequest(markers=[marker]),
        DescribeTransactionsRequest(transactional_ids=[X, "y"]),
        ListTransactionsRequest(
            state_filters=["Ongoing"], producer_id_filters=[1], duration_filter=5, transactional_id_pattern="(x|y)+"
        ),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("listener", ["PLAINTEXT", ""])
def test_bytes_turned_over(seed: int, listener: str) -> None:
    hand = Hand().started()
    node, rng = hand.node, random.Random(seed)
    hand.find("g", 0)
    ranges = node.broker._dispatch.version_ranges()
    peer = Asker()
    peer.listener = listener
    answered = 0
    for _ in range(CASES):
        request = rng.choice(requests(hand))
        key = next(key for key, api in API_TABLE.items() if api.request is type(request))
        version = ranges[key][1]
        frame = bytearray(encode_request_header(key, version, 7, "hand") + encode_bytes(request, version))
        for _ in range(rng.randrange(4)):
            frame[rng.randrange(8, len(frame))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if rng.random() < 0.1:
            frame = frame[: rng.randrange(8, len(frame))]
        place = Place(peer, key, version)

        def turn(place: Place = place, frame: bytearray = frame) -> None:
            node.broker.on_frame(place, memoryview(frame))

        node.process.post_turn(0, "frame", turn)
        node.pass_ms(rng.choice((0, 0, 0, 5)))
        answered += place.answered
    assert answered > CASES / 4
    transactions = node.broker._coordinators.transactions.coordinator
    assert (transactions.count_shards(ShardState.FENCED), transactions.count_shards(ShardState.ACTIVE)) == (0, 4)
    assert node.broker._coordinators.groups.coordinator.count_shards(ShardState.FENCED) == 0
    node.pass_ms(120_000)
    assert hand.init(name="still there").error_code == 0
    if listener:
        assert hand.offset(stable=True)[1] == 0, "no transaction hangs"
