"""Topics and clients of a run with compacted topics.

Zone: deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ottla.sim.cluster.admin import ClusterAdmin
from ottla.sim.cluster.faults import Deed
from ottla.sim.cluster.nemesis import Nemesis
from ottla.sim.cluster.workload import ClusterWorkload
from ottla.sim.workload.catalog import Role
from ottla.sim.workload.compacted_clients import KeyedProducer, Scan
from ottla.sim.workload.producers import Producer

KEYED = "keyed"


class CompactionAdmin(ClusterAdmin):
    """The administrator; it adds no partitions, because keys must stay in theirs."""

    plan: ClassVar[Sequence[tuple[Role, str, int]]] = ((Role.EVENTS, "events", 2), (Role.KEYED, KEYED, 3))

    def _draw_compaction(self) -> dict[str, str]:
        return super()._draw_compaction() | {"delete.retention.ms": str(self.random.choice((100, 500, 2000)))}


class CompactionNemesis(Nemesis):
    """Brokers are absent more often, so that the others compact without them."""

    def _draw_mix(self) -> list[tuple[str, int]]:
        return [*((kind, weight) for kind, weight in super()._draw_mix() if kind != "absence"), ("absence", 8)]

    def _admin_deeds(self, admin: ClusterAdmin) -> dict[str, Deed]:
        return self._count_deeds(
            {
                "reassignment": admin.reassign_partition,
                "cancelled reassignment": admin.cancel_reassignment,
                "preferred election": lambda _random: admin.elect_preferred(),
                "settings": admin.change_settings,
            }
        )


class CompactionWorkload(ClusterWorkload):
    """All clients of one run."""

    admin_type: ClassVar[type[ClusterAdmin]] = CompactionAdmin
    producer_kinds: ClassVar[Sequence[tuple[Role, bool]]] = (
        (Role.EVENTS, True),
        (Role.KEYED, True),
        (Role.KEYED, True),
        (Role.KEYED, True),
    )
    reader_kinds: ClassVar[Sequence[tuple[Role, bool]]] = ((Role.EVENTS, True),)
    last_roles: ClassVar[Sequence[Role]] = (Role.EVENTS,)
    scans: Sequence[Scan] = ()

    def _make_producer(self, number: int, role: Role, idempotent: bool) -> Producer:
        if role is not Role.KEYED:
            return super()._make_producer(number, role, idempotent)
        client = self.make_client(f"keys-{number}")
        return KeyedProducer(
            client, self.catalog, role, idempotent, self.named_stream(f"producer{number}"), self.history
        )

    def scan_all(self) -> None:
        """Read every replica of every compacted partition from its start."""
        reader = self.make_client("scan")
        self.scans = [
            Scan(reader.wire_client(broker), topic, partition, broker, self.history)
            for topic in self.catalog.topics_of_role(Role.KEYED)
            for partition in range(topic.partitions)
            for broker in sorted(self.watcher.view[topic.name, partition].replicas)
        ]
        for scan in self.scans:
            scan.fetch_next()

    def unscanned_logs(self) -> list[str]:
        """Logs that the scans have not read yet; a follower's copy must reach the end of its leader's."""
        ends: dict[tuple[str, int], int] = {}
        for scan in self.scans:
            place = scan.topic.name, scan.partition
            ends[place] = max(ends.get(place, -1), scan.high_watermark)
        return [
            f"{scan.topic.partition_log(scan.partition)} from broker {scan.broker} at {scan.position}"
            for scan in self.scans
            if not scan.at_end or scan.position < ends[scan.topic.name, scan.partition]
        ]

    def note_scans(self) -> None:
        """Add the results of the scans to the history."""
        for scan in self.scans:
            scan.record_result()
