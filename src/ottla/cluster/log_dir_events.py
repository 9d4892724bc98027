"""A log directory that failed is told to the controller, by a node that it watches.

Zone: deterministic.
"""

from __future__ import annotations

from typing import Final

from ottla.cluster.layout import LOG_DIR_EVENTS, encode_log_dir_event
from ottla.purgatory.purgatory import Purgatory
from ottla.seams import Failure, MetadataStore, Op

AGAIN_MS: Final = 1000
"""Before the store is asked again that did not take it."""


class LogDirEvents:
    """Tells, until the store has it: once too often does no harm."""

    def __init__(self, store: MetadataStore, purgatory: Purgatory, node_id: int) -> None:
        self._store = store
        self._purgatory = purgatory
        self._content = encode_log_dir_event(node_id)

    def tell(self) -> None:
        """One of this broker's directories is out of service."""
        op = Op("sequential", f"{LOG_DIR_EVENTS}/log_dir_event_", self._content)
        self._store.submit("log dir events", [op], self._told)

    def _told(self, outcome: object) -> None:
        if isinstance(outcome, Failure):
            self._purgatory.after(AGAIN_MS, self.tell)
