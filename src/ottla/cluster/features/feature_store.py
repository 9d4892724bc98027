"""Keeps the finalized features equal to the metadata store.

Zone: deterministic. The node is read in each new session and after each change; the controller writes it.
"""

from __future__ import annotations

import logging
from typing import Final

from ottla.cluster.features.feature_levels import (
    NOTHING_FINALIZED,
    TRANSACTION_VERSION,
    FinalizedFeatures,
    FollowedLevel,
    check_supported,
    decode_finalized,
)
from ottla.cluster.store.layout import FEATURE, BrokenNode
from ottla.cluster.store.watches import WatchedStore
from ottla.cluster.store.workflow import Workflow, read_node, run_workflow
from ottla.errors import ApiError
from ottla.purgatory.purgatory import Purgatory
from ottla.seams import Failure, Kind

logger = logging.getLogger(__name__)

AGAIN_MS: Final = 500
"""Delay before a read is repeated that the store did not answer."""


class FeatureStore:
    """The finalized features as one broker knows them."""

    def __init__(self, store: WatchedStore, purgatory: Purgatory) -> None:
        self._store = store
        self._purgatory = purgatory
        self.finalized = NOTHING_FINALIZED
        self.transaction_version = FollowedLevel(NOTHING_FINALIZED.level_of(TRANSACTION_VERSION))

    def read_all(self) -> Workflow[None]:
        """Read the node and watch it. Raises ApiError for a level that this release lacks; BrokenNode; Failure."""
        finalized = decode_finalized((yield from read_node(FEATURE, self._on_change)))
        # Before the levels are followed: a level that is too new must not change what this broker writes.
        check_supported(finalized.levels)
        self._follow(finalized)

    def set_finalized(self, finalized: FinalizedFeatures) -> None:
        """Follow the levels that the controller here has just written, unless newer ones were read before."""
        if finalized.epoch >= self.finalized.epoch:
            self._follow(finalized)

    def _follow(self, finalized: FinalizedFeatures) -> None:
        self.finalized = finalized
        self.transaction_version.level = finalized.level_of(TRANSACTION_VERSION)

    def _on_change(self) -> None:
        run_workflow(self._store, self._read_again(), self._on_read)

    def _read_again(self) -> Workflow[None]:
        try:
            yield from self.read_all()
        # A running broker keeps what it knows; only a start is refused.
        except (BrokenNode, ApiError) as error:
            logger.error("features: keeping the levels of epoch %d: %s", self.finalized.epoch, error)

    def _on_read(self, outcome: Failure | ApiError | None) -> None:
        # In a new session everything is read again, so only a store that is slow needs another attempt.
        if isinstance(outcome, Failure) and outcome.kind is not Kind.EXPIRED:
            self._purgatory.continue_after(AGAIN_MS, self._on_change)
