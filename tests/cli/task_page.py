"""docs/cli-tasks.md as data: its sections, the `ottla` line of each task, and what is expected of it.

Zone: real. Lines are run in this process: a small part of a shell's grammar, which the page uses, is understood here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

from click.testing import CliRunner, Result

from ottla.cli.main import cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli-tasks.md"
_ROW = re.compile(r"^\| (?P<name>[^|]+) \| .+ \| `(?P<line>.+?)` <!-- (?P<expected>.+?) --> \|$")
_CAPTURE = re.compile(r"(?P<name>[A-Z]+)=\$\((?P<line>.*)\)")


class Task(NamedTuple):
    """A row of the page."""

    name: str
    line: str
    """The command, as a user types it."""
    code: int
    """The exit code that is expected."""
    words: tuple[str, ...]
    """What the output must have, and with ! in front what it must not have."""


class Outcome(NamedTuple):
    """What a line did."""

    code: int
    stdout: str
    """Empty where it went into a file."""
    stderr: str
    variable: tuple[str, str] | None = None
    """The name and the value that `NAME=$(…)` sets."""


def parse_task(row: str) -> Task | None:
    """The task of a row; None for other lines of the page."""
    # A | inside of a cell is written with a backslash.
    found = _ROW.match(row.replace(r"\|", "\0"))
    if found is None:
        return None
    line, expected = (found[each].replace("\0", "|") for each in ("line", "expected"))
    code, *words = shlex.split(expected)
    return Task(found["name"].replace("\0", "|"), line, int(code), tuple(words))


def read_sections() -> dict[str, list[Task]]:
    """The tasks of the page by the titles of its sections."""
    sections: dict[str, list[Task]] = {}
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            tasks = sections.setdefault(line.removeprefix("## "), [])
        elif (task := parse_task(line)) is not None:
            tasks.append(task)
    return sections


def find_faults(task: Task, outcome: Outcome, variables: Mapping[str, str]) -> list[str]:
    """How the outcome differs from what the page promises."""
    faults = [] if outcome.code == task.code else [f"exit code {outcome.code}, not {task.code}"]
    for word in task.words:
        text = Template(word).safe_substitute(variables)
        shown = outcome.stdout + outcome.stderr
        if text.startswith("!") and text[1:] in shown:
            faults.append(f"has {text[1:]!r}")
        elif not text.startswith("!") and text not in shown:
            faults.append(f"has no {text!r}")
    return faults


def run_line(line: str, variables: Mapping[str, str]) -> Outcome:
    """Run a line of the page, in the working directory of this process."""
    capture = _CAPTURE.fullmatch(line)
    if capture is None:
        return _run_pipeline(_split_words(line, variables), variables)
    found = _run_pipeline(_split_words(capture["line"], variables), variables)
    return found._replace(variable=(capture["name"], found.stdout.strip()))


def _split_words(line: str, variables: Mapping[str, str]) -> list[str]:
    """Words, and the operators < > | between them."""
    lexer = shlex.shlex(Template(line).safe_substitute(variables), posix=True, punctuation_chars="|<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    return list(lexer)


def _run_pipeline(words: list[str], variables: Mapping[str, str]) -> Outcome:
    """Run the commands of a pipeline one after the other; the code is that of the first one that fails."""
    stdin, errors = b"", ""
    for stage in _split_list(words, "|"):
        target, command = _take_redirection(stage, ">")
        source, command = _take_redirection(command, "<")
        if source is not None:
            stdin = Path(source).read_bytes()
        if command[0] == "echo":
            stdin = " ".join(command[1:]).encode() + b"\n"
            continue
        assert command[0] == "ottla", f"{command[0]!r} is not a command of the page"
        done: Result = CliRunner().invoke(cli, command[1:], input=stdin, env=dict(variables))
        stdin, errors = done.stdout_bytes, errors + done.stderr
        if done.exit_code:
            break
    if target is not None:
        Path(target).write_bytes(stdin)
        stdin = b""
    return Outcome(done.exit_code, stdin.decode(errors="replace"), errors)


def _split_list(words: Sequence[str], at: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == at:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _take_redirection(words: Sequence[str], operator: str) -> tuple[str | None, list[str]]:
    """The file of a redirection, and the words without it."""
    if operator not in words:
        return None, list(words)
    at = words.index(operator)
    return words[at + 1], [*words[:at], *words[at + 2 :]]
