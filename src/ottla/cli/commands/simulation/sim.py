"""`ottla sim`: runs brokers in a simulated world, with faults.

Zone: real. Options and output; the simulator itself is `ottla.sim`.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ottla.cli.options import option_value, output_option
from ottla.cli.views.output import write_json, write_line
from ottla.sim.mutants.clients import CLIENTS
from ottla.sim.mutants.containment import CONTAINMENT
from ottla.sim.mutants.controller import CONTROLLER
from ottla.sim.mutants.coordinators import GROUPS, TRANSACTIONS
from ottla.sim.mutants.replication import REPLICATION
from ottla.sim.mutants.security import SECURITY
from ottla.sim.mutants.storage import STORAGE
from ottla.sim.runner import Result
from ottla.sim.swarm import Coverage
from ottla.terminal import draw_status

# Progress of many seeds on standard error, and which seeds ran when it is stopped early. `ottla.sim.report` reports
# what the seeds covered.

F = TypeVar("F", bound=Callable[..., Any])
WIDTH = 24
"""Characters of the bar."""
LINE_EVERY_S = 60.0
"""The interval of progress lines outside of a terminal."""


@contextlib.contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Make SIGTERM raise KeyboardInterrupt, as Ctrl-C does, so that the results of hours are reported."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class SwarmProgress:
    """Shows the progress of a range of seeds."""

    def __init__(self, seeds: range, quiet: bool) -> None:
        self._seeds = seeds
        self._quiet = quiet
        self._draws = sys.stderr.isatty()
        self._ran: set[int] = set()
        self._began = self._printed_at = time.monotonic()

    def add_result(self, result: Result, coverage: Coverage) -> None:
        """Count one more seed. Prints a failure at once; the progress always in a terminal, elsewhere once a minute."""
        self._ran.add(result.seed)
        if self._quiet:
            return
        if not result.ok:
            self._print_line(f"seed {result.seed} failed")
        now = time.monotonic()
        if self._draws:
            draw_status(self._progress_line(coverage, now))
        elif now >= self._printed_at + LINE_EVERY_S:
            self._printed_at = now
            self._print_line(self._progress_line(coverage, now))

    def end_line(self) -> None:
        """Leave the line of the terminal."""
        if self._draws and not self._quiet:
            sys.stderr.write("\n")

    def stopped_text(self) -> str | None:
        """Which seeds ran, when they are not all; None when they are."""
        if len(self._ran) == len(self._seeds):
            return None
        first, last = self._seeds[0], self._seeds[-1]
        missing = next(seed for seed in self._seeds if seed not in self._ran)
        more = len(self._ran) - (missing - first)
        whole = f"{first}..{missing - 1}" if missing > first else "none"
        return f"stopped       of {first}..{last} ran {whole}" + (f" and {more} after them" if more else "")

    def _print_line(self, line: str) -> None:
        if self._draws:
            draw_status(line, end="\n")
        else:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def _progress_line(self, coverage: Coverage, now: float) -> str:
        full = WIDTH * coverage.seeds // len(self._seeds)
        return (
            f"{'█' * full}{'·' * (WIDTH - full)} {coverage.seeds}/{len(self._seeds)} seeds,"
            f" {coverage.simulated_seconds / max(now - self._began, 0.001):,.0f}× real time,"
            f" {sum(coverage.faults.values()):,} faults, {coverage.acknowledged:,} acknowledged,"
            f" {len(coverage.failed)} failed"
        )


if TYPE_CHECKING:
    from ottla.sim.cluster.runner import ClusterOptions
    from ottla.sim.runner import Options, Result

    AnyOptions = Options | ClusterOptions

SAFEGUARDS = tuple(mutant.name for mutant in STORAGE)
"""Safeguards of the log: those of a run with one broker."""
DEFECT_SAFEGUARDS = tuple(mutant.name for mutant in CONTAINMENT)
"""Safeguards against exceptions in requests: only runs with `--defects` fail without them."""
CLUSTER_SAFEGUARDS = tuple(mutant.name for mutant in (*REPLICATION, *CONTROLLER, *TRANSACTIONS, *GROUPS))
"""Safeguards of replication, of the controller and of coordinators."""
CLIENT_SAFEGUARDS = tuple(mutant.name for mutant in CLIENTS)
"""Safeguards of Ottla's own producer."""
SECURITY_SAFEGUARDS = tuple(mutant.name for mutant in SECURITY)
"""Safeguards of authorization and logins."""
STOPPED = 130
"""Exit code when it was stopped early, and no run had failed."""
SHRINK_RUNS = 60
"""How many runs the search for fewer faults may take."""


class SafeguardChoice(click.Choice[str]):
    """Names of safeguards: too many for an error message, which names the nearest one instead."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:  # noqa: ARG002  # click's
        """The message for a word that is not one of the names."""
        from difflib import get_close_matches

        near = get_close_matches(str(value), self.choices, n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        return f"{value!r} is not a safeguard.{meant} --list-safeguards prints all names."


def list_option(groups: Mapping[str, Sequence[str]]) -> Callable[[F], F]:
    """`--list-safeguards`: print the names by group, and exit."""

    def print_names(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
        if not wanted or ctx.resilient_parsing:
            return
        for title, names in groups.items():
            write_line("\n  ".join([f"{title}:", *names]))
        ctx.exit()

    return click.option(
        "--list-safeguards",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=print_names,
        help="Print the names that --ablate takes, and exit.",
    )


@click.command("sim", short_help="Run the broker in a simulated world, with faults.")
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="N", help="Run this seed; a seed always gives the same run."
)
@click.option("--seeds", metavar="A..B", help="Run all seeds from A to B.")
@click.option("--trace", is_flag=True, help="Print each event of the run of --seed.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes to use; by default one per processor.")
@click.option(
    "--seconds",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    metavar="N",
    help="Simulated time with faults.",
)
@click.option("--defects", is_flag=True, help="One broker: requests meet unexpected exceptions.")
@click.option("--cluster", is_flag=True, help="Three to five brokers with a metadata store.")
@click.option("--transactions", is_flag=True, help="A cluster; clients use transactions and groups.")
@click.option("--clients", is_flag=True, help="A cluster; clients are Ottla's own.")
@click.option("--compaction", is_flag=True, help="A cluster with compacted topics.")
@click.option("--security", is_flag=True, help="A cluster with an authorizer and logins.")
@click.option("--flush", is_flag=True, help="Cluster: flush before acks; all lose power at once.")
@click.option(
    "--brokers", type=click.IntRange(min=1, max=9), metavar="N", help="Cluster: how many; by default the seed decides."
)
@click.option("--faults", metavar="N,N", help="Cluster: only these planned faults; or 'none'.")
@click.option("--kinds", metavar="KIND,KIND", help="Cluster: only these kinds of faults.")
@click.option("--shrink/--no-shrink", default=True, help="Cluster: find the fewest faults that still fail.")
@click.option(
    "--ablate",
    "--without",
    "without",
    type=SafeguardChoice(SAFEGUARDS + DEFECT_SAFEGUARDS + CLUSTER_SAFEGUARDS + CLIENT_SAFEGUARDS + SECURITY_SAFEGUARDS),
    metavar="NAME",
    help="Switch this safeguard off: runs should then fail.",
)
@list_option(
    {
        "of one broker": SAFEGUARDS,
        "of one broker, with --defects": DEFECT_SAFEGUARDS,
        "of a cluster, with --cluster, --transactions …": CLUSTER_SAFEGUARDS,
        "of clients, with --clients": CLIENT_SAFEGUARDS,
        "of authorization and logins, with --security": SECURITY_SAFEGUARDS,
    }
)
@output_option("table", "json")
def sim(**given: Any) -> int:
    """Run brokers with simulated clients, networks and disks, inject faults, and check what clients saw.

    The exit code is 1 when a property was violated. Then the command that replays the run is printed, and for a cluster
    the fewest faults with which it still fails.
    """
    chosen = _Options(**given)
    kind = _check_options(chosen)
    options = _make_options(chosen, kind)
    with silent_broker():
        if chosen.seed is not None:
            return _run_seed(chosen.seed, options, chosen.output, chosen.shrink)
        assert chosen.seeds is not None
        return _run_seeds(_parse_range(chosen.seeds), options, chosen.jobs, chosen.output, chosen.shrink)


class _Options(NamedTuple):
    """The options, by the names that click gives them."""

    seed: int | None
    seeds: str | None
    trace: bool
    jobs: int | None
    seconds: int
    defects: bool
    cluster: bool
    transactions: bool
    clients: bool
    compaction: bool
    security: bool
    flush: bool
    brokers: int | None
    faults: str | None
    kinds: str | None
    shrink: bool
    without: str | None
    output: str


def _check_options(given: _Options) -> str:
    """The kind of cluster, empty for one broker. Raises UsageError for options that contradict each other."""
    # Each contradiction is refused on its own, so that the error names its cause.
    if (given.seed is None) == (given.seeds is None):
        raise click.UsageError("give either --seed N or --seeds A..B")
    if given.trace and given.seed is None:
        raise click.UsageError("--trace needs --seed")
    chosen = [name for name in ("transactions", "clients", "compaction", "security") if getattr(given, name)]
    if len(chosen) > 1:
        raise click.UsageError("give one of --transactions, --clients, --compaction and --security")
    # A safeguard that the chosen run never uses would never be missed: the ablation would prove nothing.
    without = given.without
    if without in CLIENT_SAFEGUARDS and not given.clients:
        raise click.UsageError(f"the safeguard {without} is one of clients: add --clients")
    if without in SECURITY_SAFEGUARDS and not given.security:
        raise click.UsageError(f"the safeguard {without} is one of authorization and logins: add --security")
    kind = chosen[0] if chosen else "cluster" if given.cluster else ""
    of_clusters = (given.brokers, given.faults, given.kinds) != (None, None, None) or without in CLUSTER_SAFEGUARDS
    if not kind and of_clusters:
        raise click.UsageError(
            "--brokers, --faults, --kinds and the safeguards of a cluster need a cluster: --cluster, --transactions …"
        )
    if kind and given.defects:
        raise click.UsageError("--defects is for runs with one broker: leave out the options of a cluster")
    if without in DEFECT_SAFEGUARDS and not given.defects:
        raise click.UsageError(f"the safeguard {without} needs --defects")
    if given.flush and kind not in ("cluster", "transactions"):
        raise click.UsageError("--flush needs --cluster or --transactions")
    return kind


def _make_options(given: _Options, kind: str) -> AnyOptions:
    from ottla.sim.clients.runner import ClientOptions
    from ottla.sim.cluster.runner import ClusterOptions
    from ottla.sim.compaction.runner import CompactionOptions
    from ottla.sim.runner import Options
    from ottla.sim.security.runner import SecurityOptions
    from ottla.sim.transactions.runner import TransactionOptions

    trace = write_line if given.trace else None
    if not kind:
        return Options(seconds=given.seconds, without=given.without, defects=given.defects, trace=trace)
    by_kind = {
        "transactions": TransactionOptions,
        "clients": ClientOptions,
        "compaction": CompactionOptions,
        "security": SecurityOptions,
    }
    faults, kinds = _parse_numbers(given.faults), _parse_kinds(given.kinds)
    options = by_kind.get(kind, ClusterOptions)
    return options(given.seconds, given.without, given.brokers or 0, faults, trace, kinds, given.flush)


def _parse_numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    numbers = [] if text == "none" else text.split(",")
    if not all(number.isdecimal() for number in numbers):
        raise click.UsageError(f"--faults takes numbers separated by commas, or none, not {text!r}")
    return tuple(map(int, numbers))


def _parse_kinds(text: str | None) -> tuple[str, ...]:
    from ottla.sim.cluster.runner import fault_kinds

    chosen = tuple(kind.strip() for kind in text.split(",")) if text else ()
    unknown = [kind for kind in chosen if kind not in fault_kinds()]
    if unknown:
        raise click.UsageError(f"{unknown[0]!r} is not a kind of fault; the kinds are {', '.join(fault_kinds())}")
    return chosen


@contextlib.contextmanager
def silent_broker() -> Iterator[None]:
    """Suppress the brokers' log lines: they report faults that are injected here."""
    logger = logging.getLogger("ottla")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _run_seed(seed: int, options: AnyOptions, output: str, shrink: bool) -> int:
    from ottla.sim.report import result_lines, result_value
    from ottla.sim.swarm import run_seed

    result = run_seed(seed, options)
    if output == "json":
        write_json(result_value(result))
    else:
        write_line("\n".join(result_lines(result, options)))
        if shrink:
            _shrink_result(result, options)
    return 0 if result.ok else 1


def _shrink_result(result: Result, options: AnyOptions) -> None:
    """Print the fewest faults with which a failing cluster still fails."""
    from ottla.sim.cluster.runner import ClusterOptions, ClusterResult
    from ottla.sim.cluster.shrink import shrink_faults
    from ottla.sim.report import shrunk_lines

    if isinstance(options, ClusterOptions) and isinstance(result, ClusterResult) and not result.ok:
        write_line("\n".join(shrunk_lines(shrink_faults(result, options, SHRINK_RUNS), options)))


def _run_seeds(seeds: range, options: AnyOptions, jobs: int | None, output: str, shrink: bool) -> int:
    from ottla.sim.report import coverage_lines, coverage_value
    from ottla.sim.swarm import Coverage, run_swarm

    coverage = Coverage()
    progress = SwarmProgress(seeds, option_value("quiet", False))
    with contextlib.suppress(KeyboardInterrupt), interrupt_on_sigterm():
        for result in run_swarm(seeds, options, jobs):
            coverage.add_result(result)
            progress.add_result(result, coverage)
    progress.end_line()
    stopped = progress.stopped_text()
    if output == "json":
        write_json({**coverage_value(coverage), "stopped": stopped is not None})
    else:
        write_line("\n".join([*coverage_lines(coverage, options), *([stopped] if stopped else [])]))
        if shrink and coverage.failed and not stopped:
            _shrink_result(min(coverage.failed, key=lambda result: result.seed), options)
    # A run that was stopped early proves nothing by its success, but its failures count.
    if stopped and coverage.ok:
        return STOPPED
    return 0 if coverage.ok else 1


def _parse_range(text: str) -> range:
    first, dots, last = text.partition("..")
    if not dots or not first.isdecimal() or not last.isdecimal() or int(first) > int(last):
        raise click.UsageError(f"--seeds takes A..B with A ≤ B, not {text!r}")
    return range(int(first), int(last) + 1)
