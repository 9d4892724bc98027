"""Checks whether files that a start trusts are possible, by their ends, not by all of their content.

Zone: deterministic. Blocking, at start only; a few headers per segment. It detects files that changed places, were cut,
or hold zeros. A flipped bit in the middle of a segment is detected by readers, by its checksum, and by
`ottla log verify`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.record.batch import CONTROL, HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2
from ottla.record.header_fields import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_LENGTH,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    MAGIC,
    PRODUCER_EPOCH,
    PRODUCER_ID,
)
from ottla.record.log_entries import entry_at
from ottla.record.validation import HeaderTuple
from ottla.storage.indexes.leader_epochs import EpochEntry
from ottla.storage.indexes.txn_index import AbortedTransaction
from ottla.storage.producers.producer_state import SnapshotEntry
from ottla.storage.segments.scan import walk_headers
from ottla.storage.segments.segment import Segment
from ottla.types import NO_OFFSET

_ENTRIES_LOOKED_AT: Final = 16
"""Leader epochs and aborted transactions that are checked: the newest ones, which are needed most."""


_HEADERS_LOOKED_AT: Final = 64
_BYTES_LOOKED_AT: Final = 16 * 1024
"""Bytes that are read before the offset of a producer snapshot, and from the segment before it."""


def header_at(segment: Segment, position: int) -> HeaderTuple | None:
    """The header of the entry at `position`; None where no entry begins that is wholly in the file."""
    head = bytearray(HEADER_SIZE)
    got = segment.file.read_now(position, memoryview(head))
    header = entry_at(head, 0, got)
    return header if header is not None and position + header[BATCH_LENGTH] + LOG_OVERHEAD <= segment.size else None


def header_reaching(segment: Segment, offset: int) -> HeaderTuple | None:
    """The header of the first batch whose last offset is at or above `offset`; None when the segment has none."""
    position = segment.index.lookup_offset(offset).position
    while (header := header_at(segment, position)) is not None:
        if header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] >= offset:
            return header
        position += header[BATCH_LENGTH] + LOG_OVERHEAD
    return None


def find_edge_fault(segment: Segment, following: int, compacted: bool) -> str:
    """The fault of the first or last batches of a sealed segment; empty: none. `following`: the next one's base."""
    if not segment.size:
        return "" if compacted or following == segment.base_offset else "it is empty"
    first = header_at(segment, 0)
    if first is None:
        return "it does not begin with a batch"
    if not segment.base_offset <= first[BASE_OFFSET] + first[LAST_OFFSET_DELTA] < following:
        return f"it begins with offset {first[BASE_OFFSET]}"
    end, end_offset = segment.walk_tail()
    if end != segment.size:
        return f"{segment.size - end} bytes at its end are not whole batches"
    if end_offset > following or (end_offset < following and not compacted):
        return f"it ends at offset {end_offset}, the next one begins at {following}"
    return ""


def active_offsets_rise(segment: Segment) -> bool:
    """Whether the offsets of the last batches of the active segment rise, from its base on."""
    last = segment.index.last_entry
    expected = segment.base_offset
    for _, header in walk_headers(segment.file, last.position if last else 0, segment.size):
        # A wrapper message of an old format has only its last offset in the header: nothing can be compared.
        if header[MAGIC] != MAGIC_V2:
            return True
        if not expected <= header[BASE_OFFSET] <= segment.max_offset:
            return False
        expected = header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] + 1
    first = header_at(segment, 0)
    return first is None or segment.base_offset <= first[BASE_OFFSET] + first[LAST_OFFSET_DELTA] <= segment.max_offset


def txn_index_matches(segment: Segment, following: int, compacted: bool) -> bool:
    """Whether the entries of a transaction index are in this segment, and the markers of the newest ones exist."""
    entries = segment.txn_index.entries
    for entry in entries:
        if entry.producer_id < 0 or entry.first_offset < 0 or not segment.base_offset <= entry.last_offset < following:
            return False
        if not 0 <= entry.last_stable_offset <= entry.last_offset + 1:
            return False
    # Compaction may have removed a transaction's first batch, or its marker.
    for entry in () if compacted else entries[-_ENTRIES_LOOKED_AT:]:
        marker = header_reaching(segment, entry.last_offset)
        if marker is None or marker[BASE_OFFSET] > entry.last_offset or marker[PRODUCER_ID] != entry.producer_id:
            return False
        if not marker[ATTRIBUTES] & CONTROL:
            return False
        if entry.first_offset >= segment.base_offset:
            opened = header_reaching(segment, entry.first_offset)
            if opened is None or opened[BASE_OFFSET] != entry.first_offset or opened[PRODUCER_ID] != entry.producer_id:
                return False
            if not _is_single_transaction(segment, entry):
                return False
    return True


def _is_single_transaction(segment: Segment, entry: AbortedTransaction) -> bool:
    """Whether no other transaction of the producer ends within this one, as far as its first batches show."""
    position = segment.index.lookup_offset(entry.first_offset).position
    for _ in range(_HEADERS_LOOKED_AT):
        header = header_at(segment, position)
        if header is None or header[BASE_OFFSET] >= entry.last_offset:
            break
        if (
            header[ATTRIBUTES] & CONTROL
            and header[PRODUCER_ID] == entry.producer_id
            and header[BASE_OFFSET] > entry.first_offset
        ):
            return False
        position += header[BATCH_LENGTH] + LOG_OVERHEAD
    return True


def epochs_match(
    entries: Sequence[EpochEntry], segments: Sequence[Segment], start: int, end: int, compacted: bool
) -> bool:
    """Whether leader epochs begin where those of the batches do, and the newest is that of the last batch."""
    # 1. An empty log, or one with messages of old formats: batches without an epoch prove nothing.
    if not end > segments[0].base_offset:
        return True
    if any(header is not None and header[MAGIC] != MAGIC_V2 for header in (header_at(each, 0) for each in segments)):
        return True
    last = _batch_of(segments, end - 1)
    if last is None or last[LEADER_EPOCH] < 0:
        return True
    # 2. The newest epoch is the last batch's, and the oldest one begins where the log does.
    if not entries or entries[-1].epoch != last[LEADER_EPOCH]:
        return False
    if not compacted and entries[0].start_offset > max(start, segments[0].base_offset):
        return False
    # 3. The oldest and the newest epochs begin with a batch; compaction may have removed that batch.
    return compacted or all(
        _begins_there(entry, segments, first=at == 0)
        for at, entry in enumerate(entries)
        if at == 0 or at >= len(entries) - _ENTRIES_LOOKED_AT
    )


def epochs_begin_late(entries: Sequence[EpochEntry], segments: Sequence[Segment], start: int) -> bool:
    """Whether the first batch of a compacted log is below all of its leader epochs.

    The records below them were deleted, and this checkpoint is newer than that of the log starts.
    """
    found = (header_reaching(segment, start) for segment in segments)
    first = next((header for header in found if header is not None), None)
    if not entries or first is None or first[MAGIC] != MAGIC_V2 or first[LEADER_EPOCH] < 0:
        return False
    return max(start, first[BASE_OFFSET]) < entries[0].start_offset


def _begins_there(entry: EpochEntry, segments: Sequence[Segment], first: bool) -> bool:
    if entry.start_offset < segments[0].base_offset:
        return first
    found = _batch_of(segments, entry.start_offset)
    if found is None or found[LEADER_EPOCH] != entry.epoch:
        return False
    if first:
        return found[BASE_OFFSET] <= entry.start_offset
    before = _batch_of(segments, entry.start_offset - 1)
    return found[BASE_OFFSET] == entry.start_offset and (before is None or before[LEADER_EPOCH] < entry.epoch)


def _batch_of(segments: Sequence[Segment], offset: int) -> HeaderTuple | None:
    for segment in reversed(segments):
        if segment.base_offset <= offset:
            return header_reaching(segment, offset)
    return None


def epochs_of(segments: Sequence[Segment]) -> list[EpochEntry]:
    """The leader epochs of a log, from the headers of all its batches."""
    found: list[EpochEntry] = []
    for segment in segments:
        for _, header in walk_headers(segment.file, 0, segment.size):
            if (
                header[MAGIC] == MAGIC_V2
                and header[LEADER_EPOCH] >= 0
                and (not found or header[LEADER_EPOCH] > found[-1].epoch)
            ):
                found.append(EpochEntry(header[LEADER_EPOCH], header[BASE_OFFSET]))
    return found


def snapshot_matches(
    entries: Sequence[SnapshotEntry], offset: int, segments: Sequence[Segment], compacted: bool
) -> bool:
    """Whether a producer snapshot is of `offset`: nothing in it is later, and the batches just before it are in it."""
    # 1. Nothing in it is from `offset` on, and the last batches of its producers are theirs.
    if any(entry.last_offset >= offset or entry.current_txn_first_offset >= offset for entry in entries):
        return False
    if not compacted and not all(_wrote_last_batch(segments, entry) for entry in entries[-_ENTRIES_LOOKED_AT:]):
        return False
    # 2. Read the batches just before `offset`: the last data batch, its epoch and the last marker of each producer.
    known = {entry.producer_id: entry for entry in entries}
    newest: dict[int, int] = {}
    epochs: dict[int, int] = {}
    ended: dict[int, int] = {}
    for segment in [each for each in segments if each.base_offset < offset][-2:]:
        before = segment.index.lookup_offset(offset - 1).position
        start = segment.index.floor_of_position(max(0, before - _BYTES_LOOKED_AT))
        for _, header in walk_headers(segment.file, start, min(segment.size, before + 2 * _BYTES_LOOKED_AT)):
            if header[BASE_OFFSET] >= offset:
                break
            producer, last = header[PRODUCER_ID], header[BASE_OFFSET] + header[LAST_OFFSET_DELTA]
            if producer < 0:
                continue
            if not header[ATTRIBUTES] & CONTROL:
                newest[producer], epochs[producer] = last, header[PRODUCER_EPOCH]
                continue
            ended[producer] = last
            # Transaction version 2: its marker begins an epoch.
            if header[PRODUCER_EPOCH] > epochs.get(producer, header[PRODUCER_EPOCH]):
                newest[producer] = NO_OFFSET
    # 3. A transaction that ended there is not open in the snapshot, and the last offsets agree.
    for producer, last in ended.items():
        if producer not in known or 0 <= known[producer].current_txn_first_offset < last:
            return False
    return all(producer in known and known[producer].last_offset == last for producer, last in newest.items()) and all(
        entry.last_offset <= newest.get(entry.producer_id, entry.last_offset) for entry in entries
    )


def _wrote_last_batch(segments: Sequence[Segment], entry: SnapshotEntry) -> bool:
    """Whether the last batch of a producer is its own, if the log still has it."""
    found = _batch_of(segments, entry.last_offset) if entry.last_offset >= 0 else None
    return found is None or found[MAGIC] != MAGIC_V2 or found[PRODUCER_ID] == entry.producer_id
