"""The metrics of a broker, read at each scrape.

Zone: deterministic. Names follow the JMX exporter's usual rules, which dashboards for Kafka expect. The hot path adds
to plain attributes; nothing is computed before a scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ottla.broker.containment import name_of
from ottla.broker.dispatch import Dispatch
from ottla.metrics import Labels, Registry
from ottla.replication.follower.fetcher_manager import ReplicaFetcherManager
from ottla.replication.moves import ReplicaMoves
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.partition_context import PartitionContext
from ottla.replication.partition_registry import HostedTopic, PartitionRegistry
from ottla.storage.log_manager import LogManager
from ottla.wire.apis import API_TABLE

CALLBACK: Final = "callback"
"""Label in place of an API's name for defects in callbacks of alarms."""
LATE_BUFFER_MS: Final = 5 * 60 * 1000
"""A transaction counts as late when it is open for transaction.max.timeout.ms and this time, as in Kafka."""
_Reader = Callable[[Partition], float]
_TOPIC = "kafka_server_brokertopicmetrics_"


class BrokerMetrics:
    """Registers the metrics of a broker and its parts."""

    def __init__(
        self, hosted: PartitionRegistry, dispatch: Dispatch, logs: LogManager, shared: PartitionContext
    ) -> None:
        self._hosted = hosted
        self._dispatch = dispatch
        self._logs = logs
        self.registry = Registry()
        self._register_topics()
        self._register_partitions()
        self._register_replicas()
        self._register_isr(shared)
        self._register_requests()

    def _register_topics(self) -> None:
        add = self.registry.add_counter
        add(f"{_TOPIC}messagesin_total", "Records appended.", lambda: self._topic_sums("messages_in"))
        add(f"{_TOPIC}bytesin_total", "Bytes of record batches appended.", lambda: self._topic_sums("bytes_in"))
        add(
            f"{_TOPIC}bytesout_total",
            "Bytes of record batches given to readers.",
            lambda: self._topic_sums("bytes_out"),
        )
        add(f"{_TOPIC}failedproducerequests_total", "Partitions of Produce requests refused.", self._failed_produces)
        add(f"{_TOPIC}failedfetchrequests_total", "Partitions of Fetch requests refused.", self._failed_fetches)

        add(
            f"{_TOPIC}producemessageconversions_total",
            "Records that came in another message format than the topic's.",
            lambda: self._topic_sums("produce_conversions"),
        )
        add(
            f"{_TOPIC}fetchmessageconversions_total",
            "Records given to old readers in another message format than the topic's.",
            lambda: self._topic_sums("fetch_conversions"),
        )

    def _topic_sums(self, attribute: str) -> Iterator[tuple[Labels, float]]:
        # Summed at a scrape: the hot path adds to one int of the partition, and knows no metric.
        for topic in self._hosted.by_name.values():
            yield {"topic": topic.name}, sum(getattr(each, attribute) for each in topic.partitions.values())

    def _failed_produces(self) -> Iterator[tuple[Labels, float]]:
        return (({"topic": topic.name}, topic.failed_produces) for topic in self._all_topics())

    def _failed_fetches(self) -> Iterator[tuple[Labels, float]]:
        return (({"topic": topic.name}, topic.failed_fetches) for topic in self._all_topics())

    def _all_topics(self) -> Iterator[HostedTopic]:
        yield from self._hosted.by_name.values()

    def _register_partitions(self) -> None:
        add = self.registry.add_gauge
        add(
            "kafka_log_logmanager_offlinelogdirectorycount",
            "Log directories out of service.",
            lambda: float(len(self._logs.offline_dirs)),
        )
        add("kafka_log_log_size", "Bytes of a log.", lambda: self._per_log(lambda each: each.log.segments.size))
        add("kafka_log_log_logstartoffset", "First offset.", lambda: self._per_log(lambda each: each.log.start_offset))
        add("kafka_log_log_logendoffset", "Next offset.", lambda: self._per_log(lambda each: each.log.end_offset))

    def _register_replicas(self) -> None:
        add, prefix = self.registry.add_gauge, "kafka_server_replicamanager_"
        add(f"{prefix}partitioncount", "Replicas here.", lambda: self._count_partitions(lambda _: True))
        add(f"{prefix}leadercount", "Partitions led here.", lambda: self._count_partitions(lambda each: each.is_leader))
        add(
            f"{prefix}underreplicatedpartitions",
            "Partitions led here with an assigned replica that is not in sync.",
            lambda: self._count_partitions(lambda each: each.under_replicated),
        )
        add(
            f"{prefix}underminisrpartitioncount",
            "Partitions led here with fewer in-sync replicas than min.insync.replicas.",
            lambda: self._count_partitions(lambda each: each.is_leader and each.spare_in_sync < 0),
        )
        add(
            f"{prefix}atminisrpartitioncount",
            "Partitions led here with as many in-sync replicas as min.insync.replicas.",
            lambda: self._count_partitions(lambda each: each.is_leader and each.spare_in_sync == 0),
        )
        add(
            f"{prefix}offlinereplicacount",
            "Replicas here that are out of service.",
            lambda: self._count_partitions(lambda each: each.offline is not None),
        )

    def register_transactions(self, now_ms: Callable[[], int], max_timeout_ms: Callable[[], int]) -> None:
        """Register producers and transactions. `now_ms` is wall time, the other transaction.max.timeout.ms."""
        add, prefix = self.registry.add_gauge, "kafka_server_replicamanager_"
        add(f"{prefix}produceridcount", "Producers whose state partitions here keep.", self._producer_ids)
        add(
            f"{prefix}partitionswithlatetransactionscount",
            "Partitions led here with a transaction that its coordinator should have ended long ago.",
            lambda: self._late_transactions(now_ms(), max_timeout_ms() + LATE_BUFFER_MS),
        )
        add(
            "kafka_cluster_partition_laststableoffset",
            "The end of the records that read_committed may read.",
            lambda: self._per_log(lambda each: each.last_stable_offset),
        )
        add(
            "kafka_cluster_partition_laststableoffsetlag",
            "Committed records after the last stable offset.",
            lambda: self._per_log(lambda each: each.high_watermark - each.last_stable_offset),
        )

    def _producer_ids(self) -> float:
        return float(sum(len(each.log.producers) for each in self._hosted))

    def _late_transactions(self, now_ms: int, after_ms: int) -> float:
        return self._count_partitions(
            lambda each: each.is_leader and each.log.producers.has_late_transaction(now_ms, after_ms)
        )

    def _count_partitions(self, wanted: Callable[[Partition], bool]) -> float:
        return float(sum(map(wanted, self._hosted)))

    def register_fetchers(self, fetchers: ReplicaFetcherManager) -> None:
        """Register the metrics of this broker's fetchers."""
        add, prefix = self.registry.add_gauge, "kafka_server_replicafetchermanager_"
        add(f"{prefix}maxlag", "The largest lag of a follower here, in records.", lambda: fetchers.max_lag)
        add(
            f"{prefix}failedpartitionscount",
            "Partitions that are not fetched any more because of an error.",
            lambda: fetchers.failed_partitions,
        )

    def register_moves(self, moves: ReplicaMoves) -> None:
        """Register the metric of replicas that move between this broker's log directories."""
        self.registry.add_gauge(
            "kafka_server_replicaalterlogdirsmanager_maxlag",
            "The largest lag of a replica that moves to another log directory, in records.",
            lambda: moves.max_lag,
        )

    def _register_isr(self, shared: PartitionContext) -> None:
        add, prefix = self.registry.add_counter, "kafka_server_replicamanager_"
        add(f"{prefix}isrshrinks_total", "Changes that took replicas out of an ISR.", lambda: shared.isr_shrinks)
        add(f"{prefix}isrexpands_total", "Changes that took replicas into an ISR.", lambda: shared.isr_expands)
        add(f"{prefix}failedisrupdates_total", "ISR changes refused.", lambda: shared.failed_isr_updates)
        add(f"{_TOPIC}replicationbytesin_total", "Bytes appended by followers.", lambda: shared.replication_bytes_in)
        add(f"{_TOPIC}replicationbytesout_total", "Bytes given to followers.", lambda: shared.replication_bytes_out)

    def _per_log(self, read: _Reader) -> Iterator[tuple[Labels, float]]:
        for each in self._hosted:
            yield {"topic": each.tp.topic, "partition": str(each.tp.partition)}, read(each)

    def _register_requests(self) -> None:
        self.registry.add_counter(
            "kafka_network_requestmetrics_requests_total", "Requests by API.", self._request_counts
        )

        self.registry.add_counter(
            "ottla_contained_defects_total",
            "Requests that failed because of a defect of the broker, by API, and failed callbacks of alarms.",
            self._contained_counts,
        )

    def _contained_counts(self) -> Iterator[tuple[Labels, float]]:
        # By API, so that a defect that one request provokes can be found by its name.
        for key, count in sorted(self._dispatch.containment.counts.items()):
            yield {"request": name_of(key)}, count
        yield {"request": CALLBACK}, self._dispatch.containment.callbacks

    def _request_counts(self) -> Iterator[tuple[Labels, float]]:
        # Hot and cold requests are counted in two tables; a reader of metrics sees one.
        counts = {key: api.count for key, api in self._dispatch.hot.items()}
        counts |= {key: api.count for key, api in self._dispatch.cold.items()}
        for key, count in sorted(counts.items()):
            yield {"request": API_TABLE[key].name}, count
