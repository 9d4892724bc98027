"""What happened in a run of a cluster, beyond what clients of one broker see.

Zone: pure. Facts only. Here a "life" in the history is the number of the broker. The death of one broker does not
excuse a loss; the loss of data on every in-sync replica of a partition does (`ledger.py` finds out).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ottla.sim.history import NEVER, History, Write

ACKS_ALL: Final = -1


@dataclass(slots=True)
class Led:
    """The leader of a log in an epoch, and the broker that reported it first."""

    leader: int
    reported_by: int
    at_ns: int


@dataclass(slots=True)
class ClusterHistory(History):
    """Input of the checkers of a cluster."""

    excused: dict[str, int] = field(default_factory=dict)
    """Logs all of whose in-sync replicas lost data before others could take over, with the least durable offset."""
    leaders: dict[tuple[str, int], Led] = field(default_factory=dict)
    """By log and leader epoch: the leader in the first Metadata answer."""
    rivals: list[str] = field(default_factory=list)
    """Metadata answers that name another leader for a known epoch."""
    too_few: list[str] = field(default_factory=list)
    """Records acknowledged with acks=all that fewer replicas had than min.insync.replicas."""
    divergent: list[str] = field(default_factory=list)
    """Replicas with different bytes below both high watermarks, in the phase with faults."""
    unequal: list[str] = field(default_factory=list)
    """Replicas that are not byte-identical after everything was healed."""

    @property
    def lossy_topics(self) -> set[str]:
        """Topics of the logs in `excused`."""
        # A log's name is topic-partition@id: the topic is what is left of both signs.
        return {log.rpartition("@")[0].rpartition("-")[0] for log in self.excused}

    def loss_era(self, log: str, offset: int, life: int) -> int:  # noqa: ARG002  a cluster has one era
        """Always 0: a cluster has one era, and logs with an excuse are not judged."""
        return 0

    def may_be_lost(self, log: str, offset: int, life: int) -> bool:  # noqa: ARG002  the broker does not matter
        """Whether a record may be missing at the end, regardless of the broker that acknowledged it."""
        if offset < self.deleted.get(log, 0) or log in self.dropped or log in self.rewritten:
            return True
        return log in self.excused and offset >= self.excused[log]

    def may_be_taken(self, log: str, offset: int, life: int) -> bool:  # noqa: ARG002  the broker does not matter
        """Whether all in-sync replicas may have lost the record."""
        return log in self.excused

    def may_be_missing(self, log: str, offset: int) -> bool:
        """Whether it was deleted, or all in-sync replicas have other disks now."""
        return super(ClusterHistory, self).may_be_missing(log, offset) or offset >= self.excused.get(log, NEVER)

    def is_promised(self, write: Write) -> bool:
        """Whether it was acknowledged with acks=all: with acks=1 the next leader may not have it."""
        return write.acks == ACKS_ALL and super(ClusterHistory, self).is_promised(write)

    def keeps_all(self, log: str) -> bool:
        """Whether everything that was committed in that log has to be in it at the end."""
        touched = log in self.dropped or log in self.rewritten or log in self.excused or self.deleted.get(log, 0) > 0
        return log in self.final and not touched

    def is_judged(self, log: str) -> bool:
        """Whether offsets of that log have a meaning throughout the run."""
        return log not in self.rewritten and log not in self.excused
