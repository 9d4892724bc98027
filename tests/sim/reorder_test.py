"""The search through every late arrival: transaction version 2 is clean, and missing safeguards are detected.

Zone: real. The whole search (two requests held back, one failover) takes many minutes: `ottla reorder`.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from ottla.cli.commands.simulation.reorder import SAFEGUARDS
from ottla.cli.main import cli
from ottla.sim.reorder.choices import Choices, Path, WrongPath
from ottla.sim.reorder.schedule import Bounds
from ottla.sim.reorder.search import Tally, play_schedule, run_schedule, split_tree, walk_schedules

pytestmark = pytest.mark.timeout(1200)
"""Generous, because a machine may be busy; the whole file takes less than a minute of processor time."""
CA, CC = (True, False), (True, True)


def ottla(*words: str):
    return CliRunner().invoke(cli, ["reorder", *words])


# -- the tree ----------------------------------------------------------------------------------------------------------


def leaves(root: Path = ()) -> list[Path]:
    """All paths of a tree whose forks depend on earlier choices."""
    found: list[Path] = []
    path: Path | None = root
    while path is not None:
        choices = Choices(path)
        if choices.choose_option(3) == 1:
            choices.choose_option(2)
        choices.choose_option(1)
        choices.choose_option(2)
        found.append(choices.path)
        path = choices.next_path(len(root))
    return found


def test_every_path_is_taken_once() -> None:
    assert leaves() == [(0, 0), (0, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1), (2, 0), (2, 1)]
    assert leaves((1,)) == [(1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)]


def test_a_path_that_leads_nowhere() -> None:
    with pytest.raises(WrongPath):
        Choices((3,)).choose_option(3)


@pytest.mark.slow
def test_the_branches_are_the_whole_tree() -> None:
    bounds = Bounds(delays=1, failovers=0, plan=(True,))
    whole, parts = walk_schedules(bounds, prune=False), Tally()
    for root, alone in split_tree(bounds):
        parts.add_tally(run_schedule(bounds, root) if alone else walk_schedules(bounds, root, prune=False))
    assert parts.schedules == whole.schedules > 20


# -- what it finds -----------------------------------------------------------------------------------------------------


def test_a_schedule_without_anything_late() -> None:
    told: list[str] = []
    assert play_schedule(Bounds(), Choices(), told.append) == []
    text = "\n".join(told)
    assert text.count("WRITE_TXN_MARKERS arrives") == 4, "of two transactions, in two partitions each"
    assert "hears NONE of EndTxn" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(delays=1, failovers=0, brokers_too=True),
        Bounds(delays=1, failovers=0, brokers_too=True, plan=CC),
        Bounds(delays=0, failovers=1, plan=(True, False, True)),
    ],
    ids=["commit-abort", "commit-commit", "failovers"],
)
def test_transaction_version_2_is_clean(bounds: Bounds) -> None:
    tally = walk_schedules(bounds)
    assert tally.schedules > 50
    assert not tally.examples


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "root"), [((True,), ()), (CA, (0,) * 15)], ids=["first", "second"])
def test_transaction_version_2_is_clean_when_coordinators_fail_over(plan: tuple[bool, ...], root: Path) -> None:
    """All schedules with one held request and one failover: of a single transaction, and of two in a row."""
    tally = walk_schedules(Bounds(delays=1, failovers=1, plan=plan), root)
    assert tally.schedules > 300
    assert not tally.examples


@pytest.mark.slow
def test_transaction_version_1_breaks() -> None:
    """A late request joins the next transaction, which KIP-890 prevents only in version 2. But nothing hangs."""
    tally = walk_schedules(Bounds(version=1, delays=1, failovers=0, brokers_too=True))
    assert {"visible_if_committed", "offsets_go_with_records", "acknowledged_is_written"} <= set(tally.by_property)
    assert not {"nothing_hangs", "the_coordinator_rests", "markers_are_decided"} & set(tally.by_property)


CAUGHT = {
    "replication.verify_transactions": (Bounds(version=1, delays=1, failovers=0), "nothing_hangs"),
    "replication.verification_guard": (Bounds(version=1, delays=1, failovers=0, brokers_too=True), "nothing_hangs"),
    "replication.marker_epoch": (Bounds(delays=1, failovers=0, brokers_too=True), "visible_if_committed"),
    "transactions.bump_at_end": (Bounds(delays=1, failovers=0), "visible_if_committed"),
    "transactions.bump_at_abort": (Bounds(delays=1, failovers=0), "visible_if_committed"),
    "transactions.bump_at_start": (Bounds(delays=1, failovers=0), "acknowledged_is_written"),
    "transactions.decided_before_marked": (Bounds(delays=1, failovers=1), "markers_are_decided"),
    "transactions.marked_again": (Bounds(delays=0, failovers=1), "the_coordinator_rests"),
    "transactions.complete_when_marked": (Bounds(delays=1, failovers=0, brokers_too=True), "transactions_are_apart"),
}
"""Safeguard → a search that detects its absence, and the violated properties."""


def test_every_safeguard_is_asked_for() -> None:
    assert set(CAUGHT) == set(SAFEGUARDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUGHT)
def test_what_is_taken_away_is_noticed(name: str) -> None:
    bounds, prop = CAUGHT[name]
    weak = Bounds(bounds.version, bounds.plan, bounds.delays, bounds.failovers, bounds.brokers_too, name)
    root = (0, 0, 0, 0, 0, 0, 0, 0, 2) if bounds.failovers and bounds.delays else ()
    assert prop in walk_schedules(weak, root, until_broken=True).by_property


@pytest.mark.slow
def test_what_goes_on_like_another_one_is_left_and_nothing_is_missed() -> None:
    bounds = Bounds(version=1, delays=1, failovers=0)
    pruned, whole = walk_schedules(bounds), walk_schedules(bounds, prune=False)
    assert pruned.redundant > 0
    assert set(pruned.by_property) == set(whole.by_property)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [("--plan", "cx"), ("--plan", ""), ("--schedule", "1,x"), ("--schedule", "9"), ("--ablate", "no")]
)
def test_wrong_words_are_usage_errors(words) -> None:
    assert ottla(*words).exit_code == 2


@pytest.mark.slow
def test_the_command_says_how_many_schedules_there_were() -> None:
    result = ottla("--delays", "0", "--failovers", "1", "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert "57 schedules, which is all" in result.stdout
    value = json.loads(ottla("--delays", "0", "--failovers", "1", "--jobs", "2", "-o", "json").stdout)
    assert (value["ok"], value["schedules"]) == (True, 57)


@pytest.mark.slow
def test_a_broken_schedule_can_be_told_again() -> None:
    words = ["--delays", "1", "--failovers", "0", "--ablate", "transactions.bump_at_end"]
    result = ottla(*words, "--jobs", "1")
    assert result.exit_code == 1
    again = next(line for line in result.stdout.splitlines() if "again: " in line).split("ottla reorder ")[1]
    told = ottla(*again.split())
    assert told.exit_code == 1
    assert "arrives late" in told.stdout
