"""Whole runs on the real broker: they replay exactly, reach the minimums of a seed, and detect missing safeguards.

Zone: real.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ottla.cli.commands.simulation.sim import (
    CLIENT_SAFEGUARDS,
    CLUSTER_SAFEGUARDS,
    DEFECT_SAFEGUARDS,
    SAFEGUARDS,
    SECURITY_SAFEGUARDS,
)
from ottla.sim.cluster.runner import ClusterOptions, ClusterResult
from ottla.sim.mutants.ablation import MUTANTS
from ottla.sim.report import coverage_lines, coverage_value, result_lines, result_value
from ottla.sim.runner import Options, Result, Run, run_broker
from ottla.sim.swarm import Coverage, run_swarm

SHORT = Options(seconds=4)
BESIDE = {"broker_stays_up", "everything_converges"}
"""Properties that an assertion or a crash loop can break: they do not count as end-to-end evidence."""


def fingerprint(result: Result) -> tuple[object, ...]:
    return result.trace_hash, result.events, result.acknowledged, result.read, result.faults


@pytest.mark.slow
def test_the_same_seed_is_the_same_run():
    first, second = run_broker(5, SHORT), run_broker(5, SHORT)
    assert fingerprint(first) == fingerprint(second)
    assert first.ok, first.violations
    assert run_broker(6, SHORT).trace_hash != first.trace_hash


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_hash_seed_or_the_process():
    program = "from ottla.sim.runner import Options, run_broker; print(run_broker(5, Options(seconds=4)).trace_hash)"
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
    assert hashes == {run_broker(5, SHORT).trace_hash}


@pytest.mark.slow
def test_a_seed_of_full_length_counts_and_is_clean():
    result = run_broker(1)
    assert result.ok, result.violations
    assert result.unmet_minimums == []
    assert result.recoveries > 0
    assert result.read > result.acknowledged
    assert result.written > 3 * result.kept
    assert result.keys > 100


@pytest.mark.slow
def test_a_swarm_gives_what_single_runs_give():
    together = {result.seed: fingerprint(result) for result in run_swarm(range(1, 4), SHORT, jobs=2)}
    assert together == {seed: fingerprint(run_broker(seed, SHORT)) for seed in range(1, 4)}


FIRST = {
    "dedupe": 2,
    "recovery_scan": 3,
    "region_generation": 8,
    "fsync_before_recovery_point": 5,
    "flush_before_ack": 10,
    "failed_sync_is_final": 10,
    "exchange_finished": 10,
    "exchange_in_order": 6,
}
"""Seeds that detect the absence where the first ones do not; changes of the code change what a seed does."""


AT_POINTS = {
    "names_synced",
    "recovery_point_goes_back",
    "start_before_names",
    "ghosts_forgotten",
    "durable_before_cleaned",
    "cleans_stable_only",
    "cleaner_checkpoint_cut",
    "txn_indexes_vouched",
    "holes_explained",
    "losses_told",
}
"""Safeguards whose absence a single broker's runs detect rarely or never: it does not truncate a log that it writes,
has no transactions, and no file is damaged at rest. Crash points and damage (tests/testbench) and the tests of storage
cover them."""


@pytest.mark.slow
@pytest.mark.parametrize("safeguard", [name for name in SAFEGUARDS if name not in AT_POINTS])
def test_a_missing_safeguard_is_caught_end_to_end(safeguard):
    for seed in (FIRST.get(safeguard, 1), *range(1, 201)):
        found = {name for name, _ in run_broker(seed, Options(without=safeguard)).violations} - BESIDE
        if found:
            return
    pytest.fail("200 seeds noticed nothing")


def test_every_safeguard_can_be_switched_off_by_the_command():
    of_clusters = CLUSTER_SAFEGUARDS + CLIENT_SAFEGUARDS + SECURITY_SAFEGUARDS
    assert tuple(MUTANTS) == SAFEGUARDS + DEFECT_SAFEGUARDS + of_clusters


@pytest.mark.slow
def test_defects_cost_requests_and_the_broker_only_inside_a_change():
    options = Options(seconds=10, defects=True)
    stopped, kinds = 0, set()
    for seed in range(1, 4):
        result = run_broker(seed, options)
        assert result.ok, result.violations
        assert result.faults["defect"] > 20
        stopped += result.faults.get("defect inside a change", 0)
        kinds.update(kind for kind in result.faults if kind.startswith("defect in a"))
    assert stopped > 0
    assert kinds >= {
        "defect in a request",
        "defect in a look",
        "defect in an alarm",
        "defect in an effect of a callback",
    }
    assert run_broker(1, options).trace_hash == run_broker(1, options).trace_hash


@pytest.mark.slow
def test_a_defect_that_is_not_contained_stops_a_broker():
    for seed in range(1, 20):
        found = {name for name, _ in run_broker(seed, Options(10, "containment.contains", defects=True)).violations}
        if "broker_stays_up" in found:
            return
    pytest.fail("no seed noticed it")


@pytest.mark.slow
def test_a_defect_of_an_alarm_that_is_not_contained_stops_a_broker():
    for seed in (2, 3, *range(1, 30)):
        violations = run_broker(seed, Options(10, "containment.contains", defects=True)).violations
        if any(name == "broker_stays_up" and "in contain_callback" in text for name, text in violations):
            return
    pytest.fail("no seed noticed it")


@pytest.mark.slow
def test_a_broker_that_goes_on_half_changed_is_caught_end_to_end():
    options = Options(10, "containment.stops_when_half_changed", defects=True)
    for seed in (13, 53, *range(1, 60)):
        found = {name for name, _ in run_broker(seed, options).violations} - BESIDE
        if found:
            return
    pytest.fail("no seed noticed it")


def test_seeds_differ_in_their_mix_of_faults():
    mixes = [Run(seed, SHORT).nemesis for seed in range(8)]
    assert len({tuple(nemesis.mix) for nemesis in mixes}) == 8


def test_results_add_up_and_tell_how_to_replay():
    good = Result(1, 60 * 10**9, 10, 2000, 3000, 2, {"kill": 10, "pause": 1}, [], "ab")
    bad = Result(2, 61 * 10**9, 10, 2000, 3000, 1, {"kill": 12}, [("bytes_are_right", "wrong")], "cd")
    idle = Result(3, 60 * 10**9, 10, 20, 30, 0, {"kill": 12}, [], "ef")
    coverage = Coverage()
    for result in (good, bad, idle):
        coverage.add_result(result)
    assert (coverage.seeds, coverage.acknowledged, coverage.recoveries) == (3, 4020, 3)
    assert coverage.faults == {"kill": 34, "pause": 1}
    assert [seed for seed, _ in coverage.not_counted] == [3]
    text = "\n".join(coverage_lines(coverage, Options(without="dedupe")))
    assert "ottla sim --seed 2 --ablate dedupe" in text
    assert "1 clean, 1 failed, 1 not counted" in text
    assert "seed 3 does not count: only 20 acknowledged records" in text
    value = coverage_value(coverage)
    assert (value["ok"], value["counted"]) == (False, 1)
    assert result_value(good)["trace"] == "ab"
    assert result_lines(good, Options())[0] == "seed 1: ok"


class BrokenOptions(ClusterOptions):
    def run_seed(self, seed: int) -> ClusterResult:
        raise ValueError(f"broken {seed}")


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_exception_of_the_simulator_itself_names_the_seed(jobs: int) -> None:
    with pytest.raises(ValueError, match="broken 7") as caught:
        list(run_swarm([7], BrokenOptions(), jobs))
    assert caught.value.__notes__ == ["in seed 7"]
