"""Findings of `ottla doctor`.

Zone: pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

OK: Final = "ok"
WARNING: Final = "warning"
ERROR: Final = "error"


class Finding(NamedTuple):
    """The result of one check. The JSON form is an interface: docs/cli.md describes it, fields are only ever added."""

    level: str
    check: str
    """settings, address, advertised, cluster, partitions, versions, clock, disk."""
    subject: str
    message: str
    next_step: str = ""
