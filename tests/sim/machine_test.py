"""Turns, pauses, kills, clocks, the timeline and the streams of random numbers.

Zone: real.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ottla.seams import Failure
from ottla.sim.entropy import Stream, Streams
from ottla.sim.machines.machine import Death
from ottla.sim.world import MS, SECOND, Timeline


def test_events_run_in_order_of_time_and_then_of_scheduling():
    timeline = Timeline()
    seen = []
    timeline.schedule_after(5, "c", seen.append, "third")
    timeline.schedule_after(3, "a", seen.append, "first")
    timeline.schedule_after(3, "b", seen.append, "second")
    timeline.run_until(10)
    assert seen == ["first", "second", "third"]
    assert timeline.now_ns == 10


def test_the_trace_tells_runs_apart():
    def trace(delay: int, fact: bytes) -> str:
        timeline = Timeline()
        timeline.schedule_after(delay, "event", timeline.trace_fact, "fact", fact)
        timeline.run_until(100)
        return timeline.trace_hash

    assert trace(5, b"x") == trace(5, b"x")
    assert len({trace(5, b"x"), trace(6, b"x"), trace(5, b"y")}) == 3


def test_streams_do_not_disturb_each_other():
    alone = Streams(7)
    first = [alone.random_below("net", 1000) for _ in range(20)]
    together = Streams(7)
    second = []
    for _ in range(20):
        together.random_below("disk", 3)
        second.append(together.random_below("net", 1000))
    assert first == second
    assert first != [Streams(8).random_below("net", 1000) for _ in range(20)]
    assert first != [Streams(7).scoped_streams("node1").random_below("net", 1000) for _ in range(20)]


def test_numbers_do_not_depend_on_the_hash_seed():
    program = (
        "from ottla.sim.entropy import Streams; s = Streams(3); print([s.random_below('x', 99) for _ in range(9)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(outputs) == 1


def test_a_stream_keeps_its_promises():
    stream = Stream(1, "test")
    assert {stream.random_below(4) for _ in range(200)} == {0, 1, 2, 3}
    assert {stream.between(3, 5) for _ in range(200)} == {3, 4, 5}
    assert not any(stream.chance(0.0) for _ in range(100))
    assert all(stream.chance(1.0) for _ in range(100))
    assert len(stream.random_bytes(13)) == 13
    assert 0.8 < sum(stream.exponential(1.0) for _ in range(4000)) / 4000 < 1.2


def test_a_dead_process_has_no_more_turns(small):
    seen = []
    small.process.post_turn(5 * MS, "late", seen.append, 1)
    small.machine.end_process(Death.KILL)
    small.run()
    assert seen == []


def test_what_arrives_in_a_pause_is_handled_afterwards_in_order(small):
    seen = []
    small.process.pause_until(100 * MS)
    for number in range(3):
        small.process.post_turn(number * MS, "turn", lambda n=number: seen.append((n, small.timeline.now_ns)))
    small.process.post_turn(150 * MS, "turn", lambda: seen.append((3, small.timeline.now_ns)))
    small.run()
    assert [number for number, _ in seen] == [0, 1, 2, 3]
    assert seen[0][1] == 100 * MS


def test_an_exception_is_a_crash_and_a_finding(small):
    small.process.post_turn(0, "turn", lambda: 1 // 0)
    small.timeline.run_until(SECOND)
    assert "ZeroDivisionError" in small.machine.crashes[0]
    assert small.machine.process is None
    assert small.machine.deaths[Death.CRASH] == 1


def test_a_fuse_kills_in_the_middle_of_a_turn(small):
    file = small.disk.open("a", True)
    reached = []

    def turn():
        file.append([b"one"])
        reached.append(1)
        file.append([b"two"])
        reached.append(2)

    small.process.fuse = 1
    small.process.post_turn(0, "turn", turn)
    small.run()
    assert reached == [1]
    assert small.machine.deaths[Death.KILL] == 1
    assert bytes(small.drive.file_at("a").data) == b"one"


def test_a_seam_that_calls_back_inside_a_call_is_found(small):
    small.process.post_turn(0, "turn", lambda: small.process.run_turn(lambda: None))
    small.timeline.run_until(SECOND)
    assert "called back inside a call" in small.machine.crashes[0]


def test_wall_time_jumps_and_monotonic_time_does_not(small):
    before = small.process.clock.now()
    small.machine.wall_skew_ms = -5000
    after = small.process.clock.now()
    assert after.mono_ns == before.mono_ns
    assert after.wall_ms == before.wall_ms - 5000


def test_workers_return_results_and_failures(small):
    done = []
    small.boot_workers = None
    from ottla.sim.machines.workers import SimWorkers

    workers = SimWorkers(small.process)
    workers.run_job("operator:add", (2, 3), done.append)
    workers.run_job("operator:truediv", (1, 0), done.append)
    assert done == []
    small.run()
    assert 5 in done
    assert any(isinstance(outcome, Failure) for outcome in done)


@pytest.mark.parametrize("death", [Death.KILL, Death.POWER_LOSS])
def test_the_next_life_starts_its_clock_anew(small, death):
    small.run(2)
    small.end(death)
    assert small.process.life == 2
    assert small.process.clock.now().mono_ns == 0
