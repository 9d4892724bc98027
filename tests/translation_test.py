"""docs/translation.md: every command of the right column exists, with its options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from ottla.cli.main import cli

PAGE = Path(__file__).resolve().parent.parent / "docs" / "translation.md"
ROW = re.compile(r"^\| `.*` \| (.*) \|$", re.MULTILINE)
COMMAND = re.compile(r"`(ottla [^`]*)`")


def commands() -> list[str]:
    """The commands of the right column."""
    text = PAGE.read_text()
    rows = [line.rpartition(" | ")[2] for line in text.splitlines() if line.startswith("| `")]
    return sorted({command for row in rows for command in COMMAND.findall(row)})


def find_fault(line: str) -> str:
    """The parts of a command that do not exist; empty when all exist."""
    command: click.Command = cli
    known = {name for option in cli.params for name in option.opts}
    words = shlex.split(line)[1:]
    while words and isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            return f"no command {words[0]!r}"
        command, words = found, words[1:]
        known |= {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    if isinstance(command, click.Group):
        return "the command is not complete"
    numbers = re.compile(r"-\d+")
    missing = [word for word in words if word.startswith("-") and word not in known and not numbers.fullmatch(word)]
    return f"no option {missing}" if missing else ""


@pytest.mark.parametrize("line", commands())
def test_a_command_of_the_table_exists(line: str) -> None:
    assert find_fault(line) == ""


def test_commands_that_do_not_exist_are_found() -> None:
    assert find_fault("ottla topic make t") == "no command 'make'"
    assert find_fault("ottla topic create t --shards 3") == "no option ['--shards']"
    assert find_fault("ottla topic") == "the command is not complete"
    assert len(commands()) > 50
