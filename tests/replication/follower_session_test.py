"""The follower's half of fetch sessions, alone and against the leader's half."""

from __future__ import annotations

import random

import pytest

from ottla.errors import ApiError, ErrorCode
from ottla.replication.fetch.fetch_session import FetchSessions
from ottla.replication.follower.follower_session import FollowerSession
from ottla.seams import Instant

TOPIC = b"t" * 16


def row(partition: int, offset: int = 0, epoch: int = 1) -> tuple:
    return (TOPIC, partition, epoch, offset, -1, 0, 1 << 20)


def opened(*partitions: int) -> FollowerSession:
    session = FollowerSession()
    for partition in partitions:
        session.add_partition(row(partition))
    session.next_request()
    session.on_response(0, 77)
    return session


def test_the_first_request_is_full_the_next_have_only_changes() -> None:
    session = FollowerSession()
    session.add_partition(row(0))
    session.add_partition(row(1))
    assert session.next_request() == (0, 0, [row(0), row(1)], [])
    session.on_response(0, 77)
    assert session.next_request() == (77, 1, [], [])
    session.on_response(0, 77)
    session.add_partition(row(1, 5))
    session.add_partition(row(0))
    session.add_partition(row(2))
    session.drop_partition((TOPIC, 0))
    assert session.next_request() == (77, 2, [row(1, 5), row(2)], [(TOPIC, 0)])
    session.on_response(0, 77)
    assert session.next_request() == (77, 3, [], [])


def test_partitions_the_leader_does_not_know_are_not_forgotten() -> None:
    session = opened(0)
    session.add_partition(row(1))
    session.drop_partition((TOPIC, 1))
    session.drop_partition((TOPIC, 2))
    assert session.next_request() == (77, 1, [], [])


def test_a_response_does_not_apply_to_a_partition_that_was_dropped_meanwhile() -> None:
    session = opened(0)
    assert session.leader_knows((TOPIC, 0))
    session.next_request()
    session.drop_partition((TOPIC, 0))
    assert not session.leader_knows((TOPIC, 0))


def test_a_partition_dropped_and_wanted_again_is_named_again() -> None:
    session = opened(0)
    session.drop_partition((TOPIC, 0))
    session.add_partition(row(0))
    assert session.next_request() == (77, 1, [row(0)], [])


@pytest.mark.parametrize(
    ("error", "session_id"),
    [(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0), (0, 0), (0, 78)],
    ids=["error", "none", "other"],
)
def test_after_a_session_error_the_next_request_is_full(error: int, session_id: int) -> None:
    session = opened(0, 1)
    session.add_partition(row(1, 9))
    session.next_request()
    session.on_response(error, session_id)
    assert session.next_request() == (77, 0, [row(0), row(1, 9)], [])
    session.on_response(0, 79)
    assert session.next_request() == (79, 1, [], [])


def test_a_lost_response_is_followed_by_a_full_request() -> None:
    session = opened(0)
    session.next_request()
    session.on_lost()
    assert session.next_request() == (77, 0, [row(0)], [])


def test_a_leader_without_free_slots_is_asked_in_full_each_time() -> None:
    session = FollowerSession()
    session.add_partition(row(0))
    for _ in range(3):
        assert session.next_request() == (0, 0, [row(0)], [])
        session.on_response(0, 0)


def test_the_epoch_wraps_to_one() -> None:
    session = opened(0)
    session.epoch = 2**31 - 1
    assert session.next_request().epoch == 2**31 - 1
    session.on_response(0, 77)
    assert session.next_request().epoch == 1


class Still:
    def now(self) -> Instant:
        return Instant(0, 0)

    def random_below(self, _stream: str, n: int) -> int:
        return 4


def test_both_halves_agree_whatever_happens() -> None:
    """Random wishes, losses and evictions: after each request the leader's session holds exactly what is wanted."""
    rng = random.Random(7)
    leader, follower = FetchSessions(Still(), Still()), FollowerSession()
    wanted: dict[tuple, tuple] = {}
    session_id = 0
    for _ in range(3000):
        for _ in range(rng.randrange(3)):
            key = (TOPIC, rng.randrange(8))
            if rng.random() < 0.3:
                follower.drop_partition(key)
                wanted.pop(key, None)
            else:
                wanted[key] = row(key[1], rng.randrange(5))
                follower.add_partition(wanted[key])
        if rng.random() < 0.05:
            leader.close_session(session_id)
        ask = follower.next_request()
        if rng.random() < 0.05:
            follower.on_lost()
            continue
        try:
            session, _ = leader.session_for(ask.session_id, ask.epoch, ask.wanted, ask.forgotten)
        except ApiError as error:
            follower.on_response(error.code, 0)
            continue
        held = {key: (each.leader_epoch, each.fetch_offset) for key, each in session.partitions.items()}
        assert held == {key: (asked[2], asked[3]) for key, asked in wanted.items()}
        session_id = session.session_id
        if rng.random() < 0.05:
            follower.on_lost()
        else:
            follower.on_response(0, session_id)
