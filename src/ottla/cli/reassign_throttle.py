"""The throttle of a reassignment: settings of brokers and topics, with Kafka's names, put on and taken off.

Zone: real. KIP-73: the rate stands at the brokers, which replicas it holds for at the topics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ottla.client import Admin, ConfigChange, ConfigOp, Resource, ResourceType, first_error
from ottla.types import TopicPartition

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
"""Bytes a second, per broker."""
REPLICAS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""`partition:broker` pairs, per topic."""


def set_throttle(
    admin: Admin,
    before: Mapping[TopicPartition, Sequence[int]],
    after: Mapping[TopicPartition, Sequence[int]],
    rate: int,
) -> None:
    """Hold the replicas that are read from and those that come to `rate` bytes a second on every broker.

    Raises ClientError.
    """
    changes: dict[Resource, list[ConfigChange]] = {}
    for topic in sorted({where.topic for where in after}):
        own = [where for where in after if where.topic == topic and where in before]
        leaders = [f"{where.partition}:{node}" for where in own for node in before[where]]
        followers = [f"{where.partition}:{node}" for where in own for node in after[where] if node not in before[where]]
        pairs = zip(REPLICAS, (leaders, followers), strict=True)
        changes[Resource(ResourceType.TOPIC, topic)] = [
            ConfigChange(key, ",".join(replicas)) for key, replicas in pairs if replicas
        ]
    for node in admin.describe_cluster().nodes:
        broker = Resource(ResourceType.BROKER, str(node.node_id))
        changes[broker] = [ConfigChange(key, str(rate)) for key in RATES]
    _apply(admin, changes)


def clear_throttle(admin: Admin, topics: Sequence[str]) -> None:
    """Take the throttle off these topics, and off the brokers. Fine when there is none. Raises ClientError."""
    changes = {
        Resource(ResourceType.TOPIC, topic): [ConfigChange(key, None, ConfigOp.DELETE) for key in REPLICAS]
        for topic in topics
    }
    for node in admin.describe_cluster().nodes:
        broker = Resource(ResourceType.BROKER, str(node.node_id))
        changes[broker] = [ConfigChange(key, None, ConfigOp.DELETE) for key in RATES]
    _apply(admin, changes)


def _apply(admin: Admin, changes: Mapping[Resource, Sequence[ConfigChange]]) -> None:
    error = first_error(admin.alter_configs({resource: each for resource, each in changes.items() if each}))
    if error is not None:
        raise error
