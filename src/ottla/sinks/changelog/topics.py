"""The two topics of a changelog: creates, checks and reads them.

Zone: real. State and positions have a topic each, so that other readers of the state find only state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing

from ottla.client.admin.admin import Admin
from ottla.client.admin.configs import ConfigAdmin
from ottla.client.admin.types import NewTopic, Resource, ResourceType
from ottla.client.cluster import Cluster
from ottla.client.consumer.consumer import Consumer
from ottla.client.errors import ClientError, RefusedError
from ottla.client.settings import ClientConfig
from ottla.errors import ErrorCode
from ottla.sinks.changelog.errors import ChangelogBroken, NotCompacted
from ottla.types import TopicPartition

_READING = {"isolation.level": "read_committed", "auto.offset.reset": "earliest", "enable.auto.commit": "false"}


class Topics:
    """The topics of one changelog."""

    def __init__(self, settings: Mapping[str, str], topic: str, partitions: int, replication_factor: int) -> None:
        self._settings = dict(settings)
        self.state = topic
        self.positions = f"{topic}-positions"
        self._partitions = partitions
        self._replication_factor = replication_factor
        self.id = ""
        """The id of the state's topic, once `ensure_topics` has read it."""

    def ensure_topics(self) -> None:
        """Create missing topics, and check both. Raises NotCompacted, ClientError."""
        with closing(Cluster(ClientConfig.from_mapping(self._settings))) as cluster:
            wanted = {self.state: self._partitions, self.positions: 1}
            answers = Admin(cluster).create_topics(
                [
                    NewTopic(name, partitions, self._replication_factor, {"cleanup.policy": "compact"})
                    for name, partitions in wanted.items()
                ]
            )
            for answer in answers.values():
                exists = isinstance(answer, RefusedError) and answer.code is ErrorCode.TOPIC_ALREADY_EXISTS
                if isinstance(answer, ClientError) and not exists:
                    raise answer
            self._check_cluster(cluster)
            self.id = cluster.topic(self.state, create=True).topic_id.hex()
            cluster.topic(self.positions, create=True)

    def _check_cluster(self, cluster: Cluster) -> None:
        resources = [Resource(ResourceType.TOPIC, name) for name in (self.state, self.positions)]
        for resource, answer in ConfigAdmin(cluster).describe_configs(resources).items():
            if isinstance(answer, ClientError):
                raise answer
            policy = next((each.value for each in answer if each.name == "cleanup.policy"), None)
            if policy != "compact":
                raise NotCompacted(resource.name, str(policy))

    def read_state(self) -> dict[bytes, bytes]:
        """Key → last value, without keys whose last value is null; the same before and after compaction."""
        return self._last_values(self.state)

    def read_positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition of the source. Raises ChangelogBroken."""
        found = {}
        for key, value in self._last_values(self.positions).items():
            topic, partition = json.loads(key)
            position = json.loads(value)
            if position["changelog"] != self.id:
                raise ChangelogBroken(f"topic {self.state} is not the one that {self.positions} was written with")
            found[TopicPartition(topic, partition)] = int(position["offset"])
        return found

    def position_record(self, tp: TopicPartition, offset: int) -> tuple[bytes, bytes]:
        """Key and value of the record of a position."""
        return json.dumps(list(tp)).encode(), json.dumps({"offset": offset, "changelog": self.id}).encode()

    def source_partitions(self, topics: tuple[str, ...]) -> list[TopicPartition]:
        """The partitions of topics of the source. Raises RefusedError."""
        with closing(Cluster(ClientConfig.from_mapping(self._settings))) as cluster:
            return [TopicPartition(name, number) for name in topics for number in cluster.topic(name).partitions]

    def _last_values(self, topic: str) -> dict[bytes, bytes]:
        values: dict[bytes, bytes] = {}
        with Consumer({**self._settings, **_READING}) as consumer:
            places = consumer.partitions_for_topic(topic)
            consumer.assign(places)
            ends = consumer.end_offsets(places)
            while any(consumer.position(tp) < ends[tp] for tp in places):
                for record in consumer.poll(1.0):
                    if record.value is None:
                        values.pop(record.key, None)
                    else:
                        values[record.key] = record.value
        return values
