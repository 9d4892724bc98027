"""Any history of commands, commits, crashes and new leaders: loaded state equals applied state, answers keep order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.coordinator.bench import Bench

from ottla.coordinator.shard import JournalProducer
from ottla.sim.machines.machine import Death

ACCOUNTS = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), ACCOUNTS, st.integers(0, 99)),
        st.tuples(st.just("get"), ACCOUNTS, st.just(0)),
        st.tuples(st.just("txn"), ACCOUNTS, st.integers(0, 2)),
        st.tuples(st.just("end"), st.just(""), st.integers(0, 5)),
        st.tuples(st.just("wait"), ACCOUNTS, st.integers(1, 3000)),
        st.tuples(st.just("pass"), st.just(""), st.integers(1, 6000)),
        st.tuples(st.just("replicate"), st.just(""), st.integers(0, 3)),
        st.tuples(st.just("lead"), st.just(""), st.just(0)),
        st.tuples(st.just("crash"), st.just(""), st.just(0)),
    ),
    max_size=25,
)


def run(bench: Bench, steps: list[tuple[str, str, int]]) -> None:
    asked = 0
    marks = [0]
    for verb, account, number in steps:
        if verb in ("put", "get", "wait"):
            asked += 1
            bench.ask(verb, account, number)
        elif verb == "txn":
            asked += 1
            bench.ask("put", account, number, JournalProducer(number, 0))
        elif verb == "end":
            bench.end_transaction(JournalProducer(number // 2, 0), number % 2 == 0)
        elif verb == "pass":
            bench.pass_ms(number)
        elif verb == "replicate":
            bench.replicate(max(bench.log.high_watermark, bench.log.end_offset - number))
        else:
            if verb == "crash":
                bench.restart(Death.KILL)
                asked = len(bench.said)  # the connections are closed: those answers are lost
            bench.lead()
        committed = [value for (name, *_), value in bench.said if name == "put" and isinstance(value, int)]
        marks.append(bench.partition.high_watermark)
        assert len(committed) <= max(marks), "nothing is confirmed before it is committed"
    bench.follow()
    assert len(bench.said) >= asked, "everybody is answered, if only with an error"


@pytest.mark.slow
@settings(max_examples=25)
@given(STEPS)
def test_any_history_loads_to_the_applied_state(steps: list[tuple[str, str, int]]):
    bench = Bench((1, 2), commit_timeout_ms=2000)
    bench.lead()
    asked_of = bench.runner
    run(bench, steps)
    assert bench.coordinator.find_shard(0) is None
    live = asked_of if bench.process.life == 1 and bench.epoch == 2 else None
    bench.lead()
    loaded = bench.ledger
    if live is not None:
        assert loaded.balances == live.machine.balances
        assert loaded.pending == live.machine.pending
    again = dict(loaded.balances), dict(loaded.pending)
    bench.lead()
    assert (bench.ledger.balances, bench.ledger.pending) == again


@pytest.mark.slow
@settings(max_examples=25)
@given(STEPS)
def test_a_commit_survives_a_crash(steps: list[tuple[str, str, int]]):
    bench = Bench()
    bench.lead()
    shadow: dict[str, int] = {}
    for verb, account, number in steps:
        if verb == "put":
            assert bench.ask(verb, account, number) == number
            shadow[account] = number
        elif verb == "crash":
            bench.restart(Death.KILL)
            bench.lead()
        elif verb == "lead":
            bench.lead()
        assert bench.ledger.balances == shadow
