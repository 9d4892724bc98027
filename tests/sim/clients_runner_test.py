"""Whole runs with Ottla's producer: they replay exactly, reach the minimums of a seed, and detect missing safeguards.

Zone: real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from ottla.cli.main import cli
from ottla.sim.clients.application import BURST_MAX
from ottla.sim.clients.checkers import BESIDE
from ottla.sim.clients.runner import ClientOptions, ClientResult, ClientRun
from ottla.sim.report import coverage_lines, replay_command, result_lines, result_value
from ottla.sim.swarm import Coverage


def run(seed: int, **options: object) -> ClientResult:
    result = ClientOptions(**options).run_seed(seed)
    assert isinstance(result, ClientResult)
    return result


@pytest.mark.slow
def test_the_same_seed_is_the_same_run_whatever_the_process_and_its_hash_seed():
    program = (
        "from ottla.sim.clients.runner import ClientOptions;print(ClientOptions(seconds=2).run_seed(5).trace_hash)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    other = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True, text=True)
    here = run(5, seconds=2)
    assert here.trace_hash == other.stdout.strip()
    assert run(6, seconds=2).trace_hash != here.trace_hash


@pytest.mark.slow
def test_a_seed_of_full_length_counts_and_is_clean():
    result = run(1)
    assert result.ok, result.violations
    assert result.unmet_minimums == []
    assert result.epochs > 5
    assert result.generations > 5


@pytest.mark.slow
def test_without_faults_every_record_is_delivered_at_its_first_attempt():
    result = run(4, seconds=2, strikes=())
    assert result.ok, result.violations
    assert result.accepted == result.acknowledged > 200
    assert (result.failed, result.epochs, result.faults) == (0, 0, {})


@pytest.mark.slow
def test_what_has_to_be_delivered_is_not_sent_faster_than_that():
    world = ClientRun(1, ClientOptions(seconds=2, strikes=()))
    assert world.run_phases().ok
    for producer in world.workload.producers:
        sent = [one.write for one in world.history.sent if one.calm and one.write.producer == producer.name]
        assert len(sent) > 2
        for write in sent:
            undecided = [one for one in sent if one.invoked_ns <= write.invoked_ns < one.completed_ns]
            assert len(undecided) <= BURST_MAX


@pytest.mark.slow
def test_the_command_tells_what_a_run_covered():
    answer = CliRunner().invoke(cli, ["sim", "--clients", "--seed", "5", "--seconds", "2", "-o", "json"])
    assert answer.exit_code == 0, answer.output
    value = json.loads(answer.stdout)
    assert value["accepted"] > 0
    assert value["counts"] is False, "two seconds of faults are too few to count"
    assert {"failed_records", "retried", "epochs", "splits", "generations"} <= set(value)


@pytest.mark.parametrize(
    "words",
    [
        ("--clients", "--transactions", "--seed", "1"),
        ("--cluster", "--seed", "1", "--ablate", "client.in_flight_cap"),
    ],
)
def test_wrong_words_are_usage_errors(words):
    assert CliRunner().invoke(cli, ["sim", *words]).exit_code == 2


def test_results_add_up_and_tell_how_to_replay():
    faults, second = {"kill": 20}, 10**9
    good = ClientResult(
        1, 60 * second, acknowledged=2000, faults=faults, elections=3, accepted=2100, failed=100, retried=400, epochs=7
    )
    calm = ClientResult(2, 60 * second, acknowledged=2000, faults=faults, elections=3, accepted=2000, retried=40)
    assert good.unmet_minimums == []
    coverage = Coverage()
    coverage.add_result(good)
    coverage.add_result(calm)
    options = ClientOptions(without="client.epoch_recovery")
    assert replay_command(calm, options) == "ottla sim --clients --seed 2 --ablate client.epoch_recovery"
    text = "\n".join(coverage_lines(coverage, options))
    assert "seed 2 does not count: only 40 records sent again" in text
    assert "4,100 records accepted, 100 failed, 440 sent again; sequences restarted 7 times" in text
    assert "2,100 records accepted, 100 failed" in "\n".join(result_lines(good, options))
    assert result_value(good)["epochs"] == 7


DISKS_FAIL = ("short write", "append error", "sync error", "kill", "isolated broker")
CAUGHT = {
    "client.sequences_kept": (1, 15, ()),
    "client.in_flight_cap": (1, 15, ()),
    "client.epoch_recovery": (1, 15, ()),
    "client.refusals_doubted": (1, 30, DISKS_FAIL),
}
"""Safeguards, a seed that detects their absence, its seconds with faults, and the kinds of faults, if not all."""


@pytest.mark.slow
@pytest.mark.parametrize(("safeguard", "found"), CAUGHT.items())
def test_a_missing_safeguard_is_caught_end_to_end(safeguard, found):
    seed, seconds, kinds = found
    for other in (seed, *range(1, 60)):  # changes of the code change what a seed does
        result = run(other, without=safeguard, seconds=seconds, kinds=kinds)
        if {name for name, _ in result.violations} - BESIDE:
            return
    pytest.fail("60 seeds noticed nothing")
