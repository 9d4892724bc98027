"""Incremental fetch sessions (KIP-227)."""

from __future__ import annotations

import gc

import pytest

from ottla.errors import ApiError, ErrorCode
from ottla.replication.fetch.fetch_session import (
    EVICTION_NS,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    FetchSessions,
)
from ottla.seams import Instant


class HandClock:
    def __init__(self) -> None:
        self.ns = 0

    def now(self) -> Instant:
        return Instant(self.ns, self.ns // 1_000_000)

    def set_alarm(self, mono_ns: int | None) -> None:
        raise AssertionError("sessions need no alarm")


class Counting:
    """Entropy that counts up, and repeats itself once: an id in use is not given twice."""

    def __init__(self) -> None:
        self.values = iter([4, 4, 5, 6, 7, 8])

    def random_below(self, stream: str, n: int) -> int:
        return next(self.values)

    def random_bytes(self, stream: str, n: int) -> bytes:
        raise AssertionError("session ids are numbers")


def asked(topic: str, partition: int, offset: int = 0) -> tuple[str, int, int, int, int, int, int]:
    return (topic, partition, -1, offset, -1, -1, 1 << 20)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def sessions(clock: HandClock) -> FetchSessions:
    return FetchSessions(clock, Counting(), slots=2)


def begin(sessions: FetchSessions, *partitions: int) -> FetchSession:
    session, full = sessions.session_for(0, INITIAL_EPOCH, [asked("t", each) for each in partitions], ())
    assert full
    return session


def test_a_fetch_without_a_session_keeps_nothing(sessions: FetchSessions) -> None:
    session, full = sessions.session_for(0, FINAL_EPOCH, [asked("t", 0)], ())
    assert full
    assert session.session_id == NO_SESSION
    assert len(sessions) == 0


def test_a_session_remembers_and_takes_changes_only(sessions: FetchSessions) -> None:
    first = begin(sessions, 0, 1, 2)
    first.dirty.clear()
    again, full = sessions.session_for(first.session_id, 1, [asked("t", 1, 17), asked("u", 0)], [("t", 2)])
    assert not full
    assert again is first
    assert list(again.partitions) == [("t", 0), ("t", 1), ("u", 0)]
    assert again.partitions[("t", 1)].fetch_offset == 17
    assert [each.topic + str(each.index) for each in again.dirty] == ["t1", "u0"], "only what was asked for is dirty"


def test_two_sessions_never_share_an_id(sessions: FetchSessions) -> None:
    assert {begin(sessions, 0).session_id, begin(sessions, 0).session_id} == {5, 6}


def test_an_unknown_session_and_a_wrong_epoch_have_their_errors(sessions: FetchSessions) -> None:
    with pytest.raises(ApiError) as unknown:
        sessions.session_for(99, 1, [], ())
    assert unknown.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    session = begin(sessions, 0)
    for epoch in (2, 5):
        with pytest.raises(ApiError) as wrong:
            sessions.session_for(session.session_id, epoch, [], ())
        assert wrong.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert sessions.session_for(session.session_id, 1, [], ())[0] is session


@pytest.mark.parametrize("by_id", [True, False])
def test_names_and_ids_do_not_meet_in_one_session(sessions: FetchSessions, by_id: bool) -> None:
    """A client that does not know every topic's id for a while falls back to an older version (KIP-516)."""
    session, _ = sessions.session_for(0, INITIAL_EPOCH, [asked("t", 0)], (), by_id)
    with pytest.raises(ApiError) as caught:
        sessions.session_for(session.session_id, 1, [], (), not by_id)
    assert caught.value.code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert sessions.session_for(session.session_id, 1, [], (), by_id)[0] is session, "it is as it was"


def test_the_epoch_wraps_to_one(sessions: FetchSessions) -> None:
    session = begin(sessions, 0)
    session.epoch = 2**31 - 1
    assert sessions.session_for(session.session_id, 1, [], ())[0] is session


def test_a_final_fetch_closes_the_session_it_names(sessions: FetchSessions) -> None:
    session = begin(sessions, 0)
    sessions.session_for(session.session_id, FINAL_EPOCH, [asked("t", 0)], ())
    assert len(sessions) == 0
    assert not session.dirty


def test_slots_are_bounded_and_only_old_sessions_make_room(sessions: FetchSessions, clock: HandClock) -> None:
    old, young = begin(sessions, 0), begin(sessions, 0)
    assert begin(sessions, 0).session_id == NO_SESSION, "both are in use: no session, but an answer"
    clock.ns = EVICTION_NS
    sessions.session_for(old.session_id, 1, [], ())
    fresh = begin(sessions, 0)
    assert fresh.session_id != NO_SESSION
    assert sessions.evictions == 1
    with pytest.raises(ApiError, match="FETCH_SESSION_ID_NOT_FOUND"):
        sessions.session_for(young.session_id, 1, [], ())
    assert sessions.session_for(old.session_id, 2, [], ())[0] is old


def test_replicas_get_slots_before_consumers(sessions: FetchSessions) -> None:
    def fetch(of_replica: bool) -> FetchSession:
        return sessions.session_for(0, INITIAL_EPOCH, [asked("t", 0)], (), of_replica=of_replica)[0]

    consumer, replica = fetch(False), fetch(True)
    assert fetch(False).session_id == NO_SESSION
    assert fetch(True).session_id != NO_SESSION, "both are in use, one by a consumer"
    with pytest.raises(ApiError, match="FETCH_SESSION_ID_NOT_FOUND"):
        sessions.session_for(consumer.session_id, 1, [], ())
    assert sessions.session_for(replica.session_id, 1, [], ())[0] is replica
    assert fetch(True).session_id == NO_SESSION, "both are replicas'"


def test_abandoned_sessions_of_replicas_are_closed_for_a_new_one(clock: HandClock) -> None:
    """A follower that died, or gave a request up, never names the session that it had; the slots would fill."""
    sessions = FetchSessions(clock, Counting(), slots=10)

    def fetch(of_replica: bool) -> FetchSession:
        return sessions.session_for(0, INITIAL_EPOCH, [asked("t", 0)], (), of_replica=of_replica)[0]

    consumer, left, lives = fetch(False), fetch(True), fetch(True)
    clock.ns = EVICTION_NS
    sessions.session_for(lives.session_id, 1, [], ())
    fetch(False)
    assert len(sessions) == 4, "a consumer may come back"
    fetch(True)
    assert len(sessions) == 4
    with pytest.raises(ApiError, match="FETCH_SESSION_ID_NOT_FOUND"):
        sessions.session_for(left.session_id, 1, [], ())
    assert sessions.session_for(lives.session_id, 2, [], ())[0] is lives
    assert sessions.session_for(consumer.session_id, 1, [], ())[0] is consumer


def test_a_new_broker_epoch_makes_all_partitions_dirty(sessions: FetchSessions) -> None:
    session = begin(sessions, 0, 1)
    session.note_broker_epoch(7)
    session.dirty.clear()
    session.note_broker_epoch(7)
    assert not session.dirty
    session.note_broker_epoch(9)
    assert set(session.dirty) == set(session.partitions.values())


def living() -> int:
    """Sessions that are still in memory without the help of a collection."""
    return sum(type(each) is FetchSession for each in gc.get_objects())


@pytest.mark.parametrize("case", ["closed", "closed while a request waits", "of one request", "of a replica's request"])
def test_a_session_that_ends_is_freed_without_a_collection(sessions: FetchSessions, case: str) -> None:
    gc.collect()
    gc.disable()
    try:
        before = living()
        if case.startswith("closed"):
            session = begin(sessions, 1, 2)
            if case != "closed":
                session.on_dirty = sessions.__len__
            sessions.close_session(session.session_id)
            session.on_dirty = None
            assert session.closed
            if case != "closed":
                session.release_partitions()
        else:
            of_replica = case != "of one request"
            session, _ = sessions.session_for(0, -1, [asked("t", 1)], (), False, of_replica)
            (named,) = session.partitions.values()
            session.release_partitions()
            named.on_replaced()
            assert named.is_requested is of_replica, "what a replica's request named counts until its next one"
            del named
        del session
        assert living() == before
    finally:
        gc.enable()
