"""One pass of compaction over one log.

Zone: deterministic. First the latest offset of every key in the part that was not cleaned yet, then every segment up
to there is rewritten, neighbours together. Bytes are read off the loop, keys and rewritten batches come from workers,
chunk by chunk; the loop only decides. A pass that finds its log changed under it gives up: that costs but time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ottla.config.topic import TopicConfig
from ottla.record.batch import HEADER_SIZE, BatchHeader, batches_of, header_at
from ottla.record.compaction import Keys, Rewrite
from ottla.record.errors import CorruptRecord
from ottla.seams import Failure, Kind, Workers
from ottla.storage.cleaning.grouping import Extent, groups
from ottla.storage.cleaning.judge import DROP, Bounds, Fate, Judge, LastBatch, Verdict
from ottla.storage.cleaning.latest import LatestOffsets
from ottla.storage.cleaning.output import CleanedFiles, put_in_place
from ottla.storage.cleaning.steps import Steps
from ottla.storage.cleaning.transactions import CleanedTransactions
from ottla.storage.home import Home
from ottla.storage.producer_state import marker_of
from ottla.storage.segment import Segment
from ottla.storage.segments import Segments
from ottla.types import TopicPartition

CHUNK: Final = 256 * 1024
"""Bytes that are read, and given to a worker, at a time; one batch may be larger."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a pass is to do."""

    tp: TopicPartition
    directory: str
    config: TopicConfig
    segments: Segments
    start_offset: int
    """The log start: nothing below it is looked at."""
    dirty_from: int
    """Where the last pass ended."""
    until: int
    """Where this one must end: a segment's base offset, at or below the last stable offset and the active segment."""
    producers: dict[int, LastBatch]
    bounds: Bounds
    dedupe_bytes: int
    max_batch_bytes: int
    """What a batch may expand to."""


class Cleaned(NamedTuple):
    """What a pass did."""

    end_offset: int
    """Everything below it is clean."""
    bytes_before: int
    bytes_after: int


class CleaningPass:
    """The work on one log; `steps` once."""

    def __init__(self, home: Home, workers: Workers, task: Task) -> None:
        self._home = home
        self._workers = workers
        self._task = task
        aborted = task.segments.aborted_transactions(task.start_offset, task.until)
        self._aborted = aborted
        self._transactions = CleanedTransactions(aborted)

    def steps(self) -> Steps[Cleaned]:
        """Clean. Raises Failure: of the disk, of a worker (a batch that cannot be read), CONFLICT: the log changed."""
        task = self._task
        latest = LatestOffsets(max(task.dirty_from, task.start_offset), task.dedupe_bytes)
        yield from self._gather(latest)
        judge = Judge(latest, self._transactions, task.producers, task.bounds)
        before = after = 0
        for group in self._groups(latest.end_offset):
            before += sum(segment.size for segment in group)
            fresh = yield from self._rewrite(group, judge)
            after += fresh.size
        return Cleaned(latest.end_offset, before, after)

    # -- first pass ----------------------------------------------------------------------------------------------------

    def _gather(self, latest: LatestOffsets) -> Steps[None]:
        seen = CleanedTransactions(self._aborted)
        for segment in self._below(self._task.until):
            pos = 0
            while pos < segment.size and not latest.full:
                chunk = yield from self._chunk(segment, pos)
                yield from self._note(chunk, seen, latest)
                pos += len(chunk)

    def _note(self, chunk: bytes, seen: CleanedTransactions, latest: LatestOffsets) -> Steps[None]:
        """Take the keys of a chunk's batches into the map, as far as there is room."""
        headers = [
            (pos, header) for pos, header in batches_of(chunk) if not self._counts_for_nothing(header, chunk, pos, seen)
        ]
        fresh = [(pos, header) for pos, header in headers if header.last_offset >= latest.end_offset]
        keys = yield from self._keys([chunk[pos : pos + header.size] for pos, header in fresh])
        for (_, header), found in zip(fresh, keys, strict=True):
            if latest.full:
                return
            latest.add(header.base_offset, header.last_offset, found)
        last = header_at(chunk, _last_position(chunk))
        latest.skip(max(last.last_offset, latest.end_offset - 1))

    def _counts_for_nothing(self, header: BatchHeader, chunk: bytes, pos: int, seen: CleanedTransactions) -> bool:
        if header.is_control:
            seen.is_needless(header, marker_of(memoryview(chunk), pos))
            return True
        return seen.is_aborted(header) or not header.record_count

    # -- second pass ---------------------------------------------------------------------------------------------------

    def _groups(self, end_offset: int) -> list[list[Segment]]:
        found = self._below(end_offset)
        extents = [
            Extent(
                segment.base_offset, self._task.segments.end_of(slot, self._task.until), segment.size,
                max(segment.index.size, segment.time_index.size),
            )
            for slot, segment in enumerate(found)
        ]  # fmt: skip
        by_base = {segment.base_offset: segment for segment in found}
        config = self._task.config
        return [
            [by_base[each.base_offset] for each in group]
            for group in groups(extents, config.segment_bytes, config.segment_index_bytes)
        ]

    def _rewrite(self, group: Sequence[Segment], judge: Judge) -> Steps[Segment]:
        task = self._task
        files = CleanedFiles(self._home.disk, task.directory, group[0].base_offset, task.config)
        kept = len(self._transactions.kept)
        try:
            for segment in group:
                pos = 0
                while pos < segment.size:
                    chunk = yield from self._chunk(segment, pos)
                    yield from self._write(chunk, judge, files)
                    pos += len(chunk)
            yield from files.finish(self._transactions.kept[kept:])
            self._check(group)
        except Failure:
            files.close()
            files.discard_names()
            raise
        fresh = yield from put_in_place(self._home, task.directory, files, group, task.config)
        task.segments.replace(group, fresh)
        for segment in group:
            segment.close()
        return fresh

    def _write(self, chunk: bytes, judge: Judge, files: CleanedFiles) -> Steps[None]:
        """The batches of a chunk as they are to be, in their order."""
        found = list(batches_of(chunk))
        verdicts = {pos: self._at_once(judge, chunk, pos, header) for pos, header in found}
        asked = [(pos, header) for pos, header in found if verdicts[pos] is None]
        keys = yield from self._keys([chunk[pos : pos + header.size] for pos, header in asked])
        for (pos, header), each in zip(asked, keys, strict=True):
            verdicts[pos] = judge.with_keys(header, each)
        changed = {pos: rewrite for pos, header in found if (rewrite := _rewrite_of(chunk, pos, header, verdicts[pos]))}
        again = yield from self._work("rewritten", list(changed.values()))
        new = dict(zip(changed, again, strict=True))
        stays = [(pos, header) for pos, header in found if verdicts[pos] not in (DROP, None)]
        files.add(
            [
                (new[pos], header_at(new[pos])) if pos in new else (chunk[pos : pos + header.size], header)
                for pos, header in stays
            ]
        )

    def _at_once(self, judge: Judge, chunk: bytes, pos: int, header: BatchHeader) -> Verdict | None:
        """The verdict on a batch where no keys are needed for it."""
        if header.is_control:
            return judge.control(header, marker_of(memoryview(chunk), pos))
        return judge.without_keys(header)

    # -- what both ask -------------------------------------------------------------------------------------------------

    def _below(self, offset: int) -> list[Segment]:
        return [segment for segment in self._task.segments if segment.base_offset < offset and not segment.active]

    def _keys(self, batches: list[bytes]) -> Steps[list[Keys]]:
        return (yield from self._work("keys_of", batches))

    def _work(self, name: str, pieces: list[Any]) -> Steps[list[Any]]:
        if not pieces:
            return []
        arguments = (pieces, self._task.max_batch_bytes)
        found: list[Any] = yield lambda done: self._workers.run(f"ottla.record.compaction:{name}", arguments, done)
        return found

    def _chunk(self, segment: Segment, pos: int) -> Steps[bytes]:
        """Whole batches from a position on: some, or a large one."""
        self._check([segment])
        size = min(CHUNK, segment.size - pos)
        chunk = bytes((yield lambda done: segment.file.read(pos, size, done)))
        try:
            whole = _whole(chunk)
            if not whole:
                need = header_at(chunk).size
                chunk = bytes((yield lambda done: segment.file.read(pos, need, done)))
                whole = _whole(chunk)
        except CorruptRecord as error:
            raise Failure(Kind.IO, f"{segment.path} at {pos}: {error}") from error
        if not whole:
            raise Failure(Kind.IO, f"{segment.path} ends within a batch, at {pos}")
        return chunk[:whole]

    def _check(self, segments: Sequence[Segment]) -> None:
        """Retention, truncation or deletion may have been here meanwhile."""
        present = {id(segment) for segment in self._task.segments}
        if self._home.offline is not None or not all(id(segment) in present for segment in segments):
            raise Failure(Kind.CONFLICT, f"{self._task.tp} changed while it was cleaned")


def _rewrite_of(chunk: bytes, pos: int, header: BatchHeader, verdict: Verdict | None) -> Rewrite | None:
    assert verdict is not None, "every batch has its verdict by now"
    batch = chunk[pos : pos + header.size]
    if verdict.fate is Fate.REWRITE:
        return Rewrite(batch, verdict.keep, verdict.delete_horizon_ms)
    return Rewrite(batch, bytes(header.record_count), None) if verdict.fate is Fate.BARE else None


def _whole(chunk: bytes) -> int:
    """Bytes of the whole batches at the beginning."""
    if len(chunk) < HEADER_SIZE:
        return 0
    return max((pos + header.size for pos, header in batches_of(chunk)), default=0)


def _last_position(chunk: bytes) -> int:
    return max(pos for pos, _ in batches_of(chunk))
