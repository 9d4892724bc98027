"""Checks whether the indexes of a segment can be trusted, and rebuilds them beside the old ones.

Zone: deterministic. Blocking, at start only. An index below the recovery point is trusted at every later start, so a
new one replaces the old one as a whole: written under a `.cleaned` name, synced, renamed. The offset index is renamed
last, because a start notices when it is missing, but not when a transaction index is.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.record.batch import HEADER_SIZE
from ottla.record.header_fields import MAX_TIMESTAMP
from ottla.seams import Disk, Failure, Kind
from ottla.storage.layout import CLEANED, INDEX, TIME_INDEX, TXN_INDEX
from ottla.storage.segments.scan import walk_headers
from ottla.storage.segments.segment import Segment


def indexes_sane(segment: Segment) -> bool:
    """Whether the index files of a segment exist and are possible."""
    try:
        return segment.index.is_sane(segment.size) and segment.time_index.is_sane() and segment.txn_index.sane
    except Failure as failure:
        if failure.kind is Kind.NOT_DONE:
            return False
        raise


def rebuild_beside(disk: Disk, segment: Segment, go_through: Callable[[Segment], object]) -> None:
    """Index a sealed segment by `go_through` into new files, and replace the old ones by them. Raises Failure.

    A stop at any moment leaves the old files or the new ones, all of them synced.
    """
    segment.index_state = CLEANED
    go_through(segment)
    segment.seal_segment()
    segment.close_indexes()
    segment.index_state = ""
    for kinds in ((TIME_INDEX, TXN_INDEX), (INDEX,)):
        for kind in kinds:
            _open_new(disk, segment.path_of(kind))
        disk.sync_now(segment.directory)


def _open_new(disk: Disk, path: str) -> None:
    if disk.exists(path + CLEANED):
        disk.sync_now(path + CLEANED)
        disk.rename(path + CLEANED, path)
    else:
        disk.unlink_now(path)


def load_active(active: Segment) -> None:
    """Compute the state of the active segment that its files do not have."""
    for _, header in walk_headers(active.file, 0, min(active.size, HEADER_SIZE * 2**20)):
        active.first_timestamp = header[MAX_TIMESTAMP]
        break
    last = active.index.last_entry
    active.bytes_since_index = active.size - (last.position if last else 0)
