"""Whose orders a broker obeys: the fence in front of every request of a controller.

Zone: deterministic. Two numbers and their comparison (KIP-380, KIP-497); what the orders say is the handlers' matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.replication.safeguards import ReplicationSafeguards

UNKNOWN_BROKER_EPOCH: Final = -1
"""Of a request in a version without one, and of a broker that is not registered."""
NO_CONTROLLER: Final = -1


class ControlFence:
    """The newest controller that was heard of, and which life of this broker a controller may mean."""

    __slots__ = (
        "_safeguards",
        "broker_epoch",
        "controller_epoch",
        "controller_id",
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
        self.on_new_controller: Callable[[], None] = _nobody
        """Called within `check` when a newer controller is remembered."""

    def check(self, controller_id: int, controller_epoch: int, broker_epoch: int) -> None:
        """Let a request of this controller pass, and remember a newer one.

        `broker_epoch` is the one the request was sent to, -1 when its version has none. One above ours passes: the
        controller saw a registration whose confirmation has not reached us yet. Raises ApiError STALE_BROKER_EPOCH
        (meant for an earlier life of this broker, or it is not registered: the sender tries again while it believes in
        that epoch), STALE_CONTROLLER_EPOCH (another controller was elected since).
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
        newer = controller_epoch > self.controller_epoch
        self.controller_id = controller_id
        self.controller_epoch = controller_epoch
        if newer:
            self.on_new_controller()

    def _is_stale(self, broker_epoch: int) -> bool:
        if not self._safeguards.broker_epoch_fencing:
            return False
        return self.broker_epoch == UNKNOWN_BROKER_EPOCH or UNKNOWN_BROKER_EPOCH < broker_epoch < self.broker_epoch


def _nobody() -> None:
    """Nobody wants to know."""
