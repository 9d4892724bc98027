"""The clients of a run: applications with Ottla's producer, readers, and an administrator.

Zone: deterministic. No topic is deleted here: the checkers compare the outcomes of records with the logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from ottla.client.consumer.actions import GroupSettings
from ottla.client.consumer.assignment.assignors import Assignor, Range, RoundRobin
from ottla.client.consumer.assignment.sticky import CooperativeSticky, Sticky
from ottla.client.producer.config import ProducerConfig
from ottla.sim.clients.application import Application
from ottla.sim.clients.history import ClientHistory
from ottla.sim.clients.members import GroupMember
from ottla.sim.clients.producer import CoreProducer
from ottla.sim.cluster.admin import ClusterAdmin
from ottla.sim.cluster.nemesis import Nemesis
from ottla.sim.cluster.workload import ClusterWorkload
from ottla.sim.entropy import Stream, Streams
from ottla.sim.networks.network import Network
from ottla.sim.workload.catalog import Catalog, Role
from ottla.sim.world import MS

VERSIONS: Final = (3, 7, 9, 12, 13)
"""The highest version of Produce that a producer uses. Topics are named up to 12, and have ids from 13 on."""
ZSTD_VERSION: Final = 7
LEFT_OUT: Final = frozenset(
    {"topic made anew", "power loss", "power loss in mid-turn", "power loss of all", "other disks"}
)
"""Kinds of faults that are left out here; the runs of a cluster cover them."""
EVENTS: Final = "events"
MEMBERS: Final = 3
ASSIGNORS: Final[tuple[tuple[type[Assignor], ...], ...]] = (
    (Range,),
    (RoundRobin,),
    (Sticky,),
    (CooperativeSticky,),
    (CooperativeSticky, Range),
)
CODECS: Final = ("none", "none", "none", "gzip", "lz4", "zstd")


class ClientAdmin(ClusterAdmin):
    """The administrator; some of its topics accept only small batches."""

    plan: ClassVar[Sequence[tuple[Role, str, int]]] = ((Role.EVENTS, EVENTS, 3), (Role.PLAIN, "plain", 1))

    def _draw_configs(self, role: Role) -> dict[str, str]:
        configs = super()._draw_configs(role)
        if self.random.chance(0.3):
            # Small enough that batches of the larger `batch.size` have to be split.
            configs["max.message.bytes"] = "1200"
        return configs


class ClientNemesis(Nemesis):
    """The nemesis of a cluster without deleted topics and lost disks: no loss of a record has an excuse."""

    pauses_ns: ClassVar[tuple[int, int]] = (300 * MS, 1000 * MS)

    def _draw_mix(self) -> list[tuple[str, int]]:
        return [(kind, weight) for kind, weight in super()._draw_mix() if kind not in LEFT_OUT]


class ClientWorkload(ClusterWorkload):
    """All clients of one run."""

    admin_type: ClassVar[type[ClusterAdmin]] = ClientAdmin
    producer_kinds: ClassVar[Sequence[tuple[Role, bool]]] = (
        (Role.EVENTS, True),
        (Role.EVENTS, True),
        (Role.EVENTS, True),
        (Role.PLAIN, False),
        (Role.PLAIN, False),
    )
    reader_kinds: ClassVar[Sequence[tuple[Role, bool]]] = ()
    last_roles: ClassVar[Sequence[Role]] = (Role.EVENTS, Role.PLAIN)
    history: ClientHistory
    producers: list[Application]  # type: ignore[assignment]  # these send records, others batches

    def __init__(
        self,
        network: Network,
        streams: Streams,
        catalog: Catalog,
        history: ClientHistory,
        nodes: Sequence[int],
        replication: int,
        flush: bool,
    ) -> None:
        super().__init__(network, streams, catalog, history, nodes, replication, flush)
        self.members = self._make_members()

    def _make_producer(self, number: int, role: Role, idempotent: bool) -> Application:  # type: ignore[override]
        name = f"producer-{role.value}-{number}"
        random = self._streams.named_stream(f"producer{number}")
        config = draw_config(random, name, idempotent=idempotent)
        # Brokers refuse zstd before version 7 of Produce (KIP-110).
        at_most = random.choice([v for v in VERSIONS if v >= ZSTD_VERSION or config.client.compression_type != "zstd"])
        assert isinstance(self.history, ClientHistory)
        core = self._streams.named_stream(f"core{number}")
        producer = CoreProducer(self.network, name, self._nodes, config, at_most, core, self.history)
        producer.on_metadata = self._note_leaders
        self.names.append(name)
        return Application(producer, config, self.catalog, role, random)

    def _make_members(self) -> list[GroupMember]:
        random = self._streams.named_stream("group")
        assignors = random.choice(ASSIGNORS)
        assert isinstance(self.history, ClientHistory)
        made = []
        for number in range(MEMBERS):
            name = f"member-{number}"
            settings = GroupSettings(
                "group",
                [assignor() for assignor in assignors],
                f"instance-{number}" if random.chance(0.3) else None,
                random.choice((1.5, 3.0)),
                random.choice((0.3, 0.5)),
                random.choice((1.5, 3.0)),
            )
            own = self._streams.named_stream(name)
            made.append(GroupMember(self.network, name, self._nodes, settings, EVENTS, own, self.history))
            self.names.append(name)
        return made

    def start_clients(self) -> None:
        """Start all clients."""
        super().start_clients()
        for member in self.members:
            member.start_polling()

    def missing_from_group(self) -> list[str]:
        """Empty when all members are stable in one generation and every partition has one owner."""
        parts = sorted(str(tp) for member in self.members for tp in member.owned)
        # Partitions may have been added since: the comparison is with the newest list.
        self.watcher.mark_metadata_stale()
        wanted = [f"{topic}-{at}" for topic, at in self.watcher.view if topic == EVENTS]
        rest = {member.generation for member in self.members}
        return [] if parts == sorted(wanted) and len(rest) == 1 and -1 not in rest else [f"{rest}: {parts} of {wanted}"]

    def pause_producers(self) -> None:
        """Producers send no new records until `calm_down`."""
        for producer in self.producers:
            producer.working = False

    def calm_down(self) -> None:
        """Everything is healed: records that are sent from now on must be delivered."""
        for producer in self.producers:
            producer.calm = producer.working = True
        for member in self.members:
            member.calm = True


def draw_config(random: Stream, name: str, *, idempotent: bool) -> ProducerConfig:
    """Settings of a producer, with timeouts of seconds in place of minutes."""
    settings: dict[str, str | int | bool] = {
        "client.id": name,
        "enable.idempotence": idempotent,
        "acks": "all" if idempotent else random.choice(("all", "all", "1", "0")),
        "batch.size": random.choice((150, 400, 2000)),
        "linger.ms": random.choice((0, 5, 50)),
        "request.timeout.ms": random.choice((700, 1500, 3000)),
        "delivery.timeout.ms": random.choice((3500, 6000, 25_000)),
        "retry.backoff.ms": random.choice((20, 100)),
        "reconnect.backoff.max.ms": random.choice((200, 1000)),
        "metadata.max.age.ms": random.choice((1500, 300_000)),
        "buffer.memory": random.choice((12_000, 1_000_000)),
        "compression.type": random.choice(CODECS),
        "max.in.flight.requests.per.connection": random.choice((5, 5, 3, 1)) if idempotent else random.choice((1, 5)),
    }
    # Idempotent producers must not stop early: their promise is judged by the log.
    if not idempotent and random.chance(0.3):
        settings["retries"] = 2
    return ProducerConfig.from_mapping(settings)
