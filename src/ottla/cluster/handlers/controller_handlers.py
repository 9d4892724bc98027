"""AlterPartition, ControlledShutdown, AllocateProducerIds: what other brokers ask of the controller.

Zone: deterministic. Requests become calls of the controller's office, its outcomes become responses. Where this broker
does not hold the office the answer is NOT_CONTROLLER.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.cluster.topic_requests import TopicRequests
from ottla.errors import ApiError
from ottla.requests import Context, handles
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)

_BROKER_EPOCH_FROM: Final = 2
"""The version of ControlledShutdown from which on it names the broker's epoch."""


class ControllerHandlers:
    """The controller, asked by brokers."""

    def __init__(self, topics: TopicRequests) -> None:
        self._topics = topics

    @handles(ApiKey.ALTER_PARTITION, 0, 3, resource="Cluster", operation="ClusterAction", inter_broker=True)
    def alter_partition(self, context: Context, request: AlterPartitionRequest) -> None:
        """A leader proposes in-sync replicas (KIP-497)."""
        self._topics.controller.alter_partition(request, context.api_version, context.reply)

    @handles(ApiKey.CONTROLLED_SHUTDOWN, 0, 3, resource="Cluster", operation="ClusterAction", inter_broker=True)
    def controlled_shutdown(self, context: Context, request: ControlledShutdownRequest) -> None:
        """A broker is about to stop: its leaderships go to others first."""

        def moved(outcome: Sequence[TopicPartition] | ApiError) -> None:
            if isinstance(outcome, ApiError):
                context.reply(outcome)
                return
            remaining = ControlledShutdownResponse.RemainingPartition
            context.reply(
                ControlledShutdownResponse(
                    remaining_partitions=[remaining(topic_name=topic, partition_index=one) for topic, one in outcome]
                )
            )

        broker_epoch = request.broker_epoch if context.api_version >= _BROKER_EPOCH_FROM else None
        self._topics.controller.controlled_shutdown(request.broker_id, broker_epoch, context.continuing(moved))

    @handles(ApiKey.ALLOCATE_PRODUCER_IDS, 0, 0, resource="Cluster", operation="ClusterAction", inter_broker=True)
    def allocate_producer_ids(self, context: Context, request: AllocateProducerIdsRequest) -> None:
        """A block of producer ids, for brokers that do not take theirs from the metadata store."""

        def allocated(outcome: tuple[int, int] | ApiError) -> None:
            if isinstance(outcome, ApiError):
                context.reply(outcome)
            else:
                context.reply(AllocateProducerIdsResponse(producer_id_start=outcome[0], producer_id_len=outcome[1]))

        self._topics.controller.allocate_producer_ids(
            request.broker_id, request.broker_epoch, context.continuing(allocated)
        )
