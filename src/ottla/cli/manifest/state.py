"""The state of a cluster that a file describes: topics, settings, users, ACLs, quotas, pipelines.

Zone: pure. The same values hold what a file wants and what a cluster has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ottla.acls import AclBinding
from ottla.client.admin.quotas import QuotaEntity
from ottla.client.admin.scram import ScramMechanism
from ottla.client.admin.types import NewTopic, Resource, ResourceType
from ottla.pipeline.definitions.definition import Definition

Settings = Mapping[str, str | None]
"""Values by key. None: the file wants the key's default."""

SECTIONS: Final = ("topics", "brokers", "groups", "users", "acls", "quotas", "pipelines")
"""In the order in which a file lists them."""
THROTTLED_REPLICAS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
THROTTLED_RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
TEMPORARY_KEYS: Final = frozenset({*THROTTLED_REPLICAS, *THROTTLED_RATES})
"""Keys that a reassignment sets and removes: not part of the state."""
RESOURCES: Final = {"topics": ResourceType.TOPIC, "brokers": ResourceType.BROKER, "groups": ResourceType.GROUP}
"""Sections of settings, and the types of their resources."""


class TopicState(NamedTuple):
    """A topic. None: the file leaves it to the cluster."""

    partitions: int | None = None
    replication_factor: int | None = None
    settings: Mapping[str, str | None] = {}
    throttled: bool = False
    """Whether a reassignment has left its throttle at the topic."""


class Password(NamedTuple):
    """Where a password is: in an environment variable, or in the first line of a file."""

    variable: str = ""
    file: str = ""


class UserState(NamedTuple):
    """A user: the iterations of each mechanism, and the source of the password, which only a file has."""

    mechanisms: Mapping[ScramMechanism, int]
    password: Password | None = None


@dataclass
class ClusterState:
    """The sections of a state. None: the file does not mention the section, or the cluster cannot list it."""

    topics: dict[str, TopicState] | None = None
    brokers: dict[str, Settings] | None = None
    """By node id; "" is the default of all brokers."""
    groups: dict[str, Settings] | None = None
    users: dict[str, UserState] | None = None
    acls: dict[AclBinding, None] | None = None
    quotas: dict[QuotaEntity, Mapping[str, float | None]] | None = None
    pipelines: dict[str, Definition] | None = None
    lines: dict[str, int] = field(default_factory=dict)
    """Of a file: the lines of paths."""
    pipelines_topic: NewTopic | None = None
    """Of a cluster: the topic with the definitions of pipelines; None: they were not asked for."""
    lacks_pipelines_topic: bool = False
    """Of a cluster: whether that topic does not exist."""

    def line_of(self, path: str) -> int:
        """The line of a path, or of what it is in; 0: unknown."""
        # The nearest line above: a problem may be about a key that the file does not have.
        while path and path not in self.lines:
            path = path.rpartition(".")[0]
        return self.lines.get(path, 0)


class Problem(NamedTuple):
    """Why a file cannot be applied."""

    line: int
    """0: unknown."""
    path: str
    message: str

    def __str__(self) -> str:
        where = f"line {self.line}, " if self.line else ""
        return f"{where}{self.path}: {self.message}"


class Change(NamedTuple):
    """One step from what a cluster has to what a file wants.

    kind: topic, partitions, replication, throttle, settings, user, acl, quota or pipeline. `before` and `after` are
    shown; `item` is what the step is done with.
    """

    action: str
    """create, change or delete."""
    kind: str
    name: str
    before: object
    after: object
    path: str
    item: object = None

    def describe_change(self) -> str:
        """The line of a plan."""
        sign = {"create": "+", "change": "~", "delete": "-"}[self.action]
        name = f" {self.name}" if self.name else ""
        return f"{sign} {self.kind}{name}{self._details()}"

    def _details(self) -> str:
        # Settings, quotas and pipelines: one pair per key. Others have one value, or none.
        if isinstance(self.after, Mapping):
            before = self.before if isinstance(self.before, Mapping) else {}
            pairs = [_change_text(key, before.get(key), value) for key, value in self.after.items()]
            return f": {', '.join(pairs)}" if pairs else ""
        if self.before is None and self.after is None:
            return ""
        return f": {self.after}" if self.before is None else f": {self.before} → {self.after}"


def _change_text(key: str, before: object, after: object) -> str:
    if before is None:
        return f"{key}={_value_text(after)}"
    return f"{key} {_value_text(before)} → {_value_text(after)}"


def _value_text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.15g}"
    return "default" if value is None else str(value)


def resource_of(section: str, name: str) -> Resource:
    """The owner of the settings that a section has under a name."""
    return Resource(RESOURCES[section], name)


def is_protected(topic: str) -> bool:
    """Whether a topic belongs to the brokers: it is neither shown nor changed."""
    return topic.startswith("__")
