"""How far the loading of a log directory is.

Zone: pure.
"""

from __future__ import annotations

from typing import NamedTuple


class LoadProgress(NamedTuple):
    """How far loading a directory is."""

    directory: str
    logs_done: int
    logs_total: int
    bytes_scanned: int
    """Bytes that recovery has read; 0 after a clean stop."""
