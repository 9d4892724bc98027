"""Checks an unknown controller epoch against the metadata store.

Zone: deterministic. Controllers write their epoch to /controller_epoch before they send anything. A request with a
later epoch does not come from a controller. If a broker accepted it, it would reject the real controller for good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.cluster.store.layout import CONTROLLER_EPOCH, BrokenNode, decode_epoch
from ottla.cluster.store.workflow import Workflow, read_node, run_workflow, submit_multi
from ottla.errors import ApiError
from ottla.seams import Failure, MetadataStore, Op

_LANE: Final = "controller epoch"
OnEpoch = Callable[["int | None"], None]


class EpochLookup:
    """Reads the newest controller epoch for the fence; waiting requests share one read."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._callbacks: list[OnEpoch] = []
        """Callbacks of the read that is under way."""
        self._later_callbacks: list[OnEpoch] = []
        """Callbacks that came during a read, which may have been too early for them: they wait for the next one."""

    def read_epoch(self, then: OnEpoch) -> None:
        """Pass the newest controller epoch to `then` in a later turn; None if the store failed. Implements
        `ottla.replication.control.ReadEpoch`."""
        self._later_callbacks.append(then)
        if not self._callbacks:
            self._start_lookup()

    def _start_lookup(self) -> None:
        self._callbacks, self._later_callbacks = self._later_callbacks, []
        run_workflow(self._store, self._read_node(), self._on_epoch_read)

    def _read_node(self) -> Workflow[int]:
        # A write first: this session's server may lag, and has caught up with the controller's after a write.
        yield from submit_multi(_LANE, [Op("check", CONTROLLER_EPOCH)])
        node = yield from read_node(CONTROLLER_EPOCH)
        try:
            return 0 if node is None else decode_epoch(CONTROLLER_EPOCH, node.data)
        except BrokenNode:
            return 0

    def _on_epoch_read(self, outcome: int | Failure | ApiError) -> None:
        epoch = outcome if isinstance(outcome, int) else None
        asked, self._callbacks = self._callbacks, []
        for then in asked:
            then(epoch)
        if self._later_callbacks and not self._callbacks:
            self._start_lookup()
