"""The form of the sinks' errors: what happened, and what to do next.

Zone: pure.
"""

from __future__ import annotations


class SinkError(Exception):
    """Base of the sinks' errors. The transaction that raised one has written nothing."""

    def __init__(self, cause: str, next_step: str) -> None:
        super().__init__(f"{cause}. {next_step}")
        self.cause = cause
        self.next_step = next_step


class UsageError(SinkError):
    """A wrong call, which the caller must change."""
