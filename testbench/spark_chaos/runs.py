"""Runs of a query over one checkpoint, and the cases that consist of them.

Zone: pure. A strike is `point@batch[.partition]=action`; the points are in `points` and `source`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple


class Run(NamedTuple):
    """One start of the query."""

    strikes: tuple[str, ...] = ()
    plan: dict[str, Any] = {}  # noqa: RUF012 - never changed
    """Differences from the plan of the case."""
    beside: bool = False
    """It continues while the next run starts."""
    wait_s: float = 0
    """Seconds to wait after its end, for tasks that outlive it."""
    refused: str = ""
    """The error with which it must end."""
    look: bool = True
    """Whether the group is compared with the output after it, which also ends open transactions of its tasks."""


class Case(NamedTuple):
    """Runs with one checkpoint."""

    name: str
    runs: tuple[Run, ...]
    plan: dict[str, Any] = {}  # noqa: RUF012 - never changed
    brokers: int = 1
    """Three: replicated, min.insync.replicas 2."""
    offsets: bool = False
    """The offsets of the source's group are in the transactions of the rows: after each run the group is where the
    output is."""
    behind: bool = False
    """The group may lag the output, but never lead it."""
    exact: bool = True
    """True: every row once, and the group agrees. False: a safeguard is off, and this must show."""


LAST: Final = Run()
