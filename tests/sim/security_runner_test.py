"""Whole clusters with an authorizer and logins: runs are clean, and a missing safeguard is detected.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.sim.cluster.checkers import BESIDE
from ottla.sim.mutants.security import SECURITY
from ottla.sim.report import coverage_lines, coverage_value, replay_command, result_lines, result_value
from ottla.sim.security.runner import SecurityOptions, SecurityResult
from ottla.sim.swarm import Coverage, run_seed

SECONDS = 5
SEEDS = 4
KINDS = ("kill", "slow link")


@pytest.mark.slow
def test_a_run_is_clean_and_the_same_again() -> None:
    options = SecurityOptions(seconds=SECONDS)
    result = run_seed(1, options)
    assert isinstance(result, SecurityResult)
    assert result.ok, result.violations
    assert min(result.allowed, result.denied) > 50
    assert result.acl_changes > 20
    assert min(result.logins, result.renewed) > 20
    assert result.expired > 0
    assert run_seed(1, options).trace_hash == result.trace_hash
    assert replay_command(result, options) == "ottla sim --security --seed 1 --seconds 5"
    rights = f"{result.allowed:,} requests allowed, {result.denied:,} denied"
    assert rights in "\n".join(result_lines(result, options))
    assert result_value(result)["acl_changes"] == result.acl_changes
    coverage = Coverage()
    coverage.add_result(result)
    assert rights in "\n".join(coverage_lines(coverage, options))
    assert coverage_value(coverage)["denied"] == result.denied


@pytest.mark.slow
@pytest.mark.parametrize("safeguard", [mutant.name for mutant in SECURITY])
def test_a_missing_safeguard_is_noticed(safeguard: str) -> None:
    options = SecurityOptions(seconds=SECONDS, without=safeguard, kinds=KINDS)
    for seed in range(1, SEEDS + 1):
        if any(name not in BESIDE for name, _ in run_seed(seed, options).violations):
            return
    pytest.fail(f"{SEEDS} seeds noticed nothing")
