"""The safeguards of the producer, each of which can be taken away to see that something would notice.

Zone: pure. Only switches; what each one guards stands where it is asked. A producer in service has all of them on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProducerSafeguards:
    """One switch per safeguard; the simulator turns single ones off and must catch what follows."""

    sequences_kept: bool = True
    """A batch keeps its sequence numbers through all its attempts (KIP-98). Off: every attempt takes new ones."""
    in_flight_cap: bool = True
    """No more requests to a node, and batches of a partition, are unanswered than
    `max.in.flight.requests.per.connection` allows."""
    epoch_recovery: bool = True
    """Sequences begin anew in a new producer epoch only (KIP-360). Off: in the same one."""
    refusals_doubted: bool = True
    """A batch may be in the log although its broker refused it, when that broker may have lost its leadership or its
    disk behind the append. Off: only what had no answer at all is in doubt."""
    first_repeated: bool = True
    """Only the first unanswered batch of a partition is repeated; those behind it wait for its answer."""
    first_alone: bool = True
    """Until a broker has acknowledged something of an epoch, one batch of a partition is on its way."""
    doubtful_fail: bool = True
    """When sequences begin anew, what may be in the log already fails. Off: it is written again."""
