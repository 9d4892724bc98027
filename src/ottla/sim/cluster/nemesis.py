"""The nemesis of a cluster: plans the faults of a run, causes them, and heals everything at the end.

Zone: deterministic. It draws the whole schedule before the run begins. Every seed has its own mix of kinds (a swarm),
and quiet times between strikes. A run can be repeated with some of its strikes left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Final, NamedTuple

from ottla.sim.cluster.admin import ClusterAdmin
from ottla.sim.cluster.faults import (
    PAUSES_NS,
    WHOLE_LOSS,
    Deed,
    DriveStrikes,
    LinkStrikes,
    ProcessStrikes,
    StoreStrikes,
    Victims,
)
from ottla.sim.cluster.ledger import Ledger
from ottla.sim.cluster.node import ClusterNode
from ottla.sim.disks.drive import NO_LIMIT
from ottla.sim.entropy import Stream, Streams
from ottla.sim.faults import Fired
from ottla.sim.machines.ensemble import Ensemble
from ottla.sim.machines.machine import Death, Process
from ottla.sim.networks.network import Network
from ottla.sim.world import MS, SECOND

ALWAYS: Final = ("kill", "isolated broker", "pause past the session", "preferred election", "clean stop")
"""Kinds that every seed has."""
QUIET: Final = 0.2
"""Chance of a quiet time before a strike, in which the cluster may recover."""
WHOLE_LOSSES: Final = 4
"""How often all brokers lose power at once in a run with `--flush`."""


class Strike(NamedTuple):
    """One planned fault."""

    number: int
    at_ns: int
    kind: str


class Nemesis:
    """Strikes a cluster until `heal` is called."""

    pauses_ns: ClassVar[tuple[int, int]] = PAUSES_NS
    """Bounds of the mean time between two strikes."""

    def __init__(
        self,
        nodes: Sequence[ClusterNode],
        network: Network,
        ensemble: Ensemble,
        ledger: Ledger,
        admin: ClusterAdmin,
        clients: Sequence[str],
        streams: Streams,
        flush: bool,
        kinds: Sequence[str] = (),
    ) -> None:
        self.nodes = nodes
        self.network = network
        self.ensemble = ensemble
        self.timeline = network.timeline
        self.fired = Fired()
        self.active = False
        self._streams = streams
        self._random = streams.named_stream("nemesis")
        victims = self._victims = self._choose_victims(ledger)
        self.deeds: dict[str, Deed] = {
            **ProcessStrikes(victims, self.fired, flush).deeds_by_kind(),
            **LinkStrikes(victims, network, clients, self.fired).deeds_by_kind(),
            **StoreStrikes(victims, ensemble, self.fired).deeds_by_kind(),
            **DriveStrikes(victims, self.fired, streams.named_stream("operator")).deeds_by_kind(),
            **self._admin_deeds(admin),
        }
        self.mix = self._draw_mix() if not kinds else [(kind, 1) for kind in kinds if kind in self.deeds]
        """The kinds of this seed, and their weights."""
        network.fired = self.fired
        for node in nodes:
            node.machine.on_end.append(partial(self._restart_later, node))

    def _choose_victims(self, ledger: Ledger) -> Victims:
        return Victims(self.nodes, ledger)

    def _admin_deeds(self, admin: ClusterAdmin) -> dict[str, Deed]:
        deeds: dict[str, Deed] = {
            "reassignment": admin.reassign_partition,
            "cancelled reassignment": admin.cancel_reassignment,
            "preferred election": lambda _random: admin.elect_preferred(),
            "growth": admin.add_partition,
            "settings": admin.change_settings,
            "topic made anew": lambda _random: admin.recreate_topic(),
            "records deleted": lambda _random: admin.trim_records(),
        }
        return self._count_deeds(deeds)

    def _count_deeds(self, deeds: Mapping[str, Deed]) -> dict[str, Deed]:
        return {kind: self._count_deed(kind, deed) for kind, deed in deeds.items()}

    def _count_deed(self, kind: str, deed: Deed) -> Deed:
        def counted(random: Stream) -> None:
            self.fired(kind)
            deed(random)

        return counted

    def _draw_mix(self) -> list[tuple[str, int]]:
        chosen = [kind for kind in self.deeds if kind in ALWAYS or self._random.chance(0.45)]
        return [(kind, self._random.between(1, 6)) for kind in chosen]

    # ---- the schedule ----

    def plan_strikes(self, begin_ns: int, end_ns: int) -> list[Strike]:
        """Draw all strikes of the run."""
        mean_ns = self._random.between(*self.pauses_ns)
        total = sum(weight for _, weight in self.mix)
        planned: list[Strike] = []
        if not total:
            return planned
        at_ns = begin_ns
        while True:
            at_ns += 50 * MS + int(self._random.exponential(mean_ns))
            if self._random.chance(QUIET):
                at_ns += self._random.between(1, 5) * SECOND
            if at_ns >= end_ns:
                return planned
            planned.append(Strike(len(planned), at_ns, self._draw_kind(total)))

    def plan_whole_losses(self, begin_ns: int, end_ns: int, first: int) -> list[Strike]:
        """Power losses of all brokers at once, one in each quarter of the run, in addition to the other strikes.

        `first` is the number of the first of them.
        """
        random = self._streams.named_stream("whole losses")
        part_ns = (end_ns - begin_ns) // WHOLE_LOSSES
        begins = (begin_ns + at * part_ns for at in range(WHOLE_LOSSES))
        return [Strike(first + at, begin + random.random_below(part_ns), WHOLE_LOSS) for at, begin in enumerate(begins)]

    def _draw_kind(self, total: int) -> str:
        draw = self._random.random_below(total)
        for kind, weight in self.mix:
            draw -= weight
            if draw < 0:
                return kind
        raise AssertionError("the weights add up")

    def start_strikes(self, strikes: Sequence[Strike]) -> None:
        """Schedule the strikes."""
        self.active = True
        for strike in strikes:
            self.timeline.schedule_at(strike.at_ns, "nemesis", self._run_strike, strike)

    def _run_strike(self, strike: Strike) -> None:
        if self.active:
            self.timeline.trace_fact(f"nemesis {strike.number}: {strike.kind}")
            self.deeds[strike.kind](self._streams.named_stream(f"strike{strike.number}"))

    def _restart_later(self, node: ClusterNode, _process: Process, _death: Death) -> None:
        wait = node.machine.streams.named_stream("restart").between(30, 1500) * MS
        self.timeline.schedule_after(wait, "restart", node.start_broker)

    # ---- healing ----

    def heal_faults(self) -> None:
        """Stop striking, and undo all faults that are still active."""
        self.active = False
        self._victims.spared = True
        self.network.heal_links()
        self.ensemble.heal_servers()
        for node in self.nodes:
            self._heal_node(node)

    def _heal_node(self, node: ClusterNode) -> None:
        # 1. End the faults that last: full and slow drives, errors and kills that have not fired yet.
        # 2. Restart a broker with a broken device or an offline directory: only a start repairs them.
        # 3. Start a broker that is down.
        node.held_down = False
        for drive, faults in zip(node.drives, node.faults, strict=True):
            drive.capacity = NO_LIMIT
            faults.armed.clear()
            faults.slow_until_ns = self.timeline.now_ns
        process = node.machine.process
        if process is not None:
            process.fuse = None
        broker = node.broker
        if any(f.broken for f in node.faults) or (broker is not None and broker.logs.offline_dirs):
            node.kill_process(Death.KILL)  # an offline directory comes back only with a restart
        elif process is None:
            node.start_broker()
