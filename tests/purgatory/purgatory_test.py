"""Delayed operations: completed once, by event or by time."""

from __future__ import annotations

from ottla.purgatory.purgatory import PURGE_INTERVAL, DelayedOperation, Purgatory
from ottla.seams import Instant


class HandClock:
    """A clock moved by hand; remembers the one alarm."""

    def __init__(self) -> None:
        self.ms = 1_000
        self.alarm_ns: int | None = None

    def now(self) -> Instant:
        return Instant(self.ms * 1_000_000, self.ms)

    def set_alarm(self, mono_ns: int | None) -> None:
        self.alarm_ns = mono_ns

    def move(self, purgatory: Purgatory, ms: int) -> None:
        self.ms += ms
        if self.alarm_ns is not None and self.alarm_ns <= self.ms * 1_000_000:
            self.alarm_ns = None
            purgatory.on_alarm()


class Waiting(DelayedOperation):
    __slots__ = ("expired", "ready", "story")

    def __init__(self) -> None:
        super().__init__()
        self.ready = False
        self.story: list[str] = []

    def try_complete(self) -> bool:
        return self.completed or (self.ready and self.force_complete())

    def on_complete(self) -> None:
        self.story.append("complete")

    def on_expire(self) -> None:
        self.story.append("expire")


def test_a_ready_operation_completes_at_once_and_is_not_watched() -> None:
    purgatory = Purgatory(HandClock())
    waiting = Waiting()
    waiting.ready = True
    assert purgatory.try_complete_else_watch(waiting, ["k"], 100)
    assert waiting.story == ["complete"]
    assert purgatory.count_watchers("k") == 0


def test_an_event_completes_it_once_and_takes_the_alarm_back() -> None:
    clock = HandClock()
    purgatory = Purgatory(clock)
    waiting = Waiting()
    assert not purgatory.try_complete_else_watch(waiting, ["k", "l"], 100)
    assert clock.alarm_ns == 1_100_000_000
    assert purgatory.check_watchers("k") == 0
    waiting.ready = True
    assert purgatory.check_watchers("k") == 1
    assert purgatory.check_watchers("l") == 0
    clock.move(purgatory, 1_000)
    assert waiting.story == ["complete"]
    assert clock.alarm_ns is None


def test_time_completes_it_and_a_later_event_does_nothing() -> None:
    clock = HandClock()
    purgatory = Purgatory(clock)
    waiting = Waiting()
    purgatory.try_complete_else_watch(waiting, ["k"], 100)
    clock.move(purgatory, 99)
    assert waiting.story == []
    clock.move(purgatory, 1)
    assert waiting.story == ["expire", "complete"]
    waiting.ready = True
    assert purgatory.check_watchers("k") == 0
    assert purgatory.count_watchers("k") == 0


def test_no_time_at_all_expires_within_the_call() -> None:
    purgatory = Purgatory(HandClock())
    waiting = Waiting()
    assert purgatory.try_complete_else_watch(waiting, [], 0)
    assert waiting.story == ["expire", "complete"]


def test_the_alarm_is_the_earliest_deadline() -> None:
    clock = HandClock()
    purgatory = Purgatory(clock)
    for delay in (500, 20, 300):
        purgatory.try_complete_else_watch(Waiting(), [], delay)
    assert clock.alarm_ns is not None
    assert clock.alarm_ns <= 1_020_000_000


def test_abandoned_operations_are_swept_from_an_unchecked_key() -> None:
    purgatory = Purgatory(HandClock())
    for _ in range(3 * PURGE_INTERVAL):
        waiting = Waiting()
        purgatory.try_complete_else_watch(waiting, ["k"], 10_000)
        waiting.abandon_request()
    assert purgatory.count_watchers("k") <= PURGE_INTERVAL + 1
