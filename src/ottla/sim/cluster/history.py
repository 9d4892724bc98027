"""What happened in a run of a cluster, beyond what clients of one broker see.

Zone: pure. Facts only. Here a "life" in the history is the number of the broker; what excuses a loss is not the death
of one broker, but that every in-sync replica of a partition lost what it had (`ledger.py` finds out).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ottla.sim.history import NEVER, History, Write

ACKS_ALL: Final = -1


@dataclass(slots=True)
class Led:
    """Who leads a log in an epoch, and who said so."""

    leader: int
    told_by: int
    at_ns: int


@dataclass(slots=True)
class ClusterHistory(History):
    """Everything the checkers of a cluster look at."""

    excused: dict[str, int] = field(default_factory=dict)
    """Logs all of whose in-sync replicas lost data before others could take over, with the least durable offset."""
    leaders: dict[tuple[str, int], Led] = field(default_factory=dict)
    """By log and leader epoch: what Metadata said first."""
    rivals: list[str] = field(default_factory=list)
    """Metadata answers that name another leader for a known epoch."""
    too_few: list[str] = field(default_factory=list)
    """Records acknowledged with acks=all that fewer replicas had than min.insync.replicas."""
    divergent: list[str] = field(default_factory=list)
    """Replicas with different bytes below both high watermarks, while faults went on."""
    unequal: list[str] = field(default_factory=list)
    """Replicas that are not byte-identical after everything was healed."""

    def era(self, log: str, offset: int, life: int) -> int:  # noqa: ARG002  one era: a cluster forgets nothing
        """There is one era only; logs with an excuse are not judged."""
        return 0

    def may_be_lost(self, log: str, offset: int, life: int) -> bool:  # noqa: ARG002  whoever acknowledged it
        """Whether a record may be missing at the end, whoever acknowledged it."""
        if offset < self.deleted.get(log, 0) or log in self.dropped or log in self.rewritten:
            return True
        return log in self.excused and offset >= self.excused[log]

    def may_be_taken(self, log: str, offset: int, life: int) -> bool:  # noqa: ARG002  whoever acknowledged it
        """Whether all that had it may have lost it."""
        return log in self.excused

    def may_be_missing(self, log: str, offset: int) -> bool:
        """Deleted, or all that had it have other disks now."""
        return super(ClusterHistory, self).may_be_missing(log, offset) or offset >= self.excused.get(log, NEVER)

    def promised(self, write: Write) -> bool:
        """With acks=1 the leader alone has it: whoever leads next may not."""
        return write.acks == ACKS_ALL and super(ClusterHistory, self).promised(write)

    def keeps_all(self, log: str) -> bool:
        """Whether everything that was committed in that log has to be there at the end."""
        touched = log in self.dropped or log in self.rewritten or log in self.excused or self.deleted.get(log, 0) > 0
        return log in self.final and not touched

    def judged(self, log: str) -> bool:
        """Whether offsets of that log have a meaning throughout the run."""
        return log not in self.rewritten and log not in self.excused
