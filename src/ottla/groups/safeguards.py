"""The safeguards of the group coordinator, each of which can be taken away to see that something would notice.

Zone: pure. Only switches; what each one guards stands where it is asked. A broker in service has all of them on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupSafeguards:
    """One switch per safeguard; the simulator turns single ones off and must catch what follows."""

    generation_check: bool = True
    """Only members of the present generation commit positions."""
    pending_positions: bool = True
    """Positions of a transaction hold when its marker says so. Off: at once."""
    stable_positions: bool = True
    """Who asks for stable positions is told none that a transaction is about to move (KIP-447)."""
    answer_when_committed: bool = True
    """A commit is answered when it is on all replicas in sync."""
