"""AlterPartition, ControlledShutdown, AllocateProducerIds: requests of other brokers to the controller.

Zone: deterministic. Requests become calls of the controller, its outcomes become responses. A broker that is not the
controller answers NOT_CONTROLLER.
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
"""The first version of ControlledShutdown that contains the broker's epoch."""


class ControllerHandlers:
    """Handles requests of brokers to the controller."""

    def __init__(self, topics: TopicRequests) -> None:
        self._topics = topics

    @handles(ApiKey.ALTER_PARTITION, 0, 3, resource="Cluster", operation="ClusterAction", inter_broker=True)
    def alter_partition(self, context: Context, request: AlterPartitionRequest) -> None:
        """Decide about the ISRs that a leader proposes (KIP-497)."""
        self._topics.controller.alter_partition(request, context.api_version, context.send_reply)

    @handles(ApiKey.CONTROLLED_SHUTDOWN, 0, 3, resource="Cluster", operation="ClusterAction", inter_broker=True)
    def controlled_shutdown(self, context: Context, request: ControlledShutdownRequest) -> None:
        """Move the leaderships of a broker that is about to stop."""

        def moved(outcome: Sequence[TopicPartition] | ApiError) -> None:
            if isinstance(outcome, ApiError):
                context.send_reply(outcome)
                return
            remaining = ControlledShutdownResponse.RemainingPartition
            context.send_reply(
                ControlledShutdownResponse(
                    remaining_partitions=[remaining(topic_name=topic, partition_index=one) for topic, one in outcome]
                )
            )

        broker_epoch = request.broker_epoch if context.api_version >= _BROKER_EPOCH_FROM else None
        self._topics.controller.controlled_shutdown(request.broker_id, broker_epoch, context.wrap_step(moved))

    @handles(ApiKey.ALLOCATE_PRODUCER_IDS, 0, 0, resource="Cluster", operation="ClusterAction", inter_broker=True)
    def allocate_producer_ids(self, context: Context, request: AllocateProducerIdsRequest) -> None:
        """Allocate a block of producer ids for brokers that do not allocate theirs in the metadata store."""

        def allocated(outcome: tuple[int, int] | ApiError) -> None:
            if isinstance(outcome, ApiError):
                context.send_reply(outcome)
            else:
                context.send_reply(
                    AllocateProducerIdsResponse(producer_id_start=outcome[0], producer_id_len=outcome[1])
                )

        self._topics.controller.allocate_producer_ids(
            request.broker_id, request.broker_epoch, context.wrap_step(allocated)
        )
