"""Arguments and results of the admin clients: plain values.

Zone: pure. The requests are in `admin` and `configs`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from ottla.client.errors import UsageError
from ottla.client.metadata import NodeView
from ottla.renamed import warn_renamed
from ottla.types import NO_EPOCH, TopicPartition

EARLIEST: Final = -2
"""As a timestamp: the log start offset."""
LATEST: Final = -1
"""As a timestamp: the offset after the last readable record."""
MAX_TIMESTAMP: Final = -3
"""As a timestamp: the record with the largest one (KIP-734)."""

TIERED_TIMESTAMPS: Final = {-4: 8, -5: 9, -6: 11}
"""Offsets of logs in tiered storage, as timestamps (KIP-405, KIP-1005, KIP-1023): the first local one, the last one in
remote storage, the first one not there yet. Each with the first version of ListOffsets that knows it."""


class NewTopic(NamedTuple):
    """A topic to create; -1 takes the broker's default. `assignment` (replicas per partition) replaces the counts."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | float | Sequence[str]] = {}
    assignment: Mapping[int, Sequence[int]] | None = None


class TopicCreated(NamedTuple):
    """A topic that was created, or would be (`validate_only`); -1 and ZERO_UUID if the broker does not report it."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int


class OffsetFound(NamedTuple):
    """The answer to a look-up of an offset by timestamp."""

    offset: int
    """-1: no record has that timestamp or a later one."""
    timestamp: int
    """Of the record found, in ms; -1 for EARLIEST and LATEST."""
    leader_epoch: int = NO_EPOCH


class ResourceType(IntEnum):
    """What a configuration belongs to; the numbers are the protocol's."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Resource(NamedTuple):
    """Owner of a configuration. A broker's name is its id as text; "" is the default of all brokers."""

    kind: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.kind.name.lower().replace('_', ' ')} {self.name or 'default'}"


class ConfigSource(IntEnum):
    """Where a configuration's value comes from."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class ConfigEntry(NamedTuple):
    """One key of a configuration."""

    name: str
    value: str | None
    """None for a sensitive key."""
    source: ConfigSource
    read_only: bool
    sensitive: bool
    synonyms: tuple[tuple[str, str | None, ConfigSource], ...] = ()
    """(key, value, source), the one in force first."""
    documentation: str = ""

    @property
    def is_default(self) -> bool:
        """Whether the value is the default of the software."""
        return self.source is ConfigSource.DEFAULT_CONFIG


class ConfigOp(IntEnum):
    """How an incremental change treats the key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """One change of a configuration; `value` is None for DELETE."""

    name: str
    value: str | float | Sequence[str] | None
    op: ConfigOp = ConfigOp.SET


class Replica(NamedTuple):
    """The replica of a partition on one broker."""

    tp: TopicPartition
    node_id: int

    @property
    def where(self) -> TopicPartition:
        """The old name of `tp`."""
        warn_renamed("where", "tp")
        return self.tp


class LogDirReplica(NamedTuple):
    """A partition in a log directory; sizes in bytes. A future replica (`is_future`) has its lag to the current one."""

    tp: TopicPartition
    size: int
    offset_lag: int
    is_future: bool

    @property
    def where(self) -> TopicPartition:
        """The old name of `tp`."""
        warn_renamed("where", "tp")
        return self.tp


class LogDir(NamedTuple):
    """A log directory of a broker; -1 if the broker does not report a size."""

    path: str
    total_bytes: int
    usable_bytes: int
    replicas: tuple[LogDirReplica, ...]


class ClusterDescription(NamedTuple):
    """The cluster and its brokers, by id."""

    cluster_id: str
    controller_id: int
    nodes: tuple[NodeView, ...]


def list_of_names(call: str, names: Iterable[str]) -> list[str]:
    """Distinct names. Raises UsageError if `names` is one string (its letters would be taken for names), or if a name
    is not a string.
    """
    if isinstance(names, (str, bytes)):
        raise UsageError(f"{call} takes a list of names, not the string {names!r}", f"Use [{names!r}]")
    found = list(dict.fromkeys(names))
    for name in found:
        if not isinstance(name, str):
            raise UsageError(f"{call}: {name!r} is {type(name).__name__}, but a name is a string", "Give strings")
    return found


def setting_text(key: str, value: object) -> str | None:
    """The value of a topic or broker setting in the format of brokers; None stays None. Raises UsageError."""
    if value is None or isinstance(value, str):
        return value if value is None else str.__str__(value)
    # bool before int, because bool is an int in Python: str(True) would send "True" or "1".
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(str(setting_text(key, word)) for word in value)
    if isinstance(value, float):
        return repr(float(value))
    try:
        return str(operator.index(value))  # type: ignore[arg-type]  # TypeError: not an integer
    except TypeError:
        raise UsageError(
            f"{key}: {value!r} is {type(value).__name__}, which is not a value of a setting", "Give a string"
        ) from None
