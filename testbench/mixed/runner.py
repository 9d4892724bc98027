"""One run of a cluster whose brokers roll from release 0.1 to this release and back.

Zone: deterministic. The phases, the clients, the faults and the properties are those of a cluster with transactions, or
of a plain cluster. In addition brokers are replaced, an operator finalizes levels, and formats are watched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ottla.sim.cluster.ledger import Ledger
from ottla.sim.cluster.node import ClusterNode
from ottla.sim.cluster.runner import START_NS, ClusterResult, ClusterRun
from ottla.sim.mutants.ablation import without_mutant
from ottla.sim.transactions.runner import TransactionOptions, TransactionRun
from ottla.sim.world import SECOND
from ottla.transactions.state import BUMPED, FLEXIBLE
from testbench.mixed.clients import FEATURE, FeatureOperator, OldFormatProducer
from testbench.mixed.formats import LEVELS, WITH_EARLIER, Release
from testbench.mixed.gates import GATES
from testbench.mixed.node import MixedNode
from testbench.mixed.rolls import Replacement, plan_rolls
from testbench.mixed.watch import FormatWatch, LogScan, MixedLedger

SCAN_NS: Final = 2 * SECOND
PLAIN_EVERY: Final = 3
"""Every third seed is a plain cluster, with more records and topics that are deleted and cut."""
TRY_NS: Final = SECOND * 9 // 10
LEVEL_KNOWN_NS: Final = 6 * SECOND
"""Time in a healed cluster until all brokers have read a level."""


class _Noticed(Exception):
    """A format is not kept: the rest of the run does not matter."""


@dataclass(frozen=True, slots=True)
class MixedOptions(TransactionOptions):
    """Settings of a run, in addition to its seed."""

    gate: str | None = None
    """The gate of a format that is switched off, of `gates.GATES`."""
    until_noticed: bool = False
    """End the run when a format is not kept."""

    def run_seed(self, seed: int) -> ClusterResult:
        """Run a seed to its verdict."""
        kind = MixedPlainRun if seed % PLAIN_EVERY == 0 else MixedTransactionRun
        with without_mutant(None if self.gate is None else GATES[self.gate].mutant):
            return kind(seed, self).run_phases()


class MixedRun(ClusterRun):
    """What both kinds of runs have in common."""

    node_kind = MixedNode
    options: MixedOptions
    nodes: Any
    _settled = False
    """The brokers are healed and know the finalized level."""

    def __init__(self, seed: int, options: MixedOptions) -> None:
        super().__init__(seed, options)
        random = self.streams.named_stream("rolls")
        self.plan = plan_rolls(random, self.numbers, START_NS, self._end_ns)
        self.scan = LogScan(self.nodes, self._mixed_ledger, self.watch)
        self.operator = FeatureOperator(self.workload.make_client("feature-operator"), self.nemesis.fired)
        self.old_producer = OldFormatProducer(self.workload.make_client("old-format-producer"), self.replication)

    def _make_ledger(self) -> Ledger:
        random = self.streams.named_stream("levels")
        levels = {Release.EARLIER: random.choice(WITH_EARLIER), Release.PRESENT: random.choice(tuple(LEVELS))}
        self.watch = FormatWatch(levels)
        self._mixed_ledger = MixedLedger(
            self.history, self.timeline.trace_fact, self.watch, lambda: self.timeline.now_ns
        )
        return self._mixed_ledger

    def _make_nodes(self) -> list[ClusterNode]:
        nodes = super()._make_nodes()
        for node in nodes:
            assert isinstance(node, MixedNode)
            node.watch = self.watch
        return nodes

    def _run_phases(self) -> ClusterResult:
        at = self.timeline.schedule_at
        for replacement in self.plan.replacements:
            at(replacement.at_ns, "roll", self._replace_broker, replacement)
        at(START_NS, "operator", self._try_level, self.plan.done_ns)
        for at_ns, level in self.plan.finalized:
            at(at_ns, "operator", self.operator.finalize_level, level)
        at(SCAN_NS, "scan", self._scan_again)
        at(SECOND, "old format", self.old_producer.start_writing)
        try:
            return super()._run_phases()
        except _Noticed:
            return self._make_result()

    def _replace_broker(self, replacement: Replacement) -> None:
        node = next(node for node in self.nodes if node.number == replacement.broker)
        self.nemesis.fired(f"replaced by {replacement.release.value}")
        node.replace_release(replacement.release, kill=replacement.kill)

    def _try_level(self, until_ns: int) -> None:
        """Now and then during the rolls: a level must not be finalized while brokers of release 0.1 are there."""
        # Only where the outcome is known: a controller of release 0.1 does not know the request.
        ledger = self._mixed_ledger
        releases = ledger.releases
        if Release.EARLIER in releases.values() and releases.get(ledger.controller) is Release.PRESENT:
            self.operator.try_level(BUMPED)
        self.operator.find_controller()
        if self.timeline.now_ns < until_ns:
            self.timeline.schedule_after(TRY_NS, "operator", self._try_level, until_ns)

    def _scan_again(self) -> None:
        self.scan.scan_all()
        if self.watch.found and (self.options.until_noticed or self.options.gate is not None):
            raise _Noticed
        self.timeline.schedule_after(SCAN_NS, "scan", self._scan_again)

    def _await_convergence(self) -> None:
        self.operator.stop_trying()
        super()._await_convergence()

    def _all_ready(self) -> list[str]:
        late = super()._all_ready()
        if not late and not self._settled:
            self._settled = True
            self._settle_level()
        return late

    def _settle_level(self) -> None:
        """All brokers are healed, so soon they know the level, and what they write from then on has to follow it."""
        self.timeline.run_until(self.timeline.now_ns + LEVEL_KNOWN_NS)
        level = self._mixed_ledger.finalized.get(FEATURE, BUMPED)
        self.watch.old_markers = level < BUMPED
        if level < FLEXIBLE:
            self.scan.settle_level()

    def _find_violations(self) -> list[tuple[str, str]]:
        self.scan.scan_all()
        return [*super()._find_violations(), *self.watch.found]


class MixedTransactionRun(MixedRun, TransactionRun):
    """Copiers, groups and transactions."""

    scope = "mixed transactions/"


class MixedPlainRun(MixedRun):
    """Producers and readers."""

    scope = "mixed/"
