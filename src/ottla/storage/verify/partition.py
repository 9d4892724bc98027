"""Checks one partition's directory: every batch, and the files beside the log that depend on the batches.

Zone: deterministic. Reads the log once, front to back, and checks everything else on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.record.batch import CONTROL, LOG_OVERHEAD, MAGIC_V2
from ottla.record.crc import crc32c
from ottla.record.header_fields import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_LENGTH,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    MAGIC,
    PRODUCER_ID,
)
from ottla.record.validation import HeaderTuple
from ottla.storage.checkpoints import (
    CorruptCheckpoint,
    format_epochs,
    format_snapshot,
    parse_checksums,
    parse_epochs,
    parse_partition_metadata,
    parse_snapshot,
)
from ottla.storage.indexes.leader_epochs import EpochEntry
from ottla.storage.indexes.txn_index import AbortedTransaction, IndexChecksum
from ottla.storage.layout import (
    INCOMPLETE,
    INDEX,
    LEADER_EPOCHS,
    LOG,
    MOVING,
    PARTITION_METADATA,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    TXN_SUMS,
    FileName,
    file_name,
    parse_file_name,
)
from ottla.storage.producers.producer_state import ProducerState, SnapshotEntry, marker_of, replay_batch
from ottla.storage.recovery.valid_prefix import valid_batches
from ottla.storage.segments.scan import Readable
from ottla.storage.verify.damage import next_batch
from ottla.storage.verify.findings import Action, Cut, Finding, Remove, Report, Write
from ottla.storage.verify.indexes import NewIndexes, OffsetEntries, TimeEntries
from ottla.storage.verify.reading import Source, content_of
from ottla.storage.verify.transactions import aborted_in, compare_snapshots, entry_bytes

KNOWN: Final = (LEADER_EPOCHS, PARTITION_METADATA, MOVING, TXN_SUMS, INCOMPLETE)
Counted = Callable[[int, int], None]
"""Called with the number of batches and bytes that were checked."""


class Marks(NamedTuple):
    """A log's entries in the checkpoints of the log directory; -1: none."""

    start: int = -1
    recovery_point: int = -1
    high_watermark: int = -1
    compacted: bool = False
    clean: bool = False
    """Whether the last stop was clean: then no records may be missing at the end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The facts about a log that the check of its directory needs."""

    topic_id: bytes | None
    first: int
    end: int


class PartitionCheck:
    """One run over one partition."""

    def __init__(self, source: Source, directory: str, marks: Marks, report: Report, counted: Counted) -> None:
        self.source = source
        self.directory = directory
        self.marks = marks
        self.report = report
        self.counted = counted
        self.state = ProducerState()
        self.epochs: list[EpochEntry] = []
        self.snapshots: dict[int, tuple[SnapshotEntry, ...]] = {}
        self.gaps = marks.compacted
        """Whether offsets are missing between batches: then the log was compacted, and segments may begin later."""
        self.intact = True
        self.sums: dict[str, IndexChecksum] = {}
        """Sizes and checksums of transaction indexes when they were finished."""

    # -- the whole -----------------------------------------------------------------------------------------------------

    def run_check(self) -> Outcome:
        """Check everything. Raises OSError of the directory itself."""
        names = list(self.source.names(self.directory))
        topic_id = self._check_metadata(names)
        files = {name: parsed for name in names if (parsed := parse_file_name(name)) is not None}
        self._find_strangers(names, files)
        self.sums = self._read_checksums() if TXN_SUMS in names else {}
        live = {name: file for name, file in files.items() if not file.state}
        bases = sorted(file.base_offset for file in live.values() if file.kind == LOG)
        self._load_snapshots(live)
        end = self._check_segments(bases, live) if bases else 0
        if self.intact:
            self._check_epochs(names, bases[0] if bases else 0, end)
        self._check_snapshots_above(end)
        return Outcome(topic_id, bases[0] if bases else 0, end)

    def _path_of(self, name: str) -> str:
        return f"{self.directory}/{name}" if self.directory else name

    def _add_finding(
        self,
        name: str,
        kind: str,
        message: str,
        repair: str = "",
        actions: Sequence[Action] = (),
        lost: tuple[int, int] | None = None,
        *,
        harmless: bool = False,
    ) -> None:
        finding = Finding(self._path_of(name), kind, message, repair, tuple(actions), lost, harmless)
        self.report.findings.append(finding)

    def _read_file(self, name: str) -> bytes | None:
        """A small file; None, and a finding, when it cannot be read."""
        try:
            return content_of(self.source, self._path_of(name))
        except OSError as error:
            self._add_finding(name, "unreadable", str(error.strerror))
            return None

    # -- small files ---------------------------------------------------------------------------------------------------

    def _check_metadata(self, names: list[str]) -> bytes | None:
        if PARTITION_METADATA not in names:
            return None
        content = self._read_file(PARTITION_METADATA)
        try:
            return None if content is None else parse_partition_metadata(content)
        except CorruptCheckpoint as error:
            text = "restore its 22 characters of topic_id from another replica: without it the log is not served"
            self._add_finding(PARTITION_METADATA, "metadata", f"{error}; {text}")
            return None

    def _read_checksums(self) -> dict[str, IndexChecksum]:
        content = self._read_file(TXN_SUMS)
        try:
            return {} if content is None else parse_checksums(content)
        except CorruptCheckpoint as error:
            self._add_finding(
                TXN_SUMS, "checksums", str(error), "removed", [Remove(self._path_of(TXN_SUMS))], harmless=True
            )
            return {}

    def _find_strangers(self, names: list[str], files: dict[str, FileName]) -> None:
        bases = {file.base_offset for file in files.values() if file.kind == LOG and not file.state}
        for name in names:
            file = files.get(name)
            if file is None:
                if name not in KNOWN and not name.endswith(".tmp"):
                    self._add_finding(name, "stranger", "not a file of a log", harmless=True)
            elif file.state:
                self._add_finding(
                    name, "unfinished", "left by a deletion or a cleaning; the next start ends it", harmless=True
                )
            elif file.kind not in (LOG, SNAPSHOT) and file.base_offset not in bases:
                self._add_finding(name, "orphan", "its .log file is missing", "removed", [Remove(self._path_of(name))])

    def _load_snapshots(self, live: dict[str, FileName]) -> None:
        for name, file in live.items():
            if file.kind != SNAPSHOT:
                continue
            content = self._read_file(name)
            try:
                if content is not None:
                    self.snapshots[file.base_offset] = tuple(parse_snapshot(content))
            except CorruptCheckpoint as error:
                self._add_finding(name, "producer snapshot", str(error), "removed", [Remove(self._path_of(name))])

    # -- the log -------------------------------------------------------------------------------------------------------

    def _check_segments(self, bases: list[int], live: dict[str, FileName]) -> int:
        """Every segment in order; returns the log's end."""
        # Producers whose last batches were deleted are only in the snapshot at the beginning.
        start = self.snapshots.get(bases[0])
        self.state.load_entries(start or (), bases[0], 0)
        if 0 <= self.marks.start < bases[0]:
            lost = (self.marks.start, bases[0])
            self._add_finding(file_name(bases[0], LOG), "hole", f"the log starts at {self.marks.start}", lost=lost)
        end = bases[0]
        for base, following in zip(bases, [*bases[1:], None], strict=True):
            # After damage the end of the segment before is not known, so a gap proves nothing.
            if base > end and not self.gaps and self.intact:
                text = f"the segment before it ends at {end}"
                self._add_finding(file_name(base, LOG), "hole", text, lost=(end, base))
            end = self._check_segment(base, following, live)
        if self.marks.clean and self.intact and end < self.marks.recovery_point:
            lost = (end, self.marks.recovery_point)
            self._add_finding(file_name(bases[-1], LOG), "short", f"records up to {lost[1]} were durable", lost=lost)
        return end

    def _check_segment(self, base: int, following: int | None, live: dict[str, FileName]) -> int:
        """One segment; returns where it ends."""
        name = file_name(base, LOG)
        try:
            file = self.source.open(self._path_of(name))
        except OSError as error:
            self._add_finding(name, "unreadable", str(error.strerror))
            self.intact = False
            return base
        try:
            walk = _Walk(self, file, base, following, live)
            end = walk.check_batches()
            self.report.segments += 1
            self.report.batches += walk.batches
            self.report.bytes += file.size
            if walk.position < file.size:
                self._report_damage(file, name, walk.position, end, following)
            else:
                walk.check_indexes()
        finally:
            file.close()
        return end

    def _report_damage(self, file: Readable, name: str, position: int, end: int, following: int | None) -> None:
        """Report bytes in a log file that are not a batch: damage before other batches, or a torn tail."""
        self.intact = False
        # 1. Batches follow, here or in the next segment: records are lost between, and a cut would lose the others.
        # 2. The end of the log: a torn tail, which recovery would cut as well. Records up to `known` were durable.
        found = next_batch(file, position, end)
        behind = found if found is not None else following
        size = file.size - position
        if behind is not None:
            text = f"byte {position}: no whole batch with the right checksum; the next one is at offset {behind}"
            self._add_finding(name, "damaged batch", text, lost=(end, behind))
            return
        # Up to here records were durable or committed: above it, a torn tail loses nothing that was promised.
        known = max(self.marks.recovery_point, self.marks.high_watermark, end)
        text = f"byte {position}: {size} bytes after offset {end} are not whole batches"
        stem = name.removesuffix(LOG)
        actions: list[Action] = [Cut(self._path_of(name), position)]
        actions += [Remove(self._path_of(stem + kind)) for kind in (INDEX, TIME_INDEX)]
        repair = f"cut to {position} bytes; its indexes are removed, the next start rebuilds them"
        self._add_finding(name, "torn tail", text, repair, actions, (end, known) if known > end else None)

    # -- producers and epochs ------------------------------------------------------------------------------------------

    def check_batch(self, file: Readable, position: int, header: HeaderTuple) -> AbortedTransaction | None:
        """Note the epoch and producer of a batch; returns an aborted transaction that ends with it."""
        if (
            header[MAGIC] == MAGIC_V2
            and header[LEADER_EPOCH] >= 0
            and (not self.epochs or header[LEADER_EPOCH] > self.epochs[-1].epoch)
        ):
            self.epochs.append(EpochEntry(header[LEADER_EPOCH], header[BASE_OFFSET]))
        if header[PRODUCER_ID] < 0:
            return None
        marker = None
        if header[ATTRIBUTES] & CONTROL:
            batch = memoryview(bytearray(header[BATCH_LENGTH] + LOG_OVERHEAD))
            file.read_now(position, batch)
            marker = marker_of(batch, 0)
        return replay_batch(self.state, header, marker, 0)

    def check_snapshot(self, offset: int) -> None:
        """Check the snapshot at `offset`, if there is one, once all batches below it were read."""
        stored = self.snapshots.pop(offset, None)
        if stored is None or not self.intact:
            return
        wrong = compare_snapshots(stored, self.state.snapshot_entries(), offset)
        if wrong:
            name = file_name(offset, SNAPSHOT)
            write = Write(self._path_of(name), format_snapshot(self.state.snapshot_entries()))
            self._add_finding(name, "producer snapshot", wrong, "rebuilt from the log", [write])

    def _check_snapshots_above(self, end: int) -> None:
        for offset in sorted(self.snapshots):
            name = file_name(offset, SNAPSHOT)
            if offset > end and self.intact:
                self._add_finding(
                    name, "producer snapshot", f"above the log's end {end}", "removed", [Remove(self._path_of(name))]
                )

    def _check_epochs(self, names: list[str], first: int, end: int) -> None:
        if LEADER_EPOCHS not in names:
            if self.epochs and self.marks.clean and end > max(first, self.marks.start):
                self._epochs_wrong("it is missing")
            return
        content = self._read_file(LEADER_EPOCHS)
        if content is None:
            return
        try:
            stored = parse_epochs(content)
        except CorruptCheckpoint as error:
            self._epochs_wrong(str(error))
            return
        start = max(first, self.marks.start)
        starts = {entry.epoch: entry.start_offset for entry in stored}
        for entry in self.epochs:
            known = starts.get(entry.epoch)
            # An epoch that ended at or below the log start is removed from the file, though its batches may still be
            # there.
            over = next((one.start_offset for one in self.epochs if one.epoch > entry.epoch), end) <= start
            if known is None and not over:
                self._epochs_wrong(
                    f"epoch {entry.epoch}, which wrote from offset {entry.start_offset} on, is not in it"
                )
                return
            if known is not None and known > max(entry.start_offset, start):
                self._epochs_wrong(f"epoch {entry.epoch} began at {entry.start_offset}, the file has {known}")
                return
        if stored and stored[-1].start_offset > end:
            self._epochs_wrong(f"epoch {stored[-1].epoch} begins at {stored[-1].start_offset}, the log ends at {end}")

    def _epochs_wrong(self, what: str) -> None:
        write = Write(self._path_of(LEADER_EPOCHS), format_epochs(self.epochs))
        self._add_finding(LEADER_EPOCHS, "leader epochs", what, "rebuilt from the log", [write])


class _Walk:
    """The check of one segment."""

    def __init__(
        self, check: PartitionCheck, file: Readable, base: int, following: int | None, live: dict[str, FileName]
    ) -> None:
        self.check = check
        self.file = file
        self.base = base
        self.sealed = following is not None
        self.live = live
        self.position = 0
        self.batches = 0
        self.aborted: list[AbortedTransaction] = []
        self.new = NewIndexes(base)
        self.offsets = self._read_entries(INDEX)
        self.times = self._read_entries(TIME_INDEX)

    def _read_entries(self, kind: str) -> bytes | None:
        name = file_name(self.base, kind)
        return self.check._read_file(name) if name in self.live else None

    def check_batches(self) -> int:
        """Read the batches; returns the offset where they end."""
        check, end = self.check, self.base
        check.check_snapshot(self.base)
        self.offset_entries = OffsetEntries(self.base, self.offsets or b"")
        self.time_entries = TimeEntries(self.base, self.times or b"", sealed=self.sealed)
        for position, header in valid_batches(self.file, self.file.size, self.base):
            if header[BASE_OFFSET] > end and header[MAGIC] == MAGIC_V2:
                check.gaps = True
            for offset in [offset for offset in check.snapshots if end <= offset <= header[BASE_OFFSET]]:
                check.check_snapshot(offset)
            end = header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] + 1
            size = header[BATCH_LENGTH] + LOG_OVERHEAD
            self._check_batch(position, size, header)
            self.position = position + size
        for offset in [offset for offset in check.snapshots if offset == end]:
            check.check_snapshot(offset)
        return end

    def _check_batch(self, position: int, size: int, header: HeaderTuple) -> None:
        self.batches += 1
        self.offset_entries.check_batch(position, header)
        self.time_entries.check_batch(header)
        self.new.add_batch(position, size, header)
        aborted = self.check.check_batch(self.file, position, header)
        if aborted is not None:
            self.aborted.append(aborted)
        self.check.counted(1, size)

    def check_indexes(self) -> None:
        """Check the indexes, once the whole segment was read."""
        self.new.finish_indexes()
        self._check_index(INDEX, self.offsets, self.offset_entries.finish_check(), bytes(self.new.offsets))
        self._check_index(TIME_INDEX, self.times, self.time_entries.finish_check(), bytes(self.new.times))
        self._check_transactions()

    def _check_index(self, kind: str, content: bytes | None, wrong: str, fresh: bytes) -> None:
        name = file_name(self.base, kind)
        path = self.check._path_of(name)
        # The indexes of the active segment are rebuilt at the start that follows an unclean stop, whatever they
        # contain.
        harmless = not self.sealed and not self.check.marks.clean
        if content is None:
            if self.sealed or self.check.marks.clean:
                self.check._add_finding(name, "index", "it is missing", "rebuilt", [Write(path, fresh)], harmless=True)
        elif wrong:
            self.check._add_finding(name, "index", wrong, "rebuilt", [Write(path, fresh)], harmless=harmless)

    def _check_transactions(self) -> None:
        name = file_name(self.base, TXN_INDEX)
        content = self.check._read_file(name) if name in self.live else b""
        if content is None:
            return
        wrong = aborted_in(content, self.aborted, self.base)
        if not wrong and self.check.sums.get(name) not in (None, IndexChecksum(len(content), crc32c(content))):
            wrong = f"it does not have the checksum of when it was finished ({TXN_SUMS})"
        if wrong and (self.sealed or self.check.marks.clean):
            fresh = Write(self.check._path_of(name), b"".join(map(entry_bytes, self.aborted)))
            self.check._add_finding(name, "transaction index", wrong, "rebuilt", [fresh, *self._without_sums()])

    def _without_sums(self) -> list[Action]:
        """Remove the checksums of indexes, which a repair changes; the next start records them again."""
        return [Remove(self.check._path_of(TXN_SUMS))] if self.check.sums else []
