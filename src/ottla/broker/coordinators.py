"""The wiring of this broker's coordinators: the leader of a partition of an internal topic coordinates its names.

Zone: deterministic. Wiring only; `ottla.groups` and `ottla.transactions` have the coordinators.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.broker.group_txn_verification import GroupTxnVerification
from ottla.broker.transaction_cluster_view import TransactionClusterView
from ottla.broker_client import BrokerClient
from ottla.cluster.cluster import Cluster
from ottla.cluster.coordinators import partition_for
from ottla.cluster.handlers.client_handlers import TRANSACTION_VERSION
from ottla.cluster.image import CONSUMER_OFFSETS, TRANSACTION_STATE
from ottla.cluster.producer_ids import ProducerIds
from ottla.config.broker import BrokerConfig
from ottla.coordinator.coordinator import Coordinator
from ottla.coordinator.shard import TransactionEnd
from ottla.coordinator.shard_runtime import RuntimeContext
from ottla.effects import Effects
from ottla.groups.groups import TOPIC, Groups
from ottla.groups.handlers.admin_handlers import GroupAdminHandlers
from ottla.groups.handlers.member_handlers import MemberHandlers
from ottla.groups.handlers.offset_handlers import OffsetHandlers
from ottla.groups.handlers.txn_offset_handlers import TxnOffsetHandlers
from ottla.groups.heartbeats import Heartbeats
from ottla.groups.metrics import GroupMetrics
from ottla.groups.records import GroupCodec
from ottla.groups.shard import GroupShard
from ottla.metrics import Registry
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.partition_context import PartitionContext
from ottla.replication.partition_registry import PartitionRegistry
from ottla.replication.produce import verifier
from ottla.replication.produce.verifier import VerificationCodes, VerificationRequest
from ottla.seams import Clock, World
from ottla.transactions.admin_handlers import TransactionAdminHandlers
from ottla.transactions.codec import TransactionCodec
from ottla.transactions.machine import Policy
from ottla.transactions.messages import RequestedPartitions
from ottla.transactions.metrics import TransactionMetrics
from ottla.transactions.producer_handlers import ProducerHandlers
from ottla.transactions.service import Transactions
from ottla.transactions.state import ProducerIdentity

_new = tuple.__new__  # takes a third of the time of the class's own constructor; called twice per transaction


class BrokerCoordinators:
    """The coordinators of groups and of transactions, each with its own internal topic."""

    def __init__(
        self,
        cluster: Cluster,
        world: World,
        purgatory: Purgatory,
        effects: Effects,
        shared: PartitionContext,
        peers: BrokerClient,
        ids: ProducerIds,
        surroundings: TransactionClusterView,
        openings: GroupTxnVerification,
    ) -> None:
        """Registers for role changes and markers of this broker's partitions."""
        config = cluster.config
        self._cluster = cluster
        self._world = world
        self._surroundings = surroundings
        self._openings = openings
        around = world.clock, purgatory, effects.queue_effect

        def make(_: int) -> GroupShard:
            return GroupShard(lambda: cluster.config)

        shards = Coordinator(TOPIC, _group_tools(config, *around), make)
        self.groups = Groups(shards, self, partition_for, lambda: cluster.config, self._new_id)
        tools = RuntimeContext(*around, TransactionCodec(), buffer_size=config.transaction_state_log_load_buffer_size)
        self.transactions = Transactions(
            tools,
            _transaction_policy(config),
            ids,
            peers,
            surroundings,
            config.request_timeout_ms,
        )
        self.heartbeats = Heartbeats(self.groups, world.network)
        self._producers = ProducerHandlers(self.transactions, ids, surroundings)
        shared.on_role = self._on_role
        shared.on_marker = self._on_marker

    def handler_objects(self) -> list[object]:
        """The objects whose methods are declared as handlers."""
        clock = self._world.clock
        return [
            MemberHandlers(self.groups),
            OffsetHandlers(self.groups, lambda: clock.now().wall_ms),
            TxnOffsetHandlers(self.groups, lambda: clock.now().wall_ms, self._openings),
            GroupAdminHandlers(self.groups),
            self._producers,
            TransactionAdminHandlers(self.transactions, lambda: clock.now().wall_ms),
        ]

    def verify_here(self, question: VerificationRequest, done: Callable[[VerificationCodes], None]) -> bool:
        """Implements `ottla.replication.produce.verifier.LocalCoordinator`: a question to this broker itself needs no
        request."""
        shard = self.transactions.shard_of(question.transactional_id)
        if shard is None:
            return False
        identity = _new(ProducerIdentity, (question.producer_id, question.epoch))
        fields = question.transactional_id, identity, not question.add, question.partitions
        self._producers.add_or_verify(_new(RequestedPartitions, fields), verifier.VERSION, done, shard.submit_command)
        return True

    def declare_metrics(self, registry: Registry, hosted: PartitionRegistry) -> None:
        """Register the metrics of groups and transactions."""

        def end_of(topic: str, partition: int) -> int | None:
            found = hosted.find_partition(topic, partition)
            return None if found is None else found.high_watermark

        GroupMetrics(registry, self.groups, end_of)
        TransactionMetrics(registry, self.transactions)

    def partition_count(self, topic: str) -> int:
        """The number of partitions of a topic; 0: there is no such topic."""
        found = self._cluster.image.topics.get(topic)
        return 0 if found is None else len(found.partitions)

    def name_of(self, topic_id: bytes) -> str:
        """The name of the topic with that id; "" when there is none."""
        found = self._cluster.image.topic_by_id(topic_id)
        return "" if found is None else found.name

    def id_of(self, topic: str) -> bytes | None:
        """The id of a topic; None: there is no such topic."""
        found = self._cluster.image.topics.get(topic)
        return None if found is None else found.topic_id

    def is_to_lead(self, topic: str, partition: int) -> bool:
        """Whether the cluster expects this broker to lead a partition."""
        found = self._cluster.image.find_partition(topic, partition)
        return found is not None and found.leader == self._cluster.node_id

    def _new_id(self) -> str:
        """A random UUID in its usual text form."""
        text = self._world.entropy.random_bytes("member ids", 16).hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    # -- events of partitions ----------------------------------------------------------------------------------------

    def _on_role(self, partition: object) -> None:
        assert isinstance(partition, Partition)
        self.groups.coordinator.on_role(partition)
        if partition.tp.topic == TRANSACTION_STATE and partition.is_leader:
            self._surroundings.took_over()
        self.transactions.on_role(partition)

    def _on_marker(self, partition: object, producer_id: int, epoch: int, commit: bool, offset: int) -> None:
        """Forward a marker that was appended at `offset` to a partition of `__consumer_offsets` that is led here."""
        assert isinstance(partition, Partition)
        if partition.tp.topic == CONSUMER_OFFSETS:
            end = TransactionEnd(producer_id, epoch, commit)
            self.groups.coordinator.end_transaction(partition, end, offset)

    def topics_deleted(self, names: tuple[str, ...]) -> None:
        """Forget topics that were deleted."""
        self.groups.topics_deleted(frozenset(names))

    def stop_coordinators(self) -> None:
        """Refuse all requests because the logs are about to be closed."""
        self.groups.coordinator.stop_shards()
        self.transactions.stop_coordinator()


def _group_tools(
    config: BrokerConfig, clock: Clock, purgatory: Purgatory, later: Callable[[Callable[[], None]], None]
) -> RuntimeContext:
    return RuntimeContext(
        clock,
        purgatory,
        later,
        GroupCodec(),
        commit_timeout_ms=config.offsets_commit_timeout_ms,
        buffer_size=config.offsets_load_buffer_size,
        compression=config.offsets_topic_compression_codec,
    )


def _transaction_policy(config: BrokerConfig) -> Policy:
    return Policy(
        config.transaction_max_timeout_ms,
        config.transactional_id_expiration_ms,
        config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
        config.transaction_remove_expired_transaction_cleanup_interval_ms,
        TRANSACTION_VERSION,
    )
