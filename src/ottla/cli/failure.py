"""The error of a command that failed: a sentence for people, an exit code, and fields for programs.

Zone: real. `main` prints it: as a sentence, or as one JSON document with `-o json` and `-o jsonl`.
"""

from __future__ import annotations

from collections.abc import Mapping

import click

from ottla.cli.views.output import Json


class CommandFailed(click.ClickException):
    """The command failed. message: what happened, to what, why, and what to do next."""

    def __init__(self, message: str, *, exit_code: int = 1, details: Mapping[str, Json] | None = None) -> None:
        """details: more fields of the error's JSON document, beside `message` and `exit_code`."""
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click declares it for classes, and reads it from instances
        self.details = dict(details or {})


class BadLine(ValueError):
    """A line, or a file, of the input that is not a record: its number, from 1, and what is wrong with it."""

    def __init__(self, number: int, reason: str, noun: str = "line") -> None:
        super().__init__(f"{noun} {number} of the input: {reason}")
        self.number = number
