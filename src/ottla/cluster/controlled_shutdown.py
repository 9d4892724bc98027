"""Controlled shutdown: before a broker stops, the controller moves its leaderships to other brokers.

Zone: deterministic. Only the request and its retries; the controller decides what moves, and where to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ottla.broker_client import BrokerClient
from ottla.cluster.cluster import Cluster
from ottla.cluster.membership import Membership
from ottla.errors import ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.control import ControlFence
from ottla.seams import Failure
from ottla.wire.messages import ControlledShutdownRequest, ControlledShutdownResponse

logger = logging.getLogger(__name__)

_VERSION: Final = 3
_LANE: Final = "departure"


class ControlledShutdown:
    """Requests the controlled shutdown of this broker."""

    def __init__(
        self,
        cluster: Cluster,
        membership: Membership,
        fence: ControlFence,
        peers: BrokerClient,
        purgatory: Purgatory,
    ) -> None:
        self._cluster = cluster
        self._membership = membership
        self._fence = fence
        self._peers = peers
        self._purgatory = purgatory

    def leave_cluster(self, done: Callable[[], None], hand_over: bool) -> None:
        """Hand leaderships over if another broker can take them; then leave the cluster. Calls `done` in any case."""

        def left() -> None:
            self._membership.leave_cluster()
            done()

        if hand_over and self._membership.is_registered and self.is_needed:
            self.begin_shutdown(left)
        else:
            left()

    @property
    def is_needed(self) -> bool:
        """Whether another broker could take over leaderships."""
        image = self._cluster.image
        return self._cluster.config.controlled_shutdown_enable and any(
            broker != self._cluster.node_id for broker in image.brokers
        )

    def begin_shutdown(self, done: Callable[[], None]) -> None:
        """Send the request, with up to controlled.shutdown.max.retries retries. Calls `done` in any case."""
        self._request_shutdown(1 + self._cluster.config.controlled_shutdown_max_retries, done)

    def _request_shutdown(self, tries: int, done: Callable[[], None]) -> None:
        config = self._cluster.config
        request = ControlledShutdownRequest(broker_id=self._cluster.node_id, broker_epoch=self._fence.broker_epoch)

        def on_response(answer: ControlledShutdownResponse | Failure) -> None:
            # 1. Done. 2. Not done, with attempts left. 3. Not done: the broker stops, and the controller will notice.
            problem = _shutdown_problem(answer)
            if problem is None:
                logger.info("controlled shutdown: other brokers lead this broker's partitions")
                done()
            elif tries > 1:
                logger.warning("controlled shutdown: not all leaderships are moved: %s; trying again", problem)
                self._purgatory.look_after(
                    config.controlled_shutdown_retry_backoff_ms, lambda: self._request_shutdown(tries - 1, done)
                )
            else:
                logger.warning("controlled shutdown: not all leaderships are moved: %s; stopping nevertheless", problem)
                done()

        # The controller is looked up for each attempt: the one that received the last request may have stopped since.
        self._peers.send_request(
            self._fence.controller_id, request, _VERSION, config.controller_socket_timeout_ms, on_response, _LANE
        )


def _shutdown_problem(answer: ControlledShutdownResponse | Failure) -> str | None:
    """The reason why the shutdown is incomplete; None if it is complete."""
    if isinstance(answer, Failure):
        return str(answer)
    if answer.error_code != ErrorCode.NONE:
        return ErrorCode(answer.error_code).name
    if answer.remaining_partitions:
        first = answer.remaining_partitions[0]
        count = len(answer.remaining_partitions)
        return f"{count} partitions are left, such as {first.topic_name}-{first.partition_index}"
    return None
