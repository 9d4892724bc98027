"""Clusters where acknowledged means durable: all brokers lose power at once, and nothing acknowledged is lost.

Zone: real. The long run, a thousand seeds, is a command: docs/simulator.md.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from ottla.cli.main import cli
from ottla.sim.cluster.checkers import BESIDE
from ottla.sim.cluster.faults import WHOLE_LOSS
from ottla.sim.cluster.nemesis import WHOLE_LOSSES
from ottla.sim.cluster.runner import ClusterOptions, ClusterRun
from ottla.sim.report import coverage_lines, coverage_value, result_lines
from ottla.sim.swarm import Coverage, run_seed
from ottla.sim.transactions.runner import TransactionOptions, TransactionResult

FLUSH = ClusterOptions(flush=True)
CAUGHT = {"flush_before_ack": 4, "replication.follower_sync_before_ack": 5}
"""Safeguards by which an acknowledgement waits for the disk, and seeds that detect their absence."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 3])
def test_nothing_acknowledged_is_lost_when_all_lose_power(seed):
    result = run_seed(seed, FLUSH)
    assert result.ok, result.violations
    assert result.unmet_minimums == []
    assert result.whole_losses >= WHOLE_LOSSES
    assert result.durable > 1_000


@pytest.mark.slow
def test_nor_is_a_commit_of_a_transaction_or_of_a_position():
    result = run_seed(1, TransactionOptions(flush=True, seconds=30))
    assert isinstance(result, TransactionResult)
    assert result.ok, result.violations
    assert result.commits > 50
    assert result.offset_commits > 10
    assert result.whole_losses >= WHOLE_LOSSES


@pytest.mark.slow
@pytest.mark.parametrize("safeguard", CAUGHT)
def test_an_acknowledgement_that_does_not_wait_for_the_disk_is_caught(safeguard):
    options = ClusterOptions(without=safeguard, flush=True)
    for seed in (CAUGHT[safeguard], *range(1, 40)):  # changes of the code change what a seed does
        found = {name for name, _ in run_seed(seed, options).violations} - BESIDE
        if found:
            assert found & {"acknowledged_is_kept", "flushed_is_kept", "seen_is_kept"}
            return
    pytest.fail("40 seeds noticed nothing")


def test_whole_losses_come_beside_what_else_is_planned():
    asked, usual = ClusterRun(3, FLUSH), ClusterRun(3, ClusterOptions())
    added = [strike for strike in asked.strikes if strike not in usual.strikes]
    assert asked.flush
    assert {strike.kind for strike in added[-WHOLE_LOSSES:]} == {WHOLE_LOSS}
    assert len({strike.number for strike in asked.strikes}) == len(asked.strikes)
    assert ClusterRun(3, ClusterOptions(flush=True, strikes=(0,))).strikes == asked.strikes[:1]


@pytest.mark.slow
def test_the_command_counts_losses_of_power_and_what_they_left():
    answer = CliRunner().invoke(cli, ["sim", "--cluster", "--flush", "--seed", "5", "--seconds", "5", "-o", "json"])
    assert answer.exit_code == 0, answer.output
    value = json.loads(answer.stdout)
    assert value["whole_losses"] >= WHOLE_LOSSES
    assert value["durable"] > 0
    result = run_seed(5, ClusterOptions(seconds=5, flush=True))
    assert f"{value['durable']:,} records acknowledged, {value['whole_losses']} losses" in "\n".join(
        result_lines(result, FLUSH)
    )
    coverage = Coverage()
    coverage.add_result(result)
    coverage.add_result(result)
    assert coverage_value(coverage)["whole_losses"] == 2 * value["whole_losses"]
    assert f"{2 * value['durable']:,} records acknowledged" in "\n".join(coverage_lines(coverage, FLUSH))


def test_one_broker_alone_has_no_such_runs():
    for words in (["--seed", "1"], ["--clients", "--seed", "1"]):
        answer = CliRunner().invoke(cli, ["sim", "--flush", *words])
        assert answer.exit_code == 2
        assert "--flush needs --cluster or --transactions" in answer.output
