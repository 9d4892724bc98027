"""Memory of requests: bounds by the size of frames, reserves, and connections that hold memory without using it.

Zone: pure (the connections are values of the test).
"""

from __future__ import annotations

import pytest

from ottla.server.connections.request_memory import ORDINARY, PATIENCE, SMALL, RequestMemory

LIMIT = 64 * ORDINARY


class Frame:
    """A connection with an incomplete frame."""

    def __init__(self, memory: RequestMemory, size: int) -> None:
        self.memory = memory
        self.size = size
        self.charged = 0
        self.granted = 0
        self.looks = 0
        self.closed = ""

    @property
    def is_collecting(self) -> bool:
        return self.charged > 0

    def take(self, size: int) -> bool:
        if not self.memory.may_take(self, size, self.size):
            return False
        self.charged += size
        self.memory.charge_bytes(size)
        return True

    def finish(self) -> None:
        size, self.charged = self.charged, 0
        self.memory.give_back(self, size)

    def memory_granted(self) -> None:
        self.granted += 1

    def grow_stale(self) -> bool:
        self.looks += 1
        return self.looks > PATIENCE

    def drop_connection(self, why: str) -> None:
        self.closed = why
        self.finish()
        self.memory.forget_connection(self)


@pytest.fixture
def waits():
    return []


@pytest.fixture
def memory(waits):
    return RequestMemory(LIMIT, lambda: waits.append(1))


def test_large_frames_leave_room_for_ordinary_ones_and_those_for_small_ones(memory):
    large = [Frame(memory, 100 * ORDINARY) for _ in range(64)]
    assert sum(frame.take(ORDINARY) for frame in large) == 32 + 1, "half of the limit, and one senior above it"
    ordinary = [Frame(memory, ORDINARY) for _ in range(64)]
    assert sum(frame.take(ORDINARY) for frame in ordinary) == 31
    small = [Frame(memory, SMALL) for _ in range(1000)]
    assert sum(frame.take(SMALL) for frame in small) == LIMIT // 4 // SMALL


def test_one_frame_at_a_time_is_finished_beyond_the_limit_and_the_others_follow_in_order(memory, waits):
    first, second, third = (Frame(memory, ORDINARY) for _ in range(3))
    memory.charge_bytes(LIMIT)
    assert first.take(ORDINARY)
    assert not second.take(ORDINARY)
    assert not third.take(ORDINARY)
    assert waits == [1, 1]
    first.finish()
    assert (second.granted, third.granted) == (1, 1)


def test_small_frames_are_granted_first(memory):
    memory.charge_bytes(2 * LIMIT)
    senior, large, small = Frame(memory, 1), Frame(memory, 50 * ORDINARY), Frame(memory, SMALL)
    assert senior.take(1)
    assert not large.take(1)
    assert not small.take(1)
    memory.give_back(small, LIMIT)
    assert (small.granted, large.granted) == (1, 0)


def test_who_does_not_finish_while_others_wait_is_closed_the_largest_first_and_no_more_than_needed(memory):
    held = [Frame(memory, 50 * ORDINARY) for _ in range(32)]
    for number, frame in enumerate(held):
        assert frame.take(ORDINARY - number)
    memory.charge_bytes(LIMIT // 2 + 2 * ORDINARY)
    senior, victim = Frame(memory, ORDINARY), Frame(memory, ORDINARY)
    assert senior.take(SMALL)
    assert not victim.take(ORDINARY)
    everyone = [*held, senior, victim]
    for _ in range(PATIENCE):
        memory.close_hostages(everyone)
    assert not any(frame.closed for frame in everyone)
    memory.close_hostages(everyone)
    closed = [frame for frame in held if frame.closed]
    assert victim.granted
    assert closed == held[: len(closed)]
    assert 0 < len(closed) < 5
    assert "queued.max.request.bytes" in closed[0].closed


def test_nobody_is_closed_while_nobody_waits(memory):
    frame = Frame(memory, 50 * ORDINARY)
    assert frame.take(ORDINARY)
    for _ in range(10 * PATIENCE):
        memory.close_hostages([frame])
    assert not frame.closed


def test_a_closed_connection_is_forgotten(memory):
    memory.charge_bytes(LIMIT)
    senior, waiting = Frame(memory, ORDINARY), Frame(memory, ORDINARY)
    assert senior.take(1)
    assert not waiting.take(1)
    memory.forget_connection(waiting)
    senior.drop_connection("gone")
    assert not waiting.granted
    assert memory.waiting_connections == 0
    assert memory.used == LIMIT


def test_nothing_is_taken_ahead_of_its_bytes_when_half_is_used(memory):
    assert memory.is_roomy(ORDINARY)
    assert not memory.is_roomy(ORDINARY + 1)
    memory.charge_bytes(LIMIT // 2 - ORDINARY)
    assert memory.is_roomy(ORDINARY)
    memory.charge_bytes(1)
    assert not memory.is_roomy(ORDINARY)


def test_when_memory_is_free_again_small_frames_go_on_first(memory):
    order = []
    frames = {
        name: Frame(memory, size) for name, size in (("large", 50 * ORDINARY), ("ordinary", ORDINARY), ("small", SMALL))
    }
    memory.charge_bytes(2 * LIMIT)
    senior = Frame(memory, 1)
    assert senior.take(1)
    for name, frame in frames.items():
        assert not frame.take(1)
        frame.memory_granted = lambda name=name: order.append(name)
    memory.give_back(frames["small"], 2 * LIMIT)
    assert order == ["small", "ordinary", "large"]


def test_the_largest_hostage_is_closed_whatever_their_order(memory):
    little, large = Frame(memory, 50 * ORDINARY), Frame(memory, 50 * ORDINARY)
    assert little.take(SMALL)
    assert large.take(LIMIT // 4)
    memory.charge_bytes(LIMIT - large.charged - little.charged)
    senior, victim = Frame(memory, ORDINARY), Frame(memory, ORDINARY)
    assert senior.take(SMALL)
    assert not victim.take(ORDINARY)
    for _ in range(PATIENCE + 1):
        memory.close_hostages([little, large])
    assert (bool(little.closed), bool(large.closed)) == (False, True)
    assert victim.granted
