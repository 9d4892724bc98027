"""A Fetch of many partitions, in slices: no turn decodes, reads or answers more than MANY of them.

Zone: deterministic. Partitions that this broker does not host get their error while the request is decoded, kept as
bytes of the response. A small request also reads in slices when its session has many dirty partitions, and every
response about many partitions is encoded in slices. A large request waits for its first byte only, so that its
partitions are not read again and again. A request that names partitions which are not here gets no session; if it
continues one, that ends with FETCH_SESSION_ID_NOT_FOUND, and the reader begins a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterator
from typing import Any, Final

from ottla.errors import ApiError, ErrorCode
from ottla.replication.fetch.down_conversion import ANSWER_MAX, V2_VERSION
from ottla.replication.fetch.fetch_completion import SLICE, FetchCompletion
from ottla.replication.fetch.fetch_reading import NO_RECORDS
from ottla.replication.fetch.fetch_responses import FetchResponder
from ottla.replication.fetch.fetch_rights import may_read
from ottla.replication.fetch.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchPartition,
    FetchSession,
    Key,
    RequestedPartition,
    Row,
)
from ottla.replication.fetch.fetch_setup import FetchSetup
from ottla.replication.fetch.pending_fetch import DEBUGGING_CONSUMER, NO_REPLICA, PendingFetch
from ottla.replication.fetch.sessionless_fetch import READ_COMMITTED, SessionlessFetch, sessionless_fetch_for
from ottla.replication.leaders import missing_partition_error
from ottla.requests import Rights, Steps
from ottla.seams import Slot
from ottla.wire.hot import FetchRequest
from ottla.wire.many_partitions import FetchPieces, FetchWalk, read_chunks

LARGE: Final = 32 * 1024
"""Bytes of a request from which on it is handled in slices: 1,000 partitions, or 2,000 of old versions."""
_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_DECODE_US: Final = 1_000
_READ_US: Final = 2_500
_AT_ONCE_US: Final = 2_500
_TOPIC_ID_VERSION: Final = 13


class LargeFetch:
    """One request, until it has a response or waits."""

    def __init__(
        self,
        setup: FetchSetup,
        responder: FetchResponder,
        completion: FetchCompletion,
        rotate: Callable[[dict[FetchPartition, None]], dict[FetchPartition, None]],
        slot: Slot,
        version: int,
        correlation_id: int,
    ) -> None:
        """`rotate`: the order in which partitions are read for old readers."""
        self._setup = setup
        self._responder = responder
        self._completion = completion
        self._rotate = rotate
        self._slot = slot
        self._version = version
        self._correlation_id = correlation_id
        self._by_id = version >= _TOPIC_ID_VERSION
        self._topics: Any = setup.hosted.by_id if self._by_id else setup.hosted.by_name
        self._rights: Rights | None = None
        self._reading: SessionlessFetch | None = None
        self._runs: list[list[RequestedPartition]] = []
        """The partitions that were read without a session so far, to repeat them with one if that is needed."""
        self._found = FetchPieces(version)
        self._asked: dict[Key, RequestedPartition] = {}
        self._forgotten: dict[Key, None] = {}
        self._unknown: FetchPieces | None = None

    def request_steps(self, frame: memoryview, pos: int) -> Steps:
        """Handle the request, response included. Raises MalformedMessage before anything was changed."""
        walk = FetchWalk(self._version, frame, pos)
        # 1. A request without a session is read while it is decoded, and may be complete then, unless each read has to
        #    be decided, or the bytes count for a quota.
        if walk.replica_id <= NO_REPLICA:
            self._rights = self._setup.rights_of(self._slot.peer)
        is_decided = self._rights is not None or self._completion.quota.is_active
        at_once = self._setup.selector is None and not is_decided
        if walk.session_epoch == FINAL_EPOCH and at_once:
            self._reading = sessionless_fetch_for(self._version, self._request_of(walk), self._setup.hosted)
        yield from self._decode_partitions(walk)
        request = self._request_of(walk)
        if self._reading is not None:
            if self._answers_at_once(self._reading, request):
                return None
            yield from self._store_runs()
        # 2. All others get a session, from which many partitions are read slice by slice.
        try:
            session, full = yield from self._session_for(request)
        except ApiError as error:
            self._responder.refuse_request(self._slot, self._version, self._correlation_id, error.as_value())
            return None
        pending = PendingFetch(self._completion, self._slot, self._version, self._correlation_id, session, full)
        self._set_up_pending(pending, request)
        self._completion.expect_end(pending)
        yield from self._completion.read_many(pending, request.max_wait_ms)
        return None

    def _answers_at_once(self, reading: SessionlessFetch, request: FetchRequest) -> bool:
        """Respond without a session if there is something to read; else the request has to wait, with a session."""
        if request.replica_id > NO_REPLICA or (not reading.bytes_read and request.max_wait_ms > 0):
            return False
        reading.count_bytes()
        self._responder.send_body(self._slot, self._version, self._correlation_id, self._found.body_parts(NO_SESSION))
        return True

    def _decode_partitions(self, walk: FetchWalk) -> Iterator[int]:
        read = 0
        for run in walk.walk_runs(SLICE):
            if run:
                yield from self._read_run(run)
            read += len(run) + 1
            if read > SLICE:
                read = 0
                yield _DECODE_US if self._reading is None else _AT_ONCE_US
        session = self._setup.sessions.find_session(walk.session_id)
        for keys in read_chunks(walk.walk_forgotten(), SLICE):
            if session is not None:
                self._forgotten.update(dict.fromkeys(key for key in keys if key in session.partitions))
            yield _DECODE_US

    def _read_run(self, run: list[RequestedPartition]) -> Iterator[int]:
        """Read partitions of one topic while they are decoded; after the first unusual one, only store them."""
        if self._reading is None:
            self._store_run(run)
            return
        self._runs.append(run)
        found = self._reading.read(run)
        if found is not None:
            self._found.add_topics(found)
        else:
            yield from self._store_runs()

    def _store_runs(self) -> Iterator[int]:
        """Begin again with a session, which handles unusual partitions."""
        self._reading = None
        self._found = FetchPieces(self._version)
        runs, self._runs = self._runs, []
        for run in runs:
            self._store_run(run)
            yield _DECODE_US

    def _store_run(self, run: list[RequestedPartition]) -> None:
        """Store the requested partitions of one topic that are here, and answer the others with an error."""
        name = run[0][0]
        topic = self._topics.get(name)
        here: Container[int] = () if topic is None else topic.partitions
        self._asked.update([((name, each[1]), each) for each in run if each[1] in here])
        leaders, rights = self._setup.leaders, self._rights
        is_denied = rights is not None and not may_read(rights, self._topics, leaders, name)
        rows: list[Row] = [
            (
                each[1],
                _DENIED if is_denied else missing_partition_error(leaders, name, each[1]).code,
                -1,
                -1,
                -1,
                None,
                -1,
                NO_RECORDS,
            )
            for each in run
            if each[1] not in here
        ]
        if rows:
            self._unknown = self._unknown or FetchPieces(self._version)
            self._unknown.add_topics([("", name, rows) if self._by_id else (name, bytes(16), rows)])
            if topic is not None:
                topic.failed_fetches += len(rows)

    def _request_of(self, walk: FetchWalk) -> FetchRequest:
        waits = (walk.max_wait_ms, walk.min_bytes, walk.max_bytes, walk.isolation_level)
        session = (walk.session_id, walk.session_epoch)
        return FetchRequest(walk.replica_id, *waits, *session, [], [], walk.rack_id, walk.replica_epoch)

    def _session_for(self, request: FetchRequest) -> Generator[int, None, tuple[FetchSession, bool]]:
        """The session, filled slice by slice, and whether the response is a full one. Raises ApiError."""
        sessions, session_id, epoch = self._setup.sessions, request.session_id, request.session_epoch
        of_replica = request.replica_id > NO_REPLICA
        if of_replica and not self._setup.is_broker(self._slot.peer):
            raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "only brokers fetch as replicas")
        # Errors of partitions that are not here are already encoded, which no session remembers: so none is kept.
        if self._unknown is not None:
            if epoch not in (FINAL_EPOCH, INITIAL_EPOCH):
                sessions.close_session(session_id)
                text = "the request names partitions that are not on this broker; start a new session"
                raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, text)
            epoch = FINAL_EPOCH
        asked = list(reversed(self._asked.values()))
        self._asked.clear()
        first = _pop_chunk(asked)
        session, full = sessions.session_for(session_id, epoch, first, self._forgotten, self._by_id, of_replica)
        while chunk := _pop_chunk(asked):
            yield _READ_US
            session.update_partitions(chunk, ())
        return session, full

    def _set_up_pending(self, pending: PendingFetch, request: FetchRequest) -> None:
        pending.unknown = self._unknown
        pending.rights = self._rights
        pending.committed = request.isolation_level == READ_COMMITTED
        pending.min_bytes = min(request.min_bytes, request.max_bytes, 1) if request.max_wait_ms > 0 else 0
        pending.max_bytes = request.max_bytes
        if self._version < V2_VERSION:
            pending.max_bytes = min(request.max_bytes, ANSWER_MAX)
            pending.session.dirty = self._rotate(pending.session.dirty)
        if request.replica_id > NO_REPLICA:
            self._setup.set_up_replica(pending, request)
        elif self._setup.selector is not None:
            pending.rack = request.rack_id
        if request.replica_id == DEBUGGING_CONSUMER:
            pending.reads_followers = True


def _pop_chunk(asked: list[RequestedPartition]) -> list[RequestedPartition]:
    """Take the next slice off the end of the list, so that no partition is kept twice in memory."""
    return [asked.pop() for _ in range(min(SLICE, len(asked)))]
