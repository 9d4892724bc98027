"""Incremental fetch sessions (KIP-227): what a reader asked for last time, and what has changed since.

Zone: deterministic. A session never rescans its partitions: a partition that has nothing new is watched, and puts
itself back into `dirty` when it changes; a fetch looks at the dirty ones only. A fetch without a session is a session
that lives for one request.
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
"""Epoch of a fetch without a session (or that closes one)."""
INITIAL_EPOCH: Final = 0
"""Epoch of a full fetch that asks for a new session."""
NO_SESSION: Final = 0
_EPOCH_MAX: Final = 2**31 - 1
MARK: Final = 1
"""A reader of what is committed waits for the high watermark."""
END: Final = 2
"""A replica waits for the log end."""
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
    """One partition of a session: where the reader is, and what it was told last."""

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
        "session",
        "told_high_watermark",
        "told_log_start",
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
        """What the present request will be answered, until it is."""
        self.diverging: EpochEnd | None = None
        """Where the asking replica's log parts from the leader's (KIP-595)."""
        self.warmed = False
        """What was cold has been warmed: the next read may wait rather than ask again."""
        self.told_high_watermark = -1
        self.told_log_start = -1
        _, _, self.leader_epoch, self.fetch_offset, self.last_epoch, self.log_start, self.max_bytes = asked

    def update_request(self, asked: RequestedPartition) -> None:
        """The reader's newest wish."""
        _, _, self.leader_epoch, self.fetch_offset, self.last_epoch, self.log_start, self.max_bytes = asked

    @property
    def used_ns(self) -> int:
        """When its session was asked last."""
        return self.session.used_ns

    @property
    def previous_ns(self) -> int:
        """When its session was asked before that."""
        return self.session.previous_ns

    @property
    def lasts(self) -> bool:
        """Whether its reader still wants it."""
        session = self.session
        return session.named_for_good or session.partitions.get((self.topic, self.index)) is self

    def replaced(self) -> None:
        """Another session has named this replica's partition. A request of a connection that is gone may arrive after
        those of the one that followed; whose reader lives asks again, and is noted again then."""
        if self.lasts and not self.session.named_for_good:
            self.session.unsaid[self] = None

    def watch(self, partition: Partition) -> None:
        """Nothing more to read: be told when there is. A replica reads up to the log end, others what is committed."""
        self.partition = partition
        waits_for = self.session.waits_for
        if waits_for & END:
            partition.end_watchers[self] = None
        if waits_for & MARK:
            partition.watchers[self] = None

    def unwatch(self) -> None:
        """No longer interested."""
        if self.partition is not None:
            self.partition.watchers.pop(self, None)
            self.partition.end_watchers.pop(self, None)
            self.partition = None

    def wake(self) -> None:
        """The partition has changed."""
        session = self.session
        if session.waits_for == END | MARK:
            self.unwatch()
        self.partition = None
        session.dirty[self] = None
        if session.on_dirty is not None:
            session.on_dirty()


class FetchSession:
    """The partitions of one reader, and those of them that may have something to say."""

    __slots__ = (
        "broker_epoch",
        "by_id",
        "closed",
        "dirty",
        "epoch",
        "named_for_good",
        "of_replica",
        "on_dirty",
        "partitions",
        "previous_ns",
        "session_id",
        "unsaid",
        "used_ns",
        "waits_for",
    )

    def __init__(self, session_id: int, asked: Iterable[RequestedPartition], by_id: bool = False) -> None:
        self.session_id = session_id
        self.by_id = by_id
        """Whether topics have ids here, as from Fetch version 13 on, or names."""
        self.of_replica = False
        """Whether a broker reads here, which others cannot take the place of (KIP-227)."""
        self.closed = False
        """Whether no other request will continue it."""
        self.named_for_good = False
        """Whether this was a replica's session of one request, which is answered: what that named stays named."""
        self.epoch = INITIAL_EPOCH
        self.used_ns = NEVER
        """When it was asked last."""
        self.previous_ns = NEVER
        """When it was asked before that."""
        self.broker_epoch = NO_EPOCH
        """Of a replica: under which its broker was registered when it asked last."""
        self.waits_for = MARK
        """What the reader wants to be told of: END, MARK or both."""
        self.partitions: dict[Key, FetchPartition] = {}
        self.dirty: dict[FetchPartition, None] = {}
        self.unsaid: dict[FetchPartition, None] = {}
        """Partitions whose replica has records that it does not know to be committed: looked at again each time."""
        self.on_dirty: Callable[[], None] | None = None
        """Set while a request of this session waits."""
        self.update(asked, ())

    def update(self, asked: Iterable[RequestedPartition], forgotten: Iterable[Key]) -> None:
        """Take the changes that an incremental fetch brings."""
        partitions = self.partitions
        for key in forgotten:
            gone = partitions.pop(key, None)
            if gone is not None:
                gone.unwatch()
                self.dirty.pop(gone, None)
                self.unsaid.pop(gone, None)
        for each in asked:
            present = partitions.get(each[:2])
            if present is None:
                present = partitions[each[:2]] = FetchPartition(self, each)
            else:
                present.unwatch()
                present.update_request(each)
            self.dirty[present] = None

    def registered(self, broker_epoch: int) -> None:
        """The replica's broker asks under this epoch. When it is another one all partitions have to hear of it, those
        that have nothing to say as well: who was refused under the old one may join now (KIP-903)."""
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

    def close(self) -> None:
        """Nobody will fetch with this session again."""
        self.closed = True
        for each in self.partitions.values():
            if each.partition is not None:
                each.unwatch()
        self.dirty.clear()
        self.unsaid.clear()

    def release(self) -> None:
        """Close a session whose last request is answered, and let go of its partitions, which refer back to it."""
        self.named_for_good = self.of_replica and not self.closed
        self.close()
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
        """The session of a request, and whether the answer is a full one (every partition asked for).

        `by_id`: the request names topics by their ids. `of_replica`: a broker asks. Raises ApiError
        FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR (KIP-516): the reader
        starts a new one.
        """
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session_id != NO_SESSION:
                self.close(session_id)
            new_id = NO_SESSION if epoch == FINAL_EPOCH or not asked else self._free_id(of_replica)
            session = FetchSession(new_id, asked, by_id)
            session.of_replica = of_replica
            self._use(session)
            return session, True
        session = self._continue(session_id, epoch, by_id)
        try:
            session.update(asked, forgotten)
        except Exception:
            self.close(session_id)  # half changed, and it is this reader's alone
            raise
        return session, False

    def _continue(self, session_id: int, epoch: int, by_id: bool) -> FetchSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {session_id}")
        expected = session.epoch + 1 if session.epoch < _EPOCH_MAX else 1
        if epoch != expected:
            message = f"fetch session {session_id} is at epoch {session.epoch}, asked for {epoch}"
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, message)
        if by_id is not session.by_id:
            kind = "id" if session.by_id else "name"
            message = f"fetch session {session_id} knows topics by {kind}, this fetch does not"
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, message)
        session.epoch = epoch
        self._use(session)
        return session

    def _use(self, session: FetchSession) -> None:
        session.previous_ns = session.used_ns
        session.used_ns = self._clock.now().mono_ns
        if session.session_id != NO_SESSION:
            self._sessions.pop(session.session_id, None)
            self._sessions[session.session_id] = session

    def get(self, session_id: int) -> FetchSession | None:
        """The session of that id."""
        return self._sessions.get(session_id)

    def close(self, session_id: int) -> None:
        """Give a slot back; fine if there is none."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()
            if session.on_dirty is None:  # else the request that waits in it releases it
                session.release()

    def end_session(self, session: FetchSession) -> None:
        """Close a session together with the request that waited in it."""
        self.close(session.session_id)
        session.release()

    def _free_id(self, of_replica: bool) -> int:
        """An id for a new session, or NO_SESSION when every slot is in recent use; replicas go before consumers."""
        if of_replica:
            self._close_abandoned()
        if len(self._sessions) >= self._slots and not self._evict(of_replica):
            return NO_SESSION
        while True:
            session_id = 1 + self._entropy.below("fetch-session", _EPOCH_MAX)
            if session_id not in self._sessions:
                return session_id

    def _close_abandoned(self) -> None:
        """Close what replicas have left behind: one that lives asks several times a second, in its newest session."""
        latest_ns = self._clock.now().mono_ns - EVICTION_NS
        for each in list(takewhile(lambda session: session.used_ns <= latest_ns, self._sessions.values())):
            if each.of_replica:
                self.close(each.session_id)

    def _evict(self, for_replica: bool) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is not None and self._clock.now().mono_ns - oldest.used_ns < EVICTION_NS:
            oldest = next((each for each in self._sessions.values() if for_replica and not each.of_replica), None)
        if oldest is None:
            return False
        self.close(oldest.session_id)
        self.evictions += 1
        return True


def as_of_now(each: FetchPartition, row: Row) -> Row:
    """A follower that found nothing and waited for it is at least told what was committed meanwhile."""
    partition = each.partition
    if partition is None or row[1] or each.region is not None or row[2] == partition.high_watermark:
        return row
    return (row[0], 0, partition.high_watermark, partition.last_stable_offset, *row[4:])


def worth_telling(each: FetchPartition, row: Row) -> bool:
    """An incremental answer leaves out what the reader knows already (KIP-227)."""
    news = row[2] != each.told_high_watermark or row[4] != each.told_log_start
    return news or each.region is not None or row[1] != 0 or row[6] >= 0 or each.diverging is not None
