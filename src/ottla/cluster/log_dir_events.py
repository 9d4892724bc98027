"""A log directory that failed is told to the controller, by a node that it watches.

Zone: deterministic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ottla.cluster.store.layout import LOG_DIR_EVENTS, encode_log_dir_event
from ottla.purgatory.purgatory import Purgatory
from ottla.purgatory.timing_wheel import Timer
from ottla.seams import Failure, MetadataStore, Op

logger = logging.getLogger(__name__)

AGAIN_MS: Final = 1000
"""Before the store is asked again that did not take it."""


class LogDirEvents:
    """Tells, until the store has it: once too often does no harm."""

    def __init__(self, store: MetadataStore, purgatory: Purgatory, node_id: int, timeout_ms: int) -> None:
        """`timeout_ms`: log.dir.failure.timeout.ms, the time in which the store has to take it (KIP-858)."""
        self.on_unheard: Callable[[], None] = _do_nothing
        """Called when it has not: replicas are led here that nobody can write to, and no other broker will know."""
        self._store = store
        self._purgatory = purgatory
        self._content = encode_log_dir_event(node_id)
        self._timeout_ms = timeout_ms
        self._deadline: Timer | None = None

    def report_failure(self) -> None:
        """One of this broker's directories is out of service."""
        if self._deadline is None:
            self._deadline = self._purgatory.look_after(self._timeout_ms, self._late)
        op = Op("sequential", f"{LOG_DIR_EVENTS}/log_dir_event_", self._content)
        self._store.submit("log dir events", [op], self._on_reported)

    def _on_reported(self, outcome: object) -> None:
        if isinstance(outcome, Failure):
            self._purgatory.look_after(AGAIN_MS, self.report_failure)
        elif self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        logger.error("no controller could be told in %d ms that a log directory has failed", self._timeout_ms)
        self.on_unheard()


def _do_nothing() -> None:
    """Nobody listens."""
