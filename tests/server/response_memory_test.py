"""Memory of unread answers: connections that owe wait, those that owe nothing are served, non-readers are closed.

Zone: pure (the connections are values of the test).
"""

from __future__ import annotations

import pytest

from ottla.server.connections.response_memory import RESERVE, UNREAD_EXHAUSTED_S, UNREAD_S, ResponseMemory

LIMIT = 1_000_000


class World:
    """Connections, and a time that the test advances."""

    def __init__(self) -> None:
        self.time = 0.0
        self.planned: list = []
        self.peers: list[Peer] = []
        self.memory = ResponseMemory(LIMIT, self.peers, lambda: self.time, self.plan)

    def plan(self, delay, call):
        self.planned.append((self.time + delay, call))

    def sleep(self, seconds):
        end = self.time + seconds
        while due := [each for each in self.planned if each[0] <= end]:
            first = min(due, key=lambda each: each[0])
            self.planned.remove(first)
            self.time = max(self.time, first[0])
            first[1]()
        self.time = end

    def peer(self, owed=0):
        peer = Peer(self)
        self.peers.append(peer)
        if self.memory.is_exhausted:
            self.memory.hold_back(peer)
        if owed:
            peer.owe(owed)
        return peer


class Peer:
    """A connection."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.owed_bytes = 0
        self.waits = False
        self.closed = ""

    def owe(self, size):
        self.owed_bytes += size
        self.world.memory.count_owed(self, size, self.owed_bytes)

    def wait_for_readers(self):
        self.waits = True

    def on_budget_freed(self):
        self.waits = False

    def drop_connection(self, why):
        self.closed = why
        self.world.peers.remove(self)
        self.owe(-self.owed_bytes)
        self.world.memory.forget_connection(self)


@pytest.fixture
def world():
    return World()


def test_below_the_limit_nobody_waits_and_nobody_is_closed(world):
    peer = world.peer(LIMIT)
    world.sleep(1000)
    assert not (peer.waits)
    assert not (peer.closed)


def test_beyond_the_limit_who_owes_waits_until_it_owes_nothing_or_there_is_room(world):
    reader, other = world.peer(LIMIT // 2), world.peer(LIMIT // 2)
    reader.owe(10)
    other.owe(10)
    idle = world.peer()
    assert (reader.waits, other.waits, idle.waits) == (True, True, False)
    other.owe(-10)
    reader.owe(-5)
    assert reader.waits
    assert other.waits
    idle.owe(LIMIT // 8)
    reader.owe(-reader.owed_bytes)
    assert not reader.waits
    idle.owe(-1)
    assert world.memory.used < LIMIT
    assert not (other.waits)
    assert not (idle.waits)


def test_one_that_owes_nothing_any_more_goes_on_though_the_budget_is_spent(world):
    heavy, light = world.peer(LIMIT), world.peer(100)
    assert light.waits
    light.owe(-100)
    assert not light.waits
    assert world.memory.used == LIMIT
    heavy.owe(50)
    light.owe(50)
    assert light.waits
    light.owe(-50)
    assert not light.waits


def test_beyond_the_reserve_everybody_waits_new_connections_too(world):
    heavy, idle = world.peer(LIMIT), world.peer()
    heavy.owe(LIMIT // RESERVE + 1)
    late = world.peer()
    assert idle.waits
    assert late.waits
    heavy.owe(-LIMIT // RESERVE)
    assert not idle.waits, "there is a reserve again"
    assert not late.waits
    assert heavy.waits
    heavy.owe(-2)
    assert not heavy.waits


def test_non_readers_are_closed_when_the_budget_is_spent_the_longest_first(world):
    first = world.peer(LIMIT // 2)
    world.sleep(5)
    second = world.peer(LIMIT // 2 + 1)
    small = world.peer(1)
    world.sleep(UNREAD_S - 3)
    assert "has not read" in first.closed
    assert not second.closed
    assert not (second.waits)
    assert not small.waits
    world.sleep(1000)
    assert not second.closed, "there is room again"
    assert not small.closed


def test_when_the_reserve_is_spent_they_are_closed_at_once_but_not_those_that_owe_little(world):
    small = world.peer(10)
    heavy = [world.peer(LIMIT // 4) for _ in range(4)]
    world.sleep(UNREAD_EXHAUSTED_S)
    idle = world.peer()
    last = world.peer(LIMIT // RESERVE)
    assert idle.waits
    world.sleep(0)
    assert not idle.waits
    assert sum(bool(peer.closed) for peer in heavy) in (1, 2)
    assert not (small.closed)
    assert not (last.closed)


def test_who_reads_is_not_closed(world):
    slow, dead = world.peer(LIMIT // 2), world.peer(LIMIT)
    for _ in range(100):
        world.sleep(UNREAD_EXHAUSTED_S / 2)
        world.memory.note_reading(slow)
    assert dead.closed
    assert not slow.closed


def test_closing_everybody_ends_the_exhaustion(world):
    peers = [world.peer(LIMIT) for _ in range(3)]
    assert world.memory.is_exhausted
    for peer in peers:
        peer.drop_connection("gone")
    assert not world.memory.is_exhausted
    assert world.memory.used == 0
    assert not world.peer().waits
