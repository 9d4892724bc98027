"""The matrix of `make chaos-spark` strikes every plan at all places, and leaves no strike that cannot hit."""

from __future__ import annotations

from collections import Counter

import pytest
from testbench.spark_chaos.matrix import MATRIX, MOVING_PLANS, PLACES, STABLE_PLANS

TITLES = [
    *(f"tasks of their own, {name}:" for name in STABLE_PLANS),
    *(f"whole batches of several tasks, {name}:" for name in MOVING_PLANS),
]


def place(strike: str) -> str:
    """The point and the action of a strike, in whichever batch."""
    where, _, action = strike.partition("=")
    return f"{where.partition('@')[0]}={action}"


@pytest.mark.parametrize("title", TITLES)
def test_each_plan_is_struck_once_at_each_place(title: str) -> None:
    cases = [case for case in MATRIX if case.name.startswith(title)]
    strikes = Counter(place(strike) for case in cases for run in case.runs for strike in run.strikes)
    assert len(strikes) == PLACES
    assert set(strikes.values()) == {1}
    assert all(case.exact and not case.runs[-1].strikes for case in cases)


def test_every_case_belongs_to_a_plan() -> None:
    assert all(any(case.name.startswith(title) for title in TITLES) for case in MATRIX)
    assert len({case.name for case in MATRIX}) == len(MATRIX)
