"""One run of a cluster with compacted topics.

Zone: deterministic. The phases are those of a cluster's run. At the end every replica is read, and has to have the last
value of each key and no deleted key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from ottla.sim import checkers
from ottla.sim.cluster.checkers import CHECKERS as OF_CLUSTERS
from ottla.sim.cluster.history import ClusterHistory
from ottla.sim.cluster.runner import (
    ELECTIONS_MIN,
    FAULTS_MIN,
    SECONDS_MIN,
    ClusterOptions,
    ClusterResult,
    ClusterRun,
    cluster_properties,
)
from ottla.sim.cluster.workload import ClusterWorkload
from ottla.sim.compaction.workload import CompactionNemesis, CompactionWorkload
from ottla.sim.world import SECOND

# The checker of compacted topics is `latest_is_shown`; those of a cluster judge the other topic.

CHECKERS: Final = (*OF_CLUSTERS, checkers.latest_is_shown)


def find_violations(history: ClusterHistory, at_most: int = 5) -> list[tuple[str, str]]:
    """The violations in a history: (property, sentence), at most `at_most` per property."""
    return checkers.check_properties(history, CHECKERS, at_most)


WRITTEN_MIN: Final = 500
"""Records of compacted topics that were acknowledged."""
REMOVED_MIN: Final = 100
"""Records that the cleaners removed, on the replica that has most left; minimums of a seed that counts."""


@dataclass(frozen=True, slots=True)
class CompactionOptions(ClusterOptions):
    """Settings of a run, in addition to its seed."""

    def run_seed(self, seed: int) -> ClusterResult:
        """Run a seed to its verdict."""
        return CompactionRun(seed, self).run_phases()


@dataclass(slots=True)
class CompactionResult(ClusterResult):
    """Size and findings of a run."""

    @property
    def unmet_minimums(self) -> list[str]:
        """The minimums that the seed did not reach; empty when it counts."""
        reached = (
            (self.simulated_ns // SECOND, SECONDS_MIN // SECOND, "simulated seconds"),
            (self.written, WRITTEN_MIN, "acknowledged records"),
            (self.written - self.kept, REMOVED_MIN, "records removed"),
            (sum(self.faults.values()), FAULTS_MIN, "faults"),
            (self.elections, ELECTIONS_MIN, "elections"),
        )
        return [f"{value} {what}" for value, least, what in reached if value < least]


class CompactionRun(ClusterRun):
    """The world of one seed."""

    scope: ClassVar[str] = "compaction/"
    sizes: ClassVar[Sequence[int]] = (3, 3, 3, 4)
    nemesis_kind = CompactionNemesis
    workload: CompactionWorkload

    def _broker_properties(self) -> dict[str, str]:
        """As for a cluster, with cleaners that pause for a short time only."""
        random = self.streams.named_stream("cleaners")
        return cluster_properties(self.streams, self.replication) | {
            "log.cleaner.enable": "true",
            "log.cleaner.backoff.ms": str(random.choice((50, 200, 500))),
            "log.cleaner.threads": str(random.between(1, 2)),
        }

    def _make_workload(self) -> ClusterWorkload:
        streams = self.streams.scoped_streams("workload")
        return CompactionWorkload(
            self.network, streams, self.catalog, self.history, self.numbers, self.replication, self.flush
        )

    def _await_convergence(self) -> None:
        """As for a cluster; then read every replica of the compacted topics."""
        super()._await_convergence()
        self._await_none_missing(self._in_sync, "not in sync")
        self.workload.scan_all()
        self._await_none_missing(self.workload.unscanned_logs, "unscanned")
        self.workload.note_scans()

    def _find_violations(self) -> list[tuple[str, str]]:
        return find_violations(self.history)

    def _make_result(self) -> ClusterResult:
        result = super()._make_result()
        names = ClusterResult.__dataclass_fields__
        return CompactionResult(**{name: getattr(result, name) for name in names})
