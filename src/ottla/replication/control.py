"""The fence in front of every request of a controller: refuses stale controllers and stale broker epochs.

Zone: deterministic. Compares two epochs (KIP-380, KIP-497); the handlers carry out the orders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.errors import ApiError, ErrorCode

UNKNOWN_BROKER_EPOCH: Final = -1
"""The epoch of a broker that is not registered."""
NO_CONTROLLER: Final = -1
ReadEpoch = Callable[[Callable[["int | None"], None]], None]
"""Reads the newest controller epoch in the metadata store; calls back once, in a later turn, with None if the store did
not answer."""


class ControlFence:
    """The newest known controller, and this broker's own registration."""

    __slots__ = (
        "_confirmed",
        "_on_new_controller",
        "_read_epoch",
        "broker_epoch",
        "controller_epoch",
        "controller_id",
        "node_id",
    )

    def __init__(
        self,
        node_id: int,
        read_epoch: ReadEpoch | None,
        on_new_controller: Callable[[], None],
    ) -> None:
        """`read_epoch`: None accepts every epoch. `on_new_controller` is called within `check_request` when that
        accepts a newer controller."""
        self._read_epoch = read_epoch
        self._on_new_controller = on_new_controller
        self.node_id = node_id
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        """czxid of this broker's registration, -1 while there is none. `cluster` sets it."""
        self.controller_id = NO_CONTROLLER
        self.controller_epoch = 0
        """The largest seen. 0: none yet; the first controller of a cluster has 1."""
        self._confirmed = 0
        """The largest that the metadata store has confirmed."""

    def needs_lookup(self, controller_epoch: int) -> bool:
        """Whether an epoch has to be confirmed by the metadata store before `check_request` accepts it."""
        # Accepted without a look-up, a forged high epoch would make this broker refuse every real controller.
        return self._read_epoch is not None and controller_epoch > max(self._confirmed, self.controller_epoch)

    def confirm_epoch(self, controller_epoch: int) -> None:
        """Note that the metadata store knows a controller of this epoch."""
        self._confirmed = max(self._confirmed, controller_epoch)

    def look_up_epoch(self, then: Callable[[], None]) -> None:
        """Ask the metadata store for the newest controller epoch. Calls `then`, in a later turn, also if the store did
        not answer."""
        assert self._read_epoch is not None, "without a metadata store no epoch needs a look-up"

        def on_epoch(epoch: int | None) -> None:
            if epoch is not None:
                self.confirm_epoch(epoch)
            then()

        self._read_epoch(on_epoch)

    def check_request(self, controller_id: int, controller_epoch: int, broker_epoch: int | None) -> None:
        """Check a request of a controller, and remember the controller if it is newer.

        `broker_epoch` is the one that the request is meant for; None if its version has none. Raises ApiError
        STALE_BROKER_EPOCH, STALE_CONTROLLER_EPOCH, NOT_CONTROLLER.
        """
        # 1. The request is meant for an earlier registration of this broker, or there is none; the sender retries while
        #    it assumes that epoch. A higher epoch passes: the controller has seen a registration whose confirmation
        #    has not reached this broker yet.
        if self._is_stale(broker_epoch):
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {self.node_id} has epoch {self.broker_epoch}, the request is for epoch {broker_epoch}",
            )
        # 2. Another controller was elected since.
        if controller_epoch < self.controller_epoch:
            raise ApiError(
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"controller {controller_id} has epoch {controller_epoch}, epoch {self.controller_epoch} was seen",
            )
        # 3. The metadata store did not confirm this controller; a real one retries.
        if self.needs_lookup(controller_epoch):
            raise ApiError(
                ErrorCode.NOT_CONTROLLER,
                f"controller {controller_id} has epoch {controller_epoch}, which the metadata store does not know",
            )
        newer = controller_epoch > self.controller_epoch
        self.controller_id = controller_id
        self.controller_epoch = controller_epoch
        if newer:
            self._on_new_controller()

    def _is_stale(self, broker_epoch: int | None) -> bool:
        # Without a registration even an order of an old version, which names no broker epoch, is meant for an earlier
        # one.
        if self.broker_epoch == UNKNOWN_BROKER_EPOCH:
            return True
        return broker_epoch is not None and broker_epoch < self.broker_epoch
