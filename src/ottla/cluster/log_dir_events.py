"""Reports a failed log directory to the controller by a node that the controller watches.

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
"""Delay before an event is written again that the store did not accept."""


class LogDirEvents:
    """Writes the event until the store accepts it. A repeated event is harmless."""

    def __init__(
        self,
        store: MetadataStore,
        purgatory: Purgatory,
        node_id: int,
        timeout_ms: int,
        on_not_reported: Callable[[], None],
    ) -> None:
        """`timeout_ms`: log.dir.failure.timeout.ms, the time in which the store has to accept the event (KIP-858).

        `on_not_reported` is called when it is over: this broker leads unusable replicas, and the controller does not
        know it.
        """
        self._on_not_reported = on_not_reported
        self._store = store
        self._purgatory = purgatory
        self._content = encode_log_dir_event(node_id)
        self._timeout_ms = timeout_ms
        self._deadline: Timer | None = None

    def report_failure(self) -> None:
        """Report that one of this broker's directories has failed."""
        # A repetition has the deadline of the first attempt.
        if self._deadline is None:
            self._deadline = self._purgatory.look_after(self._timeout_ms, self._on_deadline)
        op = Op("sequential", f"{LOG_DIR_EVENTS}/log_dir_event_", self._content)
        self._store.submit_ops("log dir events", [op], self._on_reported)

    def _on_reported(self, outcome: object) -> None:
        if isinstance(outcome, Failure):
            self._purgatory.look_after(AGAIN_MS, self.report_failure)
        elif self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        logger.error("could not report a failed log directory to the controller within %d ms", self._timeout_ms)
        self._on_not_reported()
