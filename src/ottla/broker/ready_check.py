"""Checks whether a broker that has joined is ready, and what follows when it is.

Zone: deterministic. `readiness` compares the image with the applied orders.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from ottla.broker.dispatch import Dispatch
from ottla.broker.listener import BrokerListener
from ottla.broker.readiness import Readiness
from ottla.broker.startup import Startup
from ottla.changes import changes_state
from ottla.cluster.cluster import Cluster
from ottla.cluster.controller.controller_election import ControllerElector
from ottla.cluster.store.watches import WatchedStore
from ottla.purgatory.purgatory import Purgatory
from ottla.wire.apis import ApiKey

_log = logging.getLogger(__name__)
READY_MS: Final = 2000
"""A broker that knows its controller is ready when nothing new has arrived for this time: missing partitions may stay
missing for long."""
READY_AT_MOST_MS: Final = 60_000
"""After this time the broker is ready in any case, and serves what it has. So long it waits for topics that exist, and
for its own registration, to appear in the image: clients take a topic that Metadata lacks for one that was deleted."""


class ReadyCheck:
    """Decides once, after the controller's first message, that the broker serves clients."""

    def __init__(
        self,
        cluster: Cluster,
        store: WatchedStore,
        seat: ControllerElector,
        startup: Startup,
        dispatch: Dispatch,
        purgatory: Purgatory,
        listener: BrokerListener,
    ) -> None:
        self.ready = False
        """Whether the broker has applied the controller's orders and serves all requests."""
        self.is_waiting = False
        """Whether the controller has sent the cluster's state, and `check_ready` is to be called in each turn."""
        self.warming: Iterator[ApiKey] = iter(())
        """Compiles codecs, one pair per step, once the broker is ready."""
        self.readiness = Readiness(cluster.node_id)
        self._cluster = cluster
        self._store = store
        self._elector = seat
        self._startup = startup
        self._dispatch = dispatch
        self._purgatory = purgatory
        self._listener = listener
        self._has_image = False
        self._has_left = False

    def on_image(self) -> None:
        """Begin to check: the image has changed."""
        if not self._has_image and not self._has_left and self._cluster.image.brokers:
            self._has_image = self.is_waiting = True
            heard = self._message_count
            self._purgatory.look_after(READY_MS, lambda: self._check_ready_late(heard, READY_MS))

    def stop_waiting(self) -> None:
        """Do not become ready any more: the broker leaves its cluster."""
        self._has_left = True
        self.is_waiting = False

    def stop_serving(self) -> None:
        """Note that the broker has left, and is about to close its logs."""
        self.ready = False

    @changes_state
    def check_ready(self, at_last: bool = False) -> None:
        """Become ready if nothing is missing, or at last."""
        if not self.is_waiting:
            return
        if not self._has_all():
            if not at_last:
                return
            node_id, missing = self._cluster.node_id, self.readiness.missing
            _log.warning("broker %d is ready, but the controller has not assigned %s yet", node_id, missing)
        # Only now: earlier, a log whose order had not arrived yet would be reported as one that the cluster does not
        # know.
        self._startup.report_strays()
        self.warming = self._dispatch.warm_up()
        self.ready = True
        self.is_waiting = False
        # After `ready` is set, because this call runs the requests that were held back. From here on the broker's state
        # must be that of a broker that serves.
        self._dispatch.serve_clients()
        self._claim_blank_dirs()
        self._listener.on_ready()

    def _has_all(self) -> bool:
        """Whether all orders of the controller that the broker can expect have been applied."""
        image, expected = self._cluster.image, self._cluster.expected_topics
        return self._elector.is_settled and self.readiness.is_complete(image, expected)

    @property
    def _message_count(self) -> int:
        """A number that grows with each message of the controller."""
        return self._cluster.image.epoch + self.readiness.applied_orders

    def _check_ready_late(self, heard: int, waited_ms: int) -> None:
        """Wait on while messages arrive, while topics are missing, or while this broker's own controller starts; then
        become ready."""
        cluster, news = self._cluster, self._message_count
        cluster.expected_topics.recheck_first(self._store)
        lacks_topics = self.readiness.lacks_topics(cluster.image, cluster.expected_topics)
        if (news > heard or lacks_topics or not self._elector.is_settled) and waited_ms < READY_AT_MOST_MS:
            self._purgatory.look_after(READY_MS, lambda: self._check_ready_late(news, waited_ms + READY_MS))
        else:
            self.check_ready(at_last=True)

    def _claim_blank_dirs(self) -> None:
        """Mark new log directories as this broker's once the controller knows that they are new. If the broker dies
        before that, its next start has to report them as new again."""
        image = self._cluster.image
        if self.readiness.is_complete(image, self._cluster.expected_topics):
            self._startup.claim_blank_dirs(image.cluster_id)
        else:
            self._cluster.expected_topics.recheck_first(self._store)
            self._purgatory.look_after(READY_MS, self._claim_blank_dirs)
