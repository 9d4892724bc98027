"""Steps at which jobs are killed: each is a function that exists, and its calls and returns are counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from testbench.step_kills import check_steps

ROOT = Path(__file__).parents[2]
FILES = ("testbench/step_kills.py",)
JOB = """
import testbench.step_kills as kills
def step(): return kills.check_steps((), ())
kills.answer_kills(lambda line: (kills.kill_at(int(line), {"check_steps"}, ("testbench/step_kills.py",)), step()))
"""


def test_a_step_without_a_function_is_refused() -> None:
    check_steps({"kill_at"}, FILES)
    with pytest.raises(ValueError, match="has the functions renamed_meanwhile"):
        check_steps({"kill_at", "renamed_meanwhile"}, FILES)


def test_a_process_is_killed_at_each_call_and_return() -> None:
    done = subprocess.run(
        [sys.executable, "-c", JOB], input="1\n2\n3\n", capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == ["killed", "killed", "done"]
