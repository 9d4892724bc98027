"""`--watch SECONDS`: a command that reads and prints again and again, until it is interrupted.

Zone: real.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ottla.cli.options import option_value
from ottla.cli.views.output import time_text, write_line
from ottla.client.errors import ClientError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def watch_option(command: F) -> F:
    """`--watch`; see `watch_view`."""
    return click.option(
        "--watch",
        "watch_s",
        type=click.FloatRange(min=0.1),
        metavar="SECONDS",
        help="Show it again after each SECONDS, until Ctrl-C.",
    )(command)


def watch_view(watch_s: float | None, read: Callable[[], T], write: Callable[[T], None]) -> None:
    """Read and write once, or every `watch_s` seconds. Then errors are printed, and the next round tries again.

    A terminal shows the last round only: it is cleared when the next one has been read, not while that is being read.
    """
    if watch_s is None:
        write(read())
        return
    while True:
        try:
            # Read before the screen is cleared, so that it is never empty while brokers are slow.
            state = read()
            _begin_round()
            write(state)
        except click.exceptions.Exit:  # the exit code of one round
            pass
        except (ClientError, OSError, click.ClickException) as error:
            _print_or_raise(error)
        # Between rounds, not from their beginning: slow brokers are not asked more often.
        time.sleep(watch_s)


def _begin_round() -> None:
    if sys.stdout.isatty():
        click.clear()
    if option_value("output", "table") == "table":
        write_line(time_text(int(time.time() * 1000)))


def _print_or_raise(error: Exception) -> None:
    """Print an error that may pass. Raises others: wrong usage, a closed pipe."""
    from ottla.cli.explain import exit_code, print_error

    # A closed pipe and wrong usage do not pass: they would be printed for ever.
    if isinstance(error, BrokenPipeError) or exit_code(error) == 2:
        raise error
    print_error(error)
