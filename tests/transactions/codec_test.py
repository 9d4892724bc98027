"""Records of `__transaction_state`: Kafka's are read and written byte by byte, ours are read with Kafka's schemas."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.record.batch import batches_of, records_of
from ottla.record.control import ControlType, control_key, parse_marker
from ottla.record.errors import CorruptRecord
from ottla.record.internal.parsing import parse_record
from ottla.record.internal.transactions import TRANSACTION_RECORDS, TransactionLogValue
from ottla.storage.dump.decoders import as_transactions
from ottla.transactions.codec import Entry, TransactionCodec
from ottla.transactions.state import Transaction, TransactionStatus
from ottla.types import TopicPartition

CODEC = TransactionCodec()
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
EPOCHS = st.integers(-1, 2**15 - 1)
PARTITIONS = st.builds(TopicPartition, st.text(max_size=5), st.integers(0, 2**31 - 1))


@st.composite
def transactions(draw: st.DrawFn) -> Transaction:
    status = draw(st.sampled_from(TransactionStatus))
    return Transaction(
        producer_id=draw(INT64),
        epoch=draw(EPOCHS),
        timeout_ms=draw(INT32),
        status=status,
        partitions=frozenset() if status is TransactionStatus.EMPTY else draw(st.frozensets(PARTITIONS, max_size=6)),
        start_ms=draw(INT64),
        update_ms=draw(INT64),
        previous_producer_id=draw(INT64),
        next_producer_id=draw(INT64),
        last_epoch=draw(EPOCHS),
        version=draw(st.integers(0, 2)),
    )


def golden_records(golden: Callable, case: str, folder: str) -> list[tuple[bytes | None, bytes | None, bool]]:
    rows = []
    for path in sorted(golden(case).directory.glob(f"{folder}/*.log")):
        log = path.read_bytes()
        for pos, header in batches_of(log):
            records = records_of(log, pos, max_bytes=1 << 20)
            rows += [(record.key, record.value, header.is_control) for record in records]
    return rows


def test_kafkas_records_there_and_back(golden: Callable) -> None:
    rows = golden_records(golden, "transaction-state", "__transaction_state-*")
    assert len(rows) > 100
    seen = set()
    for key, value, _ in rows:
        entry = CODEC.decode(key, value)
        ours = CODEC.encode(entry)
        if len({tp.topic for tp in entry.transaction.partitions}) > 1:  # Kafka's are in the order of its hash table
            assert (CODEC.decode(*ours), len(ours[1])) == (entry, len(value))
        else:
            assert ours == (key, value)
        seen.add(entry.transaction.status)
    assert seen == set(TransactionStatus)


@given(st.text(max_size=40), transactions())
def test_ours_there_and_back(name: str, txn: Transaction) -> None:
    key, value = CODEC.encode(Entry(name, txn))
    assert CODEC.decode(key, value) == Entry(name, txn)
    kafkas = parse_record(TRANSACTION_RECORDS, key, value).value
    assert isinstance(kafkas, TransactionLogValue)
    assert (kafkas.producer_id, kafkas.producer_epoch) == txn[:2]
    shown = as_transactions(0, key, value).payload
    assert ("lastProducerEpoch" in shown) == (txn.last_epoch != -1), (
        "printed as Kafka prints it: only when it says something"
    )


def test_a_removed_id_is_a_tombstone() -> None:
    key, value = CODEC.encode(Entry("a", None))
    assert value is None
    assert CODEC.decode(key, value) == Entry("a", None)


def test_unknown_record_types_are_skipped() -> None:
    assert CODEC.decode(struct.pack(">h", 9) + b"\0\1a", b"\0\0") is None


def test_the_error_names_the_damage() -> None:
    key, value = CODEC.encode(Entry("a", Transaction(1, 0, 1, TransactionStatus.COMPLETE_ABORT)))
    for broken in (value[:5], b"\0\7" + value[2:], b"", value.replace(b"\0\0\0\1\5", b"\0\0\0\1\x09")):
        with pytest.raises(CorruptRecord):
            CODEC.decode(key, broken)
    with pytest.raises(CorruptRecord):
        CODEC.decode(None, value)


@given(st.binary(max_size=30), st.none() | st.binary(max_size=60))
def test_any_bytes(key: bytes, value: bytes | None) -> None:
    try:
        entry = CODEC.decode(b"\0\0" + key, value)
    except CorruptRecord:
        return
    assert isinstance(entry, Entry)


def test_control_types(golden: Callable) -> None:
    """Key: version 0, then type 0 = abort, 1 = commit; as Kafka writes it into partitions of transactions."""
    kinds = {
        bytes(key): parse_marker(key, value).commit
        for key, value, control in golden_records(golden, "transactions", "txn-*")
        if control
    }
    assert kinds == {b"\0\0\0\0": False, b"\0\0\0\1": True}
    assert control_key(ControlType.ABORT) == b"\0\0\0\0"
    assert control_key(ControlType.COMMIT) == b"\0\0\0\1"
