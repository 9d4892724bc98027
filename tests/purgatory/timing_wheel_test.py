"""The wheel against a sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.purgatory.timing_wheel import Timer, TimingWheel


class Alarm(Timer):
    """A timer of which only the deadline matters."""

    def expire(self) -> None:
        raise AssertionError("the tests take it from the wheel")


def test_a_timer_comes_back_in_its_tick_and_not_before() -> None:
    wheel = TimingWheel(now_ms=1000)
    timer = Alarm()
    assert wheel.add_timer(timer, 1007)
    assert wheel.next_ms() == 1007
    assert wheel.advance_to(1006) == []
    assert wheel.advance_to(1007) == [timer]
    assert wheel.next_ms() is None


def test_a_deadline_in_the_present_tick_is_refused() -> None:
    wheel = TimingWheel(now_ms=1000)
    assert not wheel.add_timer(Alarm(), 1000)
    assert not wheel.add_timer(Alarm(), 10)


def test_a_far_deadline_falls_through_the_levels() -> None:
    wheel = TimingWheel(now_ms=0)
    timer = Alarm()
    wheel.add_timer(timer, 123_457)
    hops = []
    while (due := wheel.next_ms()) is not None:
        hops.append(due)
        expired = wheel.advance_to(due)
    assert expired == [timer]
    assert hops[-1] == 123_457
    assert hops == sorted(hops)
    assert len(hops) <= 5, "one hop per level, not one per tick"


def test_a_cancelled_timer_never_comes_back_and_leaves_no_alarm() -> None:
    wheel = TimingWheel(now_ms=0)
    timer = Alarm()
    wheel.add_timer(timer, 50)
    timer.cancel()
    timer.cancel()
    assert wheel.next_ms() is None
    assert wheel.advance_to(100) == []


@given(
    st.integers(0, 10**6),
    st.lists(st.tuples(st.integers(1, 10**7), st.booleans()), max_size=60),
    st.lists(st.integers(1, 10**6), max_size=40),
)
def test_the_wheel_agrees_with_a_sorted_list(start: int, timers: list[tuple[int, bool]], steps: list[int]) -> None:
    wheel = TimingWheel(start)
    armed: dict[Timer, int] = {}
    for delay, cancelled in timers:
        timer = Alarm()
        assert wheel.add_timer(timer, start + delay)
        if cancelled:
            timer.cancel()
        else:
            armed[timer] = start + delay
    now = start
    for step in [*steps, 10**8]:
        now += step
        due = {timer for timer, deadline in armed.items() if deadline <= now}
        expired = wheel.advance_to(now)
        assert set(expired) == due
        assert len(expired) == len(due)
        armed = {timer: deadline for timer, deadline in armed.items() if timer not in due}
        upcoming = wheel.next_ms()
        assert (upcoming is None) == (not armed)
        assert upcoming is None or now < upcoming <= min(armed.values())
