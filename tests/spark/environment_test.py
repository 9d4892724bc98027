"""What Spark inherits: one thread where none is needed, and nothing is left behind in the process that starts it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ottla.spark.environment import THREADS, one_thread_in_planners

COUNT = "import numpy, os; print(len(os.listdir('/proc/self/task')))"


def test_numpy_starts_no_threads_in_a_process_that_is_started_within(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(THREADS, raising=False)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with one_thread_in_planners():
        assert subprocess.check_output([sys.executable, "-c", COUNT], text=True) == "1\n"
    assert THREADS not in os.environ


def test_a_value_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS, "3")
    with one_thread_in_planners():
        assert os.environ[THREADS] == "3"
    assert os.environ[THREADS] == "3"
