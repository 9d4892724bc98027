"""The safeguards of the producer; the simulator turns each one off to prove that it is needed.

Zone: pure. Only switches; the code that reads a switch has the reason. Applications run with all of them on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProducerSafeguards:
    """One switch per safeguard; the simulator turns single ones off, and must detect the fault that follows."""

    sequences_kept: bool = True
    """A batch keeps its sequence numbers in all its attempts (KIP-98). Off: every attempt takes new ones."""
    in_flight_cap: bool = True
    """`max.in.flight.requests.per.connection` limits the unanswered requests to a node, and the unanswered batches of
    a partition."""
    epoch_recovery: bool = True
    """Sequence numbers restart only in a new producer epoch (KIP-360). Off: in the same one."""
    refusals_doubted: bool = True
    """A refused batch counts as possibly in the log if its broker may have lost its leadership or its disk after the
    append. Off: only batches without any answer do."""
    first_repeated: bool = True
    """Only the first unanswered batch of a partition is repeated; later ones wait for its answer."""
    first_alone: bool = True
    """Until the broker has acknowledged a batch of an epoch, only one batch of the partition is unanswered."""
    doubtful_fail: bool = True
    """When sequence numbers restart, batches that may be in the log fail. Off: they are written again."""
