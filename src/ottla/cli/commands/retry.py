"""`ottla retry`: the service that re-delivers failed records when their retry is due.

Zone: real. Runs a `Mover`, and prints its counters to stdout. SIGTERM and Ctrl-C end it in order.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ottla.cli.name_options import complete_topics
from ottla.cli.options import client_settings, common_options, output_option, print_note, resolve_secrets
from ottla.cli.views.output import Json, write_jsonl, write_line
from ottla.config.options import INTEGER, NUMBER, Bounds, Option
from ottla.retry.options import SERVICE_OPTIONS, ServiceOptions

if TYPE_CHECKING:
    from ottla.retry.mover import Mover
    from ottla.retry.policy import RetryPolicy
    from ottla.retry.scheduler import Scheduler

F = TypeVar("F", bound=Callable[..., Any])
_METAVARS: Final = {
    "redis": "URL", "attempts": "N", "delay": "TIME", "dead": "TOPIC", "every": "SECONDS", "idle-exit": "SECONDS",
}  # fmt: skip


def _row_options(rows: Iterable[Option], metavars: Mapping[str, str]) -> Callable[[F], F]:
    """An option for each row; its value is the argument named as the row's field. metavars: of values, by name."""

    def add(command: F) -> F:
        for row in reversed(list(rows)):
            command = _row_option(row, metavars.get(row.name))(command)
        return command

    return add


def _row_option(row: Option, metavar: str | None) -> Callable[[F], F]:
    unset = f" [default: {row.default_text}]" if row.default_text else ""
    return click.option(
        f"--{row.name}",
        row.attribute,
        type=_click_type(row),
        default=row.default,
        show_default=not row.default_text,
        multiple=isinstance(row.default, tuple),
        metavar=metavar,
        help=row.doc + unset,
    )


def _click_type(row: Option) -> click.ParamType[Any]:
    low, high = row.allowed if isinstance(row.allowed, Bounds) else (None, None)
    if row.type is INTEGER:
        return click.IntRange(None if low is None else int(low), None if high is None else int(high))
    return click.FloatRange(low, high) if row.type is NUMBER else click.STRING


@click.group()
def retry() -> None:
    """Re-deliver failed records when their retry is due."""


@retry.command()
@click.argument("names", nargs=-1, metavar="[RETRY-TOPIC]...", shell_complete=complete_topics)
@_row_options(SERVICE_OPTIONS.values(), _METAVARS)
@output_option("text", "json")
@common_options
def run(names: tuple[str, ...], output: str, **values: Any) -> None:
    """Move due records from retry topics back to the topics they came from; by default from all retry topics."""
    from ottla.retry.mover import Mover
    from ottla.retry.routing import Router

    given = ServiceOptions(**values)
    scheduler, router = _make_scheduler(given), Router(_make_policy(given))
    report = _Report(output, given.every_s, given.idle_s)
    with (
        Mover(
            client_settings(), scheduler, topics=names, group=given.group, instance=given.instance, router=router
        ) as mover,
        _stop_signals() as told,
    ):
        print_note(f"retry service {given.group}-{given.instance} is running")
        mover.run(lambda: bool(told) or report.is_idle(mover), lambda: report.on_turn(mover))
        report.print_counters(mover)


def _make_policy(given: ServiceOptions) -> RetryPolicy | None:
    from ottla.retry.policy import PolicyError, RetryPolicy
    from ottla.retry.routing import DEFAULT_ATTEMPTS

    if given.attempts is None and not given.delays and given.dead is None:
        return None
    count = given.attempts or (len(given.delays) + 1 if given.delays else DEFAULT_ATTEMPTS)
    try:
        return RetryPolicy.fixed(given.delays or (0,), attempts=count, dead=given.dead)
    except PolicyError as error:
        raise click.UsageError(str(error)) from error


def _make_scheduler(given: ServiceOptions) -> Scheduler:
    from ottla.retry.scheduler import EmbeddedScheduler

    if given.redis is None:
        return EmbeddedScheduler()
    from ottla.retry.redis_scheduler import RedisScheduler

    scheduler = RedisScheduler(_resolve_address(given.redis), given.group)
    scheduler.check_server()  # the service waits for a server that goes away; one that never was is a mistake
    return scheduler


def _resolve_address(text: str) -> str:
    """The address of a Redis server, which may be `${env:NAME}` or another reference: it may contain a password."""
    from urllib.parse import urlsplit

    address = str(resolve_secrets({"config.providers": "file,env,dir", "--redis": text})["--redis"])
    if text == address and "@" in urlsplit(address).netloc:
        print_note("other users of this machine see the password of --redis: write '${env:NAME}', and set NAME")
    return address


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """The signals that asked the service to stop, as they come in."""
    told: list[int] = []

    def end(number: int, _frame: object) -> None:
        told.append(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Report:
    """Prints counters at intervals, and events at once."""

    def __init__(self, output: str, every_s: float, idle_s: float | None) -> None:
        self._json = output == "json"
        self._every_s = every_s
        self._idle_s = idle_s
        self._next = time.monotonic() + every_s
        self._busy_at = time.monotonic()
        self._seen = 0

    def on_turn(self, mover: Mover) -> None:
        """Print what is new; called after every turn of the mover."""
        now = time.monotonic()
        handed = mover.stats.returned + mover.stats.dead
        if mover.waiting or handed != self._seen or not mover.is_caught_up:
            self._busy_at, self._seen = now, handed
        while mover.stats.news:
            kind, text = mover.stats.news.popleft()
            if self._json:
                write_jsonl([{"event": kind.replace(" ", "_"), "text": text}])
            else:
                print_note(f"{kind}: {text}")
        if now >= self._next:
            self._next = now + self._every_s
            self.print_counters(mover)

    def is_idle(self, mover: Mover) -> bool:
        """Whether no record has waited for `--idle-exit` seconds, since the group assigned the partitions."""
        if self._idle_s is None or mover.waiting or not mover.is_caught_up:
            return False
        return time.monotonic() - self._busy_at >= self._idle_s

    def print_counters(self, mover: Mover) -> None:
        """Print the counters now."""
        stats = mover.stats
        numbers: dict[str, Json] = {
            "event": "numbers", "partitions": mover.partitions, "waiting": mover.waiting, **stats.counters_by_name(),
            "late_ms_p50": stats.lateness_quantile_ms(0.5), "late_ms_p99": stats.lateness_quantile_ms(0.99),
        }  # fmt: skip
        if self._json:
            write_jsonl([numbers])
        else:
            write_line("  ".join(f"{name} {value}" for name, value in numbers.items() if name != "event"))
