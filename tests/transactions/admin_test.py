"""Transactions as administrators see them over the wire: described, listed, filtered."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.transactions.hand import Hand, X

from ottla.errors import ErrorCode
from ottla.wire.messages import (
    DescribeTransactionsRequest,
)


@pytest.fixture
def hand() -> Hand:
    return Hand().started()


def test_describing(hand: Hand) -> None:
    hand.add(("t", 1), ("t", 0))
    found, missing, empty = hand.describe(X, "nobody", "")
    assert (found.error_code, found.transactional_id, found.transaction_state) == (0, X, "Ongoing")
    assert (found.producer_id, found.producer_epoch, found.transaction_timeout_ms) == (0, 0, 60_000)
    assert found.transaction_start_time_ms > 0
    assert [(topic.topic, list(topic.partitions)) for topic in found.topics] == [("t", [0, 1])]
    assert (missing.error_code, missing.transactional_id) == (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "nobody")
    assert empty.error_code == ErrorCode.INVALID_REQUEST
    assert list(hand.ask(DescribeTransactionsRequest(), 0).transaction_states) == []


@pytest.mark.parametrize("version", [0, 1, 2])
def test_listing(hand: Hand, version: int) -> None:
    hand.add()
    for name in ("y", "z"):
        hand.init(name=name)

    def names(**filters: Any) -> list[str]:
        return sorted(each.transactional_id for each in hand.list(version, **filters).transaction_states)

    assert names() == [X, "y", "z"]
    assert names(state_filters=["Ongoing"]) == [X]
    assert names(producer_id_filters=[1, 2]) == ["y", "z"]
    assert names(state_filters=["Ongoing"], producer_id_filters=[1]) == []
    answer = hand.list(version, state_filters=["Empty", "Asleep"])
    assert list(answer.unknown_state_filters) == ["Asleep"]
    row = next(each for each in hand.list(version).transaction_states if each.transactional_id == X)
    assert (row.producer_id, row.transaction_state) == (0, "Ongoing")


def test_listing_by_duration(hand: Hand) -> None:
    hand.add()
    hand.node.pass_ms(1000)
    assert len(hand.list(duration_filter=500).transaction_states) == 1
    assert len(hand.list(duration_filter=5000).transaction_states) == 0


def test_listing_by_pattern(hand: Hand) -> None:
    """KIP-1152: a pattern has to match the whole id."""
    for name in ("orders-1", "orders-2", "payments-1"):
        hand.init(name=name)

    def names(pattern: str | None) -> list[str]:
        answer = hand.list(2, transactional_id_pattern=pattern)
        assert answer.error_code == 0
        return sorted(each.transactional_id for each in answer.transaction_states)

    assert names("orders-.*") == ["orders-1", "orders-2"]
    assert names(".*-1") == ["orders-1", "payments-1"]
    assert names("orders") == []
    assert names("") == names(None) == ["orders-1", "orders-2", "payments-1", X]


def test_patterns_that_are_malformed_or_cost_too_much(hand: Hand) -> None:
    for pattern in ("(", "a{2,1}", "x" * 32_767, r"\1", "((a{99}){99}){99}"):
        answer = hand.list(2, transactional_id_pattern=pattern)
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION, pattern
    hand.init(name="".join(random.Random(1).choices("ab", k=30_000)))
    answer = hand.list(2, transactional_id_pattern="(a|b)*a(a|b){90}")
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert len(hand.list(2, transactional_id_pattern="[ab]{3}.*").transaction_states) == 1


def test_more_names_than_a_part_may_have(hand: Hand) -> None:
    hand.ask(DescribeTransactionsRequest(transactional_ids=[f"x{at}" for at in range(10_000)]), 0)
    answer = hand.ask(DescribeTransactionsRequest(transactional_ids=[f"x{at}" for at in range(10_001)]), 0)
    codes = [state.error_code for state in answer.transaction_states]
    assert codes == [ErrorCode.TRANSACTIONAL_ID_NOT_FOUND] * 10_001, "in parts, each of an allowed size"
