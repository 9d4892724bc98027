"""Replaces several segments by a rewritten one: the names on the disk, then the segments of the log.

Zone: deterministic. The names of the new files are durable before the first of three renames, and each rename before
the next: after a power loss the new segment must never appear beside a part of the old ones. The log is served from
its open files meanwhile; code that changes its segments finishes the exchange first (`CleaningState.finish_exchange`).
The
last rename is two, the log before its indexes: while the log is still `.swap`, an index without a suffix is an old one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.config.topic import TopicConfig
from ottla.seams import Done, Failure, Kind
from ottla.storage.cleaning.output import CleanedFiles
from ottla.storage.cleaning.state import CleaningState
from ottla.storage.cleaning.steps import Steps
from ottla.storage.layout import CLEANED, DELETED, INDEX_SUFFIXES, LOG, SEGMENT_SUFFIXES, SNAPSHOT, SWAP, file_name
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.segments.segment import Segment
from ottla.storage.segments.segments import SegmentList


class SegmentSwap:
    """Finished `.cleaned` files, and the neighbours that they replace."""

    def __init__(
        self,
        home: LogDirContext,
        directory: str,
        segments: SegmentList,
        state: CleaningState,
        files: CleanedFiles,
        old: Sequence[Segment],
        config: TopicConfig,
    ) -> None:
        self._home = home
        self._directory = directory
        self._segments = segments
        self._state = state
        self._files = files
        self._old = old
        self._config = config
        self._retired_names: list[str] = []
        # In this order, each durable before the next; the segments in memory are replaced after the last one.
        self._renames = [self._rename_to_swap, self._rename_old_to_deleted, self._name_log, self._name_indexes]
        self._new_segment: Segment | None = None

    def run_steps(self) -> Steps[Segment]:
        """Exchange the files; returns the new segment. Raises Failure: CONFLICT when the log was closed meanwhile.

        After any other failure the directory is offline, and its next start repairs the names.
        """
        # Before the first rename: a failure here leaves the log as it was, a later one takes the directory offline.
        self._open_indexes()
        self._state.exchange = self
        try:
            yield from self._wait_until_durable()
            while self._new_segment is None:
                self._run_next_rename()
                if self._new_segment is None:
                    yield from self._wait_until_durable()
        except Failure as failure:
            raise self._report_failure(failure.as_value()) from failure
        finally:
            self._state.exchange = None
        return self._new_segment

    def finish_now(self) -> None:
        """Do the remaining renames now, waiting for the disk. Raises Failure; the directory is offline then."""
        try:
            while self._new_segment is None:
                self._home.disk.sync_now(self._directory)
                self._run_next_rename()
        except Failure as failure:
            raise self._report_failure(failure.as_value()) from failure
        finally:
            self._state.exchange = None

    def _open_indexes(self) -> None:
        """Open all indexes of the old segments: readers open them on demand, by names that are about to change."""
        for segment in self._old:
            assert segment.index is not None, "reading the property opens the file"
            assert segment.time_index is not None, "reading the property opens the file"
            assert segment.txn_index is not None, "reading the property opens the file"

    def _wait_until_durable(self) -> Steps[None]:
        yield self._sync_names
        self._check_not_closed()

    def _sync_names(self, done: Done[None]) -> None:
        self._home.disk.sync_dir(self._directory, done)

    def _check_not_closed(self) -> None:
        if self._state.closed and self._new_segment is None:
            raise Failure(Kind.CONFLICT, f"{self._directory} was closed while it was cleaned")

    def _report_failure(self, failure: Failure) -> Failure:
        if self._state.closed:
            return Failure(Kind.CONFLICT, f"{self._directory} was closed while it was cleaned")
        self._home.on_failed(Failure(Kind.IO, f"segments of {self._directory} are half exchanged: {failure.message}"))
        return failure

    # -- one after the other -------------------------------------------------------------------------------------------

    def _run_next_rename(self) -> None:
        if self._renames:
            self._renames.pop(0)()
        else:
            self._replace_segments()

    def _rename_to_swap(self) -> None:
        """Name the new files `.swap`: from here on the next start finishes the exchange."""
        self._files.rename_files(CLEANED, SWAP)

    def _rename_old_to_deleted(self) -> None:
        names = [name for segment in self._old for name in self._names_of(segment)]
        self._retired_names = [name for name in names if self._home.disk.exists(name)]
        for name in self._retired_names:
            self._home.disk.rename(name, name + DELETED)

    def _names_of(self, segment: Segment) -> list[str]:
        """Files that are removed with an old segment; the new one keeps the snapshot at the first one's offset."""
        kinds = SEGMENT_SUFFIXES if segment is self._old[0] else (*SEGMENT_SUFFIXES, SNAPSHOT)
        return [f"{self._directory}/{file_name(segment.base_offset, kind)}" for kind in kinds]

    def _name_log(self) -> None:
        self._files.rename_files(SWAP, "", (LOG,))

    def _name_indexes(self) -> None:
        self._files.rename_files(SWAP, "", INDEX_SUFFIXES)

    def _replace_segments(self) -> None:
        fresh = Segment(self._home.disk, self._directory, self._old[0].base_offset, self._config)
        self._segments.replace_segments(self._old, fresh)
        for segment in self._old:
            segment.close_files()
        for name in self._retired_names:
            self._home.unlink_later(name + DELETED, self._config.file_delete_delay_ms)
        self._state.on_exchanged(fresh)
        self._new_segment = fresh
