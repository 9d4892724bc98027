"""Readers of a cluster: one `Reader` per broker, each for the partitions that are read from that broker now.

Zone: deterministic. They share their cursors. A partition moves from one to another with its leader, or to a follower
that the leader names (KIP-392).
"""

from __future__ import annotations

from typing import ClassVar, Final

from ottla.errors import ErrorCode
from ottla.sim.cluster.client import ClusterClient
from ottla.sim.entropy import Stream
from ottla.sim.history import History
from ottla.sim.workload.catalog import Catalog, Role
from ottla.sim.workload.readers import EARLIEST, LATEST, Cursor, Reader
from ottla.sim.world import SECOND
from ottla.wire.messages import FetchResponse

PREFERRED_NS: Final = 4 * SECOND
"""How long a reader fetches from a follower before it returns to the leader."""
VERSIONS: Final = (11, 12, 13, 15, 16, 17)
"""Readers of older versions do not send their leader epoch, so a deposed leader may send them an old log end."""


class NodeReader(Reader):
    """The part of a reader that fetches from one broker."""

    def __init__(self, group: ClusterReader, node: int, random: Stream) -> None:
        client = group.client.wire_client(node)
        super().__init__(client, group.catalog, group.role, group.from_start, random, group.history)
        self._group = group
        self._node = node

    def list_cursors(self) -> list[Cursor]:
        """The cursors that are read from this broker."""
        return [cursor for cursor in self._group.list_cursors() if cursor.node == self._node]

    def _mark_cursor_stale(self, cursor: Cursor) -> None:
        self._group.leave_follower(cursor)
        self._group.client.mark_metadata_stale()

    def _take_row(self, cursor: Cursor, row: FetchResponse.PartitionData, life: int) -> bool:  # noqa: ARG002  brokers have numbers
        if row.preferred_read_replica >= 0 and not row.error_code:
            self._group.read_from(cursor, row.preferred_read_replica)
            return True
        return super()._take_row(cursor, row, self._node)

    def _on_error(self, cursor: Cursor, code: ErrorCode, life: int) -> None:  # noqa: ARG002  brokers have numbers
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and self._group.leave_follower(cursor):
            return  # a follower may lag: the leader decides whether the position is out of range
        super()._on_error(cursor, code, self._node)

    def _note_ends(self, cursor: Cursor, life: int) -> None:  # noqa: ARG002  brokers have numbers
        super()._note_ends(cursor, self._node)


class ClusterReader:
    """Follows all partitions of the topics of one role, on whichever broker leads them."""

    part_type: ClassVar[type[NodeReader]] = NodeReader
    """Class of its part for each broker."""

    def __init__(
        self,
        client: ClusterClient,
        catalog: Catalog,
        role: Role,
        from_start: bool,
        random: Stream,
        history: History,
        rack: str = "",
    ) -> None:
        self.client = client
        self.catalog = catalog
        self.role = role
        self.from_start = from_start
        self.history = history
        self.version = 13 if role is Role.CHURN else random.choice(VERSIONS)
        self._wanted = EARLIEST if from_start else LATEST
        self._cursors: dict[tuple[bytes, int], Cursor] = {}
        self._followers: dict[tuple[bytes, int], tuple[int, int]] = {}
        """Cursors that read from a follower: the follower, and the time to return to the leader."""
        self.parts = [self.part_type(self, node, random) for node in client.nodes]
        for part in self.parts:
            part.version, part.rack = self.version, rack

    @property
    def name(self) -> str:
        """Its name in the history."""
        return self.client.name

    def start_reading(self) -> None:
        """Start to read."""
        self.client.mark_metadata_stale()
        for part in self.parts:
            part.start_reading()

    def read_fast(self) -> None:
        """Read as fast as possible."""
        for part in self.parts:
            part.max_wait_ms, part.max_bytes = 50, 1 << 20

    def list_cursors(self) -> list[Cursor]:
        """Its position in every partition of the existing topics, each assigned to the broker that serves it."""
        found = []
        for topic in self.catalog.topics_of_role(self.role):
            for partition in range(topic.partitions):
                key = (topic.topic_id, partition)
                cursor = self._cursors.get(key)
                if cursor is None:
                    cursor = self._cursors[key] = Cursor(topic, partition, wanted=self._wanted, node=-1)
                self._place_cursor(cursor, key)
                found.append(cursor)
        return found

    def _place_cursor(self, cursor: Cursor, key: tuple[bytes, int]) -> None:
        # 1. Without metadata of this very topic the cursor stays with its broker.
        # 2. A follower that the leader named is used until its time is over, or the leader changes.
        # 3. Otherwise the cursor is read from the leader.
        # A new broker has no fetch session with the cursor, so `asked` starts again at -1.
        seen = self.client.view.get((cursor.topic.name, cursor.partition))
        if seen is None or seen.topic_id != cursor.topic.topic_id:
            self.client.mark_metadata_stale()
            return
        node = seen.leader
        if key in self._followers:
            follower, until_ns = self._followers[key]
            if until_ns > self.client.timeline.now_ns and cursor.epoch == seen.epoch:
                node = follower
            else:
                del self._followers[key]
        if (node, seen.epoch) != (cursor.node, cursor.epoch):
            cursor.node, cursor.epoch, cursor.asked = node, seen.epoch, -1
        if node < 0:
            self.client.mark_metadata_stale()

    def read_from(self, cursor: Cursor, follower: int) -> None:
        """Read from a follower that the leader named, for a while."""
        until_ns = self.client.timeline.now_ns + PREFERRED_NS
        self._followers[cursor.topic.topic_id, cursor.partition] = (follower, until_ns)

    def leave_follower(self, cursor: Cursor) -> bool:
        """Return to the leader. True if the cursor read from a follower."""
        cursor.asked = -1
        return self._followers.pop((cursor.topic.topic_id, cursor.partition), None) is not None
