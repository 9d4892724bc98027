"""The fast path of heartbeats: the cache holds decoded requests, never answers."""

from __future__ import annotations

import tracemalloc

from tests.groups.requests_test import Hall

from ottla.errors import ErrorCode
from ottla.wire.messages import HeartbeatRequest


def beat(member: str, generation: int = 1) -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", generation_id=generation, member_id=member)


def test_the_same_request_keeps_a_member_alive() -> None:
    hall = Hall()
    member = hall.joined().member_id
    hall.synced(member)
    for _ in range(12):
        assert hall.ask(beat(member), 4).error_code == ErrorCode.NONE
        hall.node.pass_ms(9_000)
    hall.node.pass_ms(1_001)
    assert hall.ask(beat(member), 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_cached_request_is_checked_against_the_present_group() -> None:
    hall = Hall()
    member = hall.joined().member_id
    hall.synced(member)
    assert hall.ask(beat(member), 4).error_code == ErrorCode.NONE
    other = hall.join(3)
    assert hall.ask(beat(member), 4).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    hall.node.answer(hall.join(member=member))
    assert hall.node.answer(other).generation_id == 2
    assert hall.ask(beat(member), 4).error_code == ErrorCode.ILLEGAL_GENERATION
    assert hall.ask(beat(member, 2), 4).error_code == ErrorCode.NONE


def test_requests_of_strangers_are_not_cached() -> None:
    hall = Hall()
    hall.joined()

    def strangers(first: int) -> None:
        for number in range(first, first + 300):
            request = beat(f"{number:0200}")
            assert hall.ask(request, 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    strangers(0)
    tracemalloc.start()
    strangers(300)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 300 * 200, f"{held} bytes are held of 300 requests of 200 bytes"
