"""Splits a leader's response into batches that continue a follower's log.

Zone: pure. Headers and checksums only; the log writes them. Batches keep their offsets and epochs, and are contiguous
in the response, so that many of them are one write.
"""

from __future__ import annotations

from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC_POS, MAGIC_V2
from ottla.record.header_fields import BASE_OFFSET, BATCH_LENGTH, CRC, LAST_OFFSET_DELTA, LEADER_EPOCH
from ottla.record.log_entries import ENTRY_MIN, covered_from, entry_at, entry_checksum, is_wrapper
from ottla.record.validation import HeaderTuple
from ottla.types import LAST_OFFSET, NO_EPOCH

ANY_EPOCH: Final = 2**31 - 1


ReplicaBatch = tuple[int, int, HeaderTuple]
"""One batch of a response: its begin and end there, and its header."""


def replica_batches(
    view: memoryview, log_end: int, newest_epoch: int = ANY_EPOCH, check_crc: bool = True
) -> tuple[list[ReplicaBatch], ApiError | None]:
    """The whole batches at the beginning of `view`, for a log that ends at `log_end`; and the error of the next one.

    The first one may begin below `log_end` when it ends at or above it: the log decides whether it can take that. A
    batch that the end of the response cuts short is left out; so are a batch of an epoch above `newest_epoch`, whose
    leader the follower does not know yet, and all after it. The error is CORRUPT_MESSAGE.

    Messages of formats v0 and v1 do not have a leader epoch. They get that of the batch after them, else
    `newest_epoch`: up to there this log is a prefix of that leader's, which is what epochs are compared for. And a
    wrapper message is taken to begin at the end of the log before it.
    """
    batches, error = _whole_batches(view, log_end, newest_epoch, check_crc)
    if any(header[LEADER_EPOCH] == NO_EPOCH for _, _, header in batches):
        _put_epochs(batches, newest_epoch if newest_epoch != ANY_EPOCH else NO_EPOCH)
    return batches, error


def _put_epochs(batches: list[ReplicaBatch], epoch: int) -> None:
    for at in range(len(batches) - 1, -1, -1):
        start, end, header = batches[at]
        if header[LEADER_EPOCH] != NO_EPOCH:
            epoch = header[LEADER_EPOCH]
        else:
            batches[at] = start, end, (*header[:2], epoch, *header[3:])


def _whole_batches(
    view: memoryview, log_end: int, newest_epoch: int, check_crc: bool
) -> tuple[list[ReplicaBatch], ApiError | None]:
    batches: list[ReplicaBatch] = []
    at, size = 0, len(view)
    while at + ENTRY_MIN <= size:
        header = entry_at(view, at, size)
        if header is None:
            if view[at + MAGIC_POS] == MAGIC_V2 and at + HEADER_SIZE > size:
                break
            return batches, _corrupt_message(f"no batch and no message begins where offset {log_end} is due")
        # 1. Offsets first: a batch that the log has already, or that no log can have, is an error even if it is cut.
        # 2. A batch that is cut short, or of a leader that is not known yet, ends the response without an error.
        # 3. Only the first batch may begin below the end of the log. 4. The checksum.
        end = at + header[BATCH_LENGTH] + LOG_OVERHEAD
        last = header[BASE_OFFSET] + header[LAST_OFFSET_DELTA]
        if last < log_end or last > LAST_OFFSET:
            return batches, _corrupt_message(
                f"offsets {header[BASE_OFFSET]} to {last} in {end - at} bytes where {log_end} is due"
            )
        if end > size or header[LEADER_EPOCH] > newest_epoch:
            break
        if batches and header[BASE_OFFSET] < log_end:
            return batches, _corrupt_message(f"offset {header[BASE_OFFSET]} where {log_end} is due")
        if check_crc and entry_checksum(header, view[at + covered_from(header) : end]) != header[CRC]:
            return batches, _corrupt_message(f"the checksum of the batch at offset {header[BASE_OFFSET]} is wrong")
        if is_wrapper(header):
            header = (log_end, *header[1:6], last - log_end, *header[7:])
        batches.append((at, end, header))
        log_end = last + 1
        at = end
    return batches, None


def _corrupt_message(message: str) -> ApiError:
    return ApiError(ErrorCode.CORRUPT_MESSAGE, message)
