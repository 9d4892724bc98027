"""The parts of a broker that transactions need, built as in `ottla.broker.assembly`.

Zone: deterministic. Without a metadata store and elections: producer ids are counted, internal topics exist, ISRs never
change. The brokers that lead the partitions share these parts; requests between them go over the network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.broker.assembly import handlers, records
from ottla.broker.assembly.forward import Forward
from ottla.broker.assembly.foundation import Foundation, lay_foundation
from ottla.broker.assembly.groups import build_groups
from ottla.broker.assembly.replication import build_replicas
from ottla.broker.assembly.transactions import build_transactions
from ottla.broker.coordination.coordinators import BrokerCoordinators
from ottla.cluster.image import Delta, TopicImage
from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.errors import ApiError
from ottla.replication.control import ControlFence
from ottla.replication.produce.verifier import Verifier
from ottla.replication.replica_manager import ReplicaManager
from ottla.seams import Done, World

TOPIC: Final = TopicConfig(min_insync_replicas=1, segment_index_bytes=1024)
_CONFIG: Final = BrokerConfig.from_properties({"log.dirs": "data", "node.id": "1"})[0]


class BrokerParts(NamedTuple):
    """What a schedule needs of a broker."""

    base: Foundation
    coordinators: BrokerCoordinators
    verifier: Verifier
    replicas: ReplicaManager


class _CountedIds:
    """Allocates producer ids."""

    def __init__(self) -> None:
        self._next = 1000

    def take_producer_id(self, done: Done[int]) -> None:
        """Allocate the next id."""
        self._next += 1
        done(self._next - 1)


class _ExistingTopics:
    """Finds internal topics, which exist already."""

    def __init__(self, base: Foundation) -> None:
        self._cluster = base.cluster

    def find_internal_topic(self, name: str, done: Callable[[TopicImage | ApiError], None]) -> None:
        """Pass the topic to `done`."""
        done(self._cluster.image.topics[name])


def build_parts(world: World) -> BrokerParts:
    """Create the objects. Nothing here follows a change of the image, or a controller: there are none."""
    on_change: Forward[[Delta]] = Forward("the handling of changes of the cluster")
    on_new_controller: Forward[[]] = Forward("the handling of a new controller")
    on_dir_failure: Forward[[]] = Forward("the report of a failed log directory")
    on_dir_offline: Forward[[str]] = Forward("the handling of failed log directories")
    base = lay_foundation(_CONFIG, world, on_change, on_dir_offline)
    # No function that writes markers here: the leader of each partition is another broker.
    transactions = build_transactions(base, _CountedIds(), _ExistingTopics(base), None)
    groups = build_groups(base, transactions.verifier)
    coordinators = BrokerCoordinators(groups.groups, groups.heartbeats, transactions.transactions, transactions.view)
    fence = ControlFence(base.node_id, None, on_new_controller)
    replicas = build_replicas(base, fence, lambda _: TOPIC, coordinators, on_dir_failure)
    on_dir_offline.bind(replicas.on_dir_offline)
    records.add_produce(base, transactions.verifier)
    handlers.add_coordinators(base, handlers.new_marker_handlers(base), transactions, groups)
    return BrokerParts(base, coordinators, transactions.verifier, replicas)
