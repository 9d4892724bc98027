"""How far the loading of a log directory is, or its stop.

Zone: pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LOGS_PER_LINE: Final = 2_000
"""Logs between two lines that say how far it is."""


class LoadProgress(NamedTuple):
    """How far loading a directory is."""

    directory: str
    logs_done: int
    logs_total: int
    bytes_scanned: int
    """Bytes that recovery has read; 0 after a clean stop."""
