"""Checks whether files that a start trusts are possible, by their ends, not by all of their content.

Zone: deterministic. Blocking, at start only; a few headers per segment. It detects files that changed places, were cut,
or hold zeros. A flipped bit in the middle of a segment is detected by readers, by its checksum, and by
`ottla log verify`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.record.batch import CONTROL, HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2
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
    return header if header is not None and position + header[1] + LOG_OVERHEAD <= segment.size else None


def header_reaching(segment: Segment, offset: int) -> HeaderTuple | None:
    """The header of the first batch whose last offset is at or above `offset`; None when the segment has none."""
    position = segment.index.lookup_offset(offset).position
    while (header := header_at(segment, position)) is not None:
        if header[0] + header[6] >= offset:
            return header
        position += header[1] + LOG_OVERHEAD
    return None


def find_edge_fault(segment: Segment, following: int, compacted: bool) -> str:
    """The fault of the first or last batches of a sealed segment; empty: none. `following`: the next one's base."""
    if not segment.size:
        return "" if compacted or following == segment.base_offset else "it is empty"
    first = header_at(segment, 0)
    if first is None:
        return "it does not begin with a batch"
    if not segment.base_offset <= first[0] + first[6] < following:
        return f"it begins with offset {first[0]}"
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
        if header[3] != MAGIC_V2:
            return True
        if not expected <= header[0] <= segment.max_offset:
            return False
        expected = header[0] + header[6] + 1
    first = header_at(segment, 0)
    return first is None or segment.base_offset <= first[0] + first[6] <= segment.max_offset


def txn_index_matches(segment: Segment, following: int, compacted: bool) -> bool:
    """Whether the entries of a transaction index are in this segment, and the markers of the newest ones exist."""
    entries = segment.txn_index.entries
    for entry in entries:
        if entry.producer_id < 0 or entry.first_offset < 0 or not segment.base_offset <= entry.last_offset < following:
            return False
        if not 0 <= entry.last_stable_offset <= entry.last_offset + 1:
            return False
    for entry in () if compacted else entries[-_ENTRIES_LOOKED_AT:]:
        marker = header_reaching(segment, entry.last_offset)
        if marker is None or marker[0] > entry.last_offset or marker[9] != entry.producer_id:
            return False
        if not marker[5] & CONTROL:
            return False
        if entry.first_offset >= segment.base_offset:
            opened = header_reaching(segment, entry.first_offset)
            if opened is None or opened[0] != entry.first_offset or opened[9] != entry.producer_id:
                return False
            if not _is_single_transaction(segment, entry):
                return False
    return True


def _is_single_transaction(segment: Segment, entry: AbortedTransaction) -> bool:
    """Whether no other transaction of the producer ends within this one, as far as its first batches show."""
    position = segment.index.lookup_offset(entry.first_offset).position
    for _ in range(_HEADERS_LOOKED_AT):
        header = header_at(segment, position)
        if header is None or header[0] >= entry.last_offset:
            break
        if header[5] & CONTROL and header[9] == entry.producer_id and header[0] > entry.first_offset:
            return False
        position += header[1] + LOG_OVERHEAD
    return True


def epochs_match(
    entries: Sequence[EpochEntry], segments: Sequence[Segment], start: int, end: int, compacted: bool
) -> bool:
    """Whether leader epochs begin where those of the batches do, and the newest is that of the last batch."""
    # 1. An empty log, or one with messages of old formats: batches without an epoch prove nothing.
    if not end > segments[0].base_offset:
        return True
    if any(header is not None and header[3] != MAGIC_V2 for header in (header_at(each, 0) for each in segments)):
        return True
    last = _batch_of(segments, end - 1)
    if last is None or last[2] < 0:
        return True
    # 2. The newest epoch is the last batch's, and the oldest one begins where the log does.
    if not entries or entries[-1].epoch != last[2]:
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
    if not entries or first is None or first[3] != MAGIC_V2 or first[2] < 0:
        return False
    return max(start, first[0]) < entries[0].start_offset


def _begins_there(entry: EpochEntry, segments: Sequence[Segment], first: bool) -> bool:
    if entry.start_offset < segments[0].base_offset:
        return first
    found = _batch_of(segments, entry.start_offset)
    if found is None or found[2] != entry.epoch:
        return False
    if first:
        return found[0] <= entry.start_offset
    before = _batch_of(segments, entry.start_offset - 1)
    return found[0] == entry.start_offset and (before is None or before[2] < entry.epoch)


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
            if header[3] == MAGIC_V2 and header[2] >= 0 and (not found or header[2] > found[-1].epoch):
                found.append(EpochEntry(header[2], header[0]))
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
            if header[0] >= offset:
                break
            producer, last = header[9], header[0] + header[6]
            if producer < 0:
                continue
            if not header[5] & CONTROL:
                newest[producer], epochs[producer] = last, header[10]
                continue
            ended[producer] = last
            if header[10] > epochs.get(producer, header[10]):  # transaction version 2: its marker begins an epoch
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
    return found is None or found[3] != MAGIC_V2 or found[9] == entry.producer_id
