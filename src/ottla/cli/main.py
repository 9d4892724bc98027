"""The entry point `ottla`: the tree of commands, and how errors become exit codes.

Zone: real. Commands are imported when they are used, so that help is quick; they are in modules of their own in
`ottla.cli.commands` and its folders, each of which holds a click command of the same name.

Exit codes: 0 ok · 1 error · 2 usage · 3 not found · 4 not allowed · 5 out of time · 130 interrupted · 141 broken pipe.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from keyword import iskeyword
from typing import Any, Final, NoReturn

import click

import ottla
from ottla.cli.options import common_options, option_value
from ottla.terminal import protect_streams

OK, ERROR, USAGE, NOT_FOUND, NOT_ALLOWED, OUT_OF_TIME, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 4, 5, 130, 141


class LazyGroup(click.Group):
    """A group whose commands are imported when they are named.

    lazy: the module of each command, below `ottla.cli.commands`, and its one-line help.
    """

    def __init__(
        self, *args: Any, lazy: Mapping[str, tuple[str, str]], **options: Any
    ) -> None:  # click's own signature
        super().__init__(*args, **options)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the table's order."""
        return [*self.lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _ = self.lazy[cmd_name]
        name = cmd_name.replace("-", "_")
        command = getattr(import_module(f"ottla.cli.commands.{module}"), f"{name}_" if iskeyword(name) else name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the words name; for a wrong word, the nearest command (click knows only imported ones)."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not near:
                raise
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's
        """The list of commands without importing any."""
        own = [(name, command.get_short_help_str(80)) for name, command in sorted(self.commands.items())]
        with formatter.section("Commands"):
            formatter.write_dl([*((name, text) for name, (_, text) in self.lazy.items()), *own])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click itself would turn a broken pipe into exit code 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise click.exceptions.Exit(BROKEN_PIPE) from None
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            raise click.exceptions.Exit(_print_error(error, debug=option_value("debug", False))) from error

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> NoReturn:
        """Run a command line, and exit with the code of its outcome."""
        words = list(sys.argv[1:] if args is None else args)
        options["standalone_mode"] = False
        code = OK
        try:
            outcome = super().main(words, *rest, **options)
            code = outcome if isinstance(outcome, int) else OK
        except click.exceptions.Exit as error:
            code = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            code = INTERRUPTED
        except click.ClickException as error:  # a wrong option before the name of the command
            error.show(sys.stderr)
            code = error.exit_code
        sys.exit(code if _flush_output() else BROKEN_PIPE)


def _print_error(error: Exception, *, debug: bool) -> int:
    """Print the error to stderr, and return the exit code."""
    from ottla.cli.explain import exit_code, print_error

    if debug and not isinstance(error, click.ClickException):
        import traceback

        traceback.print_exc()
    elif isinstance(error, click.ClickException) and option_value("output") not in ("json", "jsonl"):
        error.show(sys.stderr)  # which prints the command's usage with a usage error
    else:
        print_error(error)
    return exit_code(error) or ERROR


def _flush_output() -> bool:
    """Write buffered output; False when the reader has closed the pipe."""
    with contextlib.suppress(ValueError):  # a closed stream has nothing left
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            # Python flushes once more at exit, and must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return False
    return True


_COMMANDS: Final = {
    "up": ("up", "Start a broker with sensible defaults, in this terminal."),
    "server": ("server", "Run a broker from a server.properties file."),
    "topic": ("topic", "List, describe, create, alter and delete topics."),
    "group": ("group", "Show consumer groups and their lag, and change offsets."),
    "txn": ("txn", "Show transactions, and end those that hang."),
    "cluster": ("cluster.cluster", "Show the state and the health of a cluster."),
    "top": ("cluster.top", "Watch rates of topics, hot partitions and lag of groups."),
    "doctor": ("cluster.doctor", "Find what is wrong with settings, addresses and the cluster."),
    "support-bundle": ("cluster.support_bundle", "Write one file for a bug report, without secrets."),
    "api-versions": ("cluster.api_versions", "Show the versions of each API that brokers serve."),
    "diff": ("cluster.manifest", "Compare a cluster with a file that describes it."),
    "apply": ("cluster.manifest", "Make a cluster what a file describes."),
    "broker": ("cluster.broker", "Show brokers, and move replicas between their disks."),
    "config": ("cluster.config", "Show, change and compare settings of topics and brokers."),
    "reassign": ("cluster.reassign", "Move partitions between brokers."),
    "leader": ("cluster.leader", "Elect leaders of partitions."),
    "user": ("security.user", "Create, list and delete users that log in with SCRAM."),
    "acl": ("security.acl", "Show and change who may do what, and check a case."),
    "quota": ("security.quota", "Show and change how much clients may do."),
    "token": ("security.token", "Create, list, renew and expire delegation tokens."),
    "tls": ("security.tls", "Make certificates for a cluster on your own machine."),
    "produce": ("records.produce", "Write lines from standard input, or JSON, to a topic."),
    "consume": ("records.consume", "Read records from a topic."),
    "copy": ("records.copy", "Copy a topic to another one, also of another cluster."),
    "export": ("records.record_files", "Write a topic to a file: JSON lines, CSV or Parquet."),
    "import": ("records.record_files", "Write the records of such a file to a topic."),
    "retry": ("retry", "Re-deliver failed records when their retry is due."),
    "dlq": ("dlq", "Show dead letters, send them back, or delete them."),
    "offsets": ("records.offsets", "Show offsets of partitions, by position or by time."),
    "perf": ("records.perf", "Measure throughput and latency."),
    "verify": ("records.verify", "Write and read numbers, as Kafka's verifiable clients."),
    "log": ("log", "Show, check and repair the log files of a broker."),
    "sim": ("simulation.sim", "Run the broker in a simulated world, with faults."),
    "reorder": ("simulation.reorder", "Simulate all late arrivals of requests of transactions."),
    "schema": ("schemas.schema", "Show, check and register schemas of a registry."),
    "registry": ("registry", "Serve a schema registry over any Kafka cluster."),
    "table": ("table", "Copy a topic into an Iceberg, Delta or Parquet table."),
    "pipeline": ("pipelines.pipeline", "Run PySpark pipelines, and show their progress."),
    "demo": ("demo", "Stream real events through a broker with PySpark."),
    "context": ("context", "Save the settings of clusters under names."),
    "completion": ("completion", "Print the completion script for a shell."),
}
"""Module in `ottla.cli.commands` and one-line help of each command."""


@click.group(
    cls=LazyGroup,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@common_options
@click.version_option(ottla.__version__, prog_name="ottla", message="%(prog)s %(version)s")
def cli() -> None:
    """Ottla: an event-streaming broker that speaks the Kafka protocol, and tools for any Kafka cluster."""


def main() -> None:
    """What the installed script `ottla` runs, and `python -m ottla`."""
    protect_streams()
    cli.main(prog_name="ottla")
