"""What sinks raise has this form: what happened, and what to do.

Zone: pure.
"""

from __future__ import annotations


class SinkError(Exception):
    """Base of the sinks' errors. Nothing of the transaction that raised it is in the target."""

    def __init__(self, cause: str, next_step: str) -> None:
        super().__init__(f"{cause}. {next_step}")
        self.cause = cause
        self.next_step = next_step


class UsageError(SinkError):
    """A call that the caller must not make."""
