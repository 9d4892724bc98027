"""A Fetch of many partitions, in slices: no turn decodes or looks at more than some of them.

Zone: deterministic. What is not here is answered with an error at once, and kept as bytes of the answer; of the others
there is no more than this broker hosts. A large request waits for its first byte only, so that its partitions are not
read over and over. One with partitions that are not here gets no session, and a session that such a request continues
ends with FETCH_SESSION_ID_NOT_FOUND: its reader begins a new one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ottla.errors import ApiError, ErrorCode
from ottla.replication.fetch_reading import NO_RECORDS, NO_REPLICA, fail_partition
from ottla.replication.fetch_session import FINAL_EPOCH, INITIAL_EPOCH, Asked, FetchPartition, FetchSession, Key, Row
from ottla.replication.leaders import missing
from ottla.replication.lowering import ANSWER_MAX, V2_VERSION
from ottla.requests import Steps
from ottla.seams import Slot
from ottla.wire.hot import FetchRequest
from ottla.wire.many import FetchPieces, FetchWalk, read_chunks

if TYPE_CHECKING:
    from ottla.replication.fetch import FetchHandler, PendingFetch

LARGE: Final = 32 * 1024
"""Bytes of a request from which on it is handled in slices: 1,000 partitions, or 2,000 of old versions."""
SLICE: Final = 500
"""Partitions of a slice."""
_DECODE_US: Final = 2_000
_READ_US: Final = 4_000
_ERROR_VERSION: Final = 7
_TOPIC_ID_VERSION: Final = 13
_READ_COMMITTED: Final = 1


class LargeFetch:
    """One request, until it is answered or waits."""

    def __init__(
        self, handler: FetchHandler, slot: Slot, version: int, correlation_id: int, frame: memoryview, pos: int
    ) -> None:
        self._handler = handler
        self._slot = slot
        self._version = version
        self._correlation_id = correlation_id
        self._frame = frame
        self._pos = pos
        self._by_id = version >= _TOPIC_ID_VERSION
        self._topics: Any = handler.hosted.by_id if self._by_id else handler.hosted.by_name
        self._asked: dict[Key, Asked] = {}
        self._forgotten: dict[Key, None] = {}
        self._unknown: FetchPieces | None = None

    def steps(self) -> Steps:
        """Answers by itself. Raises MalformedMessage before anything was changed."""
        walk = FetchWalk(self._version, self._frame, self._pos)
        yield from self._decode(walk)
        request = self._request(walk)
        try:
            session, full = yield from self._session_for(request)
        except ApiError as error:
            self._refuse(error.as_value())
            return None
        pending = self._handler.new_pending(self._slot, self._version, self._correlation_id, session, full)
        self._handler.waiting[self._slot.peer] = pending  # a connection that ends abandons it from now on
        try:
            yield from self._read(pending, request)
        except Exception as error:  # noqa: BLE001  # reading changes nothing, and the session goes
            self._handler.fail(pending, error)
        return None

    def _decode(self, walk: FetchWalk) -> Iterator[int]:
        for chunk in read_chunks(walk.partitions(), SLICE):
            self._sort(chunk)
            yield _DECODE_US
        session = self._handler.sessions.get(walk.session_id)
        for keys in read_chunks(walk.forgotten(), SLICE):
            if session is not None:
                self._forgotten.update(dict.fromkeys(key for key in keys if key in session.partitions))
            yield _DECODE_US

    def _sort(self, chunk: list[Asked]) -> None:
        """Keep what is asked of partitions that are here, and answer the others."""
        answers: list[tuple[Any, bytes, list[Row]]] = []
        last: Any = None
        rows: list[Row] = []
        for wanted in chunk:
            name, index = wanted[0], wanted[1]
            topic = self._topics.get(name)
            if topic is not None and index in topic.partitions:
                self._asked[name, index] = wanted
                continue
            if name != last:
                last, rows = name, []
                answers.append(("", name, rows) if self._by_id else (name, bytes(16), rows))
            code = missing(self._handler.leaders, name, index).code
            rows.append((index, code, -1, -1, -1, None, -1, NO_RECORDS))
            if topic is not None:
                topic.failed_fetches += 1
        if answers:
            self._unknown = self._unknown or FetchPieces(self._version)
            self._unknown.add(answers)

    def _request(self, walk: FetchWalk) -> FetchRequest:
        waits = (walk.max_wait_ms, walk.min_bytes, walk.max_bytes, walk.isolation_level)
        session = (walk.session_id, walk.session_epoch)
        return FetchRequest(walk.replica_id, *waits, *session, [], [], walk.rack_id, walk.replica_epoch)

    def _session_for(self, request: FetchRequest) -> Generator[int, None, tuple[FetchSession, bool]]:
        """The session, and whether the answer is a full one; its partitions come slice by slice. Raises ApiError."""
        sessions, session_id, epoch = self._handler.sessions, request.session_id, request.session_epoch
        of_replica = request.replica_id > NO_REPLICA
        if of_replica and not self._handler.is_broker(self._slot.peer):
            raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "only brokers fetch as replicas")
        if self._unknown is not None:
            if epoch not in (FINAL_EPOCH, INITIAL_EPOCH):
                sessions.close(session_id)
                raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "too many partitions of it are not here")
            epoch = FINAL_EPOCH
        asked = list(reversed(self._asked.values()))
        self._asked.clear()
        first = _pop_chunk(asked)
        session, full = sessions.session_for(session_id, epoch, first, self._forgotten, self._by_id, of_replica)
        while chunk := _pop_chunk(asked):
            yield _DECODE_US
            session.update(chunk, ())
        return session, full

    def _read(self, pending: PendingFetch, request: FetchRequest) -> Iterator[int]:
        """Look at every partition, then answer, or wait as any other Fetch."""
        handler, session = self._handler, pending.session
        self._set_up(pending, request)
        dirty = iter(list(session.dirty))
        while chunk := list(islice(dirty, SLICE)):
            for each in chunk:
                self._look(pending, each)
            yield _READ_US
        if self._unknown is not None:
            pending.unknown = self._unknown
            pending.settled = True
        if pending.settled or (not pending.cold and pending.bytes_read >= pending.min_bytes):
            pending.completed = True
            handler.answer(pending)
        else:
            handler.start(pending, request.max_wait_ms)

    def _set_up(self, pending: PendingFetch, request: FetchRequest) -> None:
        pending.committed = request.isolation_level == _READ_COMMITTED
        pending.min_bytes = min(request.min_bytes, request.max_bytes, 1) if request.max_wait_ms > 0 else 0
        pending.max_bytes = request.max_bytes
        if self._version < V2_VERSION:
            pending.max_bytes = min(request.max_bytes, ANSWER_MAX)
            pending.session.dirty = self._handler.lowerings.rotated(pending.session.dirty)
        if request.replica_id > NO_REPLICA:
            self._handler.for_replica(pending, request)
        elif self._handler.selector is not None:
            pending.rack = request.rack_id

    def _look(self, pending: PendingFetch, each: FetchPartition) -> None:
        pending.touched[each] = None
        topic = self._topics.get(each.topic)
        partition = None if topic is None else topic.partitions.get(each.index)
        if partition is None:
            fail_partition(pending, each, missing(self._handler.leaders, each.topic, each.index).code)
            return
        self._handler.look(pending, each, partition)
        if topic is not None and each.row is not None and each.row[1]:
            topic.failed_fetches += 1

    def _refuse(self, error: ApiError) -> None:
        if self._version < _ERROR_VERSION:  # its answer has no place for an error of the whole request
            self._handler.close(self._slot, error)
        else:
            self._handler.send(self._slot, self._version, self._correlation_id, [], error.code, 0)


def _pop_chunk(asked: list[Asked]) -> list[Asked]:
    """Take the next slice off the end, so that nothing is there twice."""
    return [asked.pop() for _ in range(min(SLICE, len(asked)))]
