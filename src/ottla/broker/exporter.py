"""Metrics under the names of the usual lag exporter, so that its dashboards and alerts work without it.

Zone: deterministic. The leader reports a partition's offsets and replicas, the controller what concerns the whole
cluster: so each row comes from one broker, and sums over brokers are right. `ottla.groups.metrics` has groups and lags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ottla.cluster.image import ClusterImage, PartitionImage
from ottla.metrics import Labels, Registry
from ottla.replication.partition.partition import Partition
from ottla.replication.partition_registry import PartitionRegistry

_PARTITION: Final = "kafka_topic_partition_"
Rows = Iterator[tuple[Labels, float]]


class ExporterMetrics:
    """Registers the metrics of one broker."""

    def __init__(
        self,
        registry: Registry,
        hosted: PartitionRegistry,
        image: Callable[[], ClusterImage],
        is_controller: Callable[[], bool],
    ) -> None:
        self._hosted = hosted
        self._image = image
        self._is_controller = is_controller
        gauge = registry.add_gauge
        gauge("kafka_brokers", "Brokers in the cluster.", self._broker_count)
        gauge("kafka_broker_info", "1 for each broker.", self._broker_infos)
        gauge("kafka_topic_partitions", "Partitions of a topic.", self._topic_partitions)
        self._of_logs(registry)
        self._of_replicas(registry)

    def _of_logs(self, registry: Registry) -> None:
        gauge, rows = registry.add_gauge, self._led_logs
        gauge(f"{_PARTITION}current_offset", "End of the committed records.", lambda: rows(lambda p: p.high_watermark))
        gauge(f"{_PARTITION}oldest_offset", "First offset.", lambda: rows(lambda p: p.log.start_offset))

    def _of_replicas(self, registry: Registry) -> None:
        gauge, rows = registry.add_gauge, self._led_image_rows
        gauge(f"{_PARTITION}leader", "Id of the leader.", lambda: rows(lambda p: p.leader))
        gauge(
            f"{_PARTITION}leader_is_preferred",
            "1 where the first assigned replica leads.",
            lambda: rows(lambda p: p.replicas[:1] == (p.leader,)),
        )
        gauge(f"{_PARTITION}replicas", "Assigned replicas.", lambda: rows(lambda p: len(p.replicas)))
        gauge(f"{_PARTITION}in_sync_replica", "Replicas in sync.", lambda: rows(lambda p: len(p.isr)))
        gauge(
            f"{_PARTITION}under_replicated_partition",
            "1 where fewer replicas are in sync than are assigned.",
            lambda: rows(lambda p: len(p.isr) < len(p.replicas)),
        )

    # -- the cluster ---------------------------------------------------------------------------------------------------

    def _broker_count(self) -> Rows:
        if self._is_controller():
            yield {}, len(self._image().brokers)

    def _broker_infos(self) -> Rows:
        if self._is_controller():
            for broker in self._image().brokers.values():
                where = broker.endpoints[0] if broker.endpoints else None
                yield {"id": str(broker.node_id), "address": f"{where.host}:{where.port}" if where else ""}, 1

    def _topic_partitions(self) -> Rows:
        if self._is_controller():
            for topic in self._image().topics.values():
                yield {"topic": topic.name}, len(topic.partitions)

    # -- partitions ----------------------------------------------------------------------------------------------------

    def _led_partitions(self) -> Iterator[Partition]:
        return (each for each in self._hosted if each.is_leader)

    def _led_logs(self, read: Callable[[Partition], float]) -> Rows:
        for each in self._led_partitions():
            yield _partition_labels(each), read(each)

    def _led_image_rows(self, read: Callable[[PartitionImage], float]) -> Rows:
        image = self._image()
        for each in self._led_partitions():
            found = image.find_partition(each.tp.topic, each.tp.partition)
            if found is not None:
                yield _partition_labels(each), read(found)


def _partition_labels(partition: Partition) -> Labels:
    return {"topic": partition.tp.topic, "partition": str(partition.tp.partition)}
