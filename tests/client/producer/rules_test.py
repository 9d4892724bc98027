"""Pure rules: the class of an error, the states of a transaction, the choice of partitions."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ottla.client import ProducerFencedError, RefusedError, UsageError
from ottla.client.producer.batch import record_body
from ottla.client.producer.error_classification import ErrorClass, classify_error
from ottla.client.producer.partition_queue import ProducerId
from ottla.client.producer.partitioning import choose_sticky
from ottla.client.producer.transaction import State, Transaction
from ottla.errors import ErrorCode
from ottla.record.batch import Record, encode_batch
from ottla.types import TopicPartition

E = ErrorCode


@pytest.mark.parametrize(
    ("code", "facts", "expected"),
    [
        (E.DUPLICATE_SEQUENCE_NUMBER, {}, ErrorClass.DUPLICATE),
        (E.MESSAGE_TOO_LARGE, {}, ErrorClass.SPLIT),
        (E.RECORD_LIST_TOO_LARGE, {"may_retry": False}, ErrorClass.SPLIT),
        (E.MESSAGE_TOO_LARGE, {"records": 1}, ErrorClass.FAIL),
        (E.NOT_LEADER_OR_FOLLOWER, {}, ErrorClass.RETRY),
        (E.NOT_LEADER_OR_FOLLOWER, {"may_retry": False}, ErrorClass.FAIL),
        (E.TOPIC_AUTHORIZATION_FAILED, {}, ErrorClass.FAIL),
        (E.INVALID_TIMESTAMP, {}, ErrorClass.FAIL),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {}, ErrorClass.REWIND),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {"next_in_line": False}, ErrorClass.RETRY),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {"transactional": True}, ErrorClass.FAIL),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {"transactional": True, "next_in_line": False}, ErrorClass.RETRY),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, {"idempotent": False}, ErrorClass.FAIL),
        (E.UNKNOWN_PRODUCER_ID, {"next_in_line": False}, ErrorClass.REWIND),
        (E.UNKNOWN_PRODUCER_ID, {"transactional": True}, ErrorClass.FAIL),
        (E.INVALID_PRODUCER_EPOCH, {}, ErrorClass.REWIND),
        (E.INVALID_PRODUCER_EPOCH, {"transactional": True}, ErrorClass.FAIL),
        (E.TRANSACTION_ABORTABLE, {"transactional": True}, ErrorClass.FAIL),
    ],
)
def test_errors_in_answers_are_classified(code: ErrorCode, facts: dict[str, bool | int], expected: ErrorClass) -> None:
    usual = {"records": 2, "may_retry": True, "idempotent": True, "transactional": False, "next_in_line": True}
    assert classify_error(code, **{**usual, **facts}) is expected  # type: ignore[arg-type]  # each has its type


def in_state(state: State) -> Transaction:
    transaction = Transaction("x")
    transaction.state = state
    transaction.identity = ProducerId(1, 0)
    transaction.error = RefusedError(E.INVALID_TXN_STATE, "before") if "ERROR" in state.name else None
    return transaction


ALLOWED = {
    "check_init": {State.UNINITIALIZED},
    "begin_transaction": {State.READY},
    "check_write": {State.IN_TRANSACTION},
    "begin_commit": {State.IN_TRANSACTION, State.COMMITTING},
    "begin_abort": {State.IN_TRANSACTION, State.ABORTING, State.ABORTABLE_ERROR},
}


@pytest.mark.parametrize("call", ALLOWED)
@pytest.mark.parametrize("state", State)
def test_each_call_in_each_state(call: str, state: State) -> None:
    transaction = in_state(state)
    if state in ALLOWED[call]:
        getattr(transaction, call)()
        return
    with pytest.raises(UsageError) as refused:
        getattr(transaction, call)()
    assert refused.value.next_step
    assert transaction.state is state


@pytest.mark.parametrize("code", [E.PRODUCER_FENCED, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, E.INVALID_TXN_STATE])
def test_some_errors_are_for_good(code: ErrorCode) -> None:
    transaction = in_state(State.IN_TRANSACTION)
    transaction.on_failed(RefusedError(code, "x"))
    transaction.on_failed(RefusedError(E.MESSAGE_TOO_LARGE, "later"))
    assert transaction.state is State.FATAL_ERROR
    with pytest.raises(UsageError, match=code.name):
        transaction.begin_abort()


@pytest.mark.parametrize("code", [E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH])
def test_every_call_of_a_fenced_producer_raises_one_class(code: ErrorCode) -> None:
    transaction = in_state(State.IN_TRANSACTION)
    transaction.on_failed(ProducerFencedError(code, "x"))
    for call in ALLOWED:
        with pytest.raises(ProducerFencedError, match="another producer has taken over"):
            getattr(transaction, call)()


def test_other_errors_only_require_an_abort() -> None:
    transaction = in_state(State.IN_TRANSACTION)
    transaction.partitions.add(TopicPartition("t", 0))
    transaction.on_failed(RefusedError(E.MESSAGE_TOO_LARGE, "x"))
    assert transaction.state is State.ABORTABLE_ERROR
    transaction.begin_abort()
    transaction.on_failed(UsageError("a record of it was taken back"))
    transaction.on_ended(ProducerId(1, 1))
    assert (transaction.state, transaction.identity, transaction.is_empty) == (State.READY, ProducerId(1, 1), True)


def test_short_queues_are_likelier() -> None:
    below = random.Random(5).randrange
    found = Counter(choose_sticky([0, 1, 2], [0, 3, 1], below) for _ in range(7_000))
    # Kafka's weights: the longest queue plus one, minus the partition's own queue.
    shares = [found[n] * 8 / 7_000 for n in (0, 1, 2)]
    assert shares == pytest.approx([4, 1, 3], abs=0.2)
    assert choose_sticky([7], [9], below) == 7
    assert {choose_sticky([0, 1], None, below) for _ in range(100)} == {0, 1}


@pytest.mark.parametrize("delta", [0, 1, 511, 512, -1, 2**40])
@pytest.mark.parametrize("value", [None, b"", b"v", bytes(511), bytes(512), bytes(70_000)])
@pytest.mark.parametrize("key", [None, b"", b"key"])
@pytest.mark.parametrize("headers", [(), (("h", None), ("é", b"1"), ("\udcff", b""))])
def test_records_are_encoded_as_the_other_encoder_does(
    delta: int, value: bytes | None, key: bytes | None, headers: tuple[tuple[str, bytes | None], ...]
) -> None:
    offset = 600 if delta == 511 else 3
    both = [Record(0, 2**41, None, None), Record(offset, 2**41 + delta, key, value, headers)]
    expected = bytes(encode_batch(both))
    assert expected.endswith(record_body(offset, delta, key, value, headers))


def test_a_header_whose_name_is_not_text_is_refused() -> None:
    with pytest.raises(UsageError, match="half of a surrogate pair"):
        record_body(0, 0, None, None, (("\ud83d", b""),))
