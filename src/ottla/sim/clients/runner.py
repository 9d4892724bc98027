"""One run of a cluster with Ottla's own clients.

Zone: deterministic. The phases are those of a cluster's run. At the end every record has its outcome, all records that
were sent in the healed cluster are delivered, and every partition has an owner in the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from ottla.sim.clients.checkers import find_violations
from ottla.sim.clients.history import ClientHistory
from ottla.sim.clients.workload import ClientNemesis, ClientWorkload
from ottla.sim.cluster.history import ClusterHistory
from ottla.sim.cluster.runner import ClusterOptions, ClusterResult, ClusterRun
from ottla.sim.cluster.workload import ClusterWorkload
from ottla.sim.world import SECOND

CALM_AFTER_NS: Final = 4 * SECOND
"""After this time the producers have no records left from before everything was healed."""
CALM_NS: Final = 3 * SECOND
RETRIED_MIN: Final = 100
"""What a seed must reach to count, in addition to the minimum of a cluster's run."""


@dataclass(frozen=True, slots=True)
class ClientOptions(ClusterOptions):
    """Settings of a run, in addition to its seed."""

    def run_seed(self, seed: int) -> ClusterResult:
        """Run a seed to its verdict."""
        return ClientRun(seed, self).run_phases()


@dataclass(slots=True)
class ClientResult(ClusterResult):
    """Size and findings of a run."""

    accepted: int = 0
    """Records that producers accepted."""
    failed: int = 0
    """Records that failed."""
    retried: int = 0
    """Records that were sent again, counted once per retry."""
    epochs: int = 0
    """How often a producer started a new epoch."""
    splits: int = 0
    """Batches that were split because they were too large for the broker."""
    generations: int = 0
    """Generations of the group in which a member got partitions."""

    @property
    def unmet_minimums(self) -> list[str]:
        """The minimums that the seed did not reach; empty when it counts."""
        reasons = super(ClientResult, self).unmet_minimums
        return reasons if self.retried >= RETRIED_MIN else [*reasons, f"{self.retried} records sent again"]


class ClientRun(ClusterRun):
    """The world of one seed."""

    scope: ClassVar[str] = "clients/"
    sizes: ClassVar[Sequence[int]] = (3, 3, 3, 3, 4)
    nemesis_kind = ClientNemesis
    workload: ClientWorkload
    history: ClientHistory

    def _make_history(self) -> ClusterHistory:
        return ClientHistory()

    def _broker_properties(self) -> dict[str, str]:
        """As for a cluster, but followers fetch with a long wait (clients do not notice), and groups rebalance fast."""
        return super()._broker_properties() | {
            "replica.fetch.wait.max.ms": "500",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": str(self.replication),
            "group.min.session.timeout.ms": "1000",
            "group.initial.rebalance.delay.ms": "200",
        }

    def _make_workload(self) -> ClusterWorkload:
        streams = self.streams.scoped_streams("workload")
        return ClientWorkload(
            self.network,
            streams,
            self.catalog,
            self.history,
            self.numbers,
            self.replication,
            self.flush,
        )

    def _await_convergence(self) -> None:
        """Heal; all brokers come back; records sent from then on are delivered; then all work must finish."""
        # 1. The cluster recovers.
        # 2. Records from the phase with faults get their outcomes; they may still fail.
        # 3. Records of the calm phase must all be delivered.
        # 4. The group gets stable, and the last readers read all logs.
        self.nemesis.heal_faults()
        self._await_none_missing(self._all_ready, "not ready")
        self._await_none_missing(self._topics_exist, "topics")
        self._await_none_missing(self._in_sync, "not in sync")
        self.timeline.run_until(self.timeline.now_ns + CALM_AFTER_NS)
        workload = self.workload
        # a producer with a full buffer and small batches would miss its deadline without any fault
        workload.pause_producers()
        self._await_none_missing(workload.unacknowledged_logs, "undecided before")
        workload.calm_down()
        self.timeline.run_until(self.timeline.now_ns + CALM_NS)
        workload.wind_down()
        self._await_none_missing(workload.unacknowledged_logs, "undecided")
        self._await_none_missing(workload.missing_from_group, "the group")
        self.timeline.run_until(self.timeline.now_ns + SECOND)
        workload.read_all()
        self._await_none_missing(workload.unread_logs, "unread")
        workload.note_final()
        self._await_none_missing(self.inspector.unequal_logs, "unequal")
        self.history.unequal.extend(self.inspector.unequal_logs())

    def _make_result(self) -> ClusterResult:
        result = super()._make_result()
        counts = [producer.producer.core.counts for producer in self.workload.producers]
        names = ClusterResult.__dataclass_fields__
        return ClientResult(
            **{name: getattr(result, name) for name in names},
            accepted=len(self.history.sent),
            failed=sum(bool(sent.error) for sent in self.history.sent),
            retried=sum(count.records_retried for count in counts),
            epochs=sum(count.epochs_begun for count in counts),
            splits=sum(count.batches_split for count in counts),
            generations=len({owned.generation for owned in self.history.owned}),
        )

    def _find_violations(self) -> list[tuple[str, str]]:
        return find_violations(self.history)
