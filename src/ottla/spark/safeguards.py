"""The safeguards of the exactly-once sink; tests switch each one off to prove that it is needed.

Zone: pure. Only switches; the code that reads one explains it. In use all of them are on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SinkSafeguards:
    """One switch per safeguard; with one switched off, tests must find lost or duplicate rows."""

    fence_first: bool = True
    """An attempt takes the transactional id before it reads what earlier ones have committed. Off: after that, so that
    it misses a commit in between."""
    marker_inside: bool = True
    """The marker of a finished batch is in the transaction of its rows. Off: there is no marker."""
    offsets_inside: bool = True
    """The offsets of the source's group are committed in the transaction of its rows. Off: at once, outside of it."""
    stable_rows: bool = True
    """A batch is written by partition only if its rows are in the same partitions when Spark runs it again."""
    one_unit: bool = True
    """All attempts at a batch use the unit in which its first task committed."""
    parts_checked: bool = True
    """A batch is decided only while the transactions of all its tasks are open. Off: without a look at them."""
    committed_checked: bool = True
    """The rest of a batch is committed only if the rows that tasks have committed by partition are in none of its
    parts."""
    parts_recorded: bool = True
    """The transactions of a batch are recorded with the decision. Off: only the driver that decides knows them."""
    lost_parts_reported: bool = True
    """A transaction that was aborted after the decision stops the query. Off: its rows are missing silently."""


ALL_ON = SinkSafeguards()
