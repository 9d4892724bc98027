"""What a broker does when its image of the cluster, or its settings, have changed.

Zone: deterministic. Passes each change to the objects that it concerns, in one order.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.broker.coordination.coordinators import BrokerCoordinators
from ottla.broker.listener import BrokerListener
from ottla.broker.ready_check import ReadyCheck
from ottla.cluster.cluster import Cluster
from ottla.cluster.controller.controller_election import ControllerElector
from ottla.cluster.image import Delta
from ottla.replication.replica_manager import ReplicaManager
from ottla.storage.log_manager import LogManager
from ottla.types import TopicPartition


class ClusterChanges:
    """Receives the deltas of the image."""

    def __init__(
        self,
        cluster: Cluster,
        seat: ControllerElector,
        logs: LogManager,
        replicas: ReplicaManager,
        coordinators: BrokerCoordinators,
        ready_check: ReadyCheck,
        listener: BrokerListener,
    ) -> None:
        self._cluster = cluster
        self._elector = seat
        self._logs = logs
        self._replicas = replicas
        self._coordinators = coordinators
        self._ready_check = ready_check
        self._listener = listener

    def on_topics_deleted(self, tps: Sequence[TopicPartition]) -> None:
        """Handle the deletion of logs whose topics are being deleted.

        Mostly the image has lost a topic before StopReplica comes: then `on_change`, which came first, had no log to
        forget. If it still has the topic, its log is expected until the change comes.
        """
        topics = self._cluster.image.topics
        self._logs.forget_partitions([tp for tp in tps if tp.topic not in topics])

    def on_change(self, delta: Delta) -> None:
        """Handle a change of the image or of the settings."""
        self._ready_check.on_image()
        if delta.deleted:
            # Partitions of a deleted topic that were ordered never appear in the image: kept, they would count as
            # missing, and the broker would be ready only after a time-out.
            self._ready_check.readiness.forget_topics(delta.deleted)
            self._logs.forget_topics(delta.deleted)
            self._coordinators.topics_deleted(delta.deleted)
        for name in delta.configured:
            self._replicas.apply_topic_config(name, self._cluster.topic_config(name))
        if delta.broker_config:
            self._logs.apply_config(self._cluster.config)
            self._replicas.apply_broker_config(self._cluster.config)
            self._listener.on_config(self._cluster.config)
        if delta.configured or delta.broker_config:
            self._elector.on_settings_changed(delta)
