"""Appends a batch to a log in an older message format: it is converted to messages first.

Zone: deterministic. A worker may have converted a large batch beforehand (`legacy_format_writes`); small ones are
converted here.
"""

from __future__ import annotations

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import patch_offset_and_epoch
from ottla.record.down_conversion import convert_for_old_topic
from ottla.record.header_fields import LAST_OFFSET_DELTA
from ottla.record.validation import HeaderTuple
from ottla.seams import Instant
from ottla.storage.log import Log


def append_time_of(log: Log, view: memoryview, wall_ms: int) -> int:
    """The LogAppendTime of a batch that is appended now: that of its messages if a worker has converted it."""
    ahead = log.prepared
    return ahead.stamp_ms if ahead is not None and ahead.view is view else wall_ms


def append_lowered(log: Log, view: memoryview, header: HeaderTuple, leader_epoch: int, _now: Instant) -> int:
    """Convert a batch to messages of the log's format, and append them. Returns their first offset.

    Raises ApiError as `Log.append` and `record.down_conversion` do.
    """
    base = log.end_offset
    log.check_offsets_left(base + header[LAST_OFFSET_DELTA])
    patch_offset_and_epoch(view, 0, base, leader_epoch)
    # The conversion of a worker is valid for this very batch at this offset in this format only.
    ahead, log.prepared = log.prepared, None
    if ahead is not None and ahead.view is view and (ahead.base, ahead.magic) == (base, log.magic):
        content = ahead.content
    else:
        content = convert_for_old_topic(view, header, log.magic)
    if len(content) > log.config.segment_bytes:
        text = f"{len(content)} bytes of messages do not fit a segment of {log.config.segment_bytes}"
        raise ApiError(ErrorCode.RECORD_LIST_TOO_LARGE, text)
    # Here, because messages of older formats have no field for the epoch from which `append_replica` could take it.
    if leader_epoch != log.epochs.latest:
        log.epochs.assign_epoch(leader_epoch, base)
    # The checksums were computed just now, in this process or by its worker.
    log.append_replica(memoryview(content), check_crc=False)
    return base
