"""Where a follower cuts its log when the leader says where theirs part (KIP-101, KIP-279).

Zone: pure. Epochs and offsets in, an offset out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ottla.types import NO_EPOCH, NO_OFFSET


class TruncationPoint(NamedTuple):
    """Where to cut, and whether the logs are known to agree below it; if not, the leader is to be asked again."""

    offset: int
    complete: bool


def where_to_cut(
    leader_epoch: int,
    leader_end: int,
    end_offset_for: Callable[[int], tuple[int, int]],
    log_end: int,
    high_watermark: int,
) -> TruncationPoint:
    """The offset from which on a follower's records are not the leader's.

    The leader answered (`leader_epoch`, `leader_end`): its largest epoch that is not above the follower's last one, and
    where that ended. `end_offset_for` is the follower's own cache: the same question, answered by its log.

    An epoch that the follower does not know is cut down to the one below it, and compared again: between two elections
    nobody may have written in it (KIP-279). A leader that knows nothing leaves the follower's high watermark.
    """
    if leader_end == NO_OFFSET:
        return TruncationPoint(min(high_watermark, log_end), True)
    if leader_epoch == NO_EPOCH:
        return TruncationPoint(min(leader_end, log_end), True)
    own_epoch, own_end = end_offset_for(leader_epoch)
    if own_epoch == NO_EPOCH:
        return TruncationPoint(min(leader_end, log_end), True)
    if own_epoch != leader_epoch:
        return TruncationPoint(min(own_end, log_end), False)
    return TruncationPoint(min(own_end, leader_end, log_end), True)
