"""The administrator of a cluster: the work of a single broker's one, and moves, elections, growth and settings.

Zone: deterministic. The nemesis decides when: each deed is one of its strikes, so shrinking a failing run can leave it
out. Only the creation of topics is retried.
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
"""Time between the new order of replicas and the election of the first one."""
MIN_ISR: Final = {
    Role.EVENTS: 2,
    Role.PLAIN: 1,
    Role.CHURN: 2,
    Role.CUT: 1,
    Role.INPUT: 2,
    Role.OUTPUT: 2,
    Role.KEYED: 2,
    Role.RESTRICTED: 1,
    Role.COORDINATOR: 2,
}
"""min.insync.replicas by the role of a topic; the run never sets it lower."""


class ClusterAdmin(Admin):
    """Does the occasional work of a cluster's operator."""

    client: ClusterClient
    plan: ClassVar[Sequence[tuple[Role, str, int]]] = PLAN

    def __init__(
        self, client: ClusterClient, catalog: Catalog, random: Stream, history: History, replication: int, flush: bool
    ) -> None:
        self._flush = flush
        self.replication = replication
        super().__init__(client, catalog, random, history)

    def start_admin(self) -> None:
        """Create the topics."""
        self.client.mark_metadata_stale()
        for role, name, partitions in self.plan:
            self._create_topic(role, name, partitions)

    def _draw_configs(self, role: Role) -> dict[str, str]:
        """As for one broker; in flush mode acknowledged records are on the disks. The role CUT elects uncleanly."""
        configs = super()._draw_configs(role)
        configs["flush.messages"] = "1" if self._flush else str(self.random.choice((20, 100, 1_000_000)))
        configs["min.insync.replicas"] = str(min(MIN_ISR[role], self.replication))
        configs["unclean.leader.election.enable"] = "true" if role is Role.CUT else "false"
        return configs

    def _note_topic_exists(self, topic: Topic) -> None:
        super()._note_topic_exists(topic)
        for partition in range(topic.partitions) if topic.role is Role.CUT else ():
            self.history.rewritten.setdefault(topic.partition_log(partition), self.client.timeline.now_ns)

    # ---- deeds ----

    def recreate_topic(self) -> None:
        """Delete a topic, then create another one with its name."""
        self._recreate_topic()

    def trim_records(self) -> None:
        """Delete older records of one partition."""
        self._trim_records()

    def reassign_partition(self, random: Stream) -> None:
        """Move a partition to other brokers, or change the number or the order of its replicas."""
        topic, partition = self._pick_partition(random)
        if topic is None:
            return
        count = min(len(self.client.nodes), max(MIN_ISR[topic.role], self.replication - random.random_below(2)))
        replicas = _shuffle_nodes(self.client.nodes, random)[:count]
        self._alter_topic(topic.name, Reassignable(partition_index=partition, replicas=replicas))

    def hand_over(self, route: Route, replicas: Sequence[int]) -> None:
        """Reorder the replicas of a partition, then elect the first one as its leader."""
        row = Reassignable(partition_index=route[1], replicas=list(replicas))
        self._alter_topic(route[0], row)
        self.client.timeline.schedule_after(HAND_OVER_NS, "admin", self.elect_preferred)

    def cancel_reassignment(self, random: Stream) -> None:
        """Cancel all reassignments of one topic."""
        topic, _ = self._pick_partition(random)
        if topic is not None:
            for partition in range(topic.partitions):
                self._alter_topic(topic.name, Reassignable(partition_index=partition, replicas=None))

    def _alter_topic(self, topic: str, row: Reassignable) -> None:
        rows = [AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=[row])]
        request = AlterPartitionReassignmentsRequest(timeout_ms=1000, topics=rows)
        self.client.send_request(request, 0, AlterPartitionReassignmentsResponse, _ignore_response, CONTROLLER)

    def elect_preferred(self) -> None:
        """Elect the preferred leader of every partition."""
        request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None, timeout_ms=1000)
        self.client.send_request(request, 2, ElectLeadersResponse, _ignore_response, CONTROLLER)

    def change_settings(self, random: Stream) -> None:
        """Change settings of replication; min.insync.replicas never goes below the value that the run started with."""
        topic, _ = self._pick_partition(random)
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
        self.client.send_request(request, 1, IncrementalAlterConfigsResponse, _ignore_response)

    def allow_unclean_elections(self) -> None:
        """Enable unclean elections where they are allowed, so that every partition can get a leader at the end."""
        for topic in self.catalog.topics_of_role(Role.CUT):
            row = IncrementalAlterConfigsRequest.AlterableConfig(
                name="unclean.leader.election.enable", config_operation=SET, value="true"
            )
            resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=topic.name, configs=[row]
            )
            request = IncrementalAlterConfigsRequest(resources=[resource])
            self.client.send_request(request, 1, IncrementalAlterConfigsResponse, self._on_settled)

    def _on_settled(self, response: Message | None, _node: int) -> None:
        if not isinstance(response, IncrementalAlterConfigsResponse) or response.responses[0].error_code:
            self.client.timeline.schedule_after(self.random.random_below(10**9), "admin", self.allow_unclean_elections)

    def add_partition(self, random: Stream) -> None:
        """Add one partition to a topic."""
        topic, _ = self._pick_partition(random)
        if topic is None or topic.partitions >= MAX_PARTITIONS:
            return
        count = topic.partitions + 1
        row = CreatePartitionsRequest.CreatePartitionsTopic(name=topic.name, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[row], timeout_ms=1000)
        self.client.send_request(
            request,
            3,
            CreatePartitionsResponse,
            lambda _response, _node: self._check_partition_count(topic),
            CONTROLLER,
        )

    def _check_partition_count(self, topic: Topic) -> None:
        """Learn the number of partitions from Metadata: the answer to CreatePartitions may be lost."""
        request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic.name)])

        def found(response: Message | None, _node: int) -> None:
            if isinstance(response, MetadataResponse) and response.topics[0].topic_id == topic.topic_id:
                self._note_partition_count(topic, len(response.topics[0].partitions))

        self.client.send_request(request, 12, MetadataResponse, found, CONTROLLER)

    def _note_partition_count(self, topic: Topic, count: int) -> None:
        for partition in range(topic.partitions, count):
            if topic.role is Role.CUT:
                self.history.rewritten.setdefault(topic.partition_log(partition), self.client.timeline.now_ns)
            if self._flush:
                self.history.flushed[topic.partition_log(partition)] = None
        topic.partitions = max(topic.partitions, count)

    def _pick_partition(self, random: Stream) -> tuple[Topic | None, int]:
        if not self.catalog.topics:
            return None, -1
        topic = random.choice(self.catalog.topics)
        return topic, random.random_below(topic.partitions)


def _shuffle_nodes(nodes: Sequence[int], random: Stream) -> list[int]:
    left = list(nodes)
    return [left.pop(random.random_below(len(left))) for _ in range(len(left))]


def _ignore_response(_response: Message | None, _node: int) -> None:
    """Ignore the answer: later metadata shows whether the request took effect."""
