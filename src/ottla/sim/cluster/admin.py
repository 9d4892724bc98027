"""The administrator of a cluster: what one broker's does, and moves, elections, growth and settings under load.

Zone: deterministic. The nemesis says when: each deed is one of its strikes, so that it can be left out when a failing
run is made smaller. Nothing is retried but creations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from ottla.sim.cluster.client import ClusterClient
from ottla.sim.entropy import Stream
from ottla.sim.history import History
from ottla.sim.networks.wire_client import CONTROLLER, Route
from ottla.sim.workload.admin import PLAN, Admin
from ottla.sim.workload.catalog import Catalog, Role, Topic
from ottla.sim.world import MS
from ottla.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    MetadataRequest,
    MetadataResponse,
)
from ottla.wire.schema import Message

Reassignable = AlterPartitionReassignmentsRequest.ReassignablePartition
TOPIC_RESOURCE: Final = 2
SET: Final = 0
MAX_PARTITIONS: Final = 5
PREFERRED: Final = 0
HAND_OVER_NS: Final = 100 * MS
"""From the new order of replicas to the election of its first one."""
MIN_ISR: Final = {
    Role.EVENTS: 2,
    Role.PLAIN: 1,
    Role.CHURN: 2,
    Role.CUT: 1,
    Role.INPUT: 2,
    Role.OUTPUT: 2,
    Role.KEYED: 2,
    Role.COORDINATOR: 2,
}
"""min.insync.replicas, by what a topic is there for; never set lower during a run."""


class ClusterAdmin(Admin):
    """Does what an operator of a cluster does now and then."""

    client: ClusterClient
    plan: ClassVar[Sequence[tuple[Role, str, int]]] = PLAN

    def __init__(
        self, client: ClusterClient, catalog: Catalog, random: Stream, history: History, replication: int, flush: bool
    ) -> None:
        self._flush = flush
        self.replication = replication
        super().__init__(client, catalog, random, history)

    def start(self) -> None:
        """Create the topics."""
        self.client.stale()
        for role, name, partitions in self.plan:
            self._create(role, name, partitions)

    def _draw_configs(self, role: Role) -> dict[str, str]:
        """As for one broker; in flush mode an acknowledged record is on the disks. One topic elects uncleanly."""
        configs = super()._draw_configs(role)
        configs["flush.messages"] = "1" if self._flush else str(self.random.choice((20, 100, 1_000_000)))
        configs["min.insync.replicas"] = str(min(MIN_ISR[role], self.replication))
        configs["unclean.leader.election.enable"] = "true" if role is Role.CUT else "false"
        return configs

    def _exists(self, topic: Topic) -> None:
        super()._exists(topic)
        for partition in range(topic.partitions) if topic.role is Role.CUT else ():
            self.history.rewritten.setdefault(topic.log(partition), self.client.timeline.now_ns)

    # ---- deeds ----

    def remake(self) -> None:
        """Delete a topic, and make another of that name."""
        self._churn()

    def trim(self) -> None:
        """Delete older records of one partition."""
        self._trim()

    def reassign(self, random: Stream) -> None:
        """Move one partition to other brokers, or change how many replicas it has, or only their order."""
        topic, partition = self._somewhere(random)
        if topic is None:
            return
        count = min(len(self.client.nodes), max(MIN_ISR[topic.role], self.replication - random.below(2)))
        replicas = _shuffled(self.client.nodes, random)[:count]
        self._alter_topic(topic.name, Reassignable(partition_index=partition, replicas=replicas))

    def hand_over(self, route: Route, replicas: Sequence[int]) -> None:
        """Put the replicas of a partition into another order; the first one is to lead."""
        row = Reassignable(partition_index=route[1], replicas=list(replicas))
        self._alter_topic(route[0], row)
        self.client.timeline.after(HAND_OVER_NS, "admin", self.elect_preferred)

    def cancel(self, random: Stream) -> None:
        """Cancel whatever is being moved of one topic."""
        topic, _ = self._somewhere(random)
        if topic is not None:
            for partition in range(topic.partitions):
                self._alter_topic(topic.name, Reassignable(partition_index=partition, replicas=None))

    def _alter_topic(self, topic: str, row: Reassignable) -> None:
        rows = [AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=[row])]
        request = AlterPartitionReassignmentsRequest(timeout_ms=1000, topics=rows)
        self.client.request(request, 0, AlterPartitionReassignmentsResponse, _whatever, CONTROLLER)

    def elect_preferred(self) -> None:
        """Give every partition back to its first replica."""
        request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None, timeout_ms=1000)
        self.client.request(request, 2, ElectLeadersResponse, _whatever, CONTROLLER)

    def configure(self, random: Stream) -> None:
        """Change settings that matter to replication: never fewer in-sync replicas than the run began with."""
        topic, _ = self._somewhere(random)
        if topic is None:
            return
        least = min(MIN_ISR[topic.role], self.replication)
        changes = {"min.insync.replicas": str(random.between(least, max(least, self.replication - 1)))}
        if topic.role is Role.CUT:
            changes["unclean.leader.election.enable"] = random.choice(("true", "false"))
        row = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=TOPIC_RESOURCE,
            resource_name=topic.name,
            configs=[
                IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=SET, value=value)
                for name, value in changes.items()
            ],
        )
        request = IncrementalAlterConfigsRequest(resources=[row])
        self.client.request(request, 1, IncrementalAlterConfigsResponse, _whatever)

    def settle(self) -> None:
        """Settings under which everything can come to an end: unclean elections where they are allowed."""
        for topic in self.catalog.of(Role.CUT):
            row = IncrementalAlterConfigsRequest.AlterableConfig(
                name="unclean.leader.election.enable", config_operation=SET, value="true"
            )
            resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=topic.name, configs=[row]
            )
            request = IncrementalAlterConfigsRequest(resources=[resource])
            self.client.request(request, 1, IncrementalAlterConfigsResponse, self._on_settled)

    def _on_settled(self, response: Message | None, _node: int) -> None:
        if not isinstance(response, IncrementalAlterConfigsResponse) or response.responses[0].error_code:
            self.client.timeline.after(self.random.below(10**9), "admin", self.settle)

    def grow(self, random: Stream) -> None:
        """One more partition for a topic."""
        topic, _ = self._somewhere(random)
        if topic is None or topic.partitions >= MAX_PARTITIONS:
            return
        count = topic.partitions + 1
        row = CreatePartitionsRequest.CreatePartitionsTopic(name=topic.name, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[row], timeout_ms=1000)
        self.client.request(
            request, 3, CreatePartitionsResponse, lambda _response, _node: self._look_for_more(topic), CONTROLLER
        )

    def _look_for_more(self, topic: Topic) -> None:
        """How many partitions there are, whatever the answer said."""
        request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic.name)])

        def found(response: Message | None, _node: int) -> None:
            if isinstance(response, MetadataResponse) and response.topics[0].topic_id == topic.topic_id:
                self._grown(topic, len(response.topics[0].partitions))

        self.client.request(request, 12, MetadataResponse, found, CONTROLLER)

    def _grown(self, topic: Topic, count: int) -> None:
        for partition in range(topic.partitions, count):
            if topic.role is Role.CUT:
                self.history.rewritten.setdefault(topic.log(partition), self.client.timeline.now_ns)
            if self._flush:
                self.history.flushed[topic.log(partition)] = None
        topic.partitions = max(topic.partitions, count)

    def _somewhere(self, random: Stream) -> tuple[Topic | None, int]:
        if not self.catalog.topics:
            return None, -1
        topic = random.choice(self.catalog.topics)
        return topic, random.below(topic.partitions)


def _shuffled(nodes: Sequence[int], random: Stream) -> list[int]:
    left = list(nodes)
    return [left.pop(random.below(len(left))) for _ in range(len(left))]


def _whatever(_response: Message | None, _node: int) -> None:
    """Whether it was done shows in the run."""
