"""Follows the notifications below a node of the metadata store: sequential nodes, each of which names what has changed.

Zone: deterministic. Kafka's brokers watch the parent, read the notifications that are new, and remove those that are
older than an hour. A watch is set before the state is read, so that a change after that read causes a notification.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from ottla.cluster.store.watches import WatchedStore
from ottla.cluster.store.workflow import Workflow, read_children, read_nodes, run_workflow, submit_multi
from ottla.errors import ApiError
from ottla.purgatory.purgatory import Purgatory
from ottla.seams import Clock, Failure, Node, Op

logger = logging.getLogger(__name__)

NODES_AT_ONCE: Final = 250
"""Nodes that are read together."""
KEPT_NS: Final = 60 * 60 * 1_000_000_000
"""How long a notification stays, as in Kafka: an hour."""
AGAIN_MS: Final = 500
"""Delay before a request is repeated that the store did not answer."""
Apply = Callable[[Sequence[str], Sequence[Node | None]], Workflow[None]]
"""Takes the paths of new notifications, and their nodes: None for one that was removed before it was read."""


class NotificationFeed:
    """One parent of notifications."""

    def __init__(self, store: WatchedStore, clock: Clock, purgatory: Purgatory, parent: str, apply: Apply) -> None:
        self.parent = parent
        self._store = store
        self._clock = clock
        self._purgatory = purgatory
        self._apply = apply
        self._seen: dict[str, int] = {}
        """Notifications that exist and were read, with the monotonic time of that."""
        self._is_reading = self._reads_again = False

    def start_watching(self) -> Workflow[None]:
        """Watch the notifications. Those that exist count as read: the caller reads the whole state next."""
        now_ns = self._clock.now().mono_ns
        for name in (yield from read_children(self.parent, self._on_notification)):
            self._seen.setdefault(name, now_ns)

    def _on_notification(self) -> None:
        if self._is_reading:
            self._reads_again = True
            return
        self._is_reading, self._reads_again = True, False
        run_workflow(self._store, self._read_notifications(), self._on_notifications_read)

    def _on_notifications_read(self, outcome: Failure | ApiError | None) -> None:
        self._is_reading = False
        if outcome is not None:
            self._purgatory.continue_after(AGAIN_MS, self._on_notification)
        elif self._reads_again:
            self._on_notification()

    def _read_notifications(self) -> Workflow[None]:
        names = yield from read_children(self.parent, self._on_notification)
        fresh = [name for name in names if name not in self._seen]
        for begin in range(0, len(fresh), NODES_AT_ONCE):
            paths = [f"{self.parent}/{name}" for name in fresh[begin : begin + NODES_AT_ONCE]]
            yield from self._apply(paths, (yield from read_nodes(paths)))
        # The time of the first read counts, not the time of creation, whose clock is another broker's.
        now_ns = self._clock.now().mono_ns
        self._seen = {name: self._seen.get(name, now_ns) for name in names}
        yield from self._remove_old(now_ns)

    def _remove_old(self, now_ns: int) -> Workflow[None]:
        """Remove old notifications. Another broker may have been faster."""
        for name in [name for name, seen_ns in self._seen.items() if now_ns - seen_ns > KEPT_NS]:
            try:
                yield from submit_multi(f"notifications {self.parent}", [Op("delete", f"{self.parent}/{name}")])
            except Failure as failure:
                logger.debug("could not remove the notification %s: %s", name, failure)
            self._seen.pop(name, None)
