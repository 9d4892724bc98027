"""The safeguards of the exactly-once sink, each of which can be taken away to see that something would notice.

Zone: pure. Only switches; what each one guards stands where it is asked. A query in service has all of them on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SinkSafeguards:
    """One switch per safeguard; tests turn single ones off and must see rows that are lost or there twice."""

    fence_first: bool = True
    """An attempt takes the transactional id before it looks what earlier ones have committed. Off: behind that, so that
    one which commits in between is not seen."""
    marker_inside: bool = True
    """What says that a batch is done is in the transaction of its rows. Off: nothing says so."""
    offsets_inside: bool = True
    """The offsets of the source's group are committed in the transaction of its rows. Off: beside it, at once."""
    stable_rows: bool = True
    """A batch is written by partition only if its rows come in the same partitions when Spark runs it again."""
    one_unit: bool = True
    """All attempts at a batch write it in the unit in which its first task committed."""
    one_partition: bool = True
    """What is written as a whole comes from one partition. Off: the others are written, too, under its name."""


ALL_ON = SinkSafeguards()
