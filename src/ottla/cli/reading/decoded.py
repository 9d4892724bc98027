"""A record whose key and value are shown in another form than they have in the log.

Zone: pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.cli.views.record_text import Headers


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """A record with the texts of its key and value; its place and headers are those in the log."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
