"""`ottla reorder`: simulates every order in which a transaction's requests can arrive late.

Zone: real. Options and output; `ottla.sim.reorder` does the search.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from ottla.cli.commands.simulation.sim import SafeguardChoice, list_option, silent_broker
from ottla.cli.options import option_value, output_option
from ottla.cli.views.output import Json, write_json, write_line
from ottla.terminal import draw_status

if TYPE_CHECKING:
    from ottla.sim.reorder.schedule import Bounds
    from ottla.sim.reorder.search import Broken, Tally

SAFEGUARDS = (
    "replication.verify_transactions",
    "replication.verification_guard",
    "replication.marker_epoch",
    "transactions.bump_at_end",
    "transactions.bump_at_abort",
    "transactions.bump_at_start",
    "transactions.decided_before_marked",
    "transactions.marked_again",
    "transactions.complete_when_marked",
)


@click.command("reorder", short_help="Simulate all late arrivals of requests of transactions.")
@click.option(
    "--delays", type=click.IntRange(0, 4), default=2, show_default=True, help="Most requests to delay in a run."
)
@click.option(
    "--failovers", type=click.IntRange(0, 3), default=1, show_default=True, help="Most failovers of coordinators."
)
@click.option("--brokers-too", is_flag=True, help="Delay also requests between brokers.")
@click.option("--version", type=click.IntRange(1, 2), default=2, show_default=True, help="The transaction version.")
@click.option(
    "--plan", metavar="LETTERS", default="ca", show_default=True, help="The transactions: c commits, a aborts."
)
@click.option(
    "--ablate", "without", type=SafeguardChoice(SAFEGUARDS), metavar="NAME", help="Switch this safeguard off."
)
@list_option({"of replication and transactions": SAFEGUARDS})
@click.option("--schedule", metavar="N,N", help="Run only this schedule, and print its events.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes to use; by default one per processor.")
@output_option("table", "json")
def reorder(
    delays: int,
    failovers: int,
    brokers_too: bool,
    version: int,
    plan: str,
    without: str | None,
    schedule: str | None,
    jobs: int | None,
    output: str,
) -> int:
    """Run transactions with every combination of delayed requests and coordinator failovers.

    The search is exhaustive, not random: it ends when no other schedule is left. The exit code is 1 when one of them
    violated a property; that schedule is printed, and --schedule prints its events.
    """
    from ottla.sim.reorder.schedule import Bounds

    if not plan or set(plan) - {"c", "a"}:
        raise click.UsageError(f"--plan takes the letters c and a, not {plan!r}")
    # Letters in place of words: the plan is part of the command that runs a schedule again.
    commits = tuple(letter == "c" for letter in plan)
    bounds = Bounds(version, commits, delays, failovers, brokers_too, without)
    with silent_broker():
        return _run_search(bounds, jobs, output) if schedule is None else _run_path(bounds, _parse_numbers(schedule))


def _parse_numbers(text: str) -> tuple[int, ...]:
    numbers = [] if text == "none" else text.split(",")
    if not all(number.isdecimal() for number in numbers):
        raise click.UsageError(f"--schedule takes numbers separated by commas, or none, not {text!r}")
    return tuple(map(int, numbers))


def _run_path(bounds: Bounds, path: tuple[int, ...]) -> int:
    from ottla.sim.reorder.choices import Choices, WrongPath
    from ottla.sim.reorder.schedule import Redundant
    from ottla.sim.reorder.search import play_schedule

    try:
        violations = play_schedule(bounds, Choices(path), write_line)
    except WrongPath as wrong:
        raise click.UsageError(f"this schedule does not exist: {wrong}") from wrong
    # Searched once, under its other name; played alone it has no end to judge.
    except Redundant:
        write_line("redundant: the coordinator that fails over has written nothing, so this equals another schedule")
        return 0
    write_line("\n".join(f"{name}: {text}" for name, text in violations) or "ok")
    return 1 if violations else 0


def _run_search(bounds: Bounds, jobs: int | None, output: str) -> int:
    from ottla.sim.reorder.search import Tally
    from ottla.sim.reorder.swarm import search_schedules

    tally = Tally()
    began = time.monotonic()
    shown = sys.stderr.isatty() and not option_value("quiet", False)
    for part in search_schedules(bounds, jobs):
        tally.add_tally(part)
        if shown:
            draw_status(f"{tally.schedules:,} schedules, {tally.broken:,} broken")
    if shown:
        sys.stderr.write("\n")
    if output == "json":
        write_json(_tally_document(tally))
    else:
        write_line("\n".join(_tally_lines(tally, bounds, time.monotonic() - began)))
    return 1 if tally.broken else 0


def _tally_lines(tally: Tally, bounds: Bounds, elapsed: float) -> list[str]:
    whose = "producer and brokers" if bounds.brokers_too else "producer"
    bound = f"at most {bounds.delays} requests of the {whose} held back, {bounds.failovers} failovers of coordinators"
    count = f"{tally.schedules:,} schedules, which is all, in {elapsed:.0f} s"
    lines = [
        f"transaction version {bounds.version}, {bound}",
        f"  {count}; {tally.redundant:,} more continue like one of these",
        f"  {tally.broken:,} are broken" if tally.broken else "  ok: none is broken",
    ]
    lines += [f"  {name}: {count:,}" for name, count in sorted(tally.by_property.items())]
    for broken in tally.examples:
        lines += [f"  {name}: {text}" for name, text in broken.violations]
        lines.append(f"    again: {_rerun_command(bounds, broken)}")
    return lines


def _rerun_command(bounds: Bounds, broken: Broken) -> str:
    plan = "".join("c" if commit else "a" for commit in bounds.plan)
    words = ["ottla reorder", f"--delays {bounds.delays}", f"--failovers {bounds.failovers}", f"--plan {plan}"]
    if bounds.version != 2:
        words.append(f"--version {bounds.version}")
    if bounds.brokers_too:
        words.append("--brokers-too")
    if bounds.without:
        words.append(f"--ablate {bounds.without}")
    words.append(f"--schedule {','.join(map(str, broken.path)) or 'none'}")
    return " ".join(words)


def _tally_document(tally: Tally) -> Json:
    return {
        "ok": not tally.broken,
        "schedules": tally.schedules,
        "redundant": tally.redundant,
        "broken": tally.broken,
        "by_property": dict(tally.by_property),
        "examples": [
            {"schedule": list(each.path), "violations": [list(pair) for pair in each.violations]}
            for each in tally.examples
        ],
    }
