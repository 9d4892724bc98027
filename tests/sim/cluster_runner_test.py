"""Whole runs of clusters: they replay exactly, reach the minimums of a seed, and detect missing safeguards.

Zone: real.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from ottla.sim.cluster.checkers import BESIDE
from ottla.sim.cluster.runner import ClusterOptions, ClusterResult, run_cluster
from ottla.sim.cluster.shrink import shrink_faults
from ottla.sim.report import coverage_lines, replay_command, result_lines, result_value, shrunk_lines
from ottla.sim.swarm import Coverage

SHORT = ClusterOptions(seconds=5)


def fingerprint(result: ClusterResult) -> tuple[object, ...]:
    return result.trace_hash, result.events, result.acknowledged, result.read, result.faults, result.elections


@pytest.mark.slow
def test_the_same_seed_is_the_same_run():
    first, second = run_cluster(5, SHORT), run_cluster(5, SHORT)
    assert fingerprint(first) == fingerprint(second)
    assert run_cluster(6, SHORT).trace_hash != first.trace_hash


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_hash_seed_or_the_process():
    program = (
        "from ottla.sim.cluster.runner import ClusterOptions, run_cluster;"
        "print(run_cluster(5, ClusterOptions(seconds=5)).trace_hash)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert hashes == {run_cluster(5, SHORT).trace_hash}


@pytest.mark.slow
def test_a_seed_of_full_length_counts_and_is_clean():
    result = run_cluster(1)
    assert result.ok, result.violations
    assert result.unmet_minimums == []
    assert result.controllers > 1
    assert result.read > result.acknowledged


@pytest.mark.slow
def test_a_cluster_without_faults_elects_no_second_leader():
    result = run_cluster(1, ClusterOptions(seconds=10, strikes=(), brokers=3))
    assert result.ok, result.violations
    assert (result.elections, result.controllers, result.faults) == (0, 1, {})


@pytest.mark.slow
def test_a_failing_run_is_made_smaller():
    options = ClusterOptions(without="replication.truncate_by_epoch", seconds=20)
    seeds = (5, *range(1, 50))  # the first fails after the least time; changes of the code change what a seed does
    failed = next(result for seed in seeds if not (result := run_cluster(seed, options)).ok)
    shrunk = shrink_faults(failed, options, limit=8)
    assert shrunk.runs <= 8
    assert len(shrunk.result.strikes) < len(failed.strikes)
    names = {name for name, _ in failed.violations}
    assert names & {name for name, _ in shrunk.result.violations}
    strikes = tuple(strike.number for strike in shrunk.result.strikes)
    again = run_cluster(failed.seed, replace(options, strikes=strikes))
    assert fingerprint(again) == fingerprint(shrunk.result), "the command that is printed is this very run"
    text = "\n".join(shrunk_lines(shrunk, options))
    assert f"--ablate {options.without} --faults {','.join(map(str, strikes))}" in text
    assert "is controller" in text


def test_results_add_up_and_tell_how_to_replay():
    good = ClusterResult(1, 60 * 10**9, 10, 2000, 3000, 2, {"kill": 20}, elections=3, controllers=1)
    bad = ClusterResult(2, 60 * 10**9, 10, 2000, 3000, 2, {"kill": 20}, [("bytes_are_right", "x")], elections=3)
    calm = ClusterResult(3, 60 * 10**9, 10, 2000, 3000, 2, {"kill": 20}, elections=2)
    coverage = Coverage()
    for result in (good, bad, calm):
        coverage.add_result(result)
    options = ClusterOptions(seconds=30, without="dedupe", brokers=4, strikes=(), flush=True)
    command = "ottla sim --cluster --brokers 4 --flush --seed 2 --seconds 30 --ablate dedupe --faults none"
    assert replay_command(bad, options) == command
    text = "\n".join(coverage_lines(coverage, options))
    assert command in text
    assert "seed 3 does not count: only 2 elections" in text
    assert "elections     8" in text
    assert "elections     3, 1 of a controller" in "\n".join(result_lines(good, options))
    assert result_value(good)["elections"] == 3


CAUGHT: dict[str, tuple[int, tuple[str, ...]]] = {
    "replication.truncate_by_epoch": (2, ()),
    "replication.divergence_in_fetch": (1, ()),
    "replication.epoch_fencing": (2, ()),
    "replication.maximal_isr": (2, ()),
    "replication.follower_sync_before_ack": (6, ("power loss of all", "preferred election")),
    "controller.isr_only_election": (3, ()),
    "controller.last_isr_kept": (1, ()),
    "recovery_scan": (1, ()),
    "crc_check": (2, ()),
    "dedupe": (2, ()),
}
"""Safeguards, a seed that detects their absence, and its kinds of faults (none: the seed draws them).

Safeguards whose absence only one seed in hundreds detects are tested by hand: docs/simulator.md.
"""


@pytest.mark.slow
@pytest.mark.parametrize("safeguard", CAUGHT)
def test_a_missing_safeguard_is_caught_end_to_end(safeguard):
    seed, kinds = CAUGHT[safeguard]
    options = ClusterOptions(without=safeguard, kinds=kinds)
    for other in (seed, *range(1, 60)):  # changes of the code change what a seed does
        if {name for name, _ in run_cluster(other, options).violations} - BESIDE:
            return
    pytest.fail("60 seeds noticed nothing")
