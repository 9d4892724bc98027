"""Whose orders a broker obeys: the fence in front of every request of a controller.

Zone: deterministic. Two numbers and their comparison (KIP-380, KIP-497); what the orders say is the handlers' matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.replication.safeguards import ReplicationSafeguards

UNKNOWN_BROKER_EPOCH: Final = -1
"""Of a broker that is not registered."""
NO_CONTROLLER: Final = -1


class ControlFence:
    """The newest controller that was heard of, and which life of this broker a controller may mean."""

    __slots__ = (
        "_confirmed",
        "_safeguards",
        "broker_epoch",
        "controller_epoch",
        "controller_id",
        "look_up",
        "node_id",
        "on_new_controller",
    )

    def __init__(self, node_id: int, safeguards: ReplicationSafeguards | None = None) -> None:
        self._safeguards = safeguards or ReplicationSafeguards()
        self.node_id = node_id
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        """czxid of this broker's registration, -1 while there is none. Set by whoever registers."""
        self.controller_id = NO_CONTROLLER
        self.controller_epoch = 0
        """The largest seen. 0: none yet, the first controller of a cluster has 1."""
        self._confirmed = 0
        """The largest that the metadata store knew."""
        self.look_up: Callable[[Callable[[], None]], None] | None = None
        """Asks the metadata store for the newest controller epoch; calls back after `confirm`, or without it when the
        store did not answer. None: every epoch is believed."""
        self.on_new_controller: Callable[[], None] = _do_nothing
        """Called within `check` when a newer controller is remembered."""

    def doubts(self, controller_epoch: int) -> bool:
        """Whether an epoch has to be looked up before `check` can believe it."""
        return self.look_up is not None and controller_epoch > max(self._confirmed, self.controller_epoch)

    def confirm(self, controller_epoch: int) -> None:
        """The metadata store knows a controller of this epoch."""
        self._confirmed = max(self._confirmed, controller_epoch)

    def check(self, controller_id: int, controller_epoch: int, broker_epoch: int | None) -> None:
        """Let a request of this controller pass, and remember a newer one.

        `broker_epoch` is the one the request was sent to, None when its version has none. One above ours passes: the
        controller saw a registration whose confirmation has not reached us yet. Raises ApiError STALE_BROKER_EPOCH
        (meant for an earlier life of this broker, or it is not registered: the sender tries again while it believes in
        that epoch), STALE_CONTROLLER_EPOCH (another controller was elected since), NOT_CONTROLLER (the metadata store
        did not confirm that there is such a controller; one that there is tries again).
        """
        if self._is_stale(broker_epoch):
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {self.node_id} has epoch {self.broker_epoch}, the request is for epoch {broker_epoch}",
            )
        if controller_epoch < self.controller_epoch and self._safeguards.controller_epoch_fencing:
            raise ApiError(
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"controller {controller_id} has epoch {controller_epoch}, epoch {self.controller_epoch} was seen",
            )
        if self.doubts(controller_epoch):
            raise ApiError(
                ErrorCode.NOT_CONTROLLER,
                f"controller {controller_id} has epoch {controller_epoch}, which the metadata store does not know",
            )
        newer = controller_epoch > self.controller_epoch
        self.controller_id = controller_id
        self.controller_epoch = controller_epoch
        if newer:
            self.on_new_controller()

    def _is_stale(self, broker_epoch: int | None) -> bool:
        if not self._safeguards.broker_epoch_fencing:
            return False
        if self.broker_epoch == UNKNOWN_BROKER_EPOCH:
            return True
        return broker_epoch is not None and broker_epoch < self.broker_epoch


def _do_nothing() -> None:
    """Nobody wants to know."""
