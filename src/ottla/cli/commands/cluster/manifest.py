"""`ottla diff` and `ottla apply`: compare a cluster with a file that describes it, and make it so.

Zone: real. The file is checked as a whole, by this process and by the brokers, before anything is changed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ottla.cli.commands.topic import confirm_action
from ottla.cli.failure import CommandFailed
from ottla.cli.options import (
    common_options,
    connect_definitions,
    option_value,
    output_option,
    pipelines_topic_option,
    print_note,
)
from ottla.cli.views.output import write_json, write_jsonl, write_line

if TYPE_CHECKING:
    from ottla.cli.manifest.applying import ChangeRunner
    from ottla.cli.manifest.state import Change, ClusterState, Problem
    from ottla.client import Cluster

F = TypeVar("F", bound=Callable[..., Any])
CHANGES: Final = 2
"""The exit code of `ottla diff` when the cluster differs from the file."""
_SHOWN_MAX: Final = 100
_PATIENCE_S: Final = 3600.0
_PRUNED: Final = ("topics", "configs", "users", "acls", "quotas", "pipelines")


def _plan_options(command: F) -> F:
    for option in reversed(
        (
            click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True)),
            click.option("--prune", multiple=True, type=click.Choice(_PRUNED),
                         help="Delete what the file does not have: topics, users, ACLs, quotas, pipelines; configs: "
                              "settings of what the file names."),
            click.option("--set-passwords", is_flag=True,
                         help="Also set the passwords of users that exist; brokers do not disclose them."),
            pipelines_topic_option,
        )
    ):  # fmt: skip
        command = option(command)
    return command


class _DiffCommand(click.Command):
    """A command whose exit code 2 means changes, so wrong options and settings exit with 1."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.exit_code = 1  # type: ignore[misc]  # read from the instance
            raise

    def invoke(self, ctx: click.Context) -> Any:
        from ottla.client.errors import ConfigError, UsageError

        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise CommandFailed(error.message) from error
        except (ConfigError, UsageError) as error:
            raise CommandFailed(str(error)) from error


@click.command(cls=_DiffCommand)
@_plan_options
@output_option("text", "json", "jsonl")
@common_options
def diff(file: str, prune: tuple[str, ...], set_passwords: bool, output: str) -> None:
    """Show what `ottla apply FILE` would change. Exit code 0: nothing; 2: changes; 1: an error."""
    with connect_definitions() as cluster:
        changes, _ = _make_plan(cluster, file, prune, set_passwords=set_passwords, throttle=0)
    _write_plan(output, changes)
    if changes:
        raise click.exceptions.Exit(CHANGES)


@click.command()
@_plan_options
@click.option("--throttle", type=click.IntRange(min=0), default=10_000_000, show_default=True, metavar="BYTES/S",
              help="Limit of replication traffic per broker while replicas are moved; 0: none.")  # fmt: skip
@output_option("text", "json", "jsonl")
@common_options
def apply(file: str, prune: tuple[str, ...], set_passwords: bool, throttle: int, output: str) -> None:
    """Make the cluster what FILE (YAML or JSON; - is standard input) describes. Asks first, or needs --yes.

    The whole file is checked before anything is changed. Things that it leaves out stay, unless --prune names them.
    """
    with connect_definitions() as cluster:
        changes, runner = _make_plan(cluster, file, prune, set_passwords=set_passwords, throttle=throttle)
        # A script gets the changes with their states, after they were made; a person sees them before the question.
        if output == "text" or not changes:
            _write_plan(output, changes)
        if changes:
            confirm_action(f"Make {_count_text(changes)}?")
            _make_changes(output, changes, runner)


def _make_plan(
    cluster: Cluster, file: str, prune: Sequence[str], *, set_passwords: bool, throttle: int
) -> tuple[list[Change], ChangeRunner]:
    """The changes, which this process and the brokers have checked. Raises CommandFailed with all problems."""
    from ottla.cli.manifest.applying import ChangeRunner
    from ottla.cli.manifest.planning import plan_changes
    from ottla.cli.manifest.reading import StateReader
    from ottla.pipeline.definitions.definitions_topic import TOPIC

    wanted = _read_file(file)
    topic = option_value("pipelines_topic", TOPIC)
    reader = StateReader(cluster, topic)
    present = reader.read_state(wanted)
    for note in reader.notes:
        print_note(f"not compared: {note}")
    plan = plan_changes(present, wanted, prune, live_brokers=reader.live_brokers, set_passwords=set_passwords)
    _refuse_problems(file, plan.problems)
    runner = ChangeRunner(cluster, throttle, option_value("timeout_s", _PATIENCE_S), topic)
    # The brokers' own checks come after those of the file: they need requests, and know the limits.
    refused = runner.check_changes(plan.changes)
    _refuse_problems(file, [each._replace(line=wanted.line_of(each.path)) for each in refused])
    return plan.changes, runner


def _read_file(file: str) -> ClusterState:
    from ottla.cli.manifest.parsing import parse_state
    from ottla.cli.manifest.tree import BYTES_MAX, BadFile, parse_text

    if file == "-":
        # One byte more than is allowed: enough to know that a file is too large, without reading it.
        content = sys.stdin.buffer.read(BYTES_MAX + 1)
    else:
        with open(file, "rb") as opened:
            content = opened.read(BYTES_MAX + 1)
    if len(content) > BYTES_MAX:
        raise CommandFailed(f"{file} is larger than {BYTES_MAX >> 20} MiB: split it")
    try:
        state, problems = parse_state(parse_text(content.decode()))
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{file} is not text in UTF-8, from byte {error.start} on") from None
    except BadFile as error:
        _refuse_problems(file, [error.problem])
        raise
    _refuse_problems(file, problems)
    return state


def _refuse_problems(file: str, problems: Sequence[Problem]) -> None:
    if not problems:
        return
    file = "standard input" if file == "-" else file
    for problem in problems[:_SHOWN_MAX]:
        if option_value("output") == "text":
            click.echo(f"{file}: {problem}", err=True)
    count = f"{len(problems)} error{'s' if len(problems) > 1 else ''}"
    raise CommandFailed(
        f"{file} has {count}: nothing was changed",
        details={"errors": [each._asdict() for each in problems[:_SHOWN_MAX]]},
    )


def _count_text(changes: Sequence[Change]) -> str:
    deletions = sum(change.action == "delete" for change in changes)
    text = f"{len(changes)} change{'s' if len(changes) > 1 else ''}"
    return f"{text} ({deletions} deletion{'s' if deletions > 1 else ''})" if deletions else text


def _write_plan(output: str, changes: Sequence[Change]) -> None:
    from ottla.cli.manifest.documents import change_document

    if output == "text":
        for change in changes:
            write_line(change.describe_change())
        print_note(f"{_count_text(changes)} to make" if changes else "nothing to do: the cluster is as described")
    elif output == "json":
        write_json([change_document(change) for change in changes])
    else:
        write_jsonl([change_document(change) for change in changes])


def _make_changes(output: str, changes: Sequence[Change], runner: ChangeRunner) -> None:
    """Make the changes in order; at the first that fails, or Ctrl-C, report what was not done."""
    from ottla.client import ClientError

    done = 0
    try:
        for change in changes:
            runner.make_change(change)
            done += 1
            if output == "text":
                write_line(f"done: {change.describe_change()}")
    except ClientError as error:
        _report_rest(output, changes, done)
        raise CommandFailed(
            f"{changes[done].path}: {str(error).rstrip('.')}. {done} of {len(changes)} changes are done; "
            "apply the file again for the rest",
            details={"done": done, "not_done": len(changes) - done},
        ) from error
    except KeyboardInterrupt:
        _report_rest(output, changes, done)
        print_note(f"interrupted: {done} of {len(changes)} changes are done; apply the file again for the rest")
        raise
    _report_rest(output, changes, done)
    print_note(f"{_count_text(changes)} made")


def _report_rest(output: str, changes: Sequence[Change], done: int) -> None:
    """The changes that were not done; one that was interrupted may have been done."""
    from ottla.cli.manifest.documents import change_document

    if output == "text":
        for number, change in enumerate(changes[done:]):
            click.echo(f"{'unknown' if number == 0 else 'not done'}: {change.describe_change()}", err=True)
        return
    # Of the one that failed or was interrupted only the broker knows whether it took effect.
    states = ["done"] * done + ["unknown", *["not done"] * len(changes)]
    rows = [{**change_document(change), "state": state} for change, state in zip(changes, states, strict=False)]
    (write_json if output == "json" else write_jsonl)(rows)
