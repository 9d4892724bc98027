"""The settings of a consumer: Kafka's keys, types and defaults, and the checks between them.

Zone: pure. Keys that all clients share are in `client.settings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from ottla.client.consumer.actions import GroupSettings
from ottla.client.consumer.assignment.assignors import Assignor, Range, RoundRobin
from ottla.client.consumer.assignment.sticky import CooperativeSticky, Sticky
from ottla.client.consumer.reset import parse_reset
from ottla.client.errors import ConfigError, UsageError
from ottla.client.settings import ClientConfig, is_shared, plain_text, suggest_key

Deserializer = Callable[[str, bytes], Any]
"""(topic, bytes) → value; not called for null keys and values."""
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
    group_id: str | None = None
    group_instance_id: str | None = None
    client_rack: str = ""
    auto_offset_reset: str = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    exclude_internal_topics: bool = True
    partition_assignment_strategy: tuple[str, ...] = ("range", "cooperative-sticky")
    key_deserializer: Deserializer | None = None
    value_deserializer: Deserializer | None = None
    interceptor_classes: tuple[Any, ...] = ()
    """Objects with `on_consume(records)` → records, `on_commit(offsets)`, or both."""

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{_kafka_key(name)}={getattr(self, name)} is out of range", f"Use {low} to {high}")
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
            name = key.replace(".", "_")
            if name in _OWN and "_" not in key:
                if raw is not None:
                    own[name] = _parse_value(key, name, raw)
            elif not is_shared(key):
                raise ConfigError(f"{key} is not a setting of a consumer", suggest_key(key, map(_kafka_key, _OWN)))
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
            kind = _ASSIGNORS.get(_JAVA_NAMES.get(name, name)) if isinstance(name, str) else None  # type: ignore[redundant-expr]  # settings may be anything
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


def topic_names(topics: Iterable[str]) -> tuple[str, ...]:
    """Distinct topics to subscribe to. Raises UsageError for a string, and for an empty name."""
    if isinstance(topics, str):
        raise UsageError("subscribe takes a list of topics", f"Use [{topics!r}]")
    found = tuple(dict.fromkeys(topics))
    for each in found:
        if not each.strip():
            raise UsageError(f"{each!r} is not the name of a topic")
    return found


def _parse_value(key: str, name: str, raw: Setting) -> Any:
    kind = _OWN[name]
    if kind == "bool" and plain_text(raw).lower() in ("true", "false"):
        return plain_text(raw).lower() == "true"
    if kind == "int" and not isinstance(raw, bool):
        try:
            return int(plain_text(raw))
        except ValueError:
            pass
    if kind.startswith("tuple"):
        words = [word.strip() for word in raw.split(",")] if isinstance(raw, str) else raw
        if isinstance(words, list | tuple):
            return tuple(word for word in words if word != "")
    if kind.startswith("Deserializer") and callable(raw):
        return raw
    if kind.startswith("str") and isinstance(raw, str):
        return plain_text(raw)
    raise ConfigError(f"{key}={raw!r} does not fit", f"It takes {_TAKES.get(kind.split(' ', maxsplit=1)[0], 'a list')}")


def _kafka_key(name: str) -> str:
    return name.replace("_", ".")


_OWN: Final[Mapping[str, str]] = {each.name: str(each.type) for each in fields(ConsumerConfig) if each.name != "client"}
CONSUMER_KEYS: Final = frozenset(
    _kafka_key(name) for name, kind in _OWN.items() if "Deserializer" not in kind and "Any" not in kind
)
"""The keys of a consumer that are not shared by all clients and whose values can be text."""
_TAKES: Final = {
    "bool": "true or false",
    "int": "a whole number",
    "str": "a string",
    "Deserializer": "a function of topic and bytes",
}
_RANGES: Final = {
    "auto_commit_interval_ms": (0, 2**31 - 1),
    "session_timeout_ms": (1, 2**31 - 1),
    "heartbeat_interval_ms": (1, 2**31 - 1),
    "max_poll_interval_ms": (1, 2**31 - 1),
    "max_poll_records": (1, 2**31 - 1),
}
