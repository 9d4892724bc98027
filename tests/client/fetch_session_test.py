"""Incremental fetch sessions (KIP-227): the state machine by a table of answers, the fetcher with a scripted broker."""

from __future__ import annotations

import time

import pytest
from tests.client.fetch_test import T0, T1, Leader, batch, read

from ottla.client import Cluster, Fetcher, MalformedReplyError, TopicPartition
from ottla.client.fetching.fetch_session import FetchSession, FetchSessionRequest, Row
from ottla.errors import ErrorCode
from ottla.wire.apis import ApiKey
from ottla.wire.messages import FetchResponse

ID, OTHER = b"1" * 16, b"2" * 16
A, B, C = (TopicPartition("t", number) for number in range(3))


def rows(**offsets: int) -> dict[TopicPartition, Row]:
    return {TopicPartition("t", "abc".index(name)): Row(ID, offset, 4) for name, offset in offsets.items()}


def opened() -> FetchSession:
    """A session with id 7 and one answer so far, in which A and B were sent with offset 0."""
    session = FetchSession()
    assert session.next_request(rows(a=0, b=0), by_id=True) == FetchSessionRequest(0, 0, rows(a=0, b=0), {})
    session.on_response(0, 7, {A, B})
    return session


REPLIES = [
    # error, session id, partitions in it → id and epoch of the next request, and whether it is a full one
    (0, 7, set(), 7, 2),
    (0, 7, {A, B}, 7, 2),
    (0, 0, {A}, 7, 0),
    (0, 8, {A}, 7, 0),
    (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, set(), 0, 0),
    (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0, set(), 7, 0),
    (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 0, set(), 7, 0),
    (ErrorCode.UNKNOWN_SERVER_ERROR, 7, set(), 7, 0),
]


@pytest.mark.parametrize(("error", "session_id", "seen", "next_id", "next_epoch"), REPLIES)
def test_what_an_incremental_answer_makes_of_the_next_request(error, session_id, seen, next_id, next_epoch) -> None:
    session = opened()
    assert session.next_request(rows(a=5, b=0), by_id=True) == FetchSessionRequest(7, 1, rows(a=5), {})
    session.on_response(error, session_id, seen)
    ask = session.next_request(rows(a=5, b=0), by_id=True)
    assert (ask.session_id, ask.epoch) == (next_id, next_epoch)
    assert ask.rows == ({} if next_epoch else rows(a=5, b=0))
    assert ask.is_incremental == bool(next_epoch)


FULL_REPLIES = [
    (0, 7, {A, B}, 7, 1),
    (0, 0, {A, B}, 0, 0),  # the broker keeps no session, or is older than Kafka 1.1
    (0, 7, {A}, 7, 0),  # the state of the session is unknown
    (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, set(), 0, 0),
]


@pytest.mark.parametrize(("error", "session_id", "seen", "next_id", "next_epoch"), FULL_REPLIES)
def test_what_a_full_answer_makes_of_the_next_request(error, session_id, seen, next_id, next_epoch) -> None:
    session = FetchSession()
    session.next_request(rows(a=0, b=0), by_id=True)
    session.on_response(error, session_id, seen)
    ask = session.next_request(rows(a=0, b=0), by_id=True)
    assert (ask.session_id, ask.epoch) == (next_id, next_epoch)


def test_a_session_sends_new_changed_and_forgotten_partitions() -> None:
    session = opened()
    assert session.next_request(rows(b=0, c=9), by_id=True) == FetchSessionRequest(7, 1, rows(c=9), rows(a=0))
    session.on_response(0, 7, set())
    assert session.next_request(rows(b=0, c=9), by_id=True) == FetchSessionRequest(7, 2, {}, {})
    session.on_response(0, 7, set())
    newer = {B: Row(ID, 0, 5), C: Row(ID, 9, 4)}
    assert session.next_request(newer, by_id=True) == FetchSessionRequest(7, 3, {B: newer[B]}, {}), (
        "another leader epoch"
    )
    session.on_response(0, 7, set())
    assert session.next_request({}, by_id=True) == FetchSessionRequest(7, 4, {}, newer)


def test_unanswered_changes_are_sent_again() -> None:
    session = opened()
    session.next_request(rows(a=5, b=5), by_id=True)
    session.on_lost()
    assert session.next_request(rows(a=5, b=5), by_id=True) == FetchSessionRequest(7, 0, rows(a=5, b=5), {})


def test_a_recreated_topic_and_other_topic_names_need_a_full_request() -> None:
    session = opened()
    again = {A: Row(OTHER, 0, 4), B: Row(ID, 0, 4)}
    assert session.next_request(again, by_id=True) == FetchSessionRequest(7, 0, again, {})
    session.on_response(0, 8, {A, B})
    assert session.next_request(again, by_id=False) == FetchSessionRequest(8, 0, again, {})


def test_the_epoch_wraps() -> None:
    session = opened()
    session.epoch = 2**31 - 1
    assert session.next_request(rows(a=0, b=0), by_id=True).epoch == 2**31 - 1
    session.on_response(0, 7, set())
    assert session.next_request(rows(a=0, b=0), by_id=True).epoch == 1


class SessionLeader(Leader):
    """Keeps one session like a broker: an incremental answer has only partitions with records."""

    def __init__(self, broker) -> None:
        super().__init__(broker)
        self.next_id = 40
        self.held: dict[int, object] = {}
        self.over: list[int] = []
        """Errors for the next incremental requests."""

    def fetch(self, request):
        message = request.message()
        if message.session_epoch > 0 and self.over:
            return request.reply(FetchResponse(error_code=self.over.pop(0)))
        if message.session_epoch <= 0:
            self.next_id += 1
            self.held = {}
        for topic in message.topics:
            self.held |= {part.partition: part for part in topic.partitions}
        for topic in message.forgotten_topics_data:
            for number in topic.partitions:
                del self.held[number]
        parts = [self.part(part, 0) for part in self.held.values()]
        if message.session_epoch > 0:
            parts = [part for part in parts if part.records]
        answer = FetchResponse.FetchableTopicResponse(topic="t", topic_id=b"t".ljust(16, b"\1"), partitions=parts)
        return request.reply(FetchResponse(session_id=self.next_id, responses=[answer] if parts else []))

    def said(self, least: int = 0) -> list[tuple[int, int, dict[int, int], list[int]]]:
        """(session, epoch, offsets, forgotten partitions) of the requests so far, at least `least` of them."""
        until = time.monotonic() + 180
        while len(self.broker.asked(ApiKey.FETCH)) < least and time.monotonic() < until:
            time.sleep(0.001)
        found = []
        for request in self.broker.asked(ApiKey.FETCH):
            message = request.message()
            offsets = {part.partition: part.fetch_offset for topic in message.topics for part in topic.partitions}
            gone = [number for topic in message.forgotten_topics_data for number in topic.partitions]
            found.append((message.session_id, message.session_epoch, offsets, gone))
        return found


@pytest.fixture
def leader(broker) -> SessionLeader:
    return SessionLeader(broker)


def test_a_partition_without_news_is_not_sent_again(leader: SessionLeader, cluster: Cluster) -> None:
    leader.batches = {0: [batch(0), batch(1), batch(2)], 1: []}
    fetcher = Fetcher(cluster, {T0: 0, T1: 0}, sessions=True)
    assert read(fetcher, 3) == [(T0, 0), (T0, 1), (T0, 2)]
    assert leader.said(3)[:3] == [(0, 0, {0: 0, 1: 0}, []), (41, 1, {0: 1}, []), (41, 2, {0: 2}, [])]
    leader.batches[1] = [batch(0)]
    assert read(fetcher, 1) == [(T1, 0)]
    assert fetcher.positions == {T0: 3, T1: 1}


def test_a_removed_partition_is_forgotten_and_sent_again_when_it_returns(leader, cluster) -> None:
    leader.batches = {0: [batch(0), batch(1), batch(2)], 1: [batch(0), batch(1), batch(2)]}
    fetcher = Fetcher(cluster, {T0: 0, T1: 0}, sessions=True)
    read(fetcher, 2)
    fetcher.remove(T1)
    read(fetcher, 1)  # was sent with both partitions
    assert leader.said(3)[2][2:] == ({0: 2}, [1])
    fetcher.seek(T1, 1)
    assert (T1, 1) in read(fetcher, 2)
    assert leader.said(4)[3][2][1] == 1
    assert {session for session, _, _, _ in leader.said(4)[1:]} == {41}


@pytest.mark.parametrize(
    ("error", "closes"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 41),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 41),
    ],
)
def test_a_session_that_is_over_is_followed_by_a_full_request_at_once(leader, cluster, error, closes) -> None:
    leader.batches = {0: [batch(n) for n in range(4)], 1: []}
    leader.over = [error]
    fetcher = Fetcher(cluster, {T0: 0, T1: 0}, sessions=True)
    assert read(fetcher, 4) == [(T0, n) for n in range(4)]
    assert leader.said(4)[1:4] == [(41, 1, {0: 1}, []), (closes, 0, {0: 1, 1: 0}, []), (42, 1, {0: 2}, [])]
    # Only the session was over, so no metadata was requested again.
    assert len(leader.broker.asked(ApiKey.METADATA)) == 1


def test_a_full_request_that_is_refused_for_its_session_is_an_error_that_passes_with_patience(
    leader: SessionLeader, cluster: Cluster
) -> None:
    leader.batches[0] = [batch(0)]
    refused = iter([ErrorCode.INVALID_FETCH_SESSION_EPOCH] * 2)
    serve = leader.fetch

    def fetch(request):
        error = next(refused, None)
        return serve(request) if error is None else request.reply(FetchResponse(error_code=error))

    leader.broker.on[ApiKey.FETCH] = fetch
    assert read(Fetcher(cluster, {T0: 0}, sessions=True), 1) == [(T0, 0)]
    assert len(leader.broker.asked(ApiKey.METADATA)) > 1, "it waited, and looked again who leads"


def test_a_lost_connection_is_followed_by_a_full_request(leader: SessionLeader, cluster: Cluster) -> None:
    leader.batches[0] = [batch(n) for n in range(3)]
    serve = leader.fetch

    def fetch(request):
        return None if len(leader.said()) == 2 else serve(request)

    leader.broker.on[ApiKey.FETCH] = fetch
    assert read(Fetcher(cluster, {T0: 0, T1: 0}, sessions=True), 3) == [(T0, n) for n in range(3)]
    assert leader.said(4)[1:4] == [(41, 1, {0: 1}, []), (41, 0, {0: 1, 1: 0}, []), (42, 1, {0: 2}, [])]


def test_data_of_a_partition_that_the_session_does_not_hold_is_no_answer(leader, cluster) -> None:
    leader.batches[0] = [batch(0), batch(1)]
    fetcher = Fetcher(cluster, {T0: 0}, sessions=True)
    read(fetcher, 1)
    leader.batches[1] = [batch(0)]
    leader.held[1] = leader.broker.asked(ApiKey.FETCH)[0].message().topics[0].partitions[0]
    leader.held[1].partition = 1
    with pytest.raises(MalformedReplyError, match="not requested"):
        read(fetcher, 2)


def test_without_sessions_every_request_is_a_full_one(leader: SessionLeader, cluster: Cluster) -> None:
    leader.batches[0] = [batch(0), batch(1)]
    assert len(read(Fetcher(cluster, {T0: 0, T1: 0}), 2)) == 2
    assert {(session, epoch) for session, epoch, _, _ in leader.said()} == {(0, -1)}
    assert all(set(offsets) == {0, 1} for _, _, offsets, _ in leader.said())
