"""Telling a consumer group how far a query has come, so that tools which show lag see it.

Zone: real. The checkpoint keeps the position; once a query has begun it goes on from that alone, so a commit that fails
costs nothing but an old figure: it is logged and tried again, and never stops a query.

Where the sink commits the offsets in the transaction of its rows (`source_positions`), this is for the rest: partitions
of which nothing was written. What a sink has put there is not taken back.
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
from ottla.spark.offset_metadata import held_until, hold, query_of
from ottla.spark.options import Offsets
from ottla.types import TopicPartition

_LOG = logging.getLogger(__name__)
_PATIENCE_MS: Final = 3_000
"""A trigger waits no longer for the coordinator."""
_PAUSE_MS: Final = 30_000
"""After a commit that failed, the next one is not tried sooner."""
_REPEAT_MS: Final = 3_600_000
"""So often everything is committed again, changed or not: brokers forget the positions of idle groups."""


class GroupOffsets:
    """The offsets of one group, which need not exist. No member joins it."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._admin = GroupAdmin(cluster)
        self._calls = CoordinatorCalls(cluster, CoordinatorKind.GROUP)
        self._group = group
        self._told: Mapping[TopicPartition, int] = {}
        self._not_before = Deadline(0)
        self._repeat = Deadline(0)
        self._warned = False

    def committed(
        self, wanted: Iterable[TopicPartition], deadline: Deadline | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed for these partitions, open transactions about them waited for. Raises
        ClientError."""
        places = list(wanted)
        try:
            return stable_positions(self._calls, self._group, places, deadline)
        except UnsupportedVersionError:  # a broker without transactions about groups
            found = values_of(self._admin.group_offsets(self._group, deadline))
            return {tp: OffsetAndMetadata(*found[tp]) for tp in places if tp in found}

    def commit_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit what has changed, and now and then the rest. Raises nothing of the cluster."""
        again = self._repeat.expired
        news = {tp: offset for tp, offset in offsets.items() if again or self._told.get(tp) != offset}
        if not news or not self._not_before.expired:
            return
        try:
            failed = self._commit(news, again=again, deadline=Deadline.after_ms(_PATIENCE_MS))
        except ClientError as error:
            failed = error
        if failed is None:
            self._told = dict(offsets)
            self._repeat = Deadline.after_ms(_REPEAT_MS) if again else self._repeat
            return
        self._not_before = Deadline.after_ms(_PAUSE_MS)
        _LOG.warning(
            "the offsets of the query are not committed to group %s: %s. The query goes on from its checkpoint; with "
            "members in that group, name another one in kafka.group.id, or set commitOffsets to false",
            self._group,
            failed,
        )

    def hold(self, begins: Offsets, ends: Offsets) -> None:
        """Keep tasks from moving the group as far as these ends: several of them read these partitions. Raises
        ClientError: then they could move it past records of which nothing is committed.

        A transaction that stays open is of a driver that was killed: if it is still committed, its rows are, too.
        """
        try:
            present = self.committed(begins, Deadline.after_ms(_PATIENCE_MS))
        except DeadlineError:
            present = self._in_sight(begins)
        self._mark_positions({tp: present.get(tp, OffsetAndMetadata(begin)) for tp, begin in begins.items()}, ends)

    def release(self, ends: Offsets) -> None:
        """Undo `hold` for these ends: the plan of the query was changed since. Raises ClientError.

        Transactions that are open are not waited for: one of a driver that was killed stays open until its time is
        over, and a task that was held has no offsets in its own.
        """
        present = self._in_sight(ends)
        self._mark_positions({tp: at for tp, at in present.items() if held_until(at) == ends[tp]}, {})

    def _in_sight(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What is committed by now, whatever open transactions are about to change."""
        found = self._admin.group_offsets(self._group)
        return {tp: OffsetAndMetadata(*at) for tp in places if isinstance(at := found.get(tp), GroupOffset)}

    def _mark_positions(self, positions: Mapping[TopicPartition, OffsetAndMetadata], ends: Offsets) -> None:
        wanted = {tp: hold(at, ends.get(tp)) for tp, at in positions.items()}
        if wanted and (error := first_error(self._admin.alter_group_offsets(self._group, wanted))) is not None:
            raise error

    def _commit(self, news: Offsets, *, again: bool, deadline: Deadline) -> ClientError | None:
        present = self.committed(news, deadline)
        wanted = {}
        for tp, offset in news.items():
            found = present.get(tp, OffsetAndMetadata(-1))
            by_sink = query_of(found) is not None
            if by_sink and found.offset > offset:
                self._warn(tp, found.offset, offset)
            elif again or not by_sink or found.offset < offset:
                wanted[tp] = OffsetAndMetadata(offset, -1, found.metadata if by_sink else "")
        return first_error(self._admin.alter_group_offsets(self._group, wanted, deadline)) if wanted else None

    def _warn(self, tp: TopicPartition, present: int, offset: int) -> None:
        if self._warned:
            return
        self._warned = True
        _LOG.warning(
            "group %s is at offset %d of %s, and the checkpoint at %d: it was put back, or began anew. The group moves "
            "when rows are written with their offsets, or when the query has come so far",
            self._group,
            present,
            tp,
            offset,
        )
