"""The checkpoint of log starts: how often it is written, and how many callers continue per turn once it is durable."""

from __future__ import annotations

import pytest

from ottla.storage.offset_checkpoints import CONTINUED_PER_TURN, LogStartCheckpoint

CALLERS = 60
NAME = "log-start-offset-checkpoint"


class Starts:
    """A file whose writes are counted, and callers that record when they continue."""

    def __init__(self, home) -> None:
        self.made = 0
        self.continued: list[int] = []
        self.file = LogStartCheckpoint(home, self.content)

    def content(self) -> bytes:
        self.made += 1
        return b"%d" % self.made

    def save(self, number: int) -> None:
        self.file.save_starts(lambda: self.continued.append(number))


@pytest.fixture
def starts(sim, kit) -> Starts:
    shelf = kit.Shelf(sim)
    sim.settle()
    return Starts(shelf.manager.dirs[0].home)


def test_callers_that_come_during_a_write_share_the_next(sim, starts) -> None:
    for number in range(CALLERS):
        starts.save(number)
    assert starts.continued == [], "not before it is durable"
    sim.settle()
    assert starts.made == 2
    assert sim.contents(NAME) == b"2"


def test_some_callers_continue_in_a_turn_and_all_in_their_order(sim, starts) -> None:
    for number in range(CALLERS):
        starts.save(number)
    seen = 0
    while seen < CALLERS:
        if not sim.timeline.run_next_event():
            starts.file._home.timers.run_due(sim.clock.now().mono_ns)
        assert len(starts.continued) - seen <= CONTINUED_PER_TURN
        seen = len(starts.continued)
    assert starts.continued == list(range(CALLERS))


def test_a_caller_that_comes_while_others_continue_waits_for_a_write_of_its_own(sim, starts) -> None:
    starts.file.save_starts(lambda: starts.save(1))
    sim.settle()
    assert (starts.made, starts.continued) == (2, [1])


def test_a_write_without_a_waiting_caller_reaches_the_file(sim, starts) -> None:
    starts.file.write_starts()
    starts.file.write_now()
    sim.settle()
    assert sim.contents(NAME) == b"2"
