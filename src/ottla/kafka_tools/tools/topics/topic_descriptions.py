"""Descriptions of topics and partitions in the layout of kafka-topics --describe.

Zone: real. Asks the cluster for settings, reassignments and eligible leader replicas; prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ottla.client.admin.admin import Admin
from ottla.client.admin.partitions import Reassignment
from ottla.client.admin.types import ConfigEntry, ConfigSource, Resource, ResourceType
from ottla.client.cluster import Cluster
from ottla.client.errors import RefusedError, UnsupportedVersionError, values_of
from ottla.client.metadata import PartitionView, TopicView
from ottla.types import TopicPartition, uuid_to_text
from ottla.wire.apis import ApiKey
from ottla.wire.messages import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse

PAGE: Final = 2_000
"""Partitions in one response, as in Kafka's tool."""
_AT_ONCE: Final = 500
"""Topics in one request."""
_MIN_ISR: Final = "min.insync.replicas"
NO_ELR: Final = ("N/A", "N/A")


class Shown(NamedTuple):
    """Which lines are wanted."""

    topics: bool
    partitions: bool
    with_overrides: bool
    under_replicated: bool
    under_min_isr: bool
    at_min_isr: bool
    unavailable: bool
    as_kafka_1: bool = False
    """Whether the lines are those of Kafka 1.0: without ids, eligible leader replicas and settings of brokers."""


class _Facts(NamedTuple):
    """What the cluster answers about several topics, besides their metadata."""

    configs: Mapping[str, list[ConfigEntry]]
    moves: Mapping[TopicPartition, Reassignment]
    elr: Mapping[TopicPartition, tuple[str, str]]
    nodes: Iterable[int]


def describe_topics(cluster: Cluster, topics: Sequence[TopicView], shown: Shown, page: int = PAGE) -> None:
    """Print the wanted lines of each topic. page: partitions in one response. Raises ClientError."""
    for at in range(0, len(topics), _AT_ONCE):
        some = topics[at : at + _AT_ONCE]
        facts = _gather_facts(cluster, some, page)
        for topic in some:
            for line in _topic_lines(topic, facts, shown):
                print(line)


def _gather_facts(cluster: Cluster, topics: Sequence[TopicView], page: int) -> _Facts:
    admin = Admin(cluster)
    resources = [Resource(ResourceType.TOPIC, topic.name) for topic in topics]
    configs = values_of(admin.describe_configs(resources))
    return _Facts(
        {resource.name: entries for resource, entries in configs.items()},
        _reassignments(admin, topics),
        _eligible_leaders(cluster, topics, page),
        cluster.view.nodes.keys(),
    )


def _reassignments(admin: Admin, topics: Sequence[TopicView]) -> dict[TopicPartition, Reassignment]:
    """The reassignments in progress; none where the broker cannot list them, or the user may not see them, as in
    Kafka's tool.
    """
    wanted = [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]
    try:
        return admin.list_partition_reassignments(wanted) if wanted else {}
    except (UnsupportedVersionError, RefusedError):
        return {}


def _eligible_leaders(
    cluster: Cluster, topics: Sequence[TopicView], page: int
) -> dict[TopicPartition, tuple[str, str]]:
    """The two columns Elr and LastKnownElr of each partition; nothing from a broker before Kafka 3.7."""
    found: dict[TopicPartition, tuple[str, str]] = {}
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in sorted(t.name for t in topics)],
        response_partition_limit=page,
    )
    while True:
        try:
            answer = cluster.send_request(
                ApiKey.DESCRIBE_TOPIC_PARTITIONS,
                lambda _, request=request: request,  # type: ignore[misc]
                DescribeTopicPartitionsResponse,
            )
        except UnsupportedVersionError:
            return {}
        for topic in answer.topics:
            for part in topic.partitions:
                columns = (_joined(part.eligible_leader_replicas), _joined(part.last_known_elr))
                found[TopicPartition(topic.name or "", part.partition_index)] = columns
        cursor = answer.next_cursor
        if cursor is None:
            return found
        # Names are sorted, so that all topics before the cursor have been answered.
        request = DescribeTopicPartitionsRequest(
            topics=[each for each in request.topics if each.name >= cursor.topic_name],
            response_partition_limit=page,
            cursor=DescribeTopicPartitionsRequest.Cursor(
                topic_name=cursor.topic_name, partition_index=cursor.partition_index
            ),
        )


def _topic_lines(topic: TopicView, facts: _Facts, shown: Shown) -> Iterator[str]:
    entries = facts.configs[topic.name]
    overrides = [entry for entry in entries if _is_override(entry, shown)]
    if shown.with_overrides and not overrides:
        return
    if shown.topics:
        configs = ",".join(f"{entry.name}={'' if entry.value is None else entry.value}" for entry in overrides)
        counts = (("PartitionCount", len(topic.partitions)), ("ReplicationFactor", _topic_factor(topic, facts)))
        gap, identity = ("", ()) if shown.as_kafka_1 else (" ", (("TopicId", uuid_to_text(topic.topic_id)),))
        cells = (("Topic", topic.name), *identity, *counts, ("Configs", configs))
        yield "\t".join(f"{title}:{gap}{cell}" for title, cell in cells)
    if shown.partitions:
        min_isr = next((int(entry.value or 1) for entry in entries if entry.name == _MIN_ISR), 1)
        for part in topic.partitions.values():
            # A filter leaves out the topic's own line, and shows the partitions alone.
            if not shown.topics and not _is_wanted(topic, part, facts, shown, min_isr):
                continue
            yield _partition_line(topic.name, part, facts, shown)


def _is_override(entry: ConfigEntry, shown: Shown) -> bool:
    """Whether the column Configs has the setting. Kafka 1.0's tool reads the topic's own settings from ZooKeeper."""
    return entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG if shown.as_kafka_1 else not entry.is_default


def _topic_factor(topic: TopicView, facts: _Facts) -> int:
    first = next(iter(topic.partitions.values()), None)
    return 0 if first is None else _factor(topic.name, first, facts)


def _factor(name: str, part: PartitionView, facts: _Facts) -> int:
    move = facts.moves.get(TopicPartition(name, part.partition))
    return len(part.replicas) - (0 if move is None else len(move.adding))


def _is_wanted(topic: TopicView, part: PartitionView, facts: _Facts, shown: Shown, min_isr: int) -> bool:
    return (
        (shown.under_replicated and len(part.isr) < _factor(topic.name, part, facts))
        or (shown.unavailable and part.leader not in facts.nodes)
        or (shown.under_min_isr and len(part.isr) < min_isr)
        or (shown.at_min_isr and len(part.isr) == min_isr)
    )


def _partition_line(name: str, part: PartitionView, facts: _Facts, shown: Shown) -> str:
    tp = TopicPartition(name, part.partition)
    leader = part.leader if part.leader >= 0 else "none"
    line = f"\tTopic: {name}\tPartition: {part.partition}\tLeader: {leader}"
    line += f"\tReplicas: {_joined(part.replicas)}\tIsr: {_joined(part.isr)}"
    if shown.as_kafka_1:
        return line
    if (move := facts.moves.get(tp)) is not None:
        line += f"\tAdding Replicas: {_joined(move.adding)}\tRemoving Replicas: {_joined(move.removing)}"
    elr, last_known = facts.elr.get(tp, NO_ELR)
    return f"{line}\tElr: {elr}\tLastKnownElr: {last_known}"


def _joined(numbers: Sequence[int] | None) -> str:
    return ",".join(map(str, numbers or ()))
