"""The producer's transactions against brokers in their own processes: BROKER=ottla (the default) or kafka."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.client.producer.bench import MARKS, Bench, trouble

from ottla.client import (
    GroupMetadata,
    Producer,
    ProducerFencedError,
    RefusedError,
    TopicPartition,
    UsageError,
)
from ottla.client.admin.groups import GroupAdmin
from ottla.errors import ErrorCode

pytestmark = MARKS


def _then_fails(_done: object) -> None:
    raise ZeroDivisionError


def test_committed_and_aborted_transactions(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic(2)
    one = producer(transactional_id="committed")
    one.init_transactions()
    for at in range(3):
        with one.transaction():
            one.send(topic, b"c%d" % at, partition=0)
            one.send(topic, b"c%d" % at, partition=1)
    with pytest.raises(ZeroDivisionError), one.transaction():
        _then_fails(one.send(topic, b"aborted", partition=0).result(180))
    one.begin_transaction()
    unsent = one.send(topic, b"aborted too", partition=1)
    one.abort_transaction()
    assert unsent.done()
    with one.transaction():
        one.send(topic, b"last", partition=0)
    assert bench.values(topic, 0) == [b"c0", b"c1", b"c2", b"last"]
    assert bench.values(topic, 1) == [b"c0", b"c1", b"c2"]


def test_transactions_are_whole_when_connections_are_lost(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic(2)
    one = producer(transactional_id="cut", retry_backoff_ms=10, reconnect_backoff_ms=10, reconnect_backoff_max_ms=50)
    one.init_transactions()
    with trouble(bench.proxy):
        for at in range(40):
            with one.transaction():
                one.send(topic, b"%d" % at, partition=0)
                one.send(topic, b"%d" % at, partition=1)
                one.send_offsets_to_transaction({TopicPartition(topic, 0): at}, "group-cut")
    for partition in (0, 1):
        assert bench.values(topic, partition) == [b"%d" % at for at in range(40)]
    found = GroupAdmin(bench.cluster).group_offsets("group-cut")[TopicPartition(topic, 0)]
    assert found.offset == 39  # type: ignore[union-attr]  # an error would fail the test as well


def test_a_newer_producer_fences_the_older(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic()
    old, new = producer(transactional_id="fenced"), producer(transactional_id="fenced")
    old.init_transactions()
    old.begin_transaction()
    old.send(topic, b"old").result(180)
    new.init_transactions()
    with new.transaction():
        new.send(topic, b"new")
    for call in (old.commit_transaction, old.begin_transaction, old.abort_transaction, lambda: old.send(topic, b"v")):
        with pytest.raises(ProducerFencedError) as refused:
            call()
        assert refused.value.code is ErrorCode.PRODUCER_FENCED
    assert bench.values(topic) == [b"new"]


def test_a_fenced_producer_sees_one_class_of_error_whichever_call_finds_it_out(
    bench: Bench, producer: Callable[..., Producer]
) -> None:
    topic = bench.topic()
    old, new = producer(transactional_id="found-out"), producer(transactional_id="found-out")
    old.init_transactions()
    old.begin_transaction()
    old.send(topic, b"old").result(180)
    new.init_transactions()
    with pytest.raises(ProducerFencedError):  # a leader answers INVALID_PRODUCER_EPOCH, a coordinator PRODUCER_FENCED
        old.send(topic, b"old").result(180)
    with pytest.raises(ProducerFencedError):
        old.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, "any")
    with pytest.raises(ProducerFencedError), old.transaction():
        pass
    with new.transaction():
        new.send(topic, b"new")


def test_positions_go_with_the_transaction(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic()
    tp = TopicPartition(topic, 0)
    one = producer(transactional_id="positions")
    one.init_transactions()
    with one.transaction():
        one.send(topic, b"v")
        one.send_offsets_to_transaction({tp: 5}, "group-p")
    with pytest.raises(ZeroDivisionError), one.transaction():
        _then_fails(one.send_offsets_to_transaction({tp: 9}, GroupMetadata("group-p")))
    committed = GroupAdmin(bench.cluster).group_offsets("group-p")[tp]
    assert committed.offset == 5  # type: ignore[union-attr]  # an error would fail the test as well
    one.begin_transaction()
    with pytest.raises(RefusedError):
        one.send_offsets_to_transaction({tp: 9}, GroupMetadata("group-p", 3, "nobody"))
    with pytest.raises(UsageError, match="has failed"):
        one.commit_transaction()
    one.abort_transaction()


def test_a_failed_record_fails_the_transaction(bench: Bench, producer: Callable[..., Producer]) -> None:
    small, topic = bench.topic(max_message_bytes="200"), bench.topic()
    one = producer(transactional_id="failing")
    one.init_transactions()
    with pytest.raises(UsageError, match="MESSAGE_TOO_LARGE"), one.transaction():
        [one.send(name, bytes(1_000)) for name in (topic, small)]
    with one.transaction():
        one.send(topic, b"kept")
        one.send(small, b"kept")
    assert bench.values(topic) == [b"kept"]
    assert bench.values(small) == [b"kept"]


def test_state_rules(bench: Bench, producer: Callable[..., Producer]) -> None:
    topic = bench.topic()
    plain = producer()
    with pytest.raises(UsageError, match=r"no transactional\.id"):
        plain.begin_transaction()
    one = producer(transactional_id="rules")
    with pytest.raises(UsageError, match="UNINITIALIZED"):
        one.begin_transaction()
    one.init_transactions()
    for early in (one.init_transactions, one.commit_transaction, one.abort_transaction, lambda: one.send(topic, b"v")):
        with pytest.raises(UsageError, match="READY"):
            early()
    with one.transaction(), pytest.raises(UsageError, match="IN_TRANSACTION"):
        one.begin_transaction()
    forbidden = producer(transactional_id="rules-2", transaction_timeout_ms=2**31 - 1)
    with pytest.raises(RefusedError) as refused:
        forbidden.init_transactions()
    assert refused.value.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT
