"""The safeguards of the group coordinator. The simulator switches single ones off, to prove that a checker notices.

Zone: pure. Switches only; the code that reads a switch explains it. A broker in service has all of them on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupSafeguards:
    """One switch per safeguard."""

    generation_check: bool = True
    """Only members of the current generation commit offsets."""
    pending_positions: bool = True
    """Offsets of a transaction become valid with its marker. Off: at once."""
    stable_positions: bool = True
    """A fetch of stable offsets gets none that has a pending transactional commit (KIP-447)."""
    answer_when_committed: bool = True
    """A commit is answered when all in-sync replicas have it."""
