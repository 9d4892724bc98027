"""The settings of a consumer: Kafka's keys, types and defaults, and the checks between them.

Zone: pure. Keys that all clients share are in `client.settings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.client.consumer.actions import GroupSettings
from ottla.client.consumer.assignment.assignors import Assignor, Range, RoundRobin
from ottla.client.consumer.assignment.sticky import CooperativeSticky, Sticky
from ottla.client.consumer.reset import parse_reset
from ottla.client.errors import ConfigError, UsageError
from ottla.client.schemas.contexts import RecordDeserializer
from ottla.client.setting_values import check_settings, parse_setting
from ottla.client.settings import ClientConfig, is_shared, suggest_key
from ottla.config.options import (
    BOOLEAN,
    FUNCTION,
    INT_MAX,
    INTEGER,
    LIST,
    OBJECTS,
    TEXT,
    Bounds,
    Option,
    option,
    options_of,
)

Deserializer = Callable[[str, bytes], Any] | RecordDeserializer
"""(topic, bytes) → value, or one that takes a context; not called for null keys and values."""
Setting = str | int | bool | Deserializer | Sequence[Any] | None

_ASSIGNORS: Final[Mapping[str, type[Assignor]]] = {
    each.name: each for each in (Range, RoundRobin, Sticky, CooperativeSticky)
}
_JAVA_NAMES: Final = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.StickyAssignor": "sticky",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """The keys of a consumer in addition to `ClientConfig`, with Kafka's defaults; times in milliseconds.

    Source: the documentation of Kafka's consumer configuration.
    """

    client: ClientConfig = field(default_factory=ClientConfig)
    group_id: str | None = option(
        "group.id",
        TEXT,
        None,
        "The consumer group: its members share the partitions, and offsets are committed for it. Without it, use "
        "`assign`.",
    )
    group_instance_id: str | None = option(
        "group.instance.id",
        TEXT,
        None,
        "The name of a static member, which keeps its partitions over a restart that is shorter than the session.",
    )
    client_rack: str = option(
        "client.rack",
        TEXT,
        "",
        "The rack or zone of the consumer: it reads from a replica there if the broker offers one.",
    )
    auto_offset_reset: str = option(
        "auto.offset.reset",
        TEXT,
        "latest",
        "Where to start without a committed offset, or with one that is out of range: `earliest`, `latest`, `none` (an "
        "error), or `by_duration:P1D` (a day ago).",
    )
    enable_auto_commit: bool = option(
        "enable.auto.commit",
        BOOLEAN,
        True,
        "Whether the positions of records that `poll` has returned are committed from time to time.",
    )
    auto_commit_interval_ms: int = option(
        "auto.commit.interval.ms", INTEGER, 5_000, "The time between two automatic commits.", Bounds(0, INT_MAX)
    )
    session_timeout_ms: int = option(
        "session.timeout.ms",
        INTEGER,
        45_000,
        "The coordinator removes a member from which it has no heartbeat for this long.",
        Bounds(1, INT_MAX),
    )
    heartbeat_interval_ms: int = option(
        "heartbeat.interval.ms",
        INTEGER,
        3_000,
        "The time between two heartbeats; below `session.timeout.ms`, a third of it is usual.",
        Bounds(1, INT_MAX),
    )
    max_poll_interval_ms: int = option(
        "max.poll.interval.ms",
        INTEGER,
        300_000,
        "A member leaves the group if `poll` is not called for this long.",
        Bounds(1, INT_MAX),
    )
    max_poll_records: int = option(
        "max.poll.records", INTEGER, 500, "The most records that one `poll` returns.", Bounds(1, INT_MAX)
    )
    exclude_internal_topics: bool = option(
        "exclude.internal.topics",
        BOOLEAN,
        True,
        "Whether a pattern of topics leaves out internal ones, such as `__consumer_offsets`.",
    )
    partition_assignment_strategy: tuple[str, ...] = option(
        "partition.assignment.strategy",
        LIST,
        ("range", "cooperative-sticky"),
        "The assignors that this member supports, the preferred one first: `range`, `roundrobin`, `sticky`, "
        "`cooperative-sticky`, or the names of Kafka's classes.",
    )
    key_deserializer: Deserializer | None = option(
        "key.deserializer",
        FUNCTION,
        None,
        "A function of topic and bytes, whose result is the record's key, or a deserializer of "
        "`ottla.client.schemas`; not called for null.",
    )
    value_deserializer: Deserializer | None = option(
        "value.deserializer",
        FUNCTION,
        None,
        "A function of topic and bytes, whose result is the record's value, or a deserializer of "
        "`ottla.client.schemas`; not called for null.",
    )
    interceptor_classes: tuple[Any, ...] = option(
        "interceptor.classes",
        OBJECTS,
        (),
        "Objects with `on_consume(records)`, which returns records, `on_commit(offsets)`, or both.",
    )

    def __post_init__(self) -> None:
        check_settings(CONSUMER_OPTIONS, self)
        # 1. each value alone, by its row; 2. values that depend on each other; 3. texts that are parsed.
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigError(
                "heartbeat.interval.ms is not below session.timeout.ms",
                "Use a third of it, so that two heartbeats may be lost",
            )
        if self.group_instance_id is not None and self.group_id is None:
            raise ConfigError("group.instance.id needs a group.id", "Set both, or neither")
        if self.group_id == "" or self.group_instance_id == "":
            raise ConfigError("group.id and group.instance.id must not be empty", "Leave them unset instead")
        parse_reset(self.auto_offset_reset)
        self.assignors()

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Setting]) -> ConsumerConfig:
        """The configuration for settings by Kafka's keys; None counts as unset.

        Raises ConfigError; for an unknown key it suggests the nearest one.
        """
        own: dict[str, Any] = {}
        shared: dict[str, Any] = {}
        for key, raw in settings.items():
            # None counts as unset, as in a dictionary that a program fills from optional arguments.
            if (row := CONSUMER_OPTIONS.get(key)) is not None:
                if raw is not None:
                    own[row.attribute] = parse_setting(row, raw, strict=True)
            elif not is_shared(key):
                raise ConfigError(f"{key} is not a setting of a consumer", suggest_key(key, CONSUMER_OPTIONS))
            else:
                shared[key] = raw
        return cls(client=ClientConfig.from_mapping(shared), **own)

    @property
    def auto_commit(self) -> bool:
        """Whether positions are committed automatically."""
        return self.enable_auto_commit and self.group_id is not None

    def assignors(self) -> list[Assignor]:
        """The assignors, in order of preference. Raises ConfigError."""
        found = []
        for name in self.partition_assignment_strategy:
            kind = _ASSIGNORS.get(_JAVA_NAMES.get(name, name))
            if kind is None:
                raise ConfigError(
                    f"partition.assignment.strategy={name} is not known", f"Use some of {', '.join(_ASSIGNORS)}"
                )
            found.append(kind())
        if not found:
            raise ConfigError("partition.assignment.strategy is empty", f"Use some of {', '.join(_ASSIGNORS)}")
        return found

    def group(self) -> GroupSettings:
        """The settings of the membership; `group.id` must be set."""
        assert self.group_id is not None
        return GroupSettings(
            group_id=self.group_id,
            assignors=self.assignors(),
            instance_id=self.group_instance_id,
            session_timeout=self.session_timeout_ms / 1000,
            heartbeat_interval=self.heartbeat_interval_ms / 1000,
            max_poll_interval=self.max_poll_interval_ms / 1000,
            retry_backoff=self.client.retry_backoff_ms / 1000,
            rack=self.client_rack or None,
        )


CONSUMER_OPTIONS: Final[Mapping[str, Option]] = options_of(ConsumerConfig)
"""The rows of `ConsumerConfig` by key."""
CONSUMER_KEYS: Final = frozenset(row.name for row in CONSUMER_OPTIONS.values() if row.type not in (FUNCTION, OBJECTS))
"""The keys of a consumer that are not shared by all clients and whose values can be text."""


def topic_names(topics: Iterable[str]) -> tuple[str, ...]:
    """Distinct topics to subscribe to. Raises UsageError for a string, and for an empty name."""
    if isinstance(topics, str):
        raise UsageError("subscribe takes a list of topics", f"Use [{topics!r}]")
    found = tuple(dict.fromkeys(topics))
    for each in found:
        if not each.strip():
            raise UsageError(f"{each!r} is not the name of a topic")
    return found
