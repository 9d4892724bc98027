"""Commits the progress of a query to a consumer group, so that tools can show its lag.

Zone: real. A running query takes its position from the checkpoint alone. A failed commit therefore only means that lag
tools show an old figure: it is logged and tried again, and never stops a query.

When the sink commits the offsets in the transaction of its rows (`source_positions`), only partitions without rows are
left to do here. Offsets that a sink has committed are never moved back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from ottla.client.admin.groups import GroupAdmin, GroupOffset
from ottla.client.cluster import Cluster
from ottla.client.coordinators import CoordinatorCalls, CoordinatorKind
from ottla.client.errors import ClientError, DeadlineError, UnsupportedVersionError, first_error, values_of
from ottla.client.positions import OffsetAndMetadata
from ottla.client.retry import Deadline
from ottla.client.stable_positions import stable_positions
from ottla.spark.offset_metadata import held_until, mark_held, query_of
from ottla.spark.option_values import Offsets
from ottla.types import TopicPartition

_LOG = logging.getLogger(__name__)
_PATIENCE_MS: Final = 3_000
"""How long a trigger waits for the coordinator."""
_PAUSE_MS: Final = 30_000
"""How long no commit is tried after a failed one."""
_REPEAT_MS: Final = 3_600_000
"""How often all offsets are committed again, changed or not: brokers delete the offsets of idle groups."""


class GroupOffsets:
    """The committed offsets of one group, which need not exist. No member joins it."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._admin = GroupAdmin(cluster)
        self._calls = CoordinatorCalls(cluster, CoordinatorKind.GROUP)
        self._group = group
        self._last_committed: Mapping[TopicPartition, int] = {}
        self._not_before = Deadline(0)
        self._repeat = Deadline(0)
        self._warned = False

    def read_committed_offsets(
        self, wanted: Iterable[TopicPartition], deadline: Deadline | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of these partitions, once no open transaction is about to change them.

        Raises ClientError.
        """
        places = list(wanted)
        try:
            return stable_positions(self._calls, self._group, places, deadline)
        except UnsupportedVersionError:  # a broker without transactional offset commits
            found = values_of(self._admin.group_offsets(self._group, deadline))
            return {tp: OffsetAndMetadata(*found[tp]) for tp in places if tp in found}

    def commit_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit changed offsets, and all of them every `_REPEAT_MS`. Errors of the cluster are logged, not raised."""
        again = self._repeat.expired
        news = {tp: offset for tp, offset in offsets.items() if again or self._last_committed.get(tp) != offset}
        if not news or not self._not_before.expired:
            return
        try:
            failed = self._commit_changed(news, again=again, deadline=Deadline.after_ms(_PATIENCE_MS))
        except ClientError as error:
            failed = error
        if failed is None:
            self._last_committed = dict(offsets)
            self._repeat = Deadline.after_ms(_REPEAT_MS) if again else self._repeat
            return
        # A trigger waits for the commit, so a coordinator that is away must not slow down every batch.
        self._not_before = Deadline.after_ms(_PAUSE_MS)
        _LOG.warning(
            "spark source: the offsets of the query were not committed to group %s: %s. The query continues from its "
            "checkpoint; if that group has members, name another in kafka.group.id, or set commitOffsets to false",
            self._group,
            failed,
        )

    def hold_offsets(self, begins: Offsets, ends: Offsets) -> None:
        """Forbid tasks to move the group to these ends, because several of them read these partitions.

        Raises ClientError; without the mark a task could move the group past records whose rows are not committed.
        A transaction that stays open belongs to a killed driver. If it commits later, its rows are committed with it,
        so that it need not be waited for.
        """
        try:
            present = self.read_committed_offsets(begins, Deadline.after_ms(_PATIENCE_MS))
        except DeadlineError:
            present = self._read_present_offsets(begins)
        self._mark_positions({tp: present.get(tp, OffsetAndMetadata(begin)) for tp, begin in begins.items()}, ends)

    def release_offsets(self, ends: Offsets) -> None:
        """Undo `hold` for these ends, after the plan of the query was changed. Raises ClientError.

        Does not wait for open transactions: that of a killed driver stays open until its timeout, and the transaction
        of a held task contains no offsets.
        """
        present = self._read_present_offsets(ends)
        self._mark_positions({tp: at for tp, at in present.items() if held_until(at) == ends[tp]}, {})

    def _read_present_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets committed by now; open transactions may change them."""
        found = self._admin.group_offsets(self._group)
        return {tp: OffsetAndMetadata(*at) for tp in places if isinstance(at := found.get(tp), GroupOffset)}

    def _mark_positions(self, positions: Mapping[TopicPartition, OffsetAndMetadata], ends: Offsets) -> None:
        wanted = {tp: mark_held(at, ends.get(tp)) for tp, at in positions.items()}
        if wanted and (error := first_error(self._admin.alter_group_offsets(self._group, wanted))) is not None:
            raise error

    def _commit_changed(self, news: Offsets, *, again: bool, deadline: Deadline) -> ClientError | None:
        present = self.read_committed_offsets(news, deadline)
        wanted = {}
        for tp, offset in news.items():
            found = present.get(tp, OffsetAndMetadata(-1))
            by_sink = query_of(found) is not None
            # 1. The sink is ahead of the checkpoint: the checkpoint is the older of the two, and must not win.
            # 2. Commit if the offset is not the sink's, if the sink is behind (a batch without rows), or to refresh.
            if by_sink and found.offset > offset:
                self._warn_sink_ahead(tp, found.offset, offset)
            elif again or not by_sink or found.offset < offset:
                wanted[tp] = OffsetAndMetadata(offset, -1, found.metadata if by_sink else "")
        return first_error(self._admin.alter_group_offsets(self._group, wanted, deadline)) if wanted else None

    def _warn_sink_ahead(self, tp: TopicPartition, present: int, offset: int) -> None:
        if self._warned:
            return
        self._warned = True
        _LOG.warning(
            "spark source: group %s is at offset %d of %s, but the checkpoint at %d: the checkpoint was restored or is "
            "new. The group's offset stays until the query has passed it, or the sink commits one with rows",
            self._group,
            present,
            tp,
            offset,
        )
