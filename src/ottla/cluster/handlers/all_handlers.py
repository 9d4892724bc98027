"""Creates the handlers of this package for the broker.

Zone: deterministic.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.cluster.cluster import Cluster
from ottla.cluster.config_changes import ConfigChanges
from ottla.cluster.config_writer import ConfigWriter
from ottla.cluster.entities.resource_configs import ResourceConfigs
from ottla.cluster.features.feature_handlers import FeatureHandlers
from ottla.cluster.features.feature_store import FeatureStore
from ottla.cluster.handlers.client_handlers import ClientHandlers, OnClientSoftware, Ranges
from ottla.cluster.handlers.config_handlers import ConfigHandlers
from ottla.cluster.handlers.controller_handlers import ControllerHandlers
from ottla.cluster.handlers.metadata_handlers import MetadataHandlers
from ottla.cluster.handlers.reassignment_handlers import ReassignmentHandlers
from ottla.cluster.handlers.topic_handlers import AdmitMutations, TopicHandlers
from ottla.cluster.handlers.topic_page_handlers import TopicPageHandlers
from ottla.cluster.handlers.update_handlers import UpdateHandlers
from ottla.cluster.topic_requests import TopicRequests
from ottla.replication.control import ControlFence
from ottla.seams import Network
from ottla.security.audit_log import AuditLog


class HandlerContext(NamedTuple):
    """The objects that the handlers use."""

    cluster: Cluster
    changes: ConfigChanges
    alterations: ConfigWriter
    topics: TopicRequests
    fence: ControlFence
    network: Network
    audit: AuditLog
    admit_mutations: AdmitMutations
    resources: ResourceConfigs
    on_client_software: OnClientSoftware
    features: FeatureStore


def cluster_handlers(room: HandlerContext, ranges: Ranges) -> list[object]:
    """The objects whose methods handle requests. `ranges` returns the API versions that the whole broker serves."""
    cluster, topics = room.cluster, room.topics
    return [
        MetadataHandlers(cluster, topics),
        TopicPageHandlers(cluster),
        ClientHandlers(cluster, topics, ranges, room.on_client_software, room.features),
        TopicHandlers(cluster, topics, room.admit_mutations),
        ConfigHandlers(cluster, room.alterations, room.resources, room.audit),
        UpdateHandlers(cluster, room.changes, room.fence, room.network),
        ControllerHandlers(topics),
        FeatureHandlers(topics, room.features, room.audit),
        ReassignmentHandlers(topics),
    ]
