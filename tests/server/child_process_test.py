"""A process beside the brokers: started again with pauses, stopped by the end of its input, killed if it is deaf.

Zone: real.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable

import pytest

from ottla.server import child_process
from ottla.server.child_process import ChildProcess

OBEDIENT = "import sys; sys.stdin.read()"
DEAF = "import time; time.sleep(1000)"
FAILING = "raise SystemExit(3)"


def child_of(program: str) -> ChildProcess:
    return ChildProcess("child", lambda address: [sys.executable, "-S", "-c", program, address])


def await_true(is_true: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.01)


def pid_of(child: ChildProcess) -> int:
    await_true(lambda: child._process)
    assert child._process is not None
    return child._process.pid


@pytest.mark.slow
def test_one_that_is_killed_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    child = child_of(OBEDIENT)
    child.start_process("localhost:9092")
    first = pid_of(child)
    os.kill(first, signal.SIGKILL)
    await_true(lambda: pid_of(child) != first)
    child.stop_process()
    assert "the child ended: exit status -9; starting it again in 0.1 s" in caplog.text
    assert "killing it" not in caplog.text
    assert child._process is not None
    assert child._process.returncode == 0


@pytest.mark.slow
def test_one_that_does_not_stop_is_killed(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "STOP_S", 0.05)
    child = child_of(DEAF)
    child.start_process("localhost:9092")
    pid_of(child)
    child.stop_process()
    assert "killing it" in caplog.text
    assert child._process is not None
    assert child._process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_pauses_grow_and_a_stop_ends_them(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "FIRST_PAUSE_S", 0.01)
    child = child_of(FAILING)
    child.start_process("localhost:9092")
    await_true(lambda: caplog.text.count("exit status 3") >= 4)
    child.stop_process()
    pauses = [float(str(record.args[2])) for record in caplog.records if isinstance(record.args, tuple)]
    assert pauses[:4] == [0.01, 0.02, 0.04, 0.08]


@pytest.mark.slow
def test_a_command_that_cannot_be_started_is_named(caplog: pytest.LogCaptureFixture) -> None:
    child = ChildProcess("child", lambda _: ["/nonexistent/program"])
    child.start_process("localhost:9092")
    await_true(lambda: "cannot start /nonexistent/program: No such file" in caplog.text)
    child.stop_process()


def test_one_that_was_never_started_is_stopped_at_once() -> None:
    child_of(DEAF).stop_process()
