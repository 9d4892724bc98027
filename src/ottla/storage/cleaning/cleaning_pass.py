"""Runs one pass of compaction over one log.

Zone: deterministic. First it collects the latest offset of every key in the part that was not cleaned yet, then it
rewrites every segment up to there, neighbours together. Bytes are read off the loop, keys and rewritten batches come
from workers, chunk by chunk; the loop only decides, some batches or records per turn. A pass that finds its log changed
gives up, which costs only time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ottla.config.topic import TopicConfig
from ottla.record.batch import BatchHeader, header_at
from ottla.record.compaction import Keys, ReadPosition, Rewrite
from ottla.record.errors import CorruptRecord
from ottla.seams import Failure, Kind, Workers
from ottla.storage.cleaning.batch_retention import (
    DROP,
    BatchRetention,
    RetentionBounds,
    RetentionDecision,
    RetentionFate,
    RetentionProducers,
)
from ottla.storage.cleaning.chunks import Batch, first_entry_size, whole_batches, whole_entries_size
from ottla.storage.cleaning.live_offsets import LiveOffsets
from ottla.storage.cleaning.offset_map import PIECE, OffsetMap
from ottla.storage.cleaning.output import CleanedFiles
from ottla.storage.cleaning.segment_swap import SegmentSwap
from ottla.storage.cleaning.state import CleaningState
from ottla.storage.cleaning.steps import Steps, Wait
from ottla.storage.cleaning.transactions import CleanedTransactions
from ottla.storage.indexes.index import MAX_RELATIVE_OFFSET
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.producers.producer_state import marker_of
from ottla.storage.segments.segment import Segment
from ottla.storage.segments.segments import SegmentList
from ottla.types import TopicPartition

# Which neighbouring segments are rewritten into one. Arithmetic on plain numbers.


class Extent(NamedTuple):
    """A segment, as far as grouping needs it."""

    base_offset: int
    end_offset: int
    """The base offset of the next segment."""
    size: int
    """Bytes of its log file."""
    index_size: int
    """Bytes of the larger of its indexes."""


def group_segments(segments: Sequence[Extent], segment_bytes: int, index_bytes: int) -> list[list[Extent]]:
    """Runs of neighbours that fit one segment in bytes, in bytes of index and in relative offsets, in order."""
    found: list[list[Extent]] = []
    size = index_size = 0
    for segment in segments:
        size, index_size = size + segment.size, index_size + segment.index_size
        fits = found and size <= segment_bytes and index_size <= index_bytes
        if fits and segment.end_offset - 1 - found[-1][0].base_offset <= MAX_RELATIVE_OFFSET:
            found[-1].append(segment)
        else:
            found.append([segment])
            size, index_size = segment.size, segment.index_size
    return found


CHUNK: Final = 256 * 1024
"""Bytes that are read at a time; one batch may be larger."""
MODERNIZE_JOB: Final = "ottla.record.up_conversion:convert_to_v2"
LOT: Final = 256
"""Batches that are passed to a worker, and decided about, at a time."""


def _no_steps() -> Steps[None]:
    yield from ()


@dataclass(frozen=True, slots=True)
class CleaningTask:
    """The input of a pass."""

    tp: TopicPartition
    directory: str
    config: TopicConfig
    segments: SegmentList
    state: CleaningState
    start_offset: int
    """The log start: records below it are not read."""
    dirty_from: int
    """Where the last pass ended."""
    until: int
    """Where this one must end: a segment's base offset, at or below the last stable offset and the active segment."""
    producers: RetentionProducers
    bounds: RetentionBounds
    dedupe_bytes: int
    max_batch_bytes: int
    """The most bytes that a batch may expand to."""
    make_durable: Callable[[], Steps[None]] = _no_steps
    """Makes durable what the removals of the pass depend on."""


class Cleaned(NamedTuple):
    """The result of a pass."""

    end_offset: int
    """Everything below it is clean."""
    bytes_before: int
    bytes_after: int
    bytes_read: int
    """By both passes."""
    map_used: float
    """Share of the room for keys, 0 to 1."""


class Damaged(Failure):
    """A batch that cannot be read: the log stays as it is."""

    def __init__(self, message: str) -> None:
        super().__init__(Kind.NOT_DONE, message)


class WorkerLost(Failure):
    """A worker process died over a part of the log: out of memory, killed, or a batch that is too much for it."""


def no_throttle(_: int) -> Wait | None:
    """No throttle."""
    return None


class CleaningPass:
    """The work on one log; `run_steps` once."""

    def __init__(
        self,
        home: LogDirContext,
        workers: Workers,
        task: CleaningTask,
        pace: Callable[[int], Wait | None] = no_throttle,
    ) -> None:
        """`pace` gets the number of bytes that were read or written, and may return what to wait for."""
        self._home = home
        self._workers = workers
        self._task = task
        self._pace = pace
        self._aborted = task.segments.aborted_transactions(task.start_offset, task.until)
        self._transactions = CleanedTransactions(self._aborted)
        self._changes = task.state.changes
        self._bytes_read = 0
        self._records_in_turn = 0
        """Records that were examined in this turn."""
        self._files: CleanedFiles | None = None
        self._expected = 0
        """The next batch that is read begins here or later."""

    def close_files(self) -> None:
        """Close the files of a pass whose steps were closed before their end."""
        if self._files is not None:
            self._files.close_files()

    def run_steps(self) -> Steps[Cleaned]:
        """Clean. Raises Failure: of the disk, of a worker, CONFLICT: the log changed; WorkerLost; Damaged."""
        self._task.state.until = self._task.until
        try:
            return (yield from self._run_both_passes())
        finally:
            self._task.state.until = None

    def _run_both_passes(self) -> Steps[Cleaned]:
        task = self._task
        yield from task.make_durable()
        # First pass: the map of keys, as far as memory allows; it may end before `until`.
        latest = OffsetMap(max(task.dirty_from, task.start_offset), task.dedupe_bytes)
        yield from self._build_offset_map(latest)
        alive = yield from self._live_offsets(latest)
        judge = BatchRetention(latest, alive, self._transactions, task.producers, task.bounds)
        # Second pass: rewrite group by group, from the log's beginning up to where the map ends.
        before = after = 0
        for group in self._segment_groups(latest.end_offset):
            before += sum(segment.size for segment in group)
            fresh = yield from self._rewrite_group(group, judge)
            after += fresh.size
        cleaned = Cleaned(latest.end_offset, before, after, self._bytes_read, latest.used_share)
        # Millions of keys are freed in many turns: at once it would block the loop.
        while latest.release_memory():
            yield self._yield_turn
        # The log may have been cut in those turns: then this end must not become the checkpoint.
        self._check_segments(())
        return cleaned

    # -- first pass ----------------------------------------------------------------------------------------------------

    def _build_offset_map(self, latest: OffsetMap) -> Steps[None]:
        start = latest.start_offset
        seen = CleanedTransactions([txn for txn in self._aborted if txn.last_offset >= start])
        first = self._task.segments.floor_slot(start)
        for segment in self._sealed_segments_below(self._task.until, first):
            pos = 0
            while pos < segment.size:
                chunk, size = yield from self._read_chunk(segment, pos)
                for lot in _split_lots(chunk):
                    yield from self._map_keys(lot, seen, latest)
                    if latest.is_full:
                        return
                pos += size
        # Offsets up to `until` without a batch were compacted away before: they count as read.
        latest.skip_to_offset(self._task.until - 1)

    def _map_keys(self, lot: list[Batch], seen: CleanedTransactions, latest: OffsetMap) -> Steps[None]:
        """Add the keys of some batches to the map, as far as there is room."""
        counting = [batch for batch in lot if not self._has_no_live_keys(*batch, seen)]
        fresh = [batch for batch in counting if batch[1].last_offset >= latest.end_offset]
        # A worker may return the keys of fewer batches, or of a part of one: `at` and `begin` say where to continue.
        at, begin = 0, ReadPosition()
        while at < len(fresh):
            pieces = yield from self._read_keys([batch for batch, _ in fresh[at:]], begin)
            for (_, header), keys in zip(fresh[at:], pieces, strict=False):
                yield from self._add_keys(latest, header, keys)
                if latest.is_full:
                    return
            at, begin = _next_read_position(at, pieces)
        latest.skip_to_offset(lot[-1][1].last_offset)

    def _has_no_live_keys(self, batch: bytes, header: BatchHeader, seen: CleanedTransactions) -> bool:
        if header.is_control:
            seen.is_needless(header, marker_of(memoryview(batch), 0))
            return True
        return seen.is_aborted(header) or not header.record_count

    def _add_keys(self, latest: OffsetMap, header: BatchHeader, keys: Keys) -> Steps[None]:
        for start in range(0, len(keys.keys), PIECE):
            piece = keys.slice_records(start, start + PIECE)
            yield from self._wait_before_records(len(piece.keys))
            latest.add_keys(header.base_offset, piece)
            if latest.is_full:
                return
        if keys.rest is None:
            latest.skip_to_offset(header.last_offset)

    def _live_offsets(self, latest: OffsetMap) -> Steps[LiveOffsets]:
        """The offsets in the map, sorted: which records of that part stay, now that all of its keys are known."""
        pieces = []
        for piece in latest.packed_offsets():
            pieces.append(piece)
            yield self._yield_turn
        offsets, tombstones = yield from self._run_compaction_job("sorted_offsets", b"".join(pieces))
        return LiveOffsets(latest.start_offset, latest.end_offset, offsets, tombstones)

    # -- second pass ---------------------------------------------------------------------------------------------------

    def _segment_groups(self, end_offset: int) -> list[list[Segment]]:
        found = self._sealed_segments_below(end_offset)
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
            for group in group_segments(extents, config.segment_bytes, config.segment_index_bytes)
        ]

    def _rewrite_group(self, group: Sequence[Segment], judge: BatchRetention) -> Steps[Segment]:
        task = self._task
        files = self._files = CleanedFiles(self._home.disk, task.directory, group[0].base_offset, task.config)
        # Each group gets a transaction index of its own, with the aborted transactions whose markers it holds.
        kept = len(self._transactions.kept)
        try:
            for segment in group:
                yield from self._rewrite_segment(segment, judge, files)
            yield from files.finish_files(self._transactions.kept[kept:])
            self._check_segments(group)
        except Failure:
            files.close_files()
            # The directory of a closed log has another name by now, or is gone; its removal takes these files along.
            if not task.state.closed:
                files.discard_files(self._home)
            raise
        exchange = SegmentSwap(
            self._home, task.directory, task.segments, task.state, files, group, task.config
        )  # fmt: skip
        return (yield from exchange.run_steps())

    def _rewrite_segment(self, segment: Segment, judge: BatchRetention, files: CleanedFiles) -> Steps[None]:
        pos = 0
        while pos < segment.size:
            chunk, size = yield from self._read_chunk(segment, pos)
            for lot in _split_lots(chunk):
                verdicts = yield from self._decide_batches(lot, judge)
                written = yield from self._apply_decisions(lot, verdicts)
                files.add_batches(written)
                yield from self._wait_for_throttle(sum(len(batch) for batch, _ in written))
            pos += size

    def _decide_batches(self, lot: list[Batch], judge: BatchRetention) -> Steps[list[RetentionDecision]]:
        """The decisions about some batches."""
        verdicts = [self._decide_without_keys(judge, *batch) for batch in lot]
        asked = [slot for slot, verdict in enumerate(verdicts) if verdict is None]
        keep, has_tombstones = bytearray(), False
        at, begin = 0, ReadPosition()
        while at < len(asked):
            pieces = yield from self._read_keys([lot[slot][0] for slot in asked[at:]], begin)
            for slot, keys in zip(asked[at:], pieces, strict=False):
                header = lot[slot][1]
                for start in range(0, len(keys.keys), PIECE):
                    piece = keys.slice_records(start, start + PIECE)
                    yield from self._wait_before_records(len(piece.keys))
                    stays, stands = judge.kept_records(header, piece)
                    keep += stays
                    has_tombstones = has_tombstones or stands
                if keys.rest is None:
                    verdicts[slot] = judge.decide_with_keys(header, keep, has_tombstones)
                    keep, has_tombstones = bytearray(), False
            at, begin = _next_read_position(at, pieces)
        return [verdict for verdict in verdicts if verdict is not None]

    def _decide_without_keys(
        self, judge: BatchRetention, batch: bytes, header: BatchHeader
    ) -> RetentionDecision | None:
        """The decision about a batch that needs no keys; None for others."""
        if header.is_control:
            return judge.decide_control(header, marker_of(memoryview(batch), 0))
        return judge.decide_without_keys(header)

    def _apply_decisions(self, lot: list[Batch], verdicts: list[RetentionDecision]) -> Steps[list[Batch]]:
        """The batches after the decisions are carried out, in their order."""
        rewrites = [
            rewrite
            for (batch, _), verdict in zip(lot, verdicts, strict=True)
            if (rewrite := _rewrite_of(batch, verdict)) is not None
        ]
        again = yield from self._run_compaction_job("rewrite_batches", rewrites, self._task.max_batch_bytes)
        fresh = iter(again)
        return [
            (new := next(fresh), header_at(new))
            if verdict.fate in (RetentionFate.REWRITE, RetentionFate.BARE)
            else batch
            for batch, verdict in zip(lot, verdicts, strict=True)
            if verdict is not DROP
        ]

    # -- for both passes -----------------------------------------------------------------------------------------------

    def _sealed_segments_below(self, offset: int, first: int = 0) -> list[Segment]:
        segments = self._task.segments
        found = [segments[slot] for slot in range(first, len(segments))]
        return [segment for segment in found if segment.base_offset < offset and not segment.active]

    def _read_keys(self, batches: list[bytes], begin: ReadPosition) -> Steps[list[Keys]]:
        found: list[Keys] = yield from self._run_compaction_job("keys_of", batches, self._task.max_batch_bytes, begin)
        return found

    def _run_compaction_job(self, name: str, pieces: Any, *more: object) -> Steps[Any]:
        """Run a job in a worker, unless its input is empty."""
        if not pieces and name != "sorted_offsets":
            return []
        return (yield from self._run_job(f"ottla.record.compaction:{name}", pieces, *more))

    def _run_job(self, job: str, *arguments: object) -> Steps[Any]:
        try:
            found = yield lambda done: self._workers.run_job(job, arguments, done)
        except Failure as failure:
            if failure.kind is Kind.IO:
                raise Damaged(f"{self._task.tp}: {failure.message}") from failure
            if failure.kind in (Kind.UNKNOWN, Kind.TIMEOUT, Kind.FULL):
                raise WorkerLost(failure.kind, failure.message) from failure
            raise
        self._records_in_turn = 0
        return found

    def _read_chunk(self, segment: Segment, pos: int) -> Steps[tuple[list[Batch], int]]:
        """Whole batches from a position on, several or a single large one, and their size in the segment.

        Messages of formats v0 and v1 are converted to batches of v2.
        """
        self._check_segments([segment])
        size = min(CHUNK, segment.size - pos)
        data = yield from self._read_segment(segment, pos, size)
        try:
            size, is_old = whole_entries_size(data)
            # The first entry is larger than a chunk: read exactly that one.
            if not size and (first := first_entry_size(data)) is not None:
                data = yield from self._read_segment(segment, pos, first)
                size, is_old = whole_entries_size(data)
            if is_old:
                data = yield from self._run_job(MODERNIZE_JOB, data[:size], self._task.max_batch_bytes)
            found = whole_batches(data)
        except CorruptRecord as error:
            raise Damaged(f"{segment.path} at {pos}: {error}") from error
        if not found:
            raise Damaged(f"{segment.path} ends within a batch, at {pos}")
        # Headers are not covered by a checksum that was verified yet: their offsets and counts are checked here.
        if not pos:
            self._expected = segment.base_offset
        for _, header in found:
            if header.base_offset < self._expected or not self._is_plausible(header, segment):
                raise Damaged(f"{segment.path}: a batch at {pos} or after has impossible offsets or counts: {header}")
            self._expected = header.last_offset + 1
        yield from self._wait_for_throttle(size)
        return found, size

    def _is_plausible(self, header: BatchHeader, segment: Segment) -> bool:
        """Whether offsets and count are possible: they are used before the checksum of the batch is verified."""
        room = self._task.max_batch_bytes if header.codec else header.size
        far = header.last_offset - segment.base_offset
        return header.last_offset_delta >= 0 and far <= MAX_RELATIVE_OFFSET and 0 <= header.record_count * 7 <= room

    def _read_segment(self, segment: Segment, pos: int, size: int) -> Steps[bytes]:
        data = bytes((yield lambda done: segment.file.read(pos, size, done)))
        self._records_in_turn = 0
        self._bytes_read += len(data)
        return data

    def _wait_for_throttle(self, size: int) -> Steps[None]:
        wait = self._pace(size)
        if wait is not None:
            yield wait

    def _wait_before_records(self, records: int) -> Steps[None]:
        """Announce that `records` are about to be examined: waits for another turn when this one had enough of them."""
        if self._records_in_turn and self._records_in_turn + records > PIECE:
            yield self._yield_turn
            self._records_in_turn = 0
        self._records_in_turn += records

    def _yield_turn(self, done: Callable[[Any], None]) -> None:
        """Wait for a later turn: a read of nothing completes in one."""
        self._task.segments.active.file.read(0, 0, done)

    def _check_segments(self, segments: Sequence[Segment]) -> None:
        """Raise Failure CONFLICT when retention, truncation or deletion has changed the log during the pass."""
        task = self._task
        present = {id(segment) for segment in task.segments} if segments else set()
        changed = task.state.closed or task.state.changes != self._changes
        if self._home.offline is not None or changed or not all(id(segment) in present for segment in segments):
            raise Failure(Kind.CONFLICT, f"{task.tp} changed while it was cleaned")


def _split_lots(chunk: list[Batch]) -> list[list[Batch]]:
    return [chunk[at : at + LOT] for at in range(0, len(chunk), LOT)]


def _next_read_position(at: int, pieces: list[Keys]) -> tuple[int, ReadPosition]:
    """Where reading keys continues: the index of the batch, and the position in it."""
    rest = pieces[-1].rest
    return (at + len(pieces), ReadPosition()) if rest is None else (at + len(pieces) - 1, rest)


def _rewrite_of(batch: bytes, verdict: RetentionDecision) -> Rewrite | None:
    if verdict.fate is RetentionFate.REWRITE:
        return Rewrite(batch, verdict.keep, verdict.delete_horizon_ms)
    return Rewrite(batch, b"", None) if verdict.fate is RetentionFate.BARE else None
