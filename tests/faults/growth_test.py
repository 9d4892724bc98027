"""The sweeps of growth, in sizes that say whether they run, not what they cost.

Zone: real. The long dose is `bench/growth.py`; of bad input alone `bench/growth.py --no-kafka --rows churn names`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import growth
from bench.growth import ALL, main
from bench.growth_report import PROFILES, Results, exponent
from bench.growth_rows import CONSTANT, Row
from bench.growth_work import Point

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("row", ["create", "metadata-all", "roll", "start", "churn", "names"])
def test_a_sweep_runs_and_is_written_down(tmp_path, row) -> None:
    assert main(["--quick", "--no-kafka", "--rows", row, "--out", str(tmp_path)]) == 0
    text = (tmp_path / "GROWTH.md").read_text()
    assert "**not measured**" in text
    assert ("**within**" in text) or ("**over**" in text)


def test_the_slope_of_a_cost() -> None:
    assert exponent([[10, 5, None], [1000, 5, None]]) == pytest.approx(0)
    assert exponent([[10, 5, None], [1000, 500, None]]) == pytest.approx(1)
    assert exponent([[10, 5, None]]) is None


def test_what_is_over_a_limit_is_said(tmp_path) -> None:
    results = Results(tmp_path, [Row("a", "a", "ms", CONSTANT), Row("b", "b", "ms", None, 1.0, None)])
    results.add("ottla", Point("a", 10, 5.0, 1.0))
    results.add("ottla", Point("a", 1000, 9.0, 2.0))
    assert results.over == [], "up to twice the first"
    results.add("ottla", Point("b", 10, 1.1))
    assert results.over == ["b"]
    results.add("ottla", Point("a", 10_000, 11.0))
    assert results.over == ["a", "b"]
    again = Results(tmp_path, [Row("a", "a", "ms", CONSTANT)])
    again.add("ottla", Point("a", 10, 5.0, 21.0))
    assert again.over == ["a"], "others waited too long"


def test_every_row_has_one_sweep() -> None:
    keys = [row.key for sweep in ALL for row in sweep.rows]
    assert len(keys) == len(set(keys))


def test_each_row_over_a_limit_says_where_its_time_passes(tmp_path) -> None:
    directory = Path(growth.__file__).parent
    (tmp_path / "growth.json").write_text((directory / "growth.json").read_text())
    results = Results(tmp_path, [row for sweep in ALL for row in sweep.rows])
    results.write()
    rows = [row for sweep in ALL for row in sweep.rows]
    over = [row for row in rows if results.verdict(row) == "over"]
    assert {row.key for row in over} <= PROFILES.keys() <= {row.key for row in rows}
    text = (directory / "GROWTH.md").read_text()
    assert all(f"- **{row.title}**: {PROFILES[row.key]}" in text for row in over)
