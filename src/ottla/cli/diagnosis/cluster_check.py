"""Checks of the cluster through an address that answers: partitions, versions, limits, clocks, disks.

Zone: real. A check that a broker refuses or does not serve is left out, with a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ottla.cli.diagnosis.findings import ERROR, OK, WARNING, Finding
from ottla.cli.options import ClientSettings
from ottla.cli.views.health import Health
from ottla.client import (
    MAX_TIMESTAMP,
    Admin,
    ClientError,
    Cluster,
    ConfigEntry,
    LogDir,
    OffsetFound,
    RefusedError,
    Resource,
    ResourceType,
    TopicView,
)
from ottla.client.connections.broker_probes import ClusterProbe
from ottla.client.retry import wall_ms
from ottla.errors import ErrorCode
from ottla.types import TopicPartition

_FULL: Final = 0.05
_NEARLY_FULL: Final = 0.15
"""Shares of a disk that are free: an error below the first one, a warning below the second one."""
_CLOCK_MS: Final = 10_000
"""Clocks may differ by this much before it is a finding."""
_CLOCK_PARTITIONS: Final = 50
_SHOWN: Final = 5
_ASK_MS: Final = 10_000
"""The longest that one check may take."""

_LIMITS: Final = (
    ("max.request.size", "message.max.bytes", True),
    ("batch.size", "message.max.bytes", True),
    ("session.timeout.ms", "group.max.session.timeout.ms", True),
    ("session.timeout.ms", "group.min.session.timeout.ms", False),
    ("transaction.timeout.ms", "transaction.max.timeout.ms", True),
)
"""(key of a client, key of brokers that limits it, whether that is the highest value or the lowest)."""


def check_health(health: Health) -> Iterator[Finding]:
    """The problems of the partitions and of the controller, a few of each kind. Addresses have checks of their own."""
    kinds = dict.fromkeys(each.kind for each in health.problems if each.kind in _HEALTH_CHECKS)
    for kind in kinds:
        found = [each for each in health.problems if each.kind == kind]
        for each in found[:_SHOWN]:
            yield Finding(each.severity, _HEALTH_CHECKS[kind], each.subject, each.message, each.next_step)
        if len(found) > _SHOWN:
            text = f"{len(found) - _SHOWN} more partitions are in this state"
            yield Finding(
                found[0].severity, _HEALTH_CHECKS[kind], kind, text, "ottla cluster health -o json lists them"
            )
    if not kinds and health.partitions is not None:
        text = f"{health.partitions} partitions of {health.topics} topics have all replicas in sync"
        yield Finding(OK, "partitions", "all", text)


_HEALTH_CHECKS: Final = {
    "no_controller": "cluster",
    "dead_broker": "cluster",
    "offline": "partitions",
    "under_min_isr": "partitions",
    "under_replicated": "partitions",
    "not_preferred": "partitions",
}


def check_versions(probe: ClusterProbe) -> Iterator[Finding]:
    """Brokers that serve other versions than the rest: an upgrade that is not complete."""
    # Brokers grouped by what they serve: one group is the rule, two are an upgrade in progress.
    tables: dict[tuple[tuple[int, tuple[int, int]], ...], list[int]] = {}
    for each in probe.brokers:
        if each.error is None and each.node_id is not None:
            tables.setdefault(tuple(sorted(each.versions.items())), []).append(each.node_id)
    if len(tables) > 1:
        groups = "; ".join(f"brokers {', '.join(map(str, nodes))}" for nodes in tables.values())
        step = "Complete the upgrade; ottla api-versions shows the differences"
        yield Finding(WARNING, "versions", "brokers", f"brokers serve different versions: {groups}", step)


def check_cluster(cluster: Cluster, probe: ClusterProbe, given: ClientSettings) -> Iterator[Finding]:
    """The limits of brokers for these settings, clocks, and disks."""
    admin = Admin(cluster)
    alive = [each.node_id for each in probe.brokers if each.error is None and each.node_id is not None]
    checks: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
        ("settings", lambda: _check_limits(cluster, admin, alive, given)),
        ("clock", lambda: _check_clocks(cluster, admin)),
        ("disk", lambda: _check_disks(cluster, admin, alive)),
    )
    for name, check in checks:
        # A list, so that a check that fails halfway has no findings of its first half beside its error.
        try:
            yield from list(check())
        except ClientError as error:
            yield _unchecked(name, "cluster", error)


def _unchecked(check: str, subject: str, error: ClientError) -> Finding:
    """The finding of a check that was refused, or not answered."""
    step = error.next_step or "Look at the log of the broker"
    return Finding(WARNING, check, subject, f"could not be checked: {error.cause}", step)


def _check_limits(cluster: Cluster, admin: Admin, alive: list[int], given: ClientSettings) -> Iterator[Finding]:
    """Settings of the client that brokers would refuse."""
    # Most users set none of these: then no broker is asked.
    if not alive or not any(key in given for key, _, _ in _LIMITS):
        return
    resource = Resource(ResourceType.BROKER, str(alive[0]))
    entries = admin.describe_configs([resource], deadline=cluster.deadline().within_ms(_ASK_MS))[resource]
    if isinstance(entries, ClientError):
        raise entries
    yield from limit_findings(given, entries)


def limit_findings(given: Mapping[str, object], entries: list[ConfigEntry]) -> Iterator[Finding]:
    """The settings that are beyond a limit of the brokers."""
    limits = {entry.name: entry.value for entry in entries}
    for key, limit_key, highest in _LIMITS:
        value, limit = _number(given.get(key)), _number(limits.get(limit_key))
        if value is None or limit is None or (value <= limit if highest else value >= limit):
            continue
        side = "above" if highest else "below"
        text = f"{key}={value} is {side} the brokers' {limit_key}={limit}: they refuse it"
        step = f"Use at {'most' if highest else 'least'} {limit}, or change it: ottla config set broker/default"
        yield Finding(WARNING, "settings", key, text, f"{step} {limit_key}=…")


def _number(value: object) -> int | None:
    try:
        return int(str(value))
    except ValueError:
        return None


def _check_clocks(cluster: Cluster, admin: Admin) -> Iterator[Finding]:
    """Timestamps of internal topics, which brokers write with their own clock: none can be in the future."""
    view = cluster.refresh(None, cluster.deadline().within_ms(_ASK_MS))
    wanted = [
        TopicPartition(topic.name, part.partition)
        for topic in view.topics.values()
        if isinstance(topic, TopicView) and topic.internal
        for part in topic.partitions.values()
        if part.leader in view.nodes
    ][:_CLOCK_PARTITIONS]
    if not wanted:
        return
    # Taken before the request: a record that is written meanwhile must not look like one from the future.
    now = wall_ms()
    found = admin.list_offsets(dict.fromkeys(wanted, MAX_TIMESTAMP), cluster.deadline().within_ms(_ASK_MS))
    newest = {tp: each.timestamp for tp, each in found.items() if isinstance(each, OffsetFound) and each.timestamp > 0}
    yield from clock_findings(newest, now)


def clock_findings(newest: Mapping[TopicPartition, int], now_ms: int) -> Iterator[Finding]:
    """A finding for the newest timestamp, if it is in the future of this machine."""
    if not newest:
        return
    tp, latest = max(newest.items(), key=lambda item: item[1])
    ahead = latest - now_ms
    if ahead > _CLOCK_MS:
        text = f"a broker wrote {tp} with a time {ahead / 1000:.0f} s in the future of this machine"
        yield Finding(ERROR, "clock", str(tp), text, "Set the clocks of brokers and clients by NTP")
    else:
        yield Finding(OK, "clock", "brokers", "no record of the brokers is from the future of this machine")


def _check_disks(cluster: Cluster, admin: Admin, alive: list[int]) -> Iterator[Finding]:
    dirs = admin.describe_log_dirs((), deadline=cluster.deadline().within_ms(_ASK_MS), nodes=alive)
    for node, found in dirs.items():
        for each in found if isinstance(found, list) else [found]:
            yield from disk_findings(node, each)


def disk_findings(node: int, found: LogDir | ClientError) -> Iterator[Finding]:
    """A finding for a log directory that failed, or is full or nearly full."""
    subject = f"broker {node}"
    if isinstance(found, RefusedError) and found.code is ErrorCode.KAFKA_STORAGE_ERROR:
        yield Finding(ERROR, "disk", subject, found.cause, found.next_step)
        return
    if isinstance(found, ClientError):
        yield _unchecked("disk", subject, found)
        return
    if found.total_bytes <= 0 or found.usable_bytes < 0:
        return  # brokers before Kafka 3.3 do not report it
    free = found.usable_bytes / found.total_bytes
    text = f"{found.path} has {free:.0%} free, {found.usable_bytes / 2**30:.1f} GiB"
    if free < _NEARLY_FULL:
        step = "Lower retention.ms of large topics, delete records, or move replicas: ottla broker log-dirs"
        yield Finding(ERROR if free < _FULL else WARNING, "disk", subject, text, step)
    else:
        yield Finding(OK, "disk", subject, text)
