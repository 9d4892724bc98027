"""Incremental fetch sessions (KIP-227): the partitions that a reader requested, and which of them have changed since.

Zone: deterministic. A session never rescans its partitions: a partition without news is watched, and returns to `dirty`
when it changes; a fetch reads the dirty ones only. A fetch without a session uses a session of one request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any, Final

from ottla.errors import ApiError, ErrorCode
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.replica_state import NEVER, EpochEnd
from ottla.seams import Clock, Entropy, Part, Region
from ottla.types import NO_EPOCH
from ottla.wire.messages import FetchRequest

FINAL_EPOCH: Final = -1
"""Epoch of a fetch that uses no session, or closes one."""
INITIAL_EPOCH: Final = 0
"""Epoch of a full fetch that asks for a new session."""
NO_SESSION: Final = 0
_EPOCH_MAX: Final = 2**31 - 1
MARK: Final = 1
"""Flag of a consumer's session: it waits for the high watermark."""
END: Final = 2
"""Flag of a replica's session: it waits for the log end."""
DEFAULT_SLOTS: Final = 1000
"""max.incremental.fetch.session.cache.slots."""
EVICTION_NS: Final = 120_000 * 1_000_000
"""min.incremental.fetch.session.eviction.ms: a session used more recently than this keeps its slot."""

RequestedPartition = tuple[Any, int, int, int, int, int, int]
"""(topic, partition, current leader epoch, fetch offset, last fetched epoch, log start offset, max bytes)."""
Row = tuple[int, int, int, int, int, list[tuple[int, int]] | None, int, Part]
"""(partition, error, high watermark, last stable offset, log start offset, aborted, preferred replica, records)."""
Key = tuple[Any, int]


class FetchPartition:
    """One partition of a session: the reader's position, and the offsets of the last response to it."""

    __slots__ = (
        "diverging",
        "fetch_offset",
        "index",
        "last_epoch",
        "leader_epoch",
        "log_start",
        "max_bytes",
        "partition",
        "region",
        "row",
        "sent_high_watermark",
        "sent_log_start",
        "session",
        "topic",
        "warmed",
    )

    def __init__(self, session: FetchSession, asked: RequestedPartition) -> None:
        self.session = session
        self.topic = asked[0]
        self.index = asked[1]
        self.partition: Partition | None = None
        self.region: Region | None = None
        self.row: Row | None = None
        """The row of the next response."""
        self.diverging: EpochEnd | None = None
        """Where the reading replica's log diverges from the leader's (KIP-595)."""
        self.warmed = False
        """Its cold bytes were brought into memory: the next read may block rather than raise Cold again."""
        self.sent_high_watermark = -1
        self.sent_log_start = -1
        _, _, self.leader_epoch, self.fetch_offset, self.last_epoch, self.log_start, self.max_bytes = asked

    def update_request(self, asked: RequestedPartition) -> None:
        """Take the fields of the reader's newest request."""
        _, _, self.leader_epoch, self.fetch_offset, self.last_epoch, self.log_start, self.max_bytes = asked

    @property
    def used_ns(self) -> int:
        """Time of the latest request of its session."""
        return self.session.used_ns

    @property
    def previous_ns(self) -> int:
        """Time of the request before that."""
        return self.session.previous_ns

    @property
    def is_requested(self) -> bool:
        """Whether the reader still fetches it."""
        session = self.session
        return session.keeps_requests or session.partitions.get((self.topic, self.index)) is self

    def on_replaced(self) -> None:
        """Another session fetches the same partition for the same replica.

        The other request may be the older one, from a connection that has ended. So the partition is marked: if this
        session's reader is alive, its next fetch registers its position again.
        """
        if self.is_requested and not self.session.keeps_requests:
            self.session.awaits_commit[self] = None

    def watch_partition(self, partition: Partition) -> None:
        """Wait for the next change: of the log end for a replica, of the high watermark for a consumer."""
        self.partition = partition
        waits_for = self.session.waits_for
        if waits_for & END:
            partition.end_watchers[self] = None
        if waits_for & MARK:
            partition.watchers[self] = None

    def stop_watching(self) -> None:
        """Stop waiting for changes."""
        if self.partition is not None:
            self.partition.watchers.pop(self, None)
            self.partition.end_watchers.pop(self, None)
            self.partition = None

    def wake(self) -> None:
        """Mark this partition as dirty after a change, and wake the request that waits in the session."""
        session = self.session
        # It waits in both lists of the partition, and only the one that woke it was emptied.
        if session.waits_for == END | MARK:
            self.stop_watching()
        self.partition = None
        session.dirty[self] = None
        if session.on_dirty is not None:
            session.on_dirty()


class FetchSession:
    """The partitions of one reader, and those of them that may have news."""

    __slots__ = (
        "awaits_commit",
        "broker_epoch",
        "by_id",
        "closed",
        "dirty",
        "epoch",
        "keeps_requests",
        "of_replica",
        "on_dirty",
        "partitions",
        "previous_ns",
        "session_id",
        "used_ns",
        "waits_for",
    )

    def __init__(self, session_id: int, asked: Iterable[RequestedPartition], by_id: bool = False) -> None:
        self.session_id = session_id
        self.by_id = by_id
        """Whether topics are identified by ids (from Fetch version 13 on) or by names."""
        self.of_replica = False
        """Whether the reader is a broker; a consumer's session never evicts such a session (KIP-227)."""
        self.closed = False
        """Whether no request will continue the session."""
        self.keeps_requests = False
        """Whether this was a replica's session of one request, which has its response: its partitions stay requested,
        because no later request of the session can drop them."""
        self.epoch = INITIAL_EPOCH
        self.used_ns = NEVER
        """Time of the latest request."""
        self.previous_ns = NEVER
        """Time of the request before that."""
        self.broker_epoch = NO_EPOCH
        """Of a replica: the broker epoch in its latest request."""
        self.waits_for = MARK
        """The changes that the reader waits for: END, MARK or both."""
        self.partitions: dict[Key, FetchPartition] = {}
        self.dirty: dict[FetchPartition, None] = {}
        self.awaits_commit: dict[FetchPartition, None] = {}
        """Partitions whose replica has records that it does not know to be committed: every fetch reads them again."""
        self.on_dirty: Callable[[], None] | None = None
        """Wakes the request of this session that waits; None while none does."""
        self.update_partitions(asked, ())

    def update_partitions(self, asked: Iterable[RequestedPartition], forgotten: Iterable[Key]) -> None:
        """Apply the changes of an incremental fetch."""
        partitions = self.partitions
        for key in forgotten:
            gone = partitions.pop(key, None)
            if gone is not None:
                gone.stop_watching()
                self.dirty.pop(gone, None)
                self.awaits_commit.pop(gone, None)
        for each in asked:
            present = partitions.get(each[:2])
            # A partition with a new offset may be watched at the old one: stop that, and read it again.
            if present is None:
                present = partitions[each[:2]] = FetchPartition(self, each)
            else:
                present.stop_watching()
                present.update_request(each)
            self.dirty[present] = None

    def note_broker_epoch(self, broker_epoch: int) -> None:
        """Note the broker epoch of the replica's request. After a change all partitions are read, also those without
        news: with the new epoch the replica may join ISRs that refused the old one (KIP-903)."""
        if broker_epoch != self.broker_epoch:
            self.broker_epoch = broker_epoch
            self.dirty.update(dict.fromkeys(self.partitions.values()))

    def as_request(self) -> FetchRequest:
        """A request for all partitions of the session, by name or by id."""
        topics: dict[Any, FetchRequest.FetchTopic] = {}
        for topic, index in self.partitions:
            named = {"topic_id": topic} if self.by_id else {"topic": topic}
            asked = topics.setdefault(topic, FetchRequest.FetchTopic(**named))
            asked.partitions.append(FetchRequest.FetchPartition(partition=index))
        return FetchRequest(topics=list(topics.values()))

    def close_session(self) -> None:
        """Close the session: no request will continue it."""
        self.closed = True
        for each in self.partitions.values():
            if each.partition is not None:
                each.stop_watching()
        self.dirty.clear()
        self.awaits_commit.clear()

    def release_partitions(self) -> None:
        """Close a session after its last response, and drop its partitions, which refer back to it."""
        self.keeps_requests = self.of_replica and not self.closed
        self.close_session()
        self.partitions = {}


class FetchSessions:
    """The sessions of a broker, in a bounded number of slots."""

    def __init__(self, clock: Clock, entropy: Entropy, slots: int = DEFAULT_SLOTS) -> None:
        self._clock = clock
        self._entropy = entropy
        self._slots = slots
        self._sessions: dict[int, FetchSession] = {}  # least recently used first
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def session_for(
        self,
        session_id: int,
        epoch: int,
        asked: list[RequestedPartition],
        forgotten: Iterable[Key],
        by_id: bool = False,
        of_replica: bool = False,
    ) -> tuple[FetchSession, bool]:
        """The session of a request, and whether the response is a full one (every requested partition).

        `by_id`: the request names topics by their ids. `of_replica`: a broker fetches. Raises ApiError
        FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR (KIP-516), after which
        the reader starts a new session.
        """
        # 1. A full fetch: closes the session that it names, and opens a new one unless its epoch is the final one.
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session_id != NO_SESSION:
                self.close_session(session_id)
            new_id = NO_SESSION if epoch == FINAL_EPOCH or not asked else self._free_id(of_replica)
            session = FetchSession(new_id, asked, by_id)
            session.of_replica = of_replica
            self._mark_used(session)
            return session, True
        # 2. An incremental fetch.
        session = self._continue_session(session_id, epoch, by_id)
        try:
            session.update_partitions(asked, forgotten)
        except Exception:
            self.close_session(session_id)  # it is half changed; only this reader uses it, and will start a new one
            raise
        return session, False

    def _continue_session(self, session_id: int, epoch: int, by_id: bool) -> FetchSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {session_id}")
        # After the largest epoch comes 1, because 0 would ask for a new session.
        expected = session.epoch + 1 if session.epoch < _EPOCH_MAX else 1
        if epoch != expected:
            message = f"fetch session {session_id} is at epoch {session.epoch}, the request has {epoch}"
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, message)
        if by_id is not session.by_id:
            kind = "id" if session.by_id else "name"
            message = f"fetch session {session_id} identifies topics by {kind}, the request does not"
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, message)
        session.epoch = epoch
        self._mark_used(session)
        return session

    def _mark_used(self, session: FetchSession) -> None:
        session.previous_ns = session.used_ns
        session.used_ns = self._clock.now().mono_ns
        if session.session_id != NO_SESSION:
            self._sessions.pop(session.session_id, None)
            self._sessions[session.session_id] = session

    def find_session(self, session_id: int) -> FetchSession | None:
        """The session of that id."""
        return self._sessions.get(session_id)

    def close_session(self, session_id: int) -> None:
        """Close a session and free its slot; does nothing if there is no such session."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close_session()
            if session.on_dirty is None:  # else the request that waits in the session releases it
                session.release_partitions()

    def end_session(self, session: FetchSession) -> None:
        """Close and release a session whose waiting request has ended."""
        self.close_session(session.session_id)
        session.release_partitions()

    def _free_id(self, of_replica: bool) -> int:
        """An id for a new session, or NO_SESSION when every slot is in recent use; replicas may evict consumers."""
        if of_replica:
            self._close_abandoned()
        if len(self._sessions) >= self._slots and not self._evict_session(of_replica):
            return NO_SESSION
        while True:
            # Random, as in Kafka: after a restart, a reader that continues its old session must not meet the new one of
            # another.
            session_id = 1 + self._entropy.random_below("fetch-session", _EPOCH_MAX)
            if session_id not in self._sessions:
                return session_id

    def _close_abandoned(self) -> None:
        """Close abandoned sessions of replicas: a live replica fetches several times a second in its newest one."""
        latest_ns = self._clock.now().mono_ns - EVICTION_NS
        for each in list(takewhile(lambda session: session.used_ns <= latest_ns, self._sessions.values())):
            if each.of_replica:
                self.close_session(each.session_id)

    def _evict_session(self, for_replica: bool) -> bool:
        # 1. The least recently used session, if that was long ago. 2. For a replica, any session of a consumer.
        oldest = next(iter(self._sessions.values()), None)
        if oldest is not None and self._clock.now().mono_ns - oldest.used_ns < EVICTION_NS:
            oldest = next((each for each in self._sessions.values() if for_replica and not each.of_replica), None)
        if oldest is None:
            return False
        self.close_session(oldest.session_id)
        self.evictions += 1
        return True


def with_latest_mark(each: FetchPartition, row: Row) -> Row:
    """The row of a follower that found no records, with the high watermark of now instead of when it was read."""
    partition = each.partition
    if partition is None or row[1] or each.region is not None or row[2] == partition.high_watermark:
        return row
    return (row[0], 0, partition.high_watermark, partition.last_stable_offset, *row[4:])


def has_news(each: FetchPartition, row: Row) -> bool:
    """Whether an incremental response includes the row: it leaves out what the reader knows already (KIP-227)."""
    news = row[2] != each.sent_high_watermark or row[4] != each.sent_log_start
    return news or each.region is not None or row[1] != 0 or row[6] >= 0 or each.diverging is not None
