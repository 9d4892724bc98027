"""The safeguards of transactions. The simulator switches single ones off, to prove that a checker notices.

Zone: pure. Switches only; the code that reads a switch explains it. A broker in service has all of them on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionSafeguards:
    """One switch per safeguard."""

    epoch_check: bool = True
    """A request of another epoch than the present one changes nothing."""
    bump_at_end: bool = True
    """Under transaction version 2 every end of a transaction gives its producer another epoch (KIP-890)."""
    bump_at_abort: bool = True
    """A transaction that the coordinator itself aborts ends in another epoch: its producer is fenced (KIP-98)."""
    bump_at_start: bool = True
    """A producer that starts under a transactional id gets another epoch: earlier ones are fenced (KIP-98)."""
    decided_before_marked: bool = True
    """Markers are written when the decision is committed, not when it is made."""
    marked_again: bool = True
    """A new coordinator writes the markers of transactions that were decided before it took over."""
    complete_when_marked: bool = True
    """A transaction is complete when all its partitions have their markers; until then the next one waits."""
