"""The administrator and the nemesis of a run with transactions: both have an eye on the coordinators.

Zone: deterministic. Topics keep their records and their partitions here: what copiers do is judged by them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from ottla.sim.cluster.admin import ClusterAdmin
from ottla.sim.cluster.faults import Deed, Victims
from ottla.sim.cluster.ledger import Ledger
from ottla.sim.cluster.nemesis import Nemesis
from ottla.sim.cluster.node import ClusterNode
from ottla.sim.entropy import Stream
from ottla.sim.networks.node_network import NodeNetwork
from ottla.sim.workload.catalog import Role, Topic
from ottla.sim.world import MS, SECOND
from ottla.transactions.service import MARKERS_LANE

INPUT: Final = "input"
COPIES: Final = "copies"
"""What the copiers of a group write."""
SINGLE: Final = "single"
"""What copiers write that have everything, one of them at a time."""
MIX: Final = "mix"
STATE: Final = "__transaction_state"
INTERNAL: Final = ("__consumer_offsets", STATE)
REPLACED: Final = "coordinator replaced while its markers are late"


class TransactionAdmin(ClusterAdmin):
    """Does what an operator does, to the topics of coordinators as well."""

    plan: ClassVar[Sequence[tuple[Role, str, int]]] = (
        (Role.INPUT, INPUT, 3),
        (Role.OUTPUT, COPIES, 3),
        (Role.OUTPUT, SINGLE, 2),
        (Role.OUTPUT, MIX, 4),
    )
    internal: Callable[[], list[Topic]] = staticmethod(list)
    """The topics of coordinators that exist."""

    def _somewhere(self, random: Stream) -> tuple[Topic | None, int]:
        internal = self.internal()
        if internal and random.chance(0.5):
            topic = random.choice(internal)
            return topic, random.below(topic.partitions)
        return super()._somewhere(random)


class CoordinatorVictims(Victims):
    """Every other time whoever coordinates something."""

    def choose_broker(self, random: Stream) -> ClusterNode:
        """One broker."""
        if random.chance(0.5):
            leaders = [state.leader for route, state in self.ledger.partitions.items() if route[0] in INTERNAL]
            if leaders:
                found = self.by_number.get(random.choice(leaders))
                if found is not None:
                    return found
        return super().choose_broker(random)


class TransactionNemesis(Nemesis):
    """Hunts coordinators."""

    pauses_ns: ClassVar[tuple[int, int]] = (SECOND * 6 // 10, SECOND * 2)

    def _mix(self) -> list[tuple[str, int]]:
        """No disks are lost: here all logs are needed, and what a cluster makes good of is judged by its own runs."""
        return [(kind, weight) for kind, weight in super()._mix() if kind != "other disks"]

    def _choose_victims(self, ledger: Ledger) -> Victims:
        self._ledger = ledger
        return CoordinatorVictims(self.nodes, ledger)

    def _admin_deeds(self, admin: ClusterAdmin) -> dict[str, Deed]:
        return self._all_counted(
            {
                "reassignment": admin.reassign,
                "cancelled reassignment": admin.cancel,
                "preferred election": lambda _random: admin.elect_preferred(),
                "settings": admin.configure,
                REPLACED: lambda random: self._replace_coordinator(admin, random),
            }
        )

    def _replace_coordinator(self, admin: ClusterAdmin, random: Stream) -> None:
        """Another replica leads a coordinators' partition; markers that were sent just before arrive after its own."""
        routes = [route for route, state in self._ledger.partitions.items() if route[0] == STATE and state.leader >= 0]
        if not routes:
            return
        route = random.choice(routes)
        leader = self._ledger.partitions[route].leader
        others = [number for number in self._ledger.replicas[route] if number != leader]
        shell = self.network.listening.get(leader)
        if others and isinstance(shell, NodeNetwork):
            moves_ns = self.timeline.now_ns + random.between(200, 900) * MS
            shell.stall_queue(MARKERS_LANE, moves_ns + random.between(400, 2500) * MS)
            self.timeline.schedule_at(moves_ns, "coordinator moves", admin.hand_over, route, [*others, leader])
