"""The laws of Clock and Entropy, for every implementation.

Zone: real. Behaviour of one implementation alone is tested beside it.
"""

from __future__ import annotations


def test_now_is_constant_within_a_turn_and_never_goes_back(rig):
    seen = []

    def turn():
        first = rig.clock.now()
        sum(range(10_000))
        seen.append((first, rig.clock.now()))

    for _ in range(3):
        rig.turn(turn)
    assert all(first == second for first, second in seen)
    monos = [first.mono_ns for first, _ in seen]
    assert monos == sorted(monos)


def test_the_alarm_rings_once_at_or_after_its_time(rig):
    rung = []
    rig.broker.alarms.append(lambda: rung.append(rig.clock.now().mono_ns))
    asked = []
    rig.turn(lambda: asked.append(rig.clock.now().mono_ns + 2_000_000))
    rig.turn(lambda: rig.clock.set_alarm(asked[0]))
    rig.until(lambda: bool(rung))
    rig.run(20)
    assert len(rung) == 1
    assert rung[0] >= asked[0]


def test_an_alarm_in_the_past_rings_in_a_turn_of_its_own(rig):
    rung = []
    inside = []

    def turn():
        rig.clock.set_alarm(rig.clock.now().mono_ns - 1)
        inside.append(len(rung))

    rig.broker.alarms.append(lambda: rung.append(1))
    rig.turn(turn)
    rig.until(lambda: bool(rung))
    assert inside == [0]


def test_a_later_alarm_replaces_an_earlier_one_and_the_other_way_round(rig):
    rung = []
    rig.broker.alarms.append(lambda: rung.append(rig.clock.now().mono_ns))
    start = []
    rig.turn(lambda: start.append(rig.clock.now().mono_ns))
    rig.turn(lambda: rig.clock.set_alarm(start[0] + 1_000_000))
    rig.turn(lambda: rig.clock.set_alarm(start[0] + 30_000_000))
    rig.until(lambda: bool(rung))
    assert rung[0] >= start[0] + 30_000_000
    rig.turn(lambda: rig.clock.set_alarm(start[0] + 3_600_000_000_000))
    rig.turn(lambda: rig.clock.set_alarm(start[0]))
    rig.until(lambda: len(rung) == 2)


def test_an_alarm_can_be_taken_back(rig):
    rung = []
    rig.broker.alarms.append(lambda: rung.append(rig.clock.now().mono_ns))
    end = []

    def turn():
        now = rig.clock.now().mono_ns
        rig.clock.set_alarm(now + 1_000_000)
        rig.clock.set_alarm(None)

    rig.turn(turn)
    rig.turn(lambda: end.append(rig.clock.now().mono_ns + 3_000_000))
    rig.turn(lambda: rig.clock.set_alarm(end[0]))
    rig.until(lambda: bool(rung))
    assert rung[0] >= end[0]
    assert len(rung) == 1


def test_random_integers_fill_their_range_and_stay_in_it(rig):
    drawn = {rig.entropy.random_below("test", 3) for _ in range(200)}
    assert drawn == {0, 1, 2}
    assert rig.entropy.random_below("test", 1) == 0


def test_random_bytes_have_the_length_asked_for(rig):
    assert len(rig.entropy.random_bytes("test", 16)) == 16
    assert rig.entropy.random_bytes("test", 16) != rig.entropy.random_bytes("test", 16)
