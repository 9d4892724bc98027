"""AddPartitionsToTxn with hundreds of partitions, over the wire: all of them or none, checked in slices."""

from __future__ import annotations

import pytest
from tests.transactions.hand import Hand

from ottla.errors import ErrorCode
from ottla.types import TopicPartition
from ottla.wire.limits import SLICE
from ottla.wire.messages import AddPartitionsToTxnRequest, DescribeTransactionsRequest

COUNT = 3 * SLICE
GOOD = [("t", number % 2) for number in range(COUNT)]
"""Two partitions, repeated: creating many would take long."""


@pytest.fixture
def hand() -> Hand:
    return Hand().started()


def asked(hand: Hand, places, **fields) -> AddPartitionsToTxnRequest:
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    topics = []
    for name, number in places:
        if not topics or topics[-1].name != name:
            topics.append(topic(name=name))
        topics[-1].partitions.append(number)
    values = {
        "v3_and_below_transactional_id": "x",
        "v3_and_below_producer_id": hand.producer_id,
        "v3_and_below_producer_epoch": hand.epoch,
        **fields,
    }
    return AddPartitionsToTxnRequest(v3_and_below_topics=topics, **values)


def answered(hand: Hand, request: AddPartitionsToTxnRequest):
    topics = hand.node.ask(request, 3).results_by_topic_v3_and_below
    return [
        ((topic.name, row.partition_index), row.partition_error_code)
        for topic in topics
        for row in topic.results_by_partition
    ]


def added(hand: Hand) -> int:
    (state,) = hand.node.ask(DescribeTransactionsRequest(transactional_ids=["x"]), 0).transaction_states
    return sum(len(topic.partitions) for topic in state.topics)


def test_all_are_added_at_once(hand: Hand) -> None:
    assert answered(hand, asked(hand, GOOD)) == [(place, 0) for place in GOOD]
    assert added(hand) == 2


@pytest.mark.parametrize("at", [0, SLICE + 1, COUNT])
def test_one_unknown_partition_prevents_all_others(hand: Hand, at: int) -> None:
    places = [*GOOD[:at], ("nope", 0), *GOOD[at:]]
    codes = answered(hand, asked(hand, places))
    assert [place for place, _ in codes] == places
    assert dict(codes)["nope", 0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {code for place, code in codes if place[0] == "t"} == {ErrorCode.OPERATION_NOT_ATTEMPTED}
    assert added(hand) == 0


def test_an_error_of_the_transaction_is_that_of_every_partition(hand: Hand) -> None:
    codes = answered(hand, asked(hand, GOOD, v3_and_below_producer_epoch=hand.epoch + 5))
    assert codes == [(place, ErrorCode.PRODUCER_FENCED) for place in GOOD]
    assert added(hand) == 0


def test_a_turn_checks_a_bounded_number_of_partitions(hand: Hand) -> None:
    handlers = hand.node.broker._dispatch.cold[AddPartitionsToTxnRequest.API_KEY].handler.__self__
    topics = handlers._topics
    seen: list[TopicPartition] = []

    class Noted:
        """The topics; records each partition that is checked."""

        def partition_refusal(self, tp: TopicPartition, by_client: bool) -> ErrorCode:
            seen.append(tp)
            return topics.partition_refusal(tp, by_client)

    handlers._topics = Noted()
    place = hand.node.send(asked(hand, GOOD), 3)
    most = len(seen)
    while not place.answered:
        before = len(seen)
        hand.node.process.machine.timeline.run_next_event()
        most = max(most, len(seen) - before)
    assert len(seen) == COUNT
    assert most <= 2 * SLICE, "the slices of a turn"
