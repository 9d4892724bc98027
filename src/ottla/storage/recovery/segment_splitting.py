"""Splits a segment whose offsets span more than its indexes can express, at a start.

Zone: deterministic. Blocking, at start only. Indexes hold offsets relative to the segment's base, in 32 bits. The
cleaner of Apache Kafka before 2.0 could join segments of a compacted topic beyond that (KAFKA-6264). All records stay:
those too far from the base are moved to a segment of their own.

The order makes every crash harmless: the new segment is written under a `.cleaned` name, synced, and renamed, its name
is synced, and only then is the old segment cut. A start that finds both halves cuts the old one.
"""

from __future__ import annotations

import logging
from typing import Final

from ottla.config.topic import TopicConfig
from ottla.record.header_fields import BASE_OFFSET, LAST_OFFSET_DELTA
from ottla.storage.layout import CLEANED, LOG, file_name
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.recovery.valid_prefix import large_crc_ok
from ottla.storage.segments.scan import walk_headers
from ottla.storage.segments.segment import Segment
from ottla.types import LAST_OFFSET

_PIECE: Final = 1024 * 1024
_logger = logging.getLogger(__name__)


def split_sealed(home: LogDirContext, segments: list[Segment], config: TopicConfig) -> None:
    """Split the sealed segments that span too many offsets: their successor begins far away. Raises Failure."""
    for segment in segments[:-1]:
        slot = segments.index(segment)
        if segments[slot + 1].base_offset > segment.max_offset + 1:
            split_at(home, segments, slot, 0, config)


def split_at(home: LogDirContext, segments: list[Segment], slot: int, position: int, config: TopicConfig) -> bool:
    """Split the segment in `slot` at the first entry that is too far from its base; whether there was one.

    Entries are checked from `position` on; if that is not 0, only the one that begins there. Raises Failure.
    """
    segment = segments[slot]
    found = _first_beyond(segment, position)
    if found is None or (position and found[0] != position):
        return False
    segment.close_indexes()
    fresh = _split_segment(home, segment, *found, config)
    following = segments[slot + 1 : slot + 2]
    if following and following[0].base_offset == fresh.base_offset:  # a crash came between the two halves of a split
        fresh.close_files()
    else:
        segments.insert(slot + 1, fresh)
    return True


def _first_beyond(segment: Segment, position: int) -> tuple[int, int] | None:
    """(position, base offset) of the first undamaged entry from `position` on whose offsets indexes cannot hold."""
    for at, header in walk_headers(segment.file, position, segment.size):
        if (
            header[BASE_OFFSET] > segment.base_offset
            and segment.max_offset < header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] <= LAST_OFFSET
        ):
            view = memoryview(bytearray(_PIECE))
            return (at, header[BASE_OFFSET]) if large_crc_ok(segment.file, at, header, view) else None
    return None


def _split_segment(home: LogDirContext, segment: Segment, position: int, base: int, config: TopicConfig) -> Segment:
    """Move the entries from `position` on, the first of which has offset `base`, to a new segment without indexes."""
    path = f"{segment.directory}/{file_name(base, LOG)}"
    # An existing file is whole: it got this name when it was synced, and a crash came before the old one was cut.
    if not home.disk.exists(path):
        _copy_tail(home, segment, position, path)
    segment.file.truncate(position)
    home.disk.sync_now(segment.path)
    segment.size = position
    segment.hot_from = min(segment.hot_from, position)
    text = "%s spans more offsets than an index can hold: moved its records from offset %d on to a new segment"
    _logger.warning(text, segment.path, base)
    return Segment(home.disk, segment.directory, base, config)


def _copy_tail(home: LogDirContext, segment: Segment, position: int, path: str) -> None:
    copy = home.disk.open(path + CLEANED, create=True)
    try:
        if copy.size:
            copy.truncate(0)
        while position < segment.size:
            piece = memoryview(bytearray(min(_PIECE, segment.size - position)))
            got = segment.file.read_now(position, piece)
            copy.append((piece[:got],))
            position += got
    finally:
        copy.close()
    home.disk.sync_now(path + CLEANED)
    home.disk.rename(path + CLEANED, path)
    home.disk.sync_now(segment.directory)
