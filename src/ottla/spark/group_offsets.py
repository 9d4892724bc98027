"""Telling a consumer group how far a query has come, so that tools which show lag see it.

Zone: real. The checkpoint keeps the position; nothing is read from the group once a query has begun, so a commit that
fails costs nothing but an old figure: it is logged and tried again, and never stops a query.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from ottla.client.admin_groups import GroupAdmin
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, first_error, values_of
from ottla.client.retry import Deadline
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
        self._group = group
        self._told: Mapping[TopicPartition, int] = {}
        self._not_before = Deadline(0)
        self._repeat = Deadline(0)

    def committed(self) -> Offsets:
        """What the group has committed. Raises ClientError."""
        return {where: found.offset for where, found in values_of(self._admin.group_offsets(self._group)).items()}

    def tell(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit what has changed, and now and then the rest. Raises nothing of the cluster."""
        again = self._repeat.expired
        news = {where: offset for where, offset in offsets.items() if again or self._told.get(where) != offset}
        if not news or not self._not_before.expired:
            return
        try:
            failed = first_error(self._admin.alter_group_offsets(self._group, news, Deadline.after_ms(_PATIENCE_MS)))
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
