"""The administrator of the workload: creates topics, deletes and recreates them, deletes records.

Zone: deterministic. It retries creations and deletions until Metadata shows that they happened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from ottla.sim.entropy import Stream
from ottla.sim.history import History
from ottla.sim.networks.wire_client import CONTROLLER, Client
from ottla.sim.workload.catalog import Catalog, Role, Topic
from ottla.sim.world import MS, SECOND
from ottla.types import ZERO_UUID
from ottla.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
)
from ottla.wire.schema import Message

PAUSE_NS: Final = 300 * MS
CREATE_VERSION: Final = 7
METADATA_VERSION: Final = 12
DELETE_VERSION: Final = 6
DELETE_TOPICS_NS: Final = 12 * SECOND
DELETE_RECORDS_NS: Final = 9 * SECOND

PLAN: Final = ((Role.EVENTS, "events", 3), (Role.PLAIN, "plain", 2), (Role.CHURN, "churn", 1), (Role.CUT, "cut", 1))
"""Role, name and partition count of the topics of every run; a single broker's run has one more."""


class Admin:
    """Does the occasional work of an operator."""

    replication = 1
    """Replicas of each partition."""
    plan: ClassVar[Sequence[tuple[Role, str, int]]] = (*PLAN, (Role.KEYED, "keyed", 2))
    """The topics to create."""

    def __init__(self, client: Client, catalog: Catalog, random: Stream, history: History) -> None:
        self.client = client
        self.catalog = catalog
        self.random = random
        self.history = history
        self.working = True
        """False: no more deletions."""
        self._old_ids: dict[bytes, None] = {}
        self._configs = {name: self._draw_configs(role) for role, name, _ in self.plan}

    def start_admin(self) -> None:
        """Create the topics, and start the periodic deletions."""
        for role, name, partitions in self.plan:
            self._create_topic(role, name, partitions)
        self._repeat_every(DELETE_TOPICS_NS, self._recreate_topic)
        self._repeat_every(DELETE_RECORDS_NS, self._trim_records)

    def has_all_topics(self) -> bool:
        """Whether Metadata has shown all topics."""
        return len(self.catalog.topics) == len(self.plan)

    def _repeat_every(self, mean_ns: int, action: Callable[[], None]) -> None:
        def tick() -> None:
            if self.working:
                action()
            self._repeat_every(mean_ns, action)

        self.client.timeline.schedule_after(int(self.random.exponential(mean_ns)) + PAUSE_NS, "admin", tick)

    # ---- creating ----

    def _create_topic(self, role: Role, name: str, partitions: int) -> None:
        configs = [
            CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
            for key, value in self._configs[name].items()
        ]
        topic = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=self.replication, configs=configs
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
        self.client.send_request(
            request,
            CREATE_VERSION,
            CreateTopicsResponse,
            lambda _response, _life: self._check_topic(role, name, partitions),
            CONTROLLER,
        )

    def _draw_configs(self, role: Role) -> dict[str, str]:
        """Small segments and frequent flushes, so that a minute sees many of both."""
        random = self.random
        configs = {
            "segment.bytes": str(random.choice((16_384, 40_000, 200_000))),
            "segment.index.bytes": str(random.choice((240, 1200, 12_000))),
            "index.interval.bytes": str(random.choice((200, 1000, 4096))),
            "flush.messages": str(random.choice((1, 20, 100, 1_000_000))),
            "flush.ms": str(random.choice((200, 1000, 5000))),
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "file.delete.delay.ms": "1000",
        }
        return configs | self._draw_compaction() if role is Role.KEYED else configs

    def _draw_compaction(self) -> dict[str, str]:
        """Settings with which cleaners have much to do, and tombstones expire soon."""
        return {
            "cleanup.policy": "compact",
            "segment.bytes": str(self.random.choice((3000, 6000, 12_000))),
            "segment.ms": str(self.random.choice((1000, 3000))),
            "min.cleanable.dirty.ratio": self.random.choice(("0", "0.3")),
            "delete.retention.ms": str(self.random.choice((500, 2000, 5000))),
        }

    def _check_topic(self, role: Role, name: str, partitions: int) -> None:
        """Learn from Metadata whether the topic exists: the answer to its creation may be lost."""
        request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)])

        def found(response: Message | None, _life: int) -> None:
            topic_id = ZERO_UUID
            if isinstance(response, MetadataResponse) and response.topics[0].error_code == 0:
                topic_id = response.topics[0].topic_id
            topic = Topic(name, role, partitions, topic_id)
            self.client.mark_metadata_stale()  # the answer to the creation may have been NOT_CONTROLLER
            # 1. A deleted topic still exists, because its deletion, or the answer to it, was lost: delete it again.
            # 2. The topic exists with a new id: the creation succeeded.
            # 3. Otherwise create it again.
            if topic_id in self._old_ids:
                self.client.timeline.schedule_after(PAUSE_NS, "admin", self._delete_topic, topic)
            elif topic_id != ZERO_UUID:
                self._note_topic_exists(topic)
            else:
                self.client.timeline.schedule_after(PAUSE_NS, "admin", self._create_topic, role, name, partitions)

        self.client.send_request(request, METADATA_VERSION, MetadataResponse, found)

    def _note_topic_exists(self, topic: Topic) -> None:
        self.catalog.topics.append(topic)
        configs = self._configs[topic.name]
        if topic.role is Role.KEYED:
            for partition in range(topic.partitions):
                self.history.compacted[topic.partition_log(partition)] = int(configs["delete.retention.ms"])
                self.history.rewritten[topic.partition_log(partition)] = self.client.timeline.now_ns
        elif configs["flush.messages"] == "1":
            for partition in range(topic.partitions):
                self.history.flushed[topic.partition_log(partition)] = None

    # ---- deleting ----

    def _recreate_topic(self) -> None:
        """Delete a topic, then create another one with its name."""
        for topic in self.catalog.topics_of_role(Role.CHURN):
            self.catalog.topics.remove(topic)
            self._old_ids[topic.topic_id] = None
            for partition in range(topic.partitions):
                self.history.dropped[topic.partition_log(partition)] = self.client.timeline.now_ns
            self._delete_topic(topic)

    def _delete_topic(self, topic: Topic) -> None:
        state = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic.topic_id)
        request = DeleteTopicsRequest(topics=[state], timeout_ms=1000)
        self.client.send_request(
            request,
            DELETE_VERSION,
            DeleteTopicsResponse,
            lambda _response, _life: self._create_topic(topic.role, topic.name, topic.partitions),
            CONTROLLER,
        )

    def _trim_records(self) -> None:
        """Delete some of the older records of one partition."""
        topics = self.catalog.topics_of_role(self.random.choice((Role.EVENTS, Role.PLAIN)))
        if topics:
            self._ask_end(topics[0], topics[0].partitions - 1)

    def _ask_end(self, topic: Topic, partition: int) -> None:
        asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=-1)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic.name, partitions=[asked])]
        )

        def on_response(response: Message | None, _life: int) -> None:
            if isinstance(response, ListOffsetsResponse) and response.topics[0].partitions[0].error_code == 0:
                self._delete_records(topic, partition, response.topics[0].partitions[0].offset // 3)

        self.client.send_request(request, 5, ListOffsetsResponse, on_response, (topic.name, partition))

    def _delete_records(self, topic: Topic, partition: int, offset: int) -> None:
        log = topic.partition_log(partition)
        self.history.deleted[log] = max(offset, self.history.deleted.get(log, 0))
        asked = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsRequest.DeleteRecordsTopic(name=topic.name, partitions=[asked])], timeout_ms=1000
        )
        route = (topic.name, partition)
        self.client.send_request(request, 2, DeleteRecordsResponse, lambda _response, _life: None, route)
