"""Killed at each step of a commit, the next run makes the table equal to the topic."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.tables.conftest import Target, Topic, sorted_rows

pytestmark = pytest.mark.slow

JOB = Path(__file__).with_name("copy_job.py")
MOST_STEPS = 60


def test_a_copy_that_is_killed_at_each_step_is_exact(topic: Topic, target: Target) -> None:
    words = ["table", topic.name, *target.words, "--exit-at-end", "-b", topic.bootstrap, "-o", "json"]
    command, sent, answers = [sys.executable, str(JOB), *words], 0, []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        # New records for each run: the first run makes the table, and later ones continue where the one before died.
        while "done" not in answers and len(answers) < MOST_STEPS:
            topic.send(sent, 6)
            sent += 6
            print(len(answers) + 1, file=job.stdin, flush=True)
            answers.append(job.stdout.readline().strip())
        job.stdin.close()
    assert answers[-1] == "done"
    assert set(answers[:-1]) == {"killed"}
    assert len(answers) > 6, "the steps were not seen"
    assert sorted_rows(target.read_arrow()) == sorted_rows(target.read_duckdb()) == topic.rows(sent)
