"""What a leader sent, cut into batches that continue a follower's log.

Zone: pure. Headers and checksums only; writing is the log's. Batches keep their offsets and epochs, and lie behind each
other in the answer, so that many of them are one write.
"""

from __future__ import annotations

from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import ATTRIBUTES_POS, HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2, unpack_header
from ottla.record.crc import crc32c
from ottla.record.validation import HeaderTuple

ANY_EPOCH: Final = 2**31 - 1


ReplicaBatch = tuple[int, int, HeaderTuple]
"""One batch of an answer: begin and end in it, and its header."""


def replica_batches(
    view: memoryview, log_end: int, newest_epoch: int = ANY_EPOCH, check_crc: bool = True
) -> tuple[list[ReplicaBatch], ApiError | None]:
    """The whole batches at the front of `view`, for a log that ends at `log_end`; and what is wrong with the next one.

    The first one may begin below `log_end` when it ends at or above it: whether the log can take that is for the log to
    say. A batch that the end of the answer cuts short is left out. So is, with all behind it, one of an epoch above
    `newest_epoch`: the follower does not know that leader yet. The error is CORRUPT_MESSAGE.
    """
    batches: list[ReplicaBatch] = []
    at, size = 0, len(view)
    while at + HEADER_SIZE <= size:
        header: HeaderTuple = unpack_header(view, at)
        end = at + header[1] + LOG_OVERHEAD
        last = header[0] + header[6]
        if end - at < HEADER_SIZE or header[3] != MAGIC_V2 or header[6] < 0 or last < log_end:
            return batches, _corrupt(f"offsets {header[0]} to {last} in {end - at} bytes where {log_end} is due")
        if end > size or header[2] > newest_epoch:
            break
        if batches and header[0] < log_end:
            return batches, _corrupt(f"offset {header[0]} where {log_end} is due")
        if check_crc and crc32c(view[at + ATTRIBUTES_POS : end]) != header[4]:
            return batches, _corrupt(f"the checksum of the batch at offset {header[0]} is wrong")
        batches.append((at, end, header))
        log_end = last + 1
        at = end
    return batches, None


def _corrupt(message: str) -> ApiError:
    return ApiError(ErrorCode.CORRUPT_MESSAGE, message)
