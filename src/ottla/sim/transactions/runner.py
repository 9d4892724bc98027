"""One run of a cluster with transactions and groups.

Zone: deterministic. The phases are those of a cluster's run. At the end copiers must reach the end of their input, all
transactions must end, and the last stable offsets must reach the high watermarks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from ottla.sim.cluster.history import ClusterHistory
from ottla.sim.cluster.inspection import Inspector
from ottla.sim.cluster.runner import (
    FAULTS_MIN,
    SECONDS_MIN,
    ClusterOptions,
    ClusterResult,
    ClusterRun,
    cluster_properties,
)
from ottla.sim.cluster.workload import ClusterWorkload
from ottla.sim.runner import CONVERGE_NS, SETTLE_NS
from ottla.sim.transactions.admin import INTERNAL, TransactionAdmin, TransactionNemesis
from ottla.sim.transactions.checkers import find_violations
from ottla.sim.transactions.history import Fate, TransactionHistory
from ottla.sim.transactions.workload import TransactionWorkload
from ottla.sim.workload.catalog import Catalog, Role, Topic
from ottla.sim.world import SECOND

COMMITS_MIN: Final = 200
"""Transactions and OffsetCommits that were acknowledged."""
COORDINATORS_MIN: Final = 5
"""Minimums that a seed must reach to count, in addition to time and faults."""


@dataclass(frozen=True, slots=True)
class TransactionOptions(ClusterOptions):
    """Settings of a run, in addition to its seed."""

    def run_seed(self, seed: int) -> ClusterResult:
        """Run a seed to its verdict."""
        return TransactionRun(seed, self).run_phases()


@dataclass(slots=True)
class TransactionResult(ClusterResult):
    """Size and findings of a run."""

    commits: int = 0
    """Transactions whose commit was acknowledged."""
    aborts: int = 0
    """Transactions that were certainly aborted."""
    unsure: int = 0
    """Transactions with an unknown result."""
    offset_commits: int = 0
    """OffsetCommits outside of transactions that were acknowledged."""
    coordinator_changes: int = 0
    """How often a partition of a coordinator's topic got another leader."""
    generations: int = 0
    removed: int = 0
    """Records that cleaners removed from the topics of coordinators, on the most compacted replicas."""

    @property
    def unmet_minimums(self) -> list[str]:
        """The minimums that the seed did not reach; empty when it counts."""
        reached = (
            (self.simulated_ns // SECOND, SECONDS_MIN // SECOND, "simulated seconds"),
            (self.commits + self.offset_commits, COMMITS_MIN, "commits"),
            (sum(self.faults.values()), FAULTS_MIN, "faults"),
            (self.coordinator_changes, COORDINATORS_MIN, "changes of a coordinator"),
        )
        reasons = [f"{value} {what}" for value, least, what in reached if value < least]
        if self.excused:
            reasons.append(f"what was left after {self.excused} logs had lost data with an excuse")
        return reasons


class TransactionRun(ClusterRun):
    """The world of one seed."""

    scope: ClassVar[str] = "transactions/"
    sizes: ClassVar[Sequence[int]] = (3, 3, 3, 3, 4)
    nemesis_kind = TransactionNemesis
    workload: TransactionWorkload
    _removed = 0
    history: TransactionHistory

    def _make_history(self) -> ClusterHistory:
        return TransactionHistory()

    def _broker_properties(self) -> dict[str, str]:
        """As for a cluster, with few coordinator partitions, small segments, cleaners, and timeouts of seconds."""
        random, cleaners = self.streams.named_stream("coordinators"), self.streams.named_stream("cleaners")
        properties = cluster_properties(self.streams, self.replication)
        for topic in ("offsets.topic", "transaction.state.log"):
            properties[f"{topic}.num.partitions"] = str(random.between(1, 3))
            properties[f"{topic}.replication.factor"] = str(self.replication)
            properties[f"{topic}.segment.bytes"] = str(random.choice((6_000, 30_000)))
        return properties | {
            "log.cleaner.enable": "true",
            "log.cleaner.backoff.ms": str(cleaners.choice((50, 200, 500))),
            "log.cleaner.threads": str(cleaners.between(1, 2)),
            "log.cleaner.min.cleanable.ratio": cleaners.choice(("0", "0.3")),
            "log.cleaner.delete.retention.ms": str(cleaners.choice((100, 500, 2000))),
            "min.insync.replicas": str(random.between(1, 2)),
            "log.index.size.max.bytes": "12000",
            "log.flush.interval.messages": "1" if self.flush else "1000000",
            "request.timeout.ms": "2500",
            "group.min.session.timeout.ms": "1000",
            "group.initial.rebalance.delay.ms": "200",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        }

    def _make_workload(self) -> ClusterWorkload:
        streams = self.streams.scoped_streams("workload")
        workload = TransactionWorkload(
            self.network, streams, self.catalog, self.history, self.numbers, self.replication, self.flush
        )
        assert isinstance(workload.admin, TransactionAdmin)
        workload.admin.internal = self._internal_topics
        return workload

    def _internal_topics(self) -> list[Topic]:
        """The topics of coordinators. In flush mode their acknowledged records are durable as well."""
        found = []
        for name in INTERNAL:
            count = sum(route[0] == name for route in self.ledger.replicas)
            if count:
                topic = Topic(name, Role.COORDINATOR, count, self.ledger.topic_ids[name])
                found.append(topic)
                if self.flush:
                    self.history.flushed.update((topic.partition_log(partition), None) for partition in range(count))
        return found

    def _all_topics(self) -> list[Topic]:
        return [*self.catalog.topics, *self._internal_topics()]

    # ---- liveness ----

    def _await_convergence(self) -> None:
        """Heal; all brokers come back; the copiers copy the rest; then all clients must finish."""
        self.nemesis.heal_faults()
        self._await_none_missing(self._all_ready, "not ready")
        self._await_none_missing(self._topics_exist, "topics")
        self._await_none_missing(self._in_sync, "not in sync")
        self.timeline.run_until(self.timeline.now_ns + SETTLE_NS)
        workload = self.workload
        workload.hurry_actors()
        workload.wind_down()
        self._await_none_missing(workload.unacknowledged_logs, "unacknowledged")
        self._need_transactions(workload.uncopied_logs, "not copied")
        workload.stop_actors()
        self._need_transactions(workload.unfinished_actors, "not at its end")
        self._judge_history()

    def _need_transactions(self, missing: Callable[[], list[str]], what: str) -> None:
        """As `_await_none_missing`; if some transaction may need an operator to end it, missing work is noted as
        hanging."""
        if self.history.ends_transactions:
            self._await_none_missing(missing, what)
        elif not self._run_until_holds(lambda: not missing(), CONVERGE_NS):
            self.history.hanging.extend(f"{what}: {one}" for one in missing())

    def _judge_history(self) -> None:
        workload = self.workload
        workload.ask_positions()
        workload.read_all()
        workload.read_output()
        self._need_transactions(workload.unanswered_queries, "not answered")
        self._await_none_missing(workload.unread_logs, "unread")
        if not self._run_until_holds(lambda: not workload.unread_output(), CONVERGE_NS):
            self.history.hanging.extend(workload.unread_output())
        workload.note_final()
        workload.note_output()
        inspector = Inspector(self.nodes, self.ledger, Catalog(self._all_topics()), self.history)
        self._run_until_holds(lambda: not inspector.unequal_logs(), CONVERGE_NS // 4)
        self.history.unequal.extend(inspector.unequal_logs())
        routes = [(topic.name, number) for topic in self._internal_topics() for number in range(topic.partitions)]
        self._removed = sum(inspector.removed_records(route) for route in routes)

    def _make_result(self) -> ClusterResult:
        result = super()._make_result()
        fates = [txn.fate for txn in self.history.txns]
        names = ClusterResult.__dataclass_fields__
        return TransactionResult(
            **{name: getattr(result, name) for name in names},
            commits=fates.count(Fate.COMMITTED),
            aborts=fates.count(Fate.ABORTED),
            unsure=fates.count(Fate.OPEN),
            offset_commits=len(self.history.commits),
            coordinator_changes=sum(self.ledger.elections_of.get(name, 0) for name in INTERNAL),
            removed=self._removed,
            generations=len({(owned.group, owned.generation) for owned in self.history.owned}),
        )

    def _find_violations(self) -> list[tuple[str, str]]:
        return find_violations(self.history)
