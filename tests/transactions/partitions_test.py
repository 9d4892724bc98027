"""Coordinator and partitions together: reads, late requests, and transaction version 2."""

from __future__ import annotations

from typing import Any

import pytest
from tests.handnode import Asker, records
from tests.transactions.hand import Hand

from ottla.errors import ErrorCode
from ottla.wire.apis import ApiKey
from ottla.wire.messages import EndTxnRequest, ListOffsetsRequest, WriteTxnMarkersRequest


@pytest.fixture
def hand() -> Hand:
    return Hand().started()


def stable_end(hand: Hand) -> int:
    """The last stable offset of t-0."""
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[part])
    request = ListOffsetsRequest(replica_id=-1, isolation_level=1, topics=[topic])
    return hand.ask(request, 5).topics[0].partitions[0].offset


def committed(hand: Hand) -> tuple[list[bytes], list[tuple[int, int]]]:
    """Data below the last stable offset, control records apart, and the aborted transactions."""
    part = hand.node.fetch("t", 0, isolation_level=1)
    values = [record.value for record in records(part.records) if record.key is None]
    return values, [(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()]


def test_readers_of_committed_records_wait_for_the_marker(hand: Hand) -> None:
    hand.node.produce("t", b"plain")
    hand.add()
    hand.produce(b"a")
    assert (stable_end(hand), committed(hand)) == (1, ([b"plain"], []))
    hand.marks.held = True
    hand.end()
    hand.node.pass_ms(100)
    assert (stable_end(hand), committed(hand)) == (1, ([b"plain"], [])), "decided, but not marked"
    hand.marks.held = False
    hand.node.pass_ms(2000)
    assert (stable_end(hand), committed(hand)) == (3, ([b"plain", b"a"], []))


def test_aborted_records_are_named(hand: Hand) -> None:
    hand.add()
    hand.produce(b"a")
    hand.end(False)
    hand.node.pass_ms(100)
    assert (stable_end(hand), committed(hand)) == (2, ([b"a"], [(0, 0)]))


def test_records_without_an_added_partition_are_refused(hand: Hand) -> None:
    hand.add(("t", 1))
    assert hand.produce(b"a") == ErrorCode.INVALID_TXN_STATE
    assert stable_end(hand) == 0


@pytest.mark.parametrize(("version", "code"), [(3, "INVALID_TXN_STATE"), (4, "TRANSACTION_ABORTABLE")])
def test_offsets_of_a_group_that_was_not_added_are_refused(hand: Hand, version: int, code: str) -> None:
    hand.find("g", 0)
    hand.add()
    assert hand.commit_offset(5, version) == ErrorCode[code]
    assert hand.offset(stable=True) == (-1, 0)


def test_late_offsets_open_no_transaction(hand: Hand) -> None:
    hand.add_offsets()
    hand.commit_offset(5)
    hand.end()
    hand.node.pass_ms(100)
    assert hand.commit_offset(6) == ErrorCode.INVALID_TXN_STATE
    assert hand.offset(stable=True) == (5, 0)


def test_offsets_while_the_last_transaction_ends_are_tried_again(hand: Hand) -> None:
    hand.add_offsets()
    hand.marks.held = True
    hand.end()
    assert hand.commit_offset(6) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_offsets_of_a_producer_that_was_replaced(hand: Hand) -> None:
    hand.add_offsets()
    first = hand.epoch
    hand.init()
    hand.node.pass_ms(100)
    hand.init()
    assert hand.commit_offset(5, producer_epoch=first) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert hand.commit_offset(5, producer_id=77) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_without_verification_no_coordinator_is_asked() -> None:
    hand = Hand(transaction_partition_verification_enable="false").started()
    hand.find("g", 0)
    assert hand.commit_offset(5) == 0
    assert hand.offset(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)


def test_transactions_of_version_2(hand: Hand) -> None:
    """The broker adds the group to the transaction, and every end gives the producer its next epoch."""
    hand.find("g", 0)
    for round_number in range(3):
        assert hand.epoch == round_number
        assert hand.commit_offset(round_number, 5) == 0
        assert [topic.topic for topic in hand.describe()[0].topics] == ["__consumer_offsets"]
        assert hand.end(version=5).error_code == 0
        hand.node.pass_ms(50)
        assert hand.offset(stable=True) == (round_number, 0)
    assert hand.commit_offset(9, 5, producer_epoch=1) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_coordinator_on_this_broker_is_asked_without_a_message(hand: Hand) -> None:
    hand.find("g", 0)
    asked: list[int] = []
    call = hand.node.network.call_broker

    def note(target: int, frame: bytes, *rest: Any) -> None:
        asked.append(int.from_bytes(frame[:2], "big"))
        call(target, frame, *rest)

    hand.node.network.call_broker = note
    assert hand.produce(b"a", version=12) == 0
    assert hand.commit_offset(5, 5) == 0
    assert [topic.topic for topic in hand.describe()[0].topics] == ["__consumer_offsets", "t"]
    assert ApiKey.ADD_PARTITIONS_TO_TXN not in asked


def test_an_end_right_after_an_end(hand: Hand) -> None:
    """Version 2: a producer continues while markers are being written; the broker waits briefly for them."""
    hand.find("g", 0)
    for offset in range(5):
        assert hand.commit_offset(offset, 5) == 0
        assert hand.end(version=5).error_code == 0
    hand.node.pass_ms(100)
    assert hand.offset(stable=True) == (4, 0)


def test_records_right_after_an_end(hand: Hand) -> None:
    for number in range(5):
        assert hand.produce(b"%d" % number, version=12) == 0
        assert hand.end(version=5).error_code == 0
    hand.node.pass_ms(100)
    assert committed(hand)[0] == [b"0", b"1", b"2", b"3", b"4"]


def test_the_producer_of_a_timed_out_transaction_is_fenced_in_its_partitions(hand: Hand) -> None:
    hand.add()
    hand.produce(b"a")
    hand.node.pass_ms(75_000)
    assert stable_end(hand) == 2
    assert hand.produce(b"late") == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("bumped", [False, True])
def test_delayed_requests_after_the_end_change_nothing(hand: Hand, bumped: bool) -> None:
    """Each request of a complete transaction, delayed by the network (KIP-890)."""
    hand.add()
    hand.produce(b"a")
    hand.add_offsets()
    hand.commit_offset(5)
    old, markers = hand.epoch, list(hand.marks.asked)
    assert hand.end(version=5 if bumped else 4).error_code == 0
    hand.node.pass_ms(100)
    markers = hand.marks.asked[len(markers) :]
    sequence, hand.sequence = hand.sequence, 1
    over = (ErrorCode.INVALID_PRODUCER_EPOCH,) if bumped else (ErrorCode.INVALID_TXN_STATE,)
    assert hand.produce(b"late", epoch=old) in over
    assert hand.commit_offset(9, producer_epoch=old) in over
    if bumped:
        assert hand.add(producer_epoch=old) == {("t", 0): ErrorCode.PRODUCER_FENCED}
        assert hand.add_offsets(producer_epoch=old) == ErrorCode.PRODUCER_FENCED
    again = hand.ask(EndTxnRequest(**(hand.who | {"producer_epoch": old}), committed=True), 5 if bumped else 4)
    assert again.error_code == 0, "repeated"
    hand.sequence = sequence
    say_again(hand, markers)
    assert hand.state == "CompleteCommit"
    assert stable_end(hand) == hand.node.fetch("t", 0).high_watermark
    assert hand.offset(stable=True) == (5, 0)
    hand.add()
    assert hand.produce(b"b") == 0
    if bumped:
        say_again(hand, markers)
        assert stable_end(hand) == 2, "its next transaction is open"


def say_again(hand: Hand, markers: list[WriteTxnMarkersRequest.WritableTxnMarker]) -> None:
    broker = Asker()
    broker.listener = ""
    assert markers
    hand.node.answer(hand.node.send(WriteTxnMarkersRequest(markers=markers), 2, broker))
