"""The errors of schemas.

Zone: pure.
"""

from __future__ import annotations

from typing import NamedTuple


class InvalidSchema(ValueError):
    """A text that is not a schema of its type, or one that is too large to compare."""


class InvalidPayload(ValueError):
    """Bytes that were not written with their schema."""


class Incompatibility(NamedTuple):
    """One reason why a reader's schema cannot read what a writer's schema wrote."""

    kind: str
    """A name as Schema Registry gives it, such as `TYPE_MISMATCH`."""
    path: str
    """Where, as a path of names and indexes from the root of the reader's schema."""
    message: str

    def __str__(self) -> str:
        return f"{{errorType:'{self.kind}', description:'{self.message}', additionalInfo:'{self.path}'}}"
