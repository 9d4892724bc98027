"""Compares the transaction index of a segment and the producer snapshots of a log with the batches.

Zone: pure. Values only.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from ottla.storage.indexes.txn_index import AbortedTransaction
from ottla.storage.producers.producer_state import SnapshotEntry

TXN_ENTRY: Final = Struct(">hqqqq")


def entry_bytes(entry: AbortedTransaction) -> bytes:
    """An entry in the format of the file."""
    return TXN_ENTRY.pack(0, *entry)


def aborted_in(content: bytes, expected: Sequence[AbortedTransaction], base: int) -> str:
    """The fault of a transaction index; empty: none.

    An entry more than expected is not a fault: its transaction may begin before the log does, or compaction may have
    removed its records.
    """
    if len(content) % TXN_ENTRY.size:
        return f"{len(content) % TXN_ENTRY.size} bytes too many"
    there: dict[tuple[int, int], int] = {}
    before = -1
    for at, (version, producer, first, last, _) in enumerate(TXN_ENTRY.iter_unpack(content)):
        if version or not before < last or first > last or last < base:
            return f"entry {at} is impossible: version {version}, producer {producer}, offsets {first} to {last}"
        there[producer, last] = first
        before = last
    for entry in expected:
        first = there.get((entry.producer_id, entry.last_offset), -1)
        if first < 0 or first > entry.first_offset:
            return (
                f"producer {entry.producer_id} aborted the records from {entry.first_offset} to {entry.last_offset}, "
                "and it has no entry for them: they would be read as committed"
            )
    return ""


def compare_snapshots(stored: Sequence[SnapshotEntry], expected: Sequence[SnapshotEntry], offset: int) -> str:
    """The fault of a producer snapshot at an offset; empty: none. A producer that it lacks may have expired."""
    known = {entry.producer_id: entry for entry in expected}
    for entry in stored:
        if entry.last_offset >= offset or entry.current_txn_first_offset >= offset:
            return f"producer {entry.producer_id} has offset {entry.last_offset}, but the snapshot is of {offset}"
        other = known.get(entry.producer_id)
        if other is None or other.last_offset < 0 or other.producer_epoch != entry.producer_epoch:
            continue
        if entry.last_offset >= 0 and (entry.last_sequence, entry.last_offset) != (
            other.last_sequence,
            other.last_offset,
        ):
            return (
                f"producer {entry.producer_id} is at sequence {entry.last_sequence}, offset {entry.last_offset}; "
                f"in the log at {other.last_sequence}, {other.last_offset}"
            )
    for other in expected:
        if other.current_txn_first_offset >= 0 and all(entry.producer_id != other.producer_id for entry in stored):
            return f"producer {other.producer_id} has an open transaction, and is not in it"
    return ""
