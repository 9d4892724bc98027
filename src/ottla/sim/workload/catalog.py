"""The topics of a run, as its clients know them.

Zone: deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ottla.types import uuid_to_text


class Role(Enum):
    """The purpose of a topic."""

    EVENTS = "events"
    """Idempotent producers; no record may be lost, duplicated or reordered."""
    PLAIN = "plain"
    """Producers without idempotence, which may write twice."""
    CHURN = "churn"
    """Deleted and created again; addressed by topic id only."""
    CUT = "cut"
    """Truncated by the nemesis, as by an unclean election; only the bytes served are judged."""
    INPUT = "input"
    """Read by transactional copiers; written like EVENTS."""
    OUTPUT = "output"
    """Written by transactions."""
    KEYED = "keyed"
    """Compacted: of each key the last value counts."""
    RESTRICTED = "restricted"
    """Written and read by clients that need permission."""
    COORDINATOR = "coordinator"
    """Topics of coordinators; only brokers write them."""


@dataclass(slots=True)
class Topic:
    """A topic that exists according to Metadata."""

    name: str
    role: Role
    partitions: int
    topic_id: bytes

    def partition_log(self, partition: int) -> str:
        """The name of a partition's log in the history."""
        return log_name(self.name, partition, self.topic_id)


def log_name(topic: str, partition: int, topic_id: bytes) -> str:
    """`<topic>-<partition>@<topic id>`."""
    return f"{topic}-{partition}@{uuid_to_text(topic_id)}"


@dataclass(slots=True)
class Catalog:
    """Topics by role; filled by the administrator."""

    topics: list[Topic] = field(default_factory=list)

    def topics_of_role(self, role: Role) -> list[Topic]:
        """The topics with that role, oldest first."""
        return [topic for topic in self.topics if topic.role is role]
