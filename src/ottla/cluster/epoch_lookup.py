"""Checks an unknown controller epoch against the metadata store.

Zone: deterministic. Controllers write their epoch to /controller_epoch before they send anything. A request with a
later epoch does not come from a controller. If a broker accepted it, it would reject the real controller for good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.cluster.store.layout import CONTROLLER_EPOCH, BrokenNode, decode_epoch
from ottla.cluster.store.workflow import Workflow, get, run, submit
from ottla.errors import ApiError
from ottla.replication.control import ControlFence
from ottla.seams import Failure, MetadataStore, Op

_LANE: Final = "controller epoch"


class EpochLookup:
    """Reads the newest controller epoch for the fence; waiting requests share one read."""

    def __init__(self, store: MetadataStore, fence: ControlFence) -> None:
        self._store = store
        self._fence = fence
        self._asked: list[Callable[[], None]] = []
        """Callbacks of the read that is under way."""
        self._next: list[Callable[[], None]] = []
        """Callbacks that came during a read, which may have been too early for them: they wait for the next one."""

    def look_up(self, then: Callable[[], None]) -> None:
        """Call `then`, in a later turn, when the store has answered or failed. The fence has the epoch by then."""
        self._next.append(then)
        if not self._asked:
            self._start()

    def _start(self) -> None:
        self._asked, self._next = self._next, []
        run(self._store, self._read(), self._finish)

    def _read(self) -> Workflow[int]:
        # A write first: this session's server may lag behind the controller's, and has caught up after a write.
        yield from submit(_LANE, [Op("check", CONTROLLER_EPOCH)])
        node = yield from get(CONTROLLER_EPOCH)
        try:
            return 0 if node is None else decode_epoch(CONTROLLER_EPOCH, node.data)
        except BrokenNode:
            return 0

    def _finish(self, outcome: int | Failure | ApiError) -> None:
        if isinstance(outcome, int):
            self._fence.confirm(outcome)
        asked, self._asked = self._asked, []
        for then in asked:
            then()
        if self._next and not self._asked:
            self._start()
