"""Idempotent producers in one partition: duplicates, gaps, epochs, wrap, transactions, snapshots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import ApiError, ErrorCode
from ottla.record.control import Marker
from ottla.storage.indexes.txn_index import AbortedTransaction
from ottla.storage.producers.producer_expiry import GONE_KEPT, ProducerExpiry
from ottla.storage.producers.producer_state import BATCHES_KEPT, ProducerState

TRANSACTIONAL = 0x10
LAST = 2**31 - 1


def header(sequence: int, count: int = 1, *, epoch=0, producer_id=7, attributes=0, timestamp=5):
    return (0, 100, 0, 2, 0, attributes, count - 1, timestamp, timestamp, producer_id, epoch, sequence, count)


def put(state: ProducerState, offset: int, sequence: int, count: int = 1, **keywords) -> None:
    made = header(sequence, count, **keywords)
    assert state.check_batch(made) is None
    state.note_batch(made, offset, 0)


def refused(state: ProducerState, made) -> ErrorCode:
    with pytest.raises(ApiError) as error:
        state.check_batch(made)
    return error.value.code


def test_an_unknown_producer_may_begin_anywhere() -> None:
    state = ProducerState()
    put(state, 0, 4711)
    put(state, 1, 4712)
    assert refused(state, header(4714)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_repeated_batch_is_found_with_its_place() -> None:
    state = ProducerState()
    for number in range(BATCHES_KEPT):
        put(state, 100 + 2 * number, 2 * number, 2, timestamp=50 + number)
    for number in range(BATCHES_KEPT):
        found = state.check_batch(header(2 * number, 2))
        assert found == (100 + 2 * number, 101 + 2 * number, 50 + number)


def test_a_batch_older_than_the_kept_ones_is_a_duplicate_without_an_offset() -> None:
    state = ProducerState()
    for number in range(BATCHES_KEPT + 2):
        put(state, number, number)
    assert refused(state, header(0)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert refused(state, header(1)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_a_batch_that_is_only_partly_old_is_a_gap() -> None:
    state = ProducerState()
    put(state, 0, 0, 10)
    assert refused(state, header(5, 10)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_before_the_first_seen_sequence_is_not_a_duplicate() -> None:
    """Its state had expired, or begins here: it is not known whether the earlier batch was ever written."""
    state = ProducerState()
    put(state, 0, 100)
    assert refused(state, header(99)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_at_zero() -> None:
    state = ProducerState()
    put(state, 0, 0, epoch=3)
    assert refused(state, header(1, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(state, header(1, epoch=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    put(state, 1, 0, epoch=4)
    put(state, 2, 1, epoch=4)
    assert refused(state, header(1, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_sequences_wrap() -> None:
    state = ProducerState()
    put(state, 0, LAST - 1, 2)
    put(state, 2, 0)
    assert state.check_batch(header(LAST - 1, 2)) == (0, 1, 5)
    put(state, 3, 1)
    within = ProducerState()
    put(within, 0, LAST - 1, 4)
    put(within, 4, 2)
    assert within.check_batch(header(LAST - 1, 4)) == (0, 3, 5)


def test_expiry_spares_open_transactions() -> None:
    state = ProducerState()
    state.note_batch(header(0, producer_id=1), 0, 1000)
    state.note_batch(header(0, producer_id=2, attributes=TRANSACTIONAL), 1, 1000)
    assert state.expire_producers(1999, 1000) == 0
    assert state.expire_producers(2000, 1000) == 1
    assert state.get(1) is None
    assert state.get(2) is not None


def test_the_oldest_open_transaction_bounds_what_is_stable() -> None:
    state = ProducerState()
    put(state, 0, 0, producer_id=1, attributes=TRANSACTIONAL)
    put(state, 1, 0, producer_id=2, attributes=TRANSACTIONAL)
    assert state.first_unstable_offset(2) == 0
    marker = header(-1, producer_id=1, attributes=TRANSACTIONAL)
    aborted = state.end_transaction(marker, 2, Marker(commit=False, coordinator_epoch=1), 0)
    assert aborted == AbortedTransaction(1, 0, 2, 1)
    # The marker is written, but not below the high watermark: the transaction still is not over.
    assert state.first_unstable_offset(2) == 0
    assert state.first_unstable_offset(3) == 1
    marker = header(-1, producer_id=2, attributes=TRANSACTIONAL)
    assert state.end_transaction(marker, 3, Marker(commit=True, coordinator_epoch=1), 0) is None
    assert state.first_unstable_offset(4) is None


def test_ended_transactions_are_dropped_without_a_reader() -> None:
    """A partition of `__consumer_offsets` may see millions of transactions and no consumer."""
    state, most = ProducerState(), 0
    for offset in range(0, 4000, 2):
        put(state, offset, 0, epoch=offset, attributes=TRANSACTIONAL)
        marker = header(-1, epoch=offset, attributes=TRANSACTIONAL)
        committed = 1000 if offset < 2000 else offset  # a follower is away for a while
        state.end_transaction(marker, offset + 1, Marker(commit=True, coordinator_epoch=1), 0, committed)
        most = max(most, len(state.completed))
        if offset == 1500:
            assert state.first_unstable_offset(1000) == 1000
    assert most < 1000
    assert len(state.completed) < 300
    assert state.first_unstable_offset(3999) == 3998


def test_a_marker_of_a_newer_epoch_fences() -> None:
    state = ProducerState()
    put(state, 0, 0, attributes=TRANSACTIONAL)
    state.end_transaction(header(-1, epoch=1), 1, Marker(commit=False, coordinator_epoch=3), 0)
    assert refused(state, header(1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    put(state, 2, 0, epoch=1)


def test_markers_of_old_coordinators_and_transactions_are_refused() -> None:
    state = ProducerState()
    assert state.needs_marker(7, 0, bumped=True), "its producer is not known"
    put(state, 0, 0, epoch=3, attributes=TRANSACTIONAL)
    with pytest.raises(ApiError, match="INVALID_PRODUCER_EPOCH"):
        state.needs_marker(7, 3, bumped=True)
    assert state.needs_marker(7, 3, bumped=False), "before KIP-890 a marker has the epoch of its transaction"
    assert state.needs_marker(7, 4, bumped=True)
    state.end_transaction(header(-1, epoch=4), 1, Marker(commit=True, coordinator_epoch=6), 0)
    assert not state.needs_marker(7, 4, bumped=True), "the log has it already (KAFKA-19999)"
    for bumped in (True, False):
        with pytest.raises(ApiError, match="INVALID_PRODUCER_EPOCH"):
            state.needs_marker(7, 3, bumped)
    state.check_coordinator(7, 6)
    state.check_coordinator(8, 0)
    with pytest.raises(ApiError, match="TRANSACTION_COORDINATOR_FENCED"):
        state.check_coordinator(7, 5)


def test_between_the_records_of_a_transaction_its_producer_writes_nothing_else() -> None:
    state = ProducerState()
    put(state, 0, 0, attributes=TRANSACTIONAL)
    assert state.is_open(7, 0)
    assert not state.is_open(7, 1)
    assert refused(state, header(1)) is ErrorCode.INVALID_TXN_STATE
    put(state, 1, 1, attributes=TRANSACTIONAL)
    state.end_transaction(header(-1), 2, Marker(commit=True, coordinator_epoch=0), 0)
    assert not state.is_open(7, 0)
    put(state, 3, 2)


def test_a_coordinators_batches_for_a_producer_have_no_sequence() -> None:
    state = ProducerState()
    for offset in (0, 3):
        state.note_batch(header(-1, 3, attributes=TRANSACTIONAL), offset, 0)
    (entry,) = state.snapshot_entries()
    assert (entry.last_sequence, entry.last_offset, entry.offset_delta, entry.current_txn_first_offset) == (-1, 5, 2, 0)


def test_a_snapshot_gives_the_state_again() -> None:
    state = ProducerState()
    put(state, 0, 0, 3)
    put(state, 3, 0, 2, producer_id=9, attributes=TRANSACTIONAL)
    put(state, 5, 3, 4)
    again = ProducerState()
    again.load_entries(state.snapshot_entries(), 9, 0)
    assert again.snapshot_entries() == state.snapshot_entries()
    assert again.check_batch(header(3, 4)) == (5, 8, 5)
    assert again.first_unstable_offset(9) == 3
    # Only the last batch is in a snapshot; the ones before it were certainly written as well.
    assert refused(again, header(0, 3)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    put(again, 9, 7)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4)), max_size=80), st.sampled_from([0, LAST - 20]))
def test_nothing_is_written_twice_and_nothing_left_out(sends, first) -> None:
    """Against a model: a producer that sends batch number n of its queue in any order, again and again."""
    lengths = [1 + number % 3 for number in range(200)]
    starts = [sum(lengths[:number]) for number in range(200)]
    state = ProducerState()
    state.note_batch(header(first, lengths[0]), 0, 0)
    written, offset = [0], lengths[0]
    for back, ahead in sends:
        number = max(0, len(written) - back) if back else len(written) + ahead - 1
        made = header((first + starts[number]) % 2**31, lengths[number])
        if number > len(written):
            assert refused(state, made) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        elif number == len(written):
            assert state.check_batch(made) is None
            state.note_batch(made, offset, 0)
            written.append(offset)
            offset += lengths[number]
        elif number >= len(written) - BATCHES_KEPT:
            assert state.check_batch(made).base_offset == written[number]
        else:
            assert refused(state, made) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_the_expiry_keeps_no_entries_of_states_that_are_gone() -> None:
    calendar, kept = ProducerExpiry(), ProducerState()
    put(kept, 0, 0)
    kept.attach_expiry(calendar)
    for number in range(3 * GONE_KEPT):
        state = ProducerState()
        put(state, 0, 0)
        state.attach_expiry(calendar)
        del state
        assert len(calendar) <= GONE_KEPT + 3, number
    assert not calendar.expire_producers(10, 1)
    assert not len(kept)
