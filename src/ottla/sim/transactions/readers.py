"""Readers of what transactions write, with read_committed and with read_uncommitted.

Zone: deterministic. They find leaders and followers as all readers of a cluster; what an answer means is `polling`'s.
"""

from __future__ import annotations

from typing import ClassVar, Final

from ottla.sim.cluster.readers import ClusterReader, NodeReader
from ottla.sim.readers import Cursor
from ottla.sim.transactions.history import TransactionHistory
from ottla.sim.transactions.polling import parsed, view_of
from ottla.sim.world import MS
from ottla.wire.messages import FetchResponse

PAUSE_NS: Final = 150 * MS


class TransactionNodeReader(NodeReader):
    """What such a reader has with one broker."""

    def _note(self, cursor: Cursor, row: FetchResponse.PartitionData, life: int) -> bool:  # noqa: ARG002  views have no lives
        found = parsed(row, cursor.position, self.isolation == 1)
        history = self.history
        assert isinstance(history, TransactionHistory), "only runs with transactions have such readers"
        if found.end > cursor.position or found.damage:
            history.views.append(view_of(self._group.client, cursor.log, found, row, self.isolation == 1))
        cursor.high_watermark, cursor.fresh, cursor.broken = row.high_watermark, False, bool(found.damage)
        moved = found.end > cursor.position
        cursor.position = found.end
        return moved


class TransactionReader(ClusterReader):
    """Follows all partitions of the topics that transactions write."""

    part_type: ClassVar[type[NodeReader]] = TransactionNodeReader

    def read(self, committed: bool) -> None:
        """Choose the isolation level, before the start. Like other readers it looks a few times a second."""
        for part in self.parts:
            part.isolation = int(committed)
            part.max_wait_ms, part.pause_ns = 500, max(part.pause_ns, PAUSE_NS)
