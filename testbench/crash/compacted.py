"""Whether the content of a compacted log can be the result of compacting the records that were written.

Zone: pure. Compares lists of written batches with the bytes found; independent of segments, cleaners and checkpoints.

1. Below the state's reach a record may be missing if a later one has its key, if its transaction was aborted, or if it
   is a tombstone whose retention is over. A marker may be missing if no record of its transaction is left.
2. Everything that is found was written at that offset.
3. A reader gets the newest record of each key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ottla.record.batch import BatchHeader, Record, batches_of, records_of
from testbench.crash.model import State, Written, outcomes, superseded
from testbench.crash.site import CONFIGS, KEYED

RECORDS_MAX_BYTES = 1 << 20
_ENDS = ("commit", "abort")


class There(NamedTuple):
    """A batch that was found in the log."""

    header: BatchHeader
    records: list[Record]


def batches_in(content: bytes) -> list[There]:
    """All batches in the bytes, with their records."""
    return [
        There(header, list(records_of(content, pos, max_bytes=RECORDS_MAX_BYTES)))
        for pos, header in batches_of(content)
    ]


def survivors(content: bytes, batches: Sequence[Written], kept: int) -> Iterator[list[Written]]:
    """States that a loss may have left: the whole log; then, down to `kept`, durable batches and those found.

    Between two segments offsets may be missing, so a start cannot know that the tail of the first one is lost.
    """
    there = {header.base_offset for _, header in batches_of(content)}
    yield list(batches)
    for durable in reversed([batch.base for batch in batches if batch.base >= kept and batch.base not in there]):
        yield [batch for batch in batches if batch.base < durable or batch.base in there]


def unlike(content: bytes, start: int, end: int, state: State, now_ms: int) -> str:
    """Why the content of a log, which begins at `start` and ends at `end`, cannot be that; empty when it can."""
    return next(_complaints(content, start, end, state, now_ms), "")


def _complaints(content: bytes, start: int, end: int, state: State, now_ms: int) -> Iterator[str]:
    known = [batch for batch in state.batches if batch.base < end and batch.last >= start]
    if known and known[-1].last >= end:
        yield f"it ends at {end}, within a batch of {known[-1].base} to {known[-1].last}"
    there = batches_in(content)
    by_base = {batch.base: batch for batch in known}
    yield from _foreign(there, by_base)
    reach = min(state.reach, end)
    past = State(known, reach=reach)
    yield from _missing(there, past, state.lost, start, now_ms)
    yield from _shown(there, past, state.lost, start, now_ms)


def _foreign(there: list[There], by_base: dict[int, Written]) -> Iterator[str]:
    """Batches that were not written at their offset, or are out of order."""
    expected = -1
    for header, records in there:
        written = by_base.get(header.base_offset)
        if written is None:
            yield f"no batch was written at {header.base_offset}"
            return
        facts = (header.last_offset, header.leader_epoch, header.producer_id, header.producer_epoch)
        if facts != (written.last, written.epoch, written.producer, written.producer_epoch):
            yield f"the batch at {header.base_offset} has {facts} in its header"
        if header.base_sequence != written.sequence or header.is_control != (written.kind in _ENDS):
            yield f"the batch at {header.base_offset} has sequence {header.base_sequence}, not {written.sequence}"
        if header.is_transactional != (written.kind != "data"):
            yield f"the batch at {header.base_offset} belongs to another kind of transaction"
        if header.base_offset < expected:
            yield f"the batch at {header.base_offset} comes after offset {expected}"
        expected = header.last_offset + 1
        wrong = [record for record in records if record not in written.records]
        if wrong:
            yield f"no producer wrote {wrong[0]}"


def _missing(there: list[There], past: State, lost: frozenset[int], start: int, now_ms: int) -> Iterator[str]:
    """Records that are missing without a reason."""
    present = {record.offset for _, records in there for record in records}
    became = outcomes(past.batches)
    newer = superseded(past) | lost
    for batch in past.batches:
        for record in batch.records:
            if record.offset < start or record.offset in present or record.offset in newer:
                continue
            if batch.kind in _ENDS:
                may = _is_over(batch, past, now_ms) and not _left_of(batch, past.batches, present)
            else:
                dropped = became.get(batch.base) == "abort"
                may = dropped or (record.value is None and _is_over(batch, past, now_ms))
            if not may:
                yield f"the record at {record.offset} of key {record.key!r} is not there (reach {past.reach})"


def _is_over(batch: Written, past: State, now_ms: int) -> bool:
    """Whether the retention of a tombstone or a marker can be over."""
    return batch.last < past.reach and batch.wall_ms + CONFIGS[KEYED].delete_retention_ms <= now_ms


def _left_of(marker: Written, batches: Sequence[Written], present: set[int]) -> bool:
    """Whether a record of the marker's transaction is left."""
    for batch in reversed([batch for batch in batches if batch.base < marker.base]):
        if batch.producer == marker.producer:
            if batch.kind in _ENDS:
                return False
            if batch.kind == "txn" and any(record.offset in present for record in batch.records):
                return True
    return False


def _shown(there: list[There], past: State, lost: frozenset[int], start: int, now_ms: int) -> Iterator[str]:
    """Compare the newest committed record of each key with the written one."""
    became = outcomes(past.batches)
    tombstones: dict[bytes | None, bool] = {}
    newest: dict[bytes | None, int] = {}
    for batch in past.batches:
        if became.get(batch.base) in ("plain", "commit"):
            for record in batch.records:
                if record.offset >= start:
                    newest[record.key] = record.offset
                    tombstones[record.key] = record.value is None and _is_over(batch, past, now_ms)
    shown: dict[bytes | None, int] = {}
    for header, records in there:
        if became.get(header.base_offset) in ("plain", "commit"):
            shown.update((record.key, record.offset) for record in records if record.offset >= start)
    for key in sorted({*newest, *shown}, key=str):
        wanted, found = newest.get(key), shown.get(key)
        if found != wanted and not (found is None and (tombstones[key] or wanted in lost)):
            yield f"of the key {key!r} it shows the record at {found}, the newest one is at {wanted}"


def twice_below(content: bytes, clean: int, batches: Sequence[Written]) -> str:
    """Find keys with two records, or aborted records, below the cleaner's checkpoint."""
    became = outcomes(batches)
    seen: dict[bytes | None, int] = {}
    for header, records in batches_in(content):
        if header.last_offset >= clean or header.is_control:
            continue
        if records and became.get(header.base_offset) == "abort":
            return f"its cleaner checkpoint is {clean}; at {header.base_offset} is a transaction that was aborted"
        for record in records:
            if record.key in seen:
                return f"its cleaner checkpoint is {clean}; {seen[record.key]} and {record.offset} have one key"
            seen[record.key] = record.offset
    return ""


def of_other_epochs(content: bytes, epochs: Sequence[tuple[int, int]], start: int) -> str:
    """Compare leader epochs with the batches; an epoch without any record may be missing."""
    for header, _ in batches_in(content):
        offset = max(header.base_offset, start)
        found = max((epoch for epoch, begin in epochs if begin <= offset), default=-1)
        if found != header.leader_epoch:
            return f"by its leader epochs {list(epochs)} offset {offset} is of {found}, not {header.leader_epoch}"
    return ""


def hidden_wrongly(content: bytes, aborted: Sequence[tuple[int, int, int]], batches: Sequence[Written]) -> str:
    """Check that the list of aborted transactions hides exactly the aborted batches."""
    became = outcomes(batches)
    for header, records in batches_in(content):
        if header.is_control or not header.is_transactional or not records:
            continue
        base = header.base_offset
        covered = any(entry[0] == header.producer_id and entry[1] <= base < entry[2] for entry in aborted)
        if covered != (became.get(base) == "abort"):
            return f"the batch at {base} is of a transaction with the end `{became.get(base)}`, aborted are {aborted}"
    return ""


def first_at(content: bytes, start: int, stamp: int) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record with at least that timestamp."""
    for _, records in batches_in(content):
        for record in records:
            if record.offset >= start and record.timestamp >= stamp:
                return record.timestamp, record.offset
    return None


def as_written(content: bytes, batches: Sequence[Written]) -> list[Written]:
    """A state in which only the found batches were written."""
    by_base = {batch.base: batch for batch in batches}
    found = []
    for pos, header in batches_of(content):
        data = content[pos : pos + header.size]
        found.append(by_base[header.base_offset]._replace(data=data))
    return found
