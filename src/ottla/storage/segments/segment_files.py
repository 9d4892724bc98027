"""Creates and removes the files of segments.

Zone: deterministic. Names and order of renames; the segment reads and writes the files.
"""

from __future__ import annotations

from ottla.config.topic import TopicConfig
from ottla.seams import Failure, Kind
from ottla.storage.layout import DELETED, SEGMENT_SUFFIXES, SNAPSHOT, file_name
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.segments.segment import Segment


def create_segment(
    home: LogDirContext, directory: str, base_offset: int, config: TopicConfig, is_first: bool = False
) -> Segment:
    """An empty, appendable segment. Raises Failure; then no file is left.

    `is_first`: the directory is empty, so that no old files have to be emptied.
    """
    segment = Segment(home.disk, directory, base_offset, config, create=True)
    try:
        if segment.size:  # an old file of the same name, left by a truncation or a damaged disk
            segment.file.truncate(0)
            segment.size = segment.hot_from = 0
        segment.make_appendable(config, keep_entries=is_first)
    except Failure:
        discard_segment(home, segment)
        raise
    segment.jitter_ms = draw_jitter(home, config)
    return segment


def draw_jitter(home: LogDirContext, config: TopicConfig) -> int:
    """How much earlier than segment.ms this segment rolls, ms: partitions created together do not roll together."""
    jitter = config.segment_jitter_ms
    return home.entropy.random_below("segment-jitter", jitter) if jitter > 0 else 0


def discard_segment(home: LogDirContext, segment: Segment) -> None:
    """Remove a segment that was just created."""
    segment.close_files()
    for suffix in SEGMENT_SUFFIXES:
        home.disk.unlink_now(segment.path_of(suffix))


def retire_segment(home: LogDirContext, segment: Segment, delay_ms: int) -> None:
    """Rename a segment's files to `.deleted` and remove them after a delay. Raises Failure."""
    for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT):
        path = segment.path_of(suffix)
        if _rename_to_deleted(home, path):
            home.unlink_later(path + DELETED, delay_ms)
    segment.close_files()


def _rename_to_deleted(home: LogDirContext, path: str) -> bool:
    """Rename a file to `.deleted`; False when it does not exist, as a segment need not have every kind."""
    if not home.disk.exists(path):
        return False
    try:
        home.disk.rename(path, path + DELETED)
    except Failure as failure:
        if failure.kind is not Kind.NOT_DONE:
            raise
        return False
    return True


def snapshot_path(directory: str, offset: int) -> str:
    """Path of the producer snapshot at an offset."""
    return f"{directory}/{file_name(offset, SNAPSHOT)}"
