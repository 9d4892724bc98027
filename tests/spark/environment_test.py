"""What Spark inherits: a limit of one thread; the environment of the process that starts it is restored."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.spark.environment import THREADS, name_this_python, one_thread_in_planners

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


def test_workers_run_this_python_where_its_environment_is_not_activated(tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    found: dict[str, str] = {"PATH": str(tmp_path)}
    name_this_python(found)
    assert found["PYSPARK_PYTHON"] == sys.executable
    for stays in ({"PYSPARK_PYTHON": "mine"}, {"PYSPARK_GATEWAY_PORT": "1"}, {"PATH": os.path.dirname(sys.executable)}):
        given = {"PATH": str(tmp_path), **stays}
        name_this_python(given)
        assert given == {"PATH": str(tmp_path), **stays}
