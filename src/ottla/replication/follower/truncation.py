"""Computes where a follower truncates its log when the leader reports where their logs diverge (KIP-101, KIP-279).

Zone: pure. Epochs and offsets in, an offset out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ottla.types import NO_EPOCH, NO_OFFSET


class TruncationPoint(NamedTuple):
    """Where to truncate, and whether the logs are known to agree below it; if not, the leader is asked again."""

    offset: int
    complete: bool


def where_to_cut(
    leader_epoch: int,
    leader_end: int,
    end_offset_for: Callable[[int], tuple[int, int]],
    log_end: int,
    high_watermark: int,
) -> TruncationPoint:
    """The first offset at which a follower's log may differ from the leader's.

    The leader answered (`leader_epoch`, `leader_end`): its largest epoch that is not above the follower's last one, and
    where that ended. `end_offset_for` answers the same question from the follower's own epochs.
    """
    # 1. The leader knows no epochs: as before KIP-101, only records below the high watermark are surely the same.
    if leader_end == NO_OFFSET:
        return TruncationPoint(min(high_watermark, log_end), True)
    # 2. The leader names an end without an epoch (an old leader), or the follower has no epoch as old as the leader's:
    #    no epoch can be compared, only the end.
    if leader_epoch == NO_EPOCH:
        return TruncationPoint(min(leader_end, log_end), True)
    own_epoch, own_end = end_offset_for(leader_epoch)
    if own_epoch == NO_EPOCH:
        return TruncationPoint(min(leader_end, log_end), True)
    # 3. The follower has no record of the leader's epoch: truncate to the end of the epoch below it, and compare again,
    #    because records of that epoch may also differ (KIP-279: fast elections, with epochs that have no records).
    if own_epoch != leader_epoch:
        return TruncationPoint(min(own_end, log_end), False)
    # 4. Both have the epoch: the logs agree up to the smaller of its two ends.
    return TruncationPoint(min(own_end, leader_end, log_end), True)
