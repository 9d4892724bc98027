"""The handlers of this room, for the broker to collect.

Zone: deterministic.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.cluster.cluster import Cluster
from ottla.cluster.config_changes import ConfigChanges
from ottla.cluster.config_writer import ConfigWriter
from ottla.cluster.handlers.client_handlers import ClientHandlers, Ranges
from ottla.cluster.handlers.config_handlers import ConfigHandlers
from ottla.cluster.handlers.controller_handlers import ControllerHandlers
from ottla.cluster.handlers.metadata_handlers import MetadataHandlers
from ottla.cluster.handlers.reassignment_handlers import ReassignmentHandlers
from ottla.cluster.handlers.topic_handlers import TopicHandlers
from ottla.cluster.handlers.update_handlers import UpdateHandlers
from ottla.cluster.topic_requests import TopicRequests
from ottla.replication.control import ControlFence
from ottla.seams import Network


class HandlerContext(NamedTuple):
    """What the handlers stand on."""

    cluster: Cluster
    changes: ConfigChanges
    alterations: ConfigWriter
    topics: TopicRequests
    fence: ControlFence
    network: Network


def cluster_handlers(room: HandlerContext, ranges: Ranges) -> list[object]:
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
