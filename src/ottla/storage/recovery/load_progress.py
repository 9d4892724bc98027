"""The progress of loading a log directory, or of its stop.

Zone: pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LOGS_PER_LINE: Final = 2_000
"""Logs between two lines that report the progress."""


class LoadProgress(NamedTuple):
    """The progress of loading one directory."""

    directory: str
    logs_done: int
    logs_total: int
    bytes_scanned: int
    """Bytes that recovery has read; 0 after a clean stop."""
