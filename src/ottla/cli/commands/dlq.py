"""`ottla dlq`: show dead letters, send them back, or delete them.

Zone: real. Turns options into calls of `ottla.retry`, and prints their results.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ottla.cli.commands.topic import confirm_action
from ottla.cli.failure import CommandFailed
from ottla.cli.options import client_settings, common_options, connect_cluster, output_option, print_note
from ottla.cli.views.output import Json, time_text, write_documents, write_json, write_table
from ottla.utf8 import encode_text

if TYPE_CHECKING:
    from ottla.retry.dead_letters import DeadLetter, DeadLetters, Select

F = TypeVar("F", bound=Callable[..., Any])
_WIDTH = 60


def dead_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For `shell_complete`: topics with a name of a dead-letter topic; all topics when none of those matches."""
    from ottla.cli.name_options import complete_topics
    from ottla.retry.dead_letters import is_dead_topic

    found = complete_topics(ctx, param, incomplete)
    return [each for each in found if is_dead_topic(each)] or found


@click.group()
def dlq() -> None:
    """Show dead letters, send them back, or delete them."""


_group_option = click.option(
    "--group", "whose", default="ottla-dlq", show_default=True, metavar="GROUP",
    help="The consumer group whose offsets record which letters are settled.",
)  # fmt: skip


def _selection_options(command: F) -> F:
    """The options that choose letters."""
    for name, text in reversed(
        (
            ("--reason", "Only letters with this exception class: its full name, or the last part."),
            ("--message", "Only letters whose error message matches this regular expression."),
            ("--origin", "Only letters that came from this topic."),
            ("--key", "Only letters with this key."),
        )
    ):
        command = click.option(name, help=text)(command)
    at = click.option(
        "--at",
        "places",
        multiple=True,
        metavar="P:OFFSET",
        help="Only the letter at this partition and offset; may be repeated.",
    )
    return at(command)


class _Row(NamedTuple):
    topic: str
    reason: str
    origin: str | None
    letters: int
    first_ms: int
    last_ms: int


@dlq.command("list")
@click.argument("names", nargs=-1, shell_complete=dead_topics)
@click.option("--all", "settled", is_flag=True, help="Count also letters that were sent back or purged.")
@_group_option
@output_option("table", "json", "jsonl", "name")
@common_options
def list_(names: tuple[str, ...], settled: bool, whose: str, output: str) -> None:
    """Count open letters by reason, in all dead-letter topics when none is named."""
    from ottla.retry import dead_letters

    if not names:
        with connect_cluster() as cluster:
            names = tuple(dead_letters.dead_topics(cluster))
    if output == "name":
        write_table(("TOPIC",), [(name,) for name in names])
        return
    rows = [row for name in dict.fromkeys(names) for row in _count_letters(name, settled, whose)]
    if output == "table":
        header = ("TOPIC", "REASON", "ORIGIN", "LETTERS", "FIRST", "LAST")
        write_table(header, [(*row[:4], time_text(row.first_ms), time_text(row.last_ms)) for row in rows])
    else:
        write_documents(output, [row._asdict() for row in rows])


def _count_letters(name: str, settled: bool, whose: str) -> list[_Row]:
    found: dict[tuple[str, str | None], _Row] = {}
    with _open_letters(name, whose) as letters:
        for each in letters.letters(settled=settled):
            origin = each.trail.origin.topic if each.trail.origin is not None else None
            at = each.record.timestamp
            row = found.get((each.reason, origin), _Row(name, each.reason, origin, 0, at, at))
            row = row._replace(letters=row.letters + 1, first_ms=min(row.first_ms, at), last_ms=max(row.last_ms, at))
            found[each.reason, origin] = row
    return sorted(found.values(), key=lambda row: (-row.letters, row.reason, row.origin or ""))


@dlq.command()
@click.argument("name", metavar="TOPIC", shell_complete=dead_topics)
@_selection_options
@click.option("-n", "--count", type=click.IntRange(min=1), default=20, show_default=True, help="At most this many.")
@click.option("--all", "settled", is_flag=True, help="Show also letters that were sent back or purged.")
@_group_option
@output_option("table", "json", "jsonl")
@common_options
def show(name: str, count: int, settled: bool, whose: str, output: str, **choice: Any) -> None:
    """Show letters, the oldest first."""
    select = _select_letters(**choice)
    found: list[DeadLetter] = []
    with _open_letters(name, whose) as letters:
        for each in letters.letters(settled=settled):
            if select(each):
                found.append(each)
            if len(found) == count:
                break
    if output != "table":
        write_documents(output, [_letter_document(each) for each in found])
        return
    header = ("AT", "TIME", "FAILED", "ORIGIN", "REASON", "MESSAGE", "KEY", "VALUE")
    write_table(header, [_letter_row(each) for each in found])


@dlq.command()
@click.argument("name", metavar="TOPIC", shell_complete=dead_topics)
@_selection_options
@click.option("--to", metavar="TOPIC", help="Send them to this topic instead of the one they came from.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="At most this many.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most this many per second.")
@click.option("--max-redrives", type=click.IntRange(min=1), default=3, show_default=True,
              help="Skip letters that were sent back this often already.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would be sent where; send nothing.")
@_group_option
@output_option("table", "json")
@common_options
def redrive(
    name: str, to: str | None, count: int | None, rate: float | None, max_redrives: int, dry_run: bool, whose: str,
    output: str, **choice: Any,
) -> None:  # fmt: skip
    """Send letters back to the topics they came from, each once. Their attempts are counted from zero again."""
    from ottla.cli.views.progress import Progress

    select = _select_letters(**choice)
    if not dry_run:
        confirm_action(f"Send the letters in {name} back?")
    with _open_letters(name, whose) as letters, Progress("sent back") as progress:
        sent = letters.redrive(
            select, to=to, limit=count, per_second=rate, max_redrives=max_redrives, dry_run=dry_run,
            on_sent=lambda number: progress.add_progress(number, 0),
        )  # fmt: skip
    if output == "json":
        write_json({"topic": name, "dry_run": dry_run, "sent": sent.back, "looping": sent.looping,
                    "nowhere": sent.nowhere})  # fmt: skip
    else:
        write_table(("TO", "LETTERS"), sorted(sent.back.items()))
    if sent.looping:
        print_note(f"{sent.looping} skipped: sent back {max_redrives} times already; raise --max-redrives to send them")
    if sent.nowhere:
        print_note(f"{sent.nowhere} skipped: no header names their topic of origin; name a topic with --to")
    if dry_run:
        print_note("dry run: nothing was sent; run it again without --dry-run to send")


@dlq.command()
@click.argument("name", metavar="TOPIC", shell_complete=dead_topics)
@_selection_options
@click.option("--dry-run", is_flag=True, help="Show how many would be deleted; delete nothing.")
@click.option("--any-name", is_flag=True, help="Purge a topic whose name is not one of a dead-letter topic.")
@_group_option
@output_option("table", "json")
@common_options
def purge(name: str, dry_run: bool, any_name: bool, whose: str, output: str, **choice: Any) -> None:
    """Delete dead letters. Asks in a terminal, needs --yes elsewhere; refuses topics not named for dead letters."""
    from ottla.retry.dead_letters import is_dead_topic

    select = _select_letters(**choice)
    if not (is_dead_topic(name) or any_name or dry_run):
        raise CommandFailed(
            f"{name} is not named like a dead-letter topic, and purge would delete its records. "
            "Check the name; if it is one, add --any-name"
        )
    with _open_letters(name, whose) as letters:
        count = letters.purge(select, dry_run=dry_run, before=lambda number: _confirm_purge(name, number))
    if output == "json":
        write_json({"topic": name, "dry_run": dry_run, "purged": count})
    else:
        write_table(("TOPIC", "LETTERS"), [(name, count)])
    if dry_run:
        print_note("dry run: nothing was deleted; run it again without --dry-run to delete")


def _confirm_purge(name: str, number: int) -> None:
    confirm_action(f"Delete {number:,} dead letter{'' if number == 1 else 's'} in {name}?")


# -- inside ------------------------------------------------------------------------------------------------------------


def _open_letters(name: str, whose: str) -> DeadLetters:
    from ottla.retry.dead_letters import DeadLetters

    return DeadLetters(client_settings(), name, group=whose)


def _select_letters(
    reason: str | None, message: str | None, origin: str | None, key: str | None, places: tuple[str, ...]
) -> Select:
    try:
        pattern = None if message is None else re.compile(message)
    except re.error as error:
        raise click.UsageError(f"--message {message!r} is not a regular expression: {error}") from error
    wanted = {_parse_place(word) for word in places}

    def select(letter: DeadLetter) -> bool:
        failure, record, source = letter.trail.failure, letter.record, letter.trail.origin
        return (
            (reason is None or reason in (letter.reason, letter.reason.rpartition(".")[2]))
            and (pattern is None or (failure is not None and pattern.search(failure.message) is not None))
            and (origin is None or (source is not None and source.topic == origin))
            and (key is None or record.key == encode_text(key))
            and (not wanted or (record.partition, record.offset) in wanted)
        )

    return select


def _parse_place(word: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,10}):(\d{1,19})", word)
    if found is None:
        raise click.UsageError(f"--at takes PARTITION:OFFSET, not {word!r}")
    return int(found[1]), int(found[2])


def _letter_document(letter: DeadLetter) -> dict[str, Json]:
    from ottla.cli.views.record_text import bytes_to_json, headers_to_json

    record, trail = letter.record, letter.trail
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "open": letter.is_open,
        "failures": trail.failures,
        "redrives": trail.redrives,
        "reason": letter.reason,
        "failure": None if trail.failure is None else trail.failure._asdict(),
        "origin": None if trail.origin is None else trail.origin._asdict(),
        "bad_headers": trail.bad,
        "key": bytes_to_json(record.key),
        "value": bytes_to_json(record.value),
        "headers": headers_to_json(record.headers),
    }


def _letter_row(letter: DeadLetter) -> tuple[object, ...]:
    record, trail = letter.record, letter.trail
    source = trail.origin
    return (
        f"{record.partition}:{record.offset}",
        time_text(record.timestamp),
        trail.failures,
        None if source is None else f"{source.topic}-{source.partition}@{source.offset}",
        letter.reason,
        _short_text(encode_text(trail.failure.message if trail.failure is not None else "")),
        _short_text(record.key),
        _short_text(record.value),
    )


def _short_text(content: bytes | None) -> str | None:
    """Text cut to the width of a column, without characters that would move a terminal's cursor."""
    if content is None:
        return None
    text = content[: 4 * _WIDTH].decode(errors="replace")
    text = "".join(each if each.isprintable() else "\N{MIDDLE DOT}" for each in text)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
