"""Ready connections of which some take long: a quick one does not wait for all slow ones.

Zone: real (socket pairs); the test controls the time.
"""

from __future__ import annotations

import socket

import pytest

from ottla.server.loop.call_order import CALM_NS, QUICK_NS, Precedence
from ottla.server.loop.poller import EVENTS, STRIDE, Poller

MS = 1_000_000


class Crowd:
    """Connections whose calls take as long as the test sets; each stays ready until it is called."""

    def __init__(self) -> None:
        self.now = 0
        self.poller = Poller(lambda: self.now)
        self.called: list[str] = []
        self.pairs: dict[str, tuple[socket.socket, socket.socket]] = {}
        self.takes: dict[str, int] = {}

    def add(self, name: str, takes: int) -> None:
        here, there = socket.socketpair()
        self.pairs[name] = here, there
        self.takes[name] = takes
        self.poller.watch_read(here.fileno(), lambda: self._call(name))

    def _call(self, name: str) -> None:
        self.pairs[name][0].recv(1)
        self.called.append(name)
        self.now += self.takes[name]

    def wake(self, *names: str) -> None:
        for name in names:
            self.pairs[name][1].send(b"x")

    def select(self) -> list[str]:
        """The connections that one poll of the kernel calls."""
        self.called = []
        self.poller.select(0)
        return self.called

    def close(self) -> None:
        for here, there in self.pairs.values():
            self.poller.unwatch_read(here.fileno())
            here.close()
            there.close()
        self.poller.close()


@pytest.fixture
def crowd():
    made = Crowd()
    yield made
    made.close()


def slow(count):
    return [f"slow-{number}" for number in range(count)]


def test_those_that_take_long_are_called_one_per_poll_and_quick_ones_before_them(crowd):
    for name in slow(10):
        crowd.add(name, 20 * MS)
    crowd.add("quick", QUICK_NS // 10)
    crowd.wake(*slow(10))
    crowd.wake(*crowd.select())
    order = []
    for _ in range(20):
        crowd.wake("quick")
        called = crowd.select()
        assert called[0] == "quick"
        assert len(called) == 2
        order.append(called[1])
        crowd.wake(called[1])
    assert sorted(order[:10]) == sorted(order[10:]) == slow(10), "they take turns"


def test_without_long_turns_all_that_are_ready_are_called_together(crowd):
    for name in slow(10):
        crowd.add(name, QUICK_NS - 1)
    for _ in range(3):
        crowd.wake(*slow(10))
        assert len(crowd.select()) == 10


def test_a_batch_that_takes_long_is_cut_and_those_that_had_no_part_in_it_come_first(crowd):
    for name in [*slow(100), "late"]:
        crowd.add(name, 20 * MS)
    crowd.takes["late"] = 0
    crowd.wake(*slow(100))
    assert len(crowd.select()) == STRIDE
    crowd.wake("late")
    assert crowd.select() == ["late", f"slow-{STRIDE}"]


def test_a_hiccup_makes_no_connection_slow(crowd):
    for name in slow(10):
        crowd.add(name, 20 * MS)
    crowd.add("quick", 0)
    crowd.wake(*slow(10))
    crowd.select()
    for _ in range(5):
        for takes in (0, 0, 0, 0, 0, 0, 0, 0, 30 * MS):
            crowd.takes["quick"] = takes
            crowd.wake("quick", *slow(10))
            assert crowd.select()[0] == "quick"


def test_after_a_while_without_long_turns_it_is_as_before(crowd):
    for name in slow(4):
        crowd.add(name, 20 * MS)
    crowd.wake(*slow(4))
    crowd.select()
    crowd.takes = dict.fromkeys(slow(4), 0)
    crowd.now += CALM_NS
    crowd.select()
    crowd.wake(*slow(4))
    assert sorted(crowd.select()) == slow(4)


def test_one_that_became_quick_is_no_longer_last(crowd):
    for name in slow(6):
        crowd.add(name, 20 * MS)
    crowd.wake(*slow(6))
    crowd.select()
    crowd.takes["slow-5"] = 0
    crowd.wake(*slow(6))
    while "slow-5" not in crowd.select():
        pass
    crowd.wake("slow-5")
    assert crowd.select()[0] == "slow-5"


def test_more_than_one_poll_names_are_all_called(crowd):
    names = slow(EVENTS + 20)
    for name in names:
        crowd.add(name, 20 * MS)
    crowd.wake(*names)
    crowd.select()
    crowd.wake(*names)
    called = []
    for _ in range(4 * len(names)):
        called += crowd.select()
    assert set(called) == set(names)
    counts = [called.count(name) for name in names]
    assert max(counts) <= 2


def test_a_connection_that_is_closed_meanwhile_is_not_called(crowd):
    for name in slow(5):
        crowd.add(name, 20 * MS)
    crowd.wake(*slow(5))
    crowd.select()
    crowd.wake(*slow(5))
    crowd.poller.unwatch_read(crowd.pairs["slow-3"][0].fileno())
    called = []
    for _ in range(10):
        called += crowd.select()
    assert set(called) == {"slow-0", "slow-1", "slow-2", "slow-4"}


def arranged(precedence: Precedence, *fds: int) -> list[int]:
    """The order of the calls, when these are all ready connections."""
    return [fd for fd, _ in precedence.arrange_calls([(fd, 1) for fd in fds], are_all=True)]


def test_the_quickest_on_average_come_first():
    precedence = Precedence(0, quick=())
    for fd, took_ns in ((1, 90_000), (2, 30_000), (3, 60_000)):
        for _ in range(50):
            precedence.record_call(fd, took_ns, 0)
    assert arranged(precedence, 1, 2, 3) == [2, 3, 1]


def test_a_descriptor_that_is_used_again_is_not_known():
    """The descriptor had belonged to a quick connection that was closed."""
    precedence = Precedence(0, quick=(5, 6))
    assert arranged(precedence, 9, 5, 6) == [5, 6, 9]
    precedence.forget_connection(5)
    assert arranged(precedence, 9, 5, 6) == [6, 9, 5]


def test_one_that_is_closed_leaves_the_line_of_those_that_take_long():
    precedence = Precedence(0, quick=())
    arranged(precedence, 7, 8)
    precedence.forget_connection(7)
    assert arranged(precedence, 8, 7) == [8, 7]


def test_one_that_is_not_ready_any_more_loses_its_place_in_the_line():
    precedence = Precedence(0, quick=())
    arranged(precedence, 3, 4)
    arranged(precedence, 4)
    assert arranged(precedence, 5, 3, 4) == [4, 5, 3]
