"""Verdicts on payloads, whichever type of schema they were written with.

Zone: pure.
"""

from __future__ import annotations

from enum import IntEnum

from ottla.schemas.errors import InvalidSchema


class Verdict(IntEnum):
    """Of a payload."""

    READ = 0
    NOT_WRITTEN_WITH_IT = 1
    """Its bytes are none of the writer's schema."""
    NOT_READABLE = 2
    """The reader's schema cannot hold its value."""


class TooManyValues(InvalidSchema):
    """The payloads have more values than are decoded at a time: decode fewer payloads."""
