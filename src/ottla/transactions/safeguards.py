"""The safeguards of transactions, each of which can be taken away to see that something would notice.

Zone: pure. Only switches; what each one guards stands where it is asked. A broker in service has all of them on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionSafeguards:
    """One switch per safeguard; the simulator turns single ones off and must catch what follows."""

    epoch_check: bool = True
    """A request of another epoch than the present one changes nothing."""
    bump_at_end: bool = True
    """Under transaction version 2 every end of a transaction gives its producer another epoch (KIP-890)."""
    bump_at_abort: bool = True
    """A transaction that the coordinator itself aborts ends in another epoch: its producer is fenced (KIP-98)."""
    bump_at_start: bool = True
    """Whoever starts under a transactional id gets another epoch: those before are fenced (KIP-98)."""
    decided_before_marked: bool = True
    """Markers are written when the decision is committed, not when it is made."""
    marked_again: bool = True
    """Whoever takes over as a coordinator writes the markers of what was decided before."""
    complete_when_marked: bool = True
    """A transaction is complete when all its partitions have their markers; until then the next one waits."""
