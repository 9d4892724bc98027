"""UpdateMetadata: the controller sends the state of the cluster.

Zone: deterministic. A request is applied only if its controller epoch is not outdated and it is for the present
registration of this broker; `updates` builds the image. A request is refused if a later one has been applied already:
it came over a connection that the controller had given up.
"""

from __future__ import annotations

from typing import Final

from ottla.changes import changes_state
from ottla.cluster.cluster import Cluster
from ottla.cluster.config_changes import ConfigChanges
from ottla.cluster.updates import check_partitions, new_topics
from ottla.errors import ApiError, ErrorCode
from ottla.replication.control import UNKNOWN_BROKER_EPOCH, ControlFence
from ottla.requests import Context, handles
from ottla.seams import Network
from ottla.wire.apis import ApiKey
from ottla.wire.messages import UpdateMetadataRequest, UpdateMetadataResponse

_HALF: Final = 1 << 30
"""Correlation ids wrap around at 2^31: the later of two is less than this ahead of the other."""


class UpdateHandlers:
    """Applies the controller's updates."""

    def __init__(self, cluster: Cluster, changes: ConfigChanges, fence: ControlFence, network: Network) -> None:
        self._cluster = cluster
        self._changes = changes
        self._fence = fence
        self._network = network
        self._listener = cluster.config.inter_broker_listener
        self._newest = (0, -1)
        """The controller epoch and the correlation id of the newest request."""
        self._registered = UNKNOWN_BROKER_EPOCH
        """The broker epoch at the controller's last update."""

    @handles(ApiKey.UPDATE_METADATA, 7, 8, resource="Cluster", operation="ClusterAction", inter_broker=True)
    @changes_state
    def update_metadata(self, context: Context, request: UpdateMetadataRequest) -> None:
        """Apply live brokers and states of partitions. A topic with a partition whose leader is -2 is deleted."""
        # An unknown epoch is checked against the store first, so that no other program can pose as the controller.
        if self._fence.needs_lookup(request.controller_epoch):
            self._fence.look_up_epoch(lambda: self._begin_after_lookup(context, request))
        else:
            self._begin_update(context, request)

    def _begin_after_lookup(self, context: Context, request: UpdateMetadataRequest) -> None:
        """Continue after the store was asked for the controller's epoch."""
        try:
            self._begin_update(context, request)
        except ApiError as error:
            context.send_reply(error.as_value())

    def _begin_update(self, context: Context, request: UpdateMetadataRequest) -> None:
        self._check_request(request)
        self._check_order(request.controller_epoch, context.correlation_id)
        check_partitions(request)
        fresh = new_topics(self._cluster.image, request)
        for name in fresh:
            if name in self._cluster.image.topics:
                self._cluster.forget_settings(name)  # deleted and created again: the new topic has its own settings
        self._changes.prepare_topics(fresh, lambda: self._apply_update(context, request))

    def _apply_update(self, context: Context, request: UpdateMetadataRequest) -> None:
        try:
            self._check_request(request)  # again, because the settings were read in other turns
            self._check_order(request.controller_epoch, context.correlation_id)
        except ApiError as error:
            context.send_reply(error.as_value())
            return
        self._cluster.apply_update(request)
        self._locate_brokers()
        self._note_registration()
        context.send_reply(UpdateMetadataResponse())

    def _note_registration(self) -> None:
        """After another registration read the list of topics: deletions before it are in no later update."""
        before, self._registered = self._registered, self._cluster.me.epoch
        if UNKNOWN_BROKER_EPOCH < before < self._registered:
            self._changes.refresh_topics()

    def _check_request(self, request: UpdateMetadataRequest) -> None:
        self._fence.check_request(request.controller_id, request.controller_epoch, request.broker_epoch)

    def _check_order(self, epoch: int, number: int) -> None:
        newest_epoch, newest = self._newest
        # Correlation ids are compared only within one controller epoch; a newer epoch starts its own sequence. The same
        # number passes, because a request is checked before and after its settings are read.
        if epoch == newest_epoch and newest >= 0 and 0 < (newest - number) & 0x7FFFFFFF < _HALF:
            raise ApiError(
                ErrorCode.STALE_CONTROLLER_EPOCH, f"request {number} arrived after the newer request {newest}"
            )
        self._newest = (epoch, number)

    def _locate_brokers(self) -> None:
        """Give the network the other brokers' endpoints at the inter-broker listener."""
        for broker in self._cluster.image.brokers.values():
            endpoint = broker.endpoint_of(self._listener)
            if endpoint is not None:
                self._network.set_address(broker.node_id, endpoint.host, endpoint.port)
