"""The topics of a run, as its clients know them.

Zone: deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ottla.types import uuid_to_text


class Role(Enum):
    """What a topic is there for."""

    EVENTS = "events"
    """Idempotent producers; nothing may be lost, doubled or reordered."""
    PLAIN = "plain"
    """Producers without idempotence, which may write twice."""
    CHURN = "churn"
    """Deleted and made again; addressed by topic id alone."""
    CUT = "cut"
    """Truncated by the nemesis, as an unclean election would do it; only the bytes served are judged."""
    INPUT = "input"
    """What transactional copiers read; written as EVENTS is."""
    OUTPUT = "output"
    """What transactions write."""
    KEYED = "keyed"
    """Compacted: of each key the last value counts."""
    COORDINATOR = "coordinator"
    """The topics of coordinators, which only brokers write."""


@dataclass(slots=True)
class Topic:
    """A topic that exists, as far as clients know."""

    name: str
    role: Role
    partitions: int
    topic_id: bytes

    def log(self, partition: int) -> str:
        """The name of a partition's log in the history."""
        return log_name(self.name, partition, self.topic_id)


def log_name(topic: str, partition: int, topic_id: bytes) -> str:
    """`<topic>-<partition>@<topic id>`."""
    return f"{topic}-{partition}@{uuid_to_text(topic_id)}"


@dataclass(slots=True)
class Catalog:
    """Topics by role; filled by the administrator."""

    topics: list[Topic] = field(default_factory=list)

    def of(self, role: Role) -> list[Topic]:
        """The topics with that role, oldest first."""
        return [topic for topic in self.topics if topic.role is role]
