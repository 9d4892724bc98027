"""The handlers of this room, for the broker to collect.

Zone: deterministic.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.cluster.alterations import Alterations
from ottla.cluster.client_handlers import ClientHandlers, Ranges
from ottla.cluster.cluster import Cluster
from ottla.cluster.config_changes import ConfigChanges
from ottla.cluster.config_handlers import ConfigHandlers
from ottla.cluster.controller_handlers import ControllerHandlers
from ottla.cluster.metadata_handlers import MetadataHandlers
from ottla.cluster.reassignment_handlers import ReassignmentHandlers
from ottla.cluster.topic_handlers import TopicHandlers
from ottla.cluster.topic_requests import TopicRequests
from ottla.cluster.update_handlers import UpdateHandlers
from ottla.replication.control import ControlFence
from ottla.seams import Network


class Room(NamedTuple):
    """What the handlers stand on."""

    cluster: Cluster
    changes: ConfigChanges
    alterations: Alterations
    topics: TopicRequests
    fence: ControlFence
    network: Network


def cluster_handlers(room: Room, ranges: Ranges) -> list[object]:
    """Objects whose methods declare what they handle; `ranges` tells what the whole broker serves."""
    cluster, topics = room.cluster, room.topics
    return [
        MetadataHandlers(cluster, topics),
        ClientHandlers(cluster, topics, ranges),
        TopicHandlers(cluster, topics),
        ConfigHandlers(cluster, room.alterations),
        UpdateHandlers(cluster, room.changes, room.fence, room.network),
        ControllerHandlers(topics),
        ReassignmentHandlers(topics),
    ]
