"""Settings of groups and of client metrics: one row per key, with Kafka's names and defaults.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ottla.config.rows import LOW, Check, Row, Type, at_least, between, key, one_of, rows_of
from ottla.linear_regex import Pattern, PatternError

INTERVAL_MIN_MS, INTERVAL_MAX_MS = 100, 3_600_000
SELECTORS: Final = (
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""Properties of clients that `match` can name (KIP-714)."""
_CLASSIC: Final = "the members of classic groups state their own; the newer group protocols are not served"


def split_match(value: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(selector, pattern) for each entry of `match`. Raises ValueError for entries of another form."""
    for entry in value:
        selector, equals, pattern = entry.partition("=")
        if not equals or selector.strip() not in SELECTORS:
            raise ValueError(f"{entry[:100]!r} is not selector=pattern with one of {', '.join(SELECTORS)}")
        yield selector.strip(), pattern.strip()


def _has_patterns(value: tuple[str, ...]) -> bool:
    try:
        for _, pattern in split_match(value):
            Pattern(pattern)
    except (ValueError, PatternError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Settings of one group."""

    consumer_session_timeout_ms: int = key(
        "consumer.session.timeout.ms", Type.INT, 45_000, "Session time-out of members.", at_least(1), unused=_CLASSIC
    )
    consumer_heartbeat_interval_ms: int = key(
        "consumer.heartbeat.interval.ms", Type.INT, 5_000, "Interval of heartbeats.", at_least(1), unused=_CLASSIC
    )
    share_session_timeout_ms: int = key(
        "share.session.timeout.ms", Type.INT, 45_000, "Session time-out of members.", at_least(1), unused=_CLASSIC
    )
    share_heartbeat_interval_ms: int = key(
        "share.heartbeat.interval.ms", Type.INT, 5_000, "Interval of heartbeats.", at_least(1), unused=_CLASSIC
    )
    share_record_lock_duration_ms: int = key(
        "share.record.lock.duration.ms",
        Type.INT,
        30_000,
        "How long a record is locked.",
        at_least(1000),
        unused=_CLASSIC,
    )
    share_auto_offset_reset: str = key(
        "share.auto.offset.reset", Type.STRING, "latest", "Where a share group begins.", unused=_CLASSIC
    )
    share_isolation_level: str = key(
        "share.isolation.level",
        Type.STRING,
        "read_uncommitted",
        "Which records a share group reads.",
        one_of("read_uncommitted", "read_committed"),
        unused=_CLASSIC,
    )


@dataclass(frozen=True, slots=True)
class ClientMetricsConfig:
    """One subscription of metrics of clients."""

    metrics: tuple[str, ...] = key(
        "metrics", Type.LIST, (), "Prefixes of the names of the wanted metrics. `*`: all; empty: none.", importance=LOW
    )
    interval_ms: int = key(
        "interval.ms",
        Type.INT,
        300_000,
        "How often clients push their metrics.",
        between(INTERVAL_MIN_MS, INTERVAL_MAX_MS),
    )
    match: tuple[str, ...] = key(
        "match",
        Type.LIST,
        (),
        "Which clients: a list of selector=pattern, all of which have to match. Empty: all clients.",
        Check(f"a list of selector=pattern with {', '.join(SELECTORS)} and regular expressions", _has_patterns),
    )


GROUP_ROWS: Final[Mapping[str, Row]] = {row.name: row for row in rows_of(GroupConfig)}
GROUP_BROKER_KEYS: Final[Mapping[str, str]] = {
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "share.session.timeout.ms": "group.share.session.timeout.ms",
    "share.heartbeat.interval.ms": "group.share.heartbeat.interval.ms",
    "share.record.lock.duration.ms": "group.share.record.lock.duration.ms",
}
"""The broker's key that has the default of a group's key, as DescribeConfigs names it."""
CLIENT_METRICS_ROWS: Final[Mapping[str, Row]] = {row.name: row for row in rows_of(ClientMetricsConfig)}
