"""A dose of `make chaos-spark`: who matters to the exactly-once sink among three brokers dies in every batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.spark
@pytest.mark.slow
def test_every_row_once_though_leader_coordinator_and_controller_are_killed() -> None:
    words = ["-m", "testbench.spark_chaos", "--rows", "2000", "--case", "at every step of a task"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if ": 0 missing, 0 too many" in line]
    assert [line.split()[2] for line in told] == ["leader", "coordinator", "controller"]
