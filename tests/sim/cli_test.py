"""`ottla sim` as users and programs call it.

Zone: real.
"""

from __future__ import annotations

import json
import logging
import os
import pty
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from ottla.cli.commands.simulation.sim import SwarmProgress
from ottla.cli.main import cli
from ottla.sim.runner import Result
from ottla.sim.swarm import Coverage


def ottla(*words: str):
    return CliRunner().invoke(cli, ["sim", *words])


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--seed", "1", "--seeds", "1..2"),
        ("--seeds", "1-2"),
        ("--seeds", "5..2"),
        ("--seeds", "1..2", "--trace"),
        ("--seed", "1", "--kinds", "kill"),
        ("--cluster", "--seed", "1", "--kinds", "kill,flood"),
    ],
)
def test_wrong_words_are_usage_errors(words):
    assert ottla(*words).exit_code == 2


@pytest.mark.slow
def test_one_seed_prints_what_it_covered_and_its_trace():
    before = logging.getLogger("ottla").level
    plain = ottla("--seed", "4", "--seconds", "3")
    assert plain.exit_code == 0, plain.output
    again = json.loads(ottla("--seed", "4", "--seconds", "3", "-o", "json").stdout)
    assert again["ok"]
    assert again["trace"] in plain.stdout
    traced = ottla("--seed", "4", "--seconds", "3", "--trace").stdout
    assert again["trace"] in traced
    assert "node 0 ready, life 1" in traced
    assert logging.getLogger("ottla").level == before, "silence ends with the command"


@pytest.mark.slow
def test_chosen_kinds_strike_alone_and_the_report_counts_them():
    words = ("--cluster", "--seed", "1", "--seconds", "5", "--kinds", "kill, slow link", "-o", "json")
    faults = json.loads(ottla(*words).stdout)["faults"]
    assert "kill" in faults
    assert "isolated broker" not in faults


@pytest.mark.slow
def test_a_swarm_prints_what_it_covered():
    result = ottla("--seeds", "1..2", "--seconds", "3", "--jobs", "2", "-o", "json")
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert value["seeds"] == 2
    assert value["counted"] == 0, "three seconds of faults are too few to count"
    assert value["acknowledged"] > 0


@pytest.mark.slow
def test_a_failing_seed_is_exit_code_one_with_the_command_that_replays_it():
    for seed in range(1, 40):
        result = ottla("--seed", str(seed), "--without", "recovery_scan")
        if result.exit_code:
            assert result.exit_code == 1
            assert f"again: ottla sim --seed {seed} --ablate recovery_scan" in result.stdout
            return
    pytest.fail("no seed noticed that recovery is missing")


@pytest.mark.slow
def test_a_swarm_that_is_stopped_says_what_it_covered_so_far():
    terminal, stderr = pty.openpty()
    words = ["sim", "--seeds", "1..100000", "--seconds", "1", "--jobs", "1", "-o", "json"]
    running = subprocess.Popen([sys.executable, "-m", "ottla", *words], stdout=subprocess.PIPE, stderr=stderr)
    os.close(stderr)
    seen = b""
    while b"3/100000 seeds" not in seen:
        seen += os.read(terminal, 4096)
    running.send_signal(signal.SIGTERM)
    told, _ = running.communicate(timeout=120)
    os.close(terminal)
    covered = json.loads(told)
    assert running.returncode == 130
    assert covered["stopped"]
    assert covered["seeds"] >= 3
    assert not covered["failed"]


def test_which_seeds_ran_before_it_was_stopped():
    progress, coverage = SwarmProgress(range(10, 20), quiet=True), Coverage()
    assert progress.stopped_text() == "stopped       of 10..19 ran none"
    for seed in (10, 11, 13):
        progress.add_result(Result(seed), coverage)
    assert progress.stopped_text() == "stopped       of 10..19 ran 10..11 and 1 after them"
    for seed in (12, *range(14, 20)):
        progress.add_result(Result(seed), coverage)
    assert progress.stopped_text() is None
