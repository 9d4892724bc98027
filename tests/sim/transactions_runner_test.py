"""Whole runs with transactions and groups: they replay exactly, reach the minimums, and detect missing safeguards.

Zone: real.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from ottla.cli.commands.simulation import reorder
from ottla.cli.main import cli
from ottla.sim.mutants.coordinators import GROUPS, TRANSACTIONS
from ottla.sim.report import coverage_lines, replay_command, result_lines, result_value
from ottla.sim.swarm import Coverage, run_seed
from ottla.sim.transactions.admin import REPLACED
from ottla.sim.transactions.checkers import BESIDE
from ottla.sim.transactions.runner import TransactionOptions, TransactionResult, TransactionRun


def run(seed: int, **options: object) -> TransactionResult:
    result = TransactionOptions(**options).run_seed(seed)
    assert isinstance(result, TransactionResult)
    return result


@pytest.mark.slow
def test_the_same_seed_is_the_same_run():
    first, second = run(5, seconds=3), run(5, seconds=3)
    assert (first.trace_hash, first.commits, first.aborts) == (second.trace_hash, second.commits, second.aborts)
    assert run(6, seconds=3).trace_hash != first.trace_hash


@pytest.mark.slow
def test_a_seed_of_full_length_counts_and_is_clean():
    result = run(1)
    assert result.ok, result.violations
    assert result.unmet_minimums == []
    assert result.aborts > 10
    assert result.generations > 10
    assert result.removed > 100


@pytest.mark.slow
def test_without_faults_no_coordinator_changes():
    result = run(2, seconds=5, strikes=())
    assert result.ok, result.violations
    assert result.coordinator_changes == 0
    assert result.commits > 20


@pytest.mark.slow
def test_copiers_with_one_id_do_not_keep_each_other_from_the_end():
    result = run(10002, strikes=(1, 6, 7))  # they fenced each other for forty seconds
    assert result.ok, result.violations


@pytest.mark.parametrize("lost", ["__transaction_state-1", "__consumer_offsets-0", "input-0", None])
def test_a_transaction_of_which_a_coordinator_lost_all_is_an_operators(lost):
    """Its copiers get UNSTABLE_OFFSET_COMMIT forever, as with Apache Kafka (seeds 11517 and 21825 once)."""
    world = TransactionRun(1, TransactionOptions())
    if lost is not None:
        world.history.excused[f"{lost}@-b_c-dEfGhIjKlMnOpQrSt"] = 7
    world._need_transactions(lambda: ["alone at 14 of 259"], "not copied")
    expected = ["not copied: alone at 14 of 259"]
    by_operator = lost is not None and lost.startswith("__")
    assert (world.history.hanging, world.history.stuck) == ((expected, []) if by_operator else ([], expected))


@pytest.mark.slow
def test_the_command_tells_what_a_run_covered():
    answer = CliRunner().invoke(cli, ["sim", "--transactions", "--seed", "5", "--seconds", "3", "-o", "json"])
    assert answer.exit_code == 0, answer.output
    value = json.loads(answer.stdout)
    assert value["commits"] > 0
    assert value["counts"] is False, "three seconds of faults are too few to count"
    assert {"aborts", "unsure", "offset_commits", "generations", "coordinator_changes"} <= set(value)


def test_results_add_up_and_tell_how_to_replay():
    faults, second = {"kill": 20}, 10**9
    good = TransactionResult(1, 60 * second, faults=faults, commits=150, offset_commits=60, coordinator_changes=5)
    calm = TransactionResult(2, 60 * second, faults=faults, commits=150, offset_commits=40, coordinator_changes=4)
    assert good.unmet_minimums == []
    coverage = Coverage()
    coverage.add_result(good)
    coverage.add_result(calm)
    options = TransactionOptions(without="groups.generation_check")
    assert replay_command(calm, options) == "ottla sim --transactions --seed 2 --ablate groups.generation_check"
    text = "\n".join(coverage_lines(coverage, options))
    assert "seed 2 does not count: only 190 commits, 4 changes of a coordinator" in text
    assert "transactions  300 committed, 0 aborted" in text
    assert "coordinators  9 changes" in text
    assert "transactions  150 committed" in "\n".join(result_lines(good, options))
    assert result_value(good)["offset_commits"] == 60


LATE = (REPLACED, "pause past the session", "kill")
CAUGHT: dict[str, tuple[int, tuple[str, ...]]] = {
    "transactions.bump_at_start": (3, LATE),
    "transactions.epoch_check": (6, LATE),
    "groups.generation_check": (8, LATE),
    "groups.pending_positions": (3, LATE),
    "groups.stable_positions": (4, LATE),
    "groups.answer_when_committed": (2, ("isolated broker", "broker without others")),
    "replication.verify_transactions": (6, LATE),
    "replication.aborted_in_order": (6, LATE),
    "replication.marker_coordinator_epoch": (1, LATE),
    "dedupe": (6, ("connection break", "loss", "kill", "slow link")),
}
"""Safeguards, a seed that detects their absence, and its kinds of faults (docs/simulator.md has the list)."""
OF_TRANSACTIONS = {
    "replication.marker_coordinator_epoch",
    "replication.marker_epoch",
    "replication.verify_transactions",
    "replication.verification_guard",
    "replication.aborted_in_order",
}
SEEDS, SECONDS = 40, 20
"""Each seed takes seconds of processor time; changes of the code change what a seed does."""


def test_every_safeguard_of_coordinators_is_asked_for():
    of_coordinators = (mutant.name for mutant in TRANSACTIONS + GROUPS)
    assert {*of_coordinators, *OF_TRANSACTIONS} <= {*CAUGHT, *reorder.SAFEGUARDS}


@pytest.mark.slow
@pytest.mark.parametrize("safeguard", CAUGHT)
def test_a_missing_safeguard_is_caught_end_to_end(safeguard):
    first, kinds = CAUGHT[safeguard]
    options = TransactionOptions(without=safeguard, kinds=kinds, seconds=SECONDS)
    for seed in (first, *range(1, SEEDS + 1)):
        if {name for name, _ in run_seed(seed, options).violations} - BESIDE:
            return
    pytest.fail(f"{SEEDS} seeds noticed nothing")
