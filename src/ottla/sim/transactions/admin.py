"""The administrator and the nemesis of a run with transactions: both prefer coordinators.

Zone: deterministic. No records are deleted and no partitions are added here: the checkers compare copies with them.
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
"""Topic that the copiers of a group write."""
SINGLE: Final = "single"
"""Topic of copiers without a group: one of them at a time has all partitions."""
MIX: Final = "mix"
STATE: Final = "__transaction_state"
INTERNAL: Final = ("__consumer_offsets", STATE)
REPLACED: Final = "coordinator replaced while its markers are late"


class TransactionAdmin(ClusterAdmin):
    """The administrator, which also works on the topics of coordinators."""

    plan: ClassVar[Sequence[tuple[Role, str, int]]] = (
        (Role.INPUT, INPUT, 3),
        (Role.OUTPUT, COPIES, 3),
        (Role.OUTPUT, SINGLE, 2),
        (Role.OUTPUT, MIX, 4),
    )
    internal: Callable[[], list[Topic]] = staticmethod(list)
    """The existing topics of coordinators."""

    def _pick_partition(self, random: Stream) -> tuple[Topic | None, int]:
        internal = self.internal()
        if internal and random.chance(0.5):
            topic = random.choice(internal)
            return topic, random.random_below(topic.partitions)
        return super()._pick_partition(random)


class CoordinatorVictims(Victims):
    """Chooses a coordinator half of the time."""

    def choose_broker(self, random: Stream) -> ClusterNode:
        """One broker; half of the time the leader of a coordinator's partition."""
        if random.chance(0.5):
            leaders = [state.leader for route, state in self.ledger.partitions.items() if route[0] in INTERNAL]
            if leaders:
                found = self.by_number.get(random.choice(leaders))
                if found is not None:
                    return found
        return super().choose_broker(random)


class TransactionNemesis(Nemesis):
    """The nemesis of a cluster, aimed at coordinators."""

    pauses_ns: ClassVar[tuple[int, int]] = (SECOND * 6 // 10, SECOND * 2)

    def _draw_mix(self) -> list[tuple[str, int]]:
        """Without lost disks: the checkers need all logs, and runs of a cluster cover that fault."""
        return [(kind, weight) for kind, weight in super()._draw_mix() if kind != "other disks"]

    def _choose_victims(self, ledger: Ledger) -> Victims:
        self._ledger = ledger
        return CoordinatorVictims(self.nodes, ledger)

    def _admin_deeds(self, admin: ClusterAdmin) -> dict[str, Deed]:
        return self._count_deeds(
            {
                "reassignment": admin.reassign_partition,
                "cancelled reassignment": admin.cancel_reassignment,
                "preferred election": lambda _random: admin.elect_preferred(),
                "settings": admin.change_settings,
                REPLACED: lambda random: self._replace_coordinator(admin, random),
            }
        )

    def _replace_coordinator(self, admin: ClusterAdmin, random: Stream) -> None:
        """Move a coordinator to another replica; markers of the old one arrive after those of the new one."""
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
