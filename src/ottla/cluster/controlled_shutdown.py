"""Controlled shutdown: a broker that is about to stop has its leaderships moved to others first.

Zone: deterministic. Asking and asking again only; what is moved, and where to, is the controller's decision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ottla.broker_client import BrokerClient
from ottla.cluster.cluster import Cluster
from ottla.errors import ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.control import ControlFence
from ottla.seams import Failure
from ottla.wire.messages import ControlledShutdownRequest, ControlledShutdownResponse

logger = logging.getLogger(__name__)

_VERSION: Final = 3
_LANE: Final = "departure"


class ControlledShutdown:
    """The way out."""

    def __init__(self, cluster: Cluster, fence: ControlFence, peers: BrokerClient, purgatory: Purgatory) -> None:
        self._cluster = cluster
        self._fence = fence
        self._peers = peers
        self._purgatory = purgatory

    @property
    def is_needed(self) -> bool:
        """Whether there is anybody to hand something over to."""
        image = self._cluster.image
        return self._cluster.config.controlled_shutdown_enable and any(
            broker != self._cluster.node_id for broker in image.brokers
        )

    def begin_shutdown(self, done: Callable[[], None]) -> None:
        """Ask the controller, up to controlled.shutdown.max.retries times more; `done` follows however it ends."""
        self._request_shutdown(1 + self._cluster.config.controlled_shutdown_max_retries, done)

    def _request_shutdown(self, tries: int, done: Callable[[], None]) -> None:
        config = self._cluster.config
        request = ControlledShutdownRequest(broker_id=self._cluster.node_id, broker_epoch=self._fence.broker_epoch)

        def on_response(answer: ControlledShutdownResponse | Failure) -> None:
            problem = _problem(answer)
            if problem is None:
                logger.info("leaderships are handed over")
                done()
            elif tries > 1:
                logger.warning("leaderships are not handed over yet: %s; trying again", problem)
                self._purgatory.look_after(
                    config.controlled_shutdown_retry_backoff_ms, lambda: self._request_shutdown(tries - 1, done)
                )
            else:
                logger.warning("leaderships are not handed over: %s; stopping all the same", problem)
                done()

        self._peers.send_request(
            self._fence.controller_id, request, _VERSION, config.controller_socket_timeout_ms, on_response, _LANE
        )


def _problem(answer: ControlledShutdownResponse | Failure) -> str | None:
    """Why it is not done; None when it is."""
    if isinstance(answer, Failure):
        return str(answer)
    if answer.error_code != ErrorCode.NONE:
        return ErrorCode(answer.error_code).name
    if answer.remaining_partitions:
        first = answer.remaining_partitions[0]
        return f"{len(answer.remaining_partitions)} are left, {first.topic_name}-{first.partition_index} among them"
    return None
