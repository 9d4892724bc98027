"""The segment files of a log: which one is appended to, when the next one begins, and where they are cut.

Zone: deterministic. Orders creations, renames and syncs so that a power cut leaves no hole. `log` appends, reads and
has the offsets; `log_metadata` has the small files beside the segments.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.config.topic import TopicConfig
from ottla.record.header_fields import BASE_OFFSET, LAST_OFFSET_DELTA
from ottla.seams import Failure
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.log_metadata import LogMetadata
from ottla.storage.segments.batch_position_cache import BatchPositionCache
from ottla.storage.segments.reader import LogReader
from ottla.storage.segments.scan import walk_headers
from ottla.storage.segments.segment import Segment
from ottla.storage.segments.segment_files import create_segment, discard_segment, retire_segment
from ottla.storage.segments.segments import SegmentList
from ottla.types import INTERNAL_TOPICS, TopicPartition


class Cut(NamedTuple):
    """Where a log is cut: whole batches remain."""

    slot: int
    """The segment that becomes the last one with records."""
    position: int
    """Where its file ends."""
    end_offset: int


class LogFiles:
    """The segments of one log."""

    __slots__ = (
        "_home",
        "_metadata",
        "active",
        "config",
        "positions",
        "reader",
        "removals",
        "segments",
        "uses_reserve",
    )

    def __init__(
        self, home: LogDirContext, tp: TopicPartition, config: TopicConfig, segments: SegmentList, metadata: LogMetadata
    ) -> None:
        """The last of the segments is appendable already."""
        self._home = home
        self._metadata = metadata
        self.config = config
        self.segments = segments
        self.active = segments.active
        self.positions = BatchPositionCache()
        """Where the newest batches of the active segment begin."""
        self.reader = LogReader(segments, self.positions, home.scan)
        self.removals = 0
        """Removals of oldest segments whose renames are not durable yet."""
        self.uses_reserve = tp.topic in INTERNAL_TOPICS
        """Whether it may use the disk reserve: the coordinators' offsets and transactions may."""

    def apply_config(self, config: TopicConfig) -> None:
        """Take a changed configuration; index sizes apply from the next segment on."""
        self.config = config
        self.arm_active(self._home.clock.now().wall_ms)

    # -- the active segment --------------------------------------------------------------------------------------------

    def arm_active(self, now_ms: int) -> None:
        """Compute when the active segment is full; it counts as full while appends have to take the slow path."""
        self.active.set_roll_bounds(self.config, now_ms)
        self.active.on_entries = self._home.show_entries_soon
        # The bounds were just set to those of a segment with room; the fence has to be put back.
        if self._refuses_appends or self._metadata.epochs_stale:
            self.fence_appends()

    @property
    def _refuses_appends(self) -> bool:
        """Whether the directory is offline, or has too little space for this log."""
        return self._home.offline is not None or (self._home.is_short and not self.uses_reserve)

    def fence_appends(self) -> None:
        """Make the next append take the slow path (`Log._make_room`): it is refused there when the directory is
        offline or short of space, or has to write the leader epochs first."""
        self.active.roll_size = -1

    def unfence_appends(self) -> None:
        """Write the leader epochs before the next records, and let appends take the fast path again."""
        self._metadata.settle_epochs()
        if not self._refuses_appends:
            self.active.bound_size(self.config)

    def roll_segment(self, base: int) -> bool:
        """Seal the active segment and begin a new one at the log end, `base`, unless it is empty; whether it was not.

        The order protects against a power cut: names and a cut of the old segment are durable before the new segment
        exists, and the old one is sealed before the new one is used. Raises Failure; then nothing has changed.
        """
        old, directory, flush = self.active, self._metadata.directory, self._metadata.flush
        if not old.size and old.base_offset == base:
            return False
        flush.secure_names(directory)
        flush.sync_cut(old)
        fresh = create_segment(self._home, directory, base, self.config)
        try:
            old.seal_segment()
            self._metadata.record_index_checksums((old,))
        except Failure:
            discard_segment(self._home, fresh)
            raise
        self.segments.add_segment(fresh)
        self.use_last()
        return True

    def use_last(self) -> None:
        """Append to the last segment from now on; the next flush makes the names of the files durable."""
        self.active = self.segments.active
        self.positions.clear_positions()
        self.arm_active(self._home.clock.now().wall_ms)
        self._metadata.flush.note_names(self._metadata.directory)

    # -- cuts ----------------------------------------------------------------------------------------------------------

    def find_cut(self, offset: int) -> Cut:
        """Where the log ends if everything from `offset` on is dropped, with the whole batch that contains it."""
        slot = self.segments.floor_slot(offset)
        segment = self.segments[slot]
        found = self.reader.find_segment(segment, offset, patient=True)
        if found is None:
            return Cut(slot, segment.size, offset)
        return Cut(slot, found.position, min(offset, self.reader.first_offset(segment, found)))

    def cut_segments(self, cut: Cut) -> bool:
        """Drop everything behind a cut; whether an empty segment had to be added, which shows the new end.

        Raises Failure.
        """
        home, directory, (slot, position, end) = self._home, self._metadata.directory, cut
        segment = self.segments[slot]
        # 1. Later segments: the newest first, each before the next, and all before the cut, because a power loss must
        #    not leave a hole.
        for gone in reversed(self.segments.drop_from(slot + 1)):
            retire_segment(home, gone, self.config.file_delete_delay_ms)
            home.disk.sync_now(directory)
        # 2. Then the cut of the segment that becomes the active one. If no batch of it shows the new end, an empty
        #    segment with that name follows, which is sealed off from the cut one by a sync.
        fresh = self._create_beyond_hole(segment, position, end)
        segment.make_appendable(self.config)
        segment.truncate_to(end, position)
        if fresh is not None:
            home.disk.sync_now(segment.path)
            segment.seal_segment()
            self.segments.add_segment(fresh)
        return fresh is not None

    def _create_beyond_hole(self, segment: Segment, position: int, end: int) -> Segment | None:
        """A new segment whose name has the end of the log, if no batch has it: the batches there were compacted away.

        It is durable before the cut. A start that finds it after bytes that are not cut yet drops it.
        """
        shown = segment.base_offset
        for _, header in walk_headers(segment.file, segment.index.floor_of_position(position - 1), position):
            shown = header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] + 1
        if shown >= end:
            return None
        fresh = create_segment(self._home, self._metadata.directory, end, self.config)
        self._home.disk.sync_now(self._metadata.directory)
        return fresh

    def replace_all(self, offset: int) -> None:
        """Drop all segments, and begin with an empty one at `offset`. Raises Failure."""
        # The newest first: a process that is killed in between leaves a log without a hole.
        for segment in reversed(self.segments.drop_from(0)):
            retire_segment(self._home, segment, self.config.file_delete_delay_ms)
        self.segments.add_segment(create_segment(self._home, self._metadata.directory, offset, self.config))

    # -- the end -------------------------------------------------------------------------------------------------------

    def relocate_files(self, directory: str) -> None:
        """Note the new name of the directory."""
        for segment in self.segments:
            segment.relocate_files(directory)

    def write_out(self) -> None:
        """Write everything that is only in memory to the files. Raises Failure."""
        self.active.close_time_index()
        for segment in self.segments:
            segment.write_out()

    def close_files(self) -> None:
        """Close all files."""
        for segment in self.segments:
            segment.close_files()
