"""Fetches raw record batches of partitions, from given offsets on.

Zone: real. Sends fetch requests, at most one unanswered per broker, and advances the positions. `batches` and `records`
read the batches. One thread per object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.connections.connection import Call, Connection, wait_readable
from ottla.client.errors import ClientError, CorruptBatchError, MalformedReplyError, RefusedError, refused_error
from ottla.client.fetching.batches import Fetched, whole_batches
from ottla.client.fetching.fetch_session import (
    NO_SESSION,
    SESSION_ERRORS,
    WITHOUT_EPOCH,
    FetchSession,
    FetchSessionRequest,
    Row,
)
from ottla.client.metadata import TopicView
from ottla.client.retry import Deadline, Retries
from ottla.client.settings import ISOLATION
from ottla.errors import ErrorCode
from ottla.renamed import renamed_argument
from ottla.types import ZERO_UUID, TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import FetchRequest, FetchResponse

_FIRST_VERSION_WITH_V2_BATCHES = 4
_FIRST_VERSION_WITH_TOPIC_IDS = 13
_NO_END = 2**63


class _Flight(NamedTuple):
    """An unanswered fetch request to one broker."""

    connection: Connection
    call: Call[FetchResponse]
    asked: Mapping[TopicPartition, int]
    names: Mapping[bytes, str]
    is_incremental: bool
    """Whether the answer has only partitions with news."""


class Fetcher:
    """Fetches the assigned partitions from all their leaders at once.

    While the caller processes one answer, the next request to that broker is already sent. Its answer waits in the
    socket's buffers, so the memory in use is that of one answer (`fetch.max.bytes`).
    """

    __slots__ = (
        "_cluster",
        "_config",
        "_epochs",
        "_flights",
        "_positions",
        "_preferred",
        "_rack",
        "_retries",
        "_sessions",
        "_stopped",
        "_until",
        "_wake",
    )

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int] | None = None,
        until: Mapping[TopicPartition, int] | None = None,
        *,
        rack: str = "",
        wake: int = -1,
        sessions: bool = False,
    ) -> None:
        """positions: the partitions to fetch and the first offset of each.

        until: where to stop: a partition is removed when its position reaches this offset, or if compaction left no
        record before it. If it is above the readable end, the fetcher waits for it.
        rack: `client.rack`: a leader may redirect the reader to a replica in that rack (KIP-392).
        wake: a file descriptor; `poll` ends when it is readable.
        sessions: keep a session with each broker (KIP-227), for long-running readers: partitions without news are left
        out of requests and answers. Not together with `until`.
        """
        assert not (sessions and until), "a session leaves out the answers that show that a partition is at its end"
        self._cluster = cluster
        self._config = cluster.config
        self._until: Mapping[TopicPartition, int] = dict(until or {})
        self._positions: dict[TopicPartition, int] = {}
        for tp, offset in (positions or {}).items():
            if offset < self._until.get(tp, _NO_END):
                self._positions[tp] = offset
        self._stopped: dict[TopicPartition, ClientError] = {}
        self._flights: dict[int, _Flight] = {}
        self._retries: Retries | None = None
        self._rack = rack
        self._wake = wake
        self._preferred: dict[TopicPartition, tuple[int, Deadline]] = {}
        self._epochs: dict[TopicPartition, int] = {}
        self._sessions: dict[int, FetchSession] | None = {} if sessions else None

    @property
    def active(self) -> bool:
        """Whether a partition is left to fetch: before its `until`, not held, and not stopped by an error."""
        return bool(self._due_partitions())

    @property
    def waits(self) -> bool:
        """Whether a request is unanswered."""
        return bool(self._flights)

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The next offset of each partition."""
        return dict(self._positions)

    def session(self, node: int) -> FetchSession | None:
        """The session with a broker, or None."""
        return None if self._sessions is None else self._sessions.get(node)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Fetch `tp` from `offset` on; adds the partition if it is new. `poll` drops answers for an older position."""
        self._positions[tp] = offset
        self._stopped.pop(tp, None)

    def hold_at(self, tp: TopicPartition, leader_epoch: int) -> None:
        """Fetch `tp` only from leaders up to this epoch: the log of a later leader may differ (KIP-320).

        Later `moved` contains the partition, until `hold_at` is called with the new epoch.
        """
        self._epochs[tp] = leader_epoch

    @property
    def moved(self) -> list[TopicPartition]:
        """The partitions that `hold_at` holds back now, because there is a leader of a later epoch."""
        return [tp for tp in self._positions if self._is_held(tp)]

    def remove(self, tp: TopicPartition) -> None:
        """Stop fetching `tp`."""
        self._positions.pop(tp, None)
        self._stopped.pop(tp, None)
        self._preferred.pop(tp, None)
        self._epochs.pop(tp, None)

    def poll(self, timeout_ms: float) -> list[Fetched]:
        """The next answers; waits up to `timeout_ms` for one, and returns an empty list without one.

        A broker answers after `fetch.max.wait.ms` even without news: such results have no records; a session leaves
        them out. Retriable errors are retried here. Raises DeadlineError if no request succeeded for
        `default.api.timeout.ms`, MalformedReplyError, UnreachableError before the first contact with the cluster.
        """
        deadline = Deadline.after_ms(timeout_ms)
        while True:
            self._send_due()
            results = [found for node in self._ready_nodes(deadline) for found in self._receive_answer(node)]
            if results:
                # Request the next data before the caller processes these.
                self._send_due()
                return results
            if deadline.expired or not self.active or self._is_woken():
                return []

    def close(self) -> None:
        """Stop fetching. Answers to unanswered requests are dropped when they arrive; the Cluster stays open."""
        self._positions.clear()
        for flight in self._flights.values():
            flight.connection.abandon_call(flight.call)
        self._flights.clear()

    def _due_partitions(self) -> list[TopicPartition]:
        return [tp for tp in self._positions if tp not in self._stopped and not self._is_held(tp)]

    def _is_held(self, tp: TopicPartition) -> bool:
        return tp in self._epochs and self._leader_epoch(tp) > self._epochs[tp]

    def _leader_epoch(self, tp: TopicPartition) -> int:
        """The leader epoch in the metadata; -1: unknown."""
        view = self._cluster.view.topics.get(tp.topic)
        found = view.partitions.get(tp.partition) if isinstance(view, TopicView) else None
        return -1 if found is None else found.leader_epoch

    def _is_woken(self) -> bool:
        return self._wake >= 0 and bool(wait_readable((), Deadline(0), self._wake)[1])

    def _send_due(self) -> None:
        """Send a fetch to every broker that has data to fetch and no unanswered request."""
        # A partition in an unanswered request is not requested again: the second answer would bring the same records,
        # and be dropped.
        in_flight = {tp for flight in self._flights.values() for tp in flight.asked}
        due = [tp for tp in self._due_partitions() if tp not in in_flight]
        if not due:
            return
        by_leader, without = self._cluster.leaders(due, Deadline.after_ms(self._config.default_api_timeout_ms))
        for node, partitions in self._by_node(by_leader).items():
            # One request per broker: the next one is sent when this is answered, with all partitions that are due by
            # then.
            if node not in self._flights:
                self._send_to_node(node, {tp: self._positions[tp] for tp in partitions})
        for tp, error in without.items():
            self._retry_partitions([tp], error)

    def _by_node(self, by_leader: Mapping[int, list[TopicPartition]]) -> dict[int, list[TopicPartition]]:
        """Partitions by the replica to read from: the leader, or the replica that it named."""
        by_node: dict[int, list[TopicPartition]] = {}
        for leader, partitions in by_leader.items():
            for tp in partitions:
                # The metadata may just have been refreshed, with a later epoch.
                if not self._is_held(tp):
                    by_node.setdefault(self._read_replica(tp, leader), []).append(tp)
        return by_node

    def _read_replica(self, tp: TopicPartition, leader: int) -> int:
        node, until = self._preferred.get(tp, (leader, None))
        # KIP-392: the choice of a replica expires, so that the leader can choose again.
        if until is not None and (until.expired or node not in self._cluster.view.nodes):
            del self._preferred[tp]
            return leader
        return node

    def _send_to_node(self, node: int, asked: Mapping[TopicPartition, int]) -> None:
        names = {tp.topic: self._topic_id(tp.topic) for tp in asked}
        # From version 13 on topics are identified by id, so all ids must be known.
        at_most = 32_767 if ZERO_UUID not in names.values() else _FIRST_VERSION_WITH_TOPIC_IDS - 1
        wanted = {tp: Row(names[tp.topic], offset, self._leader_epoch(tp)) for tp, offset in asked.items()}
        try:
            connection = self._cluster.connection(node, self._cluster.deadline())
            version = connection.choose_version(ApiKey.FETCH, at_most, _FIRST_VERSION_WITH_V2_BATCHES)
            ask = self._session_request(node, wanted, by_id=version >= _FIRST_VERSION_WITH_TOPIC_IDS)
            call = connection.send_request(self._fetch_request(ask), version, FetchResponse)
        except ClientError as error:
            self._lose_session(node)
            self._retry_partitions(asked, error)
        else:
            ids = {topic_id: name for name, topic_id in names.items() if topic_id != ZERO_UUID}
            self._flights[node] = _Flight(connection, call, asked, ids, ask.is_incremental)

    def _session_request(self, node: int, wanted: Mapping[TopicPartition, Row], *, by_id: bool) -> FetchSessionRequest:
        if self._sessions is None:
            return FetchSessionRequest(NO_SESSION, WITHOUT_EPOCH, wanted, {})
        return self._sessions.setdefault(node, FetchSession()).next_request(wanted, by_id=by_id)

    def _lose_session(self, node: int) -> None:
        if (session := self.session(node)) is not None:
            session.on_lost()

    def _fetch_request(self, ask: FetchSessionRequest) -> FetchRequest:
        by_topic: dict[tuple[str, bytes], list[FetchRequest.FetchPartition]] = {}
        for tp, row in ask.rows.items():
            part = FetchRequest.FetchPartition(
                partition=tp.partition,
                current_leader_epoch=row.leader_epoch,
                fetch_offset=row.offset,
                partition_max_bytes=self._config.max_partition_fetch_bytes,
            )
            by_topic.setdefault((tp.topic, row.topic_id), []).append(part)
        forgotten: dict[tuple[str, bytes], list[int]] = {}
        for tp, row in ask.forgotten.items():
            forgotten.setdefault((tp.topic, row.topic_id), []).append(tp.partition)
        return FetchRequest(
            max_wait_ms=self._config.fetch_max_wait_ms,
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=self._config.fetch_max_bytes,
            isolation_level=ISOLATION[self._config.isolation_level],
            session_id=ask.session_id,
            session_epoch=ask.epoch,
            topics=[
                FetchRequest.FetchTopic(topic=name, topic_id=topic_id, partitions=parts)
                for (name, topic_id), parts in by_topic.items()
            ],
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(topic=name, topic_id=topic_id, partitions=numbers)
                for (name, topic_id), numbers in forgotten.items()
            ],
            rack_id=self._rack,
        )

    def _topic_id(self, name: str) -> bytes:
        view = self._cluster.view.topics.get(name)
        return view.topic_id if isinstance(view, TopicView) else ZERO_UUID

    def _ready_nodes(self, deadline: Deadline) -> list[int]:
        """Nodes whose answer begins to arrive, whose connection is lost, or which exceeded `request.timeout.ms`."""
        early = [node for node, flight in self._flights.items() if flight.connection.has_answer(flight.call)]
        lost = [node for node, flight in self._flights.items() if not flight.connection.is_open]
        if early or lost or not self._flights:
            return early + lost
        until = min([deadline.at, *(flight.call.sent.at for flight in self._flights.values())])
        readable, _ = wait_readable(
            [flight.connection for flight in self._flights.values()], Deadline(until), self._wake
        )
        return [
            node for node, flight in self._flights.items() if flight.connection in readable or flight.call.sent.expired
        ]

    def _receive_answer(self, node: int) -> list[Fetched]:
        # 1. The session is over: the next request is a full one, at once. 2. An error of the whole request, or of the
        # connection: wait, then retry all partitions. 3. Retriable errors of some partitions: wait, then retry these.
        # 4. Other errors are results of their partitions.
        flight = self._flights.pop(node)
        try:
            answer = flight.connection.wait_for_response(flight.call, flight.call.sent)
            if self._is_session_over(node, flight, answer):
                return []
            if (error := refused_error(answer.error_code, "fetch")) is not None:
                raise error
            results = [self._from_leader(each) for each in self._read_response(answer, flight)]
        except ClientError as error:
            self._lose_session(node)
            self._retry_partitions(flight.asked, error)
            return []
        failed = {r.tp: r.error for r in results if r.error is not None and r.error.retriable}
        if failed:
            self._retry_partitions(failed, next(iter(failed.values())))
        else:
            # An answer without failures ends the series of attempts: the next error begins with the first backoff
            # again.
            self._retries = None
        return [result for result in results if result.tp not in failed and self._accept_result(result)]

    def _is_session_over(self, node: int, flight: _Flight, answer: FetchResponse) -> bool:
        """Pass the answer to the session; returns whether it only means that the session is over."""
        session = self.session(node)
        if session is None:
            return False
        names = flight.names
        seen = {
            TopicPartition(topic.topic or names.get(topic.topic_id, ""), part.partition_index)
            for topic in answer.responses
            for part in topic.partitions
        }
        session.on_response(answer.error_code, answer.session_id, seen)
        # A full request uses no session that could be over: then it is an error like any other.
        return flight.is_incremental and answer.error_code in SESSION_ERRORS

    def _from_leader(self, result: Fetched) -> Fetched:
        """Drop the error of a replica in our rack: the leader is asked next, and decides."""
        if result.error is None or self._preferred.pop(result.tp, None) is None:
            return result
        return result._replace(error=None, caught_up=False)

    def _accept_result(self, result: Fetched) -> bool:
        """Advance the position; False if `seek` or `remove` was called after the request."""
        # The comparison replaces a request number: an answer for another offset is of no use, whenever it was
        # requested.
        if self._positions.get(result.tp) != result.fetch_offset:
            return False
        if result.error is not None:
            self._stopped[result.tp] = result.error
        elif result.records:
            # Move the partition to the end: brokers fill answers in the order of the request, so each gets its turn.
            del self._positions[result.tp]
            self._positions[result.tp] = result.next_offset
        until = self._until.get(result.tp, _NO_END)
        if result.next_offset >= until or (result.caught_up and result.end_offset >= until):
            self.remove(result.tp)
        return True

    def _read_response(self, answer: FetchResponse, flight: _Flight) -> Iterator[Fetched]:
        empty = not any(part.records for topic in answer.responses for part in topic.partitions)
        seen: set[TopicPartition] = set()
        for topic in answer.responses:
            name = topic.topic or flight.names.get(topic.topic_id, "")
            for part in topic.partitions:
                tp = TopicPartition(name, part.partition_index)
                # Its offset would be unknown here, and records of another partition would be returned.
                if tp not in flight.asked or tp in seen:
                    raise MalformedReplyError(
                        f"{flight.connection.address} sent data of {tp}, which was not requested, or sent it twice"
                    )
                seen.add(tp)
                if part.preferred_read_replica >= 0:
                    until = Deadline.after_ms(self._config.metadata_max_age_ms)
                    self._preferred[tp] = (part.preferred_read_replica, until)
                yield self._fetched_partition(tp, flight.asked[tp], part, empty)

    def _fetched_partition(
        self, tp: TopicPartition, offset: int, part: FetchResponse.PartitionData, empty: bool
    ) -> Fetched:
        error: ClientError | None = refused_error(part.error_code, f"fetch of {tp} at offset {offset}")
        records = part.records if isinstance(part.records, memoryview) else memoryview(b"")
        next_offset = offset
        if error is None and records:
            try:
                records, next_offset = whole_batches(records, tp, offset)
            except CorruptBatchError as corrupt:
                error, records = corrupt, records[:0]
        committed = self._config.isolation_level == "read_committed"
        end = part.last_stable_offset if committed and part.last_stable_offset >= 0 else part.high_watermark
        return Fetched(
            tp,
            offset,
            next_offset,
            records,
            end,
            part.high_watermark,
            part.log_start_offset,
            tuple((txn.producer_id, txn.first_offset) for txn in part.aborted_transactions or ()),
            error is None and (empty or next_offset >= end),
            error,
        )

    def _retry_partitions(
        self, asked: Mapping[TopicPartition, object] | list[TopicPartition], error: ClientError
    ) -> None:
        """After a failed request: forget the leaders and wait for the backoff. Raises if retries do not help."""
        unknown = isinstance(error, RefusedError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # A topic may be unknown to one broker for a moment after its creation; after some attempts it does not exist.
        if not error.retriable or (unknown and self._retries is not None and self._retries.attempt > 5):
            raise error
        # Most retriable errors mean that the leader has moved: only new metadata names the next one.
        self._cluster.forget_topics(tp.topic for tp in asked)
        for tp in asked:
            self._preferred.pop(tp, None)
        if self._retries is None:
            self._retries = self._cluster.retries("fetching", self._cluster.deadline())
        self._retries.wait_backoff(error)


@renamed_argument("where", "tp")
def fetch_range(cluster: Cluster, tp: TopicPartition, start: int, end: int) -> Iterator[Fetched]:
    """All of one partition's batches with offsets in [start, end); the first and the last batch may reach beyond.

    If `end` is above the readable end, this waits for it. It ends earlier if compaction left no record before `end`.
    Raises the RefusedError of the partition (OFFSET_OUT_OF_RANGE …) and what `poll` raises.
    """
    fetcher = Fetcher(cluster, {tp: start}, {tp: end})
    try:
        while fetcher.active:
            for fetched in fetcher.poll(cluster.config.request_timeout_ms):
                if fetched.error is not None:
                    raise fetched.error
                if fetched.records:
                    yield fetched
    finally:
        fetcher.close()
