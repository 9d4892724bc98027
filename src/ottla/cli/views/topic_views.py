"""What `ottla topic` shows of a topic: gathered from several calls, as documents and rows.

Zone: real. The JSON documents here are an interface: docs/cli.md describes them, fields are only ever added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from ottla.cli.views.cluster_views import MIN_ISR, is_at_min_isr, is_unavailable, is_under_min_isr, is_under_replicated
from ottla.cli.views.output import Json
from ottla.client import (
    EARLIEST,
    LATEST,
    Admin,
    ClientError,
    ConfigEntry,
    OffsetFound,
    PartitionView,
    Resource,
    ResourceType,
    TopicPartition,
    TopicView,
    UnsupportedVersionError,
)
from ottla.types import ZERO_UUID, uuid_to_text


def id_text(topic_id: bytes) -> str | None:
    """Kafka's text for a topic id, None for a broker without ids."""
    return None if topic_id == ZERO_UUID else uuid_to_text(topic_id)


def topic_document(view: TopicView) -> dict[str, Json]:
    """A topic as `topic list` shows it."""
    replicas = [len(part.replicas) for part in view.partitions.values()]
    return {
        "name": view.name,
        "id": id_text(view.topic_id),
        "internal": view.internal,
        "partitions": len(view.partitions),
        "replication_factor": min(replicas, default=0),
    }


class Described(NamedTuple):
    """A topic as `topic describe` shows it; an offset is None when its leader cannot be reached."""

    view: TopicView
    configs: Sequence[ConfigEntry]
    start: dict[int, int | None]
    end: dict[int, int | None]

    def document(self) -> dict[str, Json]:
        """The JSON form."""
        return {
            **topic_document(self.view),
            "partitions": [
                {
                    "partition": part.partition,
                    "leader": None if part.leader < 0 else part.leader,
                    "leader_epoch": None if part.leader_epoch < 0 else part.leader_epoch,
                    "replicas": part.replicas,
                    "isr": part.isr,
                    "offline": part.offline,
                    "start_offset": self.start.get(part.partition),
                    "end_offset": self.end.get(part.partition),
                }
                for part in self.view.partitions.values()
            ],
            "configs": {config.name: {"value": config.value, "source": config.source.name} for config in self.configs},
        }

    def partition_rows(self) -> Iterator[Sequence[object]]:
        """One row per partition for a table."""
        for part in self.view.partitions.values():
            lists = [",".join(map(str, nodes)) or None for nodes in (part.replicas, part.isr, part.offline)]
            leader = None if part.leader < 0 else part.leader
            epoch = None if part.leader_epoch < 0 else part.leader_epoch
            yield (part.partition, leader, epoch, *lists, self.start.get(part.partition), self.end.get(part.partition))


def all_names(admin: Admin) -> list[str]:
    """The names of all topics, with internal ones."""
    return [view.name for view in admin.list_topics(internal=True)]


def filter_topics(found: Sequence[Described], only: str) -> list[Described]:
    """The topics that have partitions in that state, with those partitions only.

    only: under_replicated, under_min_isr, at_min_isr, unavailable.
    """
    kept = []
    for each in found:
        parts = {number: part for number, part in each.view.partitions.items() if _is_in_state(each, part, only)}
        if parts:
            kept.append(each._replace(view=each.view._replace(partitions=parts)))
    return kept


def _is_in_state(described: Described, part: PartitionView, state: str) -> bool:
    min_isr = next((int(c.value or 1) for c in described.configs if c.name == MIN_ISR), 1)
    # `unavailable` is checked by the leader alone: a partition may have replicas in sync and no leader.
    if state == "under_min_isr":
        return is_under_min_isr(part, min_isr)
    if state == "at_min_isr":
        return is_at_min_isr(part, min_isr)
    return is_unavailable(part) if state == "unavailable" else is_under_replicated(part)


def describe_all(admin: Admin, names: Sequence[str]) -> dict[str, Described | ClientError]:
    """Metadata, settings and offsets of the topics; settings that may not be read are left out."""
    views = admin.describe_topics(names)
    found = {name: view for name, view in views.items() if isinstance(view, TopicView)}
    configs = _read_configs(admin, list(found))
    starts = _read_offsets(admin, found, EARLIEST)
    ends = _read_offsets(admin, found, LATEST)
    results: dict[str, Described | ClientError] = {}
    for name, view in views.items():
        # One topic that cannot be read costs its own row, not the others.
        if isinstance(view, ClientError):
            results[name] = view
        else:
            results[name] = Described(view, configs.get(name, ()), starts[name], ends[name])
    return results


def _read_configs(admin: Admin, names: Sequence[str]) -> dict[str, Sequence[ConfigEntry]]:
    """Settings per topic, of the topics whose settings could be read."""
    try:
        results = admin.describe_configs([Resource(ResourceType.TOPIC, name) for name in names])
    except UnsupportedVersionError:
        return {}
    return {resource.name: entries for resource, entries in results.items() if not isinstance(entries, ClientError)}


def _read_offsets(admin: Admin, views: dict[str, TopicView], when: int) -> dict[str, dict[int, int | None]]:
    """Offsets per topic and partition. Partitions without a leader are left out: the request would time out."""
    led = {
        TopicPartition(name, part.partition): when
        for name, view in views.items()
        for part in view.partitions.values()
        if part.leader >= 0
    }
    results: dict[str, dict[int, int | None]] = {name: {} for name in views}
    for tp, found in admin.list_offsets(led).items():
        results[tp.topic][tp.partition] = found.offset if isinstance(found, OffsetFound) else None
    return results


def unknown_keys(admin: Admin, resources: Iterable[Resource], keys: Collection[str]) -> dict[Resource, ClientError]:
    """An error for each resource that lacks one of the keys, or whose settings cannot be read."""
    from difflib import get_close_matches

    from ottla.client.errors import ConfigError

    errors: dict[Resource, ClientError] = {}
    for resource, entries in admin.describe_configs(resources).items():
        if isinstance(entries, ClientError):
            errors[resource] = entries
            continue
        known = [entry.name for entry in entries]
        for key in keys:
            if key not in known:
                near = get_close_matches(key, known, n=1)
                errors[resource] = ConfigError(
                    f"{resource} has no setting {key!r}", f"Did you mean {near[0]!r}?" if near else ""
                )
    return errors
