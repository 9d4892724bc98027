"""Connections that do not log in: a dose of bench/fuzz_logins.py, and that it notices a login.

Zone: real.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.fuzz_logins import Broken, LoginFuzz, Target, fuzzing
from bench.login_cases import MECHANISMS, STEPS, Login

pytestmark = [pytest.mark.slow]

SEED = 1
"""Always the same here; that of `make fuzz-logins` is another one every time."""
CONNECTIONS = 700


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    node = Target(tmp_path)
    node.start()
    yield node
    node.kill()


def test_some_hundred_connections_that_do_not_log_in(target: Target) -> None:
    try:
        *_, fuzz = fuzzing(target, SEED, CONNECTIONS)
    except Broken as error:
        pytest.fail(f"bench/fuzz_logins.py --seed {SEED}: {error}")
    assert fuzz.connections == CONNECTIONS
    assert fuzz.closes > CONNECTIONS // 4
    assert fuzz.answers > CONNECTIONS // 35, "some are refused by an answer"
    states = {(mechanism, version, steps) for mechanism, version, steps, _ in fuzz.reached}
    assert len(states) == len(MECHANISMS) * 2 * STEPS, "each state of each mechanism was reached"
    assert len({tls for *_, tls in fuzz.reached}) == 2
    target.stop()


def test_the_fuzzer_notices_a_login_that_succeeds(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def log_in(fuzz: LoginFuzz, sock: socket.socket, login: Login, _: int) -> bool:
        take_steps(fuzz, sock, login, STEPS - 1)
        return False

    def run_cases(fuzz: LoginFuzz) -> None:
        for _ in range(300):
            fuzz.run_case()

    take_steps = LoginFuzz._take_steps
    monkeypatch.setattr(LoginFuzz, "_take_steps", log_in)
    monkeypatch.setattr("bench.login_cases.wrong_message", lambda *_: b"")
    with contextlib.closing(LoginFuzz(target, SEED)) as fuzz, pytest.raises(Broken, match="a record was accepted"):
        run_cases(fuzz)
