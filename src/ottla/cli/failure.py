"""How a command ends that could not do what it was asked: a sentence, an exit code, and fields for programs.

Zone: real. Printing is `main`'s: a sentence for people, one JSON document with `-o json` and `-o jsonl`.
"""

from __future__ import annotations

from collections.abc import Mapping

import click

from ottla.cli.views.output import Json


class CommandFailed(click.ClickException):
    """The command failed. message: what happened, to what, why, and what to do next."""

    def __init__(self, message: str, *, exit_code: int = 1, details: Mapping[str, Json] | None = None) -> None:
        """details: fields that programs find in the JSON document of the error, besides `message` and `exit_code`."""
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click declares it for classes, and reads it from instances
        self.details = dict(details or {})


class BadLine(ValueError):
    """A line of the input that is no record: its number, from 1, and what is wrong with it."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"line {number} of the input: {reason}")
        self.number = number
