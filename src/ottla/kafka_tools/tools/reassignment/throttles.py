"""The throttles of reassignments, which are settings of brokers and of topics (KIP-73, KIP-113).

Zone: real. Brokers have the rates in bytes per second; topics list the replicas that they apply to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from ottla.client.admin.admin import Admin
from ottla.client.admin.types import ConfigChange, ConfigOp, Resource, ResourceType
from ottla.client.errors import first_error
from ottla.types import TopicPartition

_RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_REPLICAS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_LOG_DIR_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"


class Move(NamedTuple):
    """The brokers that a partition is copied from, and those that it is copied to."""

    sources: frozenset[int]
    destinations: frozenset[int]


def set_replication_throttle(admin: Admin, moves: Mapping[TopicPartition, Move], rate: int) -> None:
    """Limit the copies between brokers. Raises ClientError."""
    changes: dict[Resource, list[ConfigChange]] = {}
    for topic in sorted({tp.topic for tp in moves}):
        own = {tp.partition: move for tp, move in sorted(moves.items()) if tp.topic == topic}
        lists = (
            [f"{number}:{node}" for number, move in own.items() for node in sorted(move.sources)],
            [f"{number}:{node}" for number, move in own.items() for node in sorted(move.destinations)],
        )
        changes[Resource(ResourceType.TOPIC, topic)] = [
            ConfigChange(key, ",".join(replicas)) for key, replicas in zip(_REPLICAS, lists, strict=True)
        ]
    nodes = {node for move in moves.values() for node in move.sources | move.destinations}
    # Settings of a broker that is not alive cannot be changed: it moves nothing either.
    for broker in _live_brokers(admin, nodes):
        changes[broker] = [ConfigChange(key, str(rate)) for key in _RATES]
    _alter_configs(admin, changes)


def set_log_dir_throttle(admin: Admin, nodes: Collection[int], rate: int) -> None:
    """Limit the copies between log directories of these brokers. Raises ClientError."""
    brokers = _live_brokers(admin, nodes)
    _alter_configs(admin, {broker: [ConfigChange(_LOG_DIR_RATE, str(rate))] for broker in brokers})


def clear_throttles(admin: Admin, nodes: Collection[int], topics: Iterable[str]) -> None:
    """Remove all throttles of all brokers, of these, and of topics. Raises ClientError.

    Brokers that are not alive keep theirs: no other broker changes their settings.
    """
    topics = sorted(topics)
    # All brokers: an earlier plan, whose file is lost, may have left its rates on others.
    live = [node.node_id for node in admin.describe_cluster().nodes]
    named = sorted({*nodes, *live})
    print(f"Clearing broker-level throttles on {_counted('broker', named)}", flush=True)
    deletions = [ConfigChange(key, None, ConfigOp.DELETE) for key in (*_RATES, _LOG_DIR_RATE)]
    _alter_configs(admin, {Resource(ResourceType.BROKER, str(node)): deletions for node in live})
    print(f"Clearing topic-level throttles on {_counted('topic', topics)}", flush=True)
    deletions = [ConfigChange(key, None, ConfigOp.DELETE) for key in _REPLICAS]
    _alter_configs(admin, {Resource(ResourceType.TOPIC, topic): deletions for topic in topics})


def _counted(noun: str, values: Collection[object]) -> str:
    return f"{noun}{'' if len(values) == 1 else 's'} {','.join(map(str, values))}"


def _live_brokers(admin: Admin, nodes: Collection[int]) -> list[Resource]:
    live = [node.node_id for node in admin.describe_cluster().nodes]
    return [Resource(ResourceType.BROKER, str(node)) for node in live if node in nodes]


def _alter_configs(admin: Admin, changes: Mapping[Resource, list[ConfigChange]]) -> None:
    if changes and (error := first_error(admin.alter_configs(changes))) is not None:
        raise error
