"""Checks that clients cannot make: how many replicas have an acknowledged record, and whether replicas agree.

Zone: deterministic. Reads brokers and drives between two turns, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final

from ottla.replication.partition.partition import Partition
from ottla.sim.cluster.admin import MIN_ISR
from ottla.sim.cluster.history import ClusterHistory
from ottla.sim.cluster.ledger import Ledger
from ottla.sim.cluster.node import ClusterNode
from ottla.sim.cluster.replicas import (
    Content,
    Replica,
    content_on,
    find_contradiction,
    find_difference,
    find_other_value,
    replica_on,
)
from ottla.sim.disks.drive import Drive
from ottla.sim.history import Write
from ottla.sim.networks.wire_client import Route
from ottla.sim.workload.catalog import Catalog, Role
from ottla.types import INTERNAL_TOPICS

_COMPACTED: Final = (Role.KEYED, Role.COORDINATOR)


class Inspector:
    """Compares all brokers of a cluster."""

    def __init__(self, nodes: Sequence[ClusterNode], ledger: Ledger, catalog: Catalog, history: ClusterHistory) -> None:
        self._nodes = nodes
        self._ledger = ledger
        self._catalog = catalog
        self._history = history

    def _hosted_partition(self, node: ClusterNode, route: Route) -> Partition | None:
        """The partition on a running broker; None if it does not host this topic id."""
        if node.broker is None:
            return None
        topic = node.broker.hosted.by_name.get(route[0])
        if topic is None or topic.topic_id != self._ledger.topic_ids.get(route[0]):
            return None
        return topic.partitions.get(route[1])

    def on_acknowledged(self, write: Write) -> None:
        """Check that enough replicas have a batch that was just acknowledged.

        A broker that is down, or that has not loaded the log yet, counts as one that has it.
        """
        if write.acks != -1 or write.offset < 0 or not self._history.is_judged(write.log):
            return
        for topic in self._catalog.topics:
            for partition in range(topic.partitions):
                if topic.partition_log(partition) == write.log:
                    self._count_holders(write, topic.role, (topic.name, partition))

    def _count_holders(self, write: Write, role: Role, route: Route) -> None:
        replicas = self._ledger.replicas.get(route, ())
        least = min(MIN_ISR[role], len(replicas))
        end = write.offset + len(write.values)
        without = []
        for node in self._nodes:
            found = self._hosted_partition(node, route)
            if found is not None and found.log.end_offset < end:
                without.append(node.number)
        holders = len(self._nodes) - len(without)
        if holders < least:
            self._history.too_few.append(f"{write.log} at {write.offset}: not on brokers {without}")

    # ---- replicas ----

    def _replicas_of(self, route: Route) -> list[Replica]:
        found = (replica_on(*place) for place in self._replica_places(route))
        return [copy for copy in found if copy is not None]

    def _contents_of(self, route: Route) -> list[Content]:
        found = (content_on(*place) for place in self._replica_places(route))
        return [copy for copy in found if copy is not None]

    def _replica_places(self, route: Route) -> list[tuple[int, list[Drive], str, int, bytes]]:
        topic_id = self._ledger.topic_ids.get(route[0], b"")
        replicas = self._ledger.replicas.get(route, ())
        return [(node.number, node.drives, *route, topic_id) for node in self._nodes if node.number in replicas]

    def compare_live(self) -> None:
        """Note replicas of running brokers that differ below both high watermarks; in compacted logs, other records."""
        marks: dict[int, int] = {}
        for route in self._ledger.partitions:
            log = self._ledger.log_of_route(route)
            if not self._history.is_judged(log):
                continue
            for node in self._nodes:
                partition = self._hosted_partition(node, route)
                marks[node.number] = -1 if partition is None else partition.high_watermark
            found = self._find_differences(route, marks)
            self._history.divergent.extend(f"{log}: {text}" for text in found if text is not None)

    def _find_differences(self, route: Route, marks: dict[int, int]) -> list[str | None]:
        if route[0] in INTERNAL_TOPICS:
            return [
                find_contradiction(one, other, min(marks[one.broker], marks[other.broker]))
                for one, other in combinations(self._contents_of(route), 2)
            ]
        return [
            find_difference(one, other, min(marks[one.broker], marks[other.broker]))
            for one, other in combinations(self._replicas_of(route), 2)
        ]

    def unequal_logs(self) -> list[str]:
        """Logs of existing topics whose replicas are not byte-identical, or do not end at the same offset.

        Each broker compacts for itself, so the replicas of a compacted log have to agree only in the values of keys.
        """
        found = []
        for topic in self._catalog.topics:
            look = self._other_values if topic.role in _COMPACTED else self._find_problem
            for partition in range(topic.partitions):
                problem = look((topic.name, partition))
                if problem:
                    found.append(f"{topic.partition_log(partition)}: {problem}")
        return found

    def _other_values(self, route: Route) -> str | None:
        replicas, copies = self._ledger.replicas.get(route, ()), self._contents_of(route)
        if len(copies) != len(replicas):
            return f"copies on {[copy.broker for copy in copies]}, replicas are {list(replicas)}"
        pairs = combinations(copies, 2)
        found = (find_contradiction(one, other, 1 << 62) or find_other_value(one, other) for one, other in pairs)
        return next((text for text in found if text is not None), None)

    def removed_records(self, route: Route) -> int:
        """How many records the cleaner removed from the most compacted replica of a log."""
        sizes = [(max(copy.records) + 1 - len(copy.records)) for copy in self._contents_of(route) if copy.records]
        return max(sizes, default=0)

    def _find_problem(self, route: Route) -> str | None:
        replicas = self._ledger.replicas.get(route, ())
        copies = self._replicas_of(route)
        if len(copies) != len(replicas):
            return f"copies on {[copy.broker for copy in copies]}, replicas are {list(replicas)}"
        for one, other in combinations(copies, 2):
            if one.end != other.end and max(one.end, other.end) > 0:
                return f"broker {one.broker} ends at {one.end}, broker {other.broker} at {other.end}"
            found = find_difference(one, other, 1 << 62)
            if found is not None:
                return found
        return None
