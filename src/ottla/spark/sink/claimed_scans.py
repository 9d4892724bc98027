"""The scans whose tasks may have committed rows of a batch by partition, as the claim of the batch records them.

Zone: pure. A scan is one place of the plan that reads topics; its inputs are those of tasks with consecutive numbers. A
task registers its scan before it commits. So when rows of other tasks come into the batch, the claim names each marker
by partition that the batch can have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

from ottla.spark.offsets import Place

MOST: Final = 40
"""Scans of one claim: a position holds 4,096 bytes."""


class Scan(NamedTuple):
    """A scan whose tasks write the rows that they read."""

    name: str
    first: int
    """The partition of the first of its tasks."""
    inputs: int
    run: str
    """A hash of the run of the query that registered it; empty where Spark does not name the run."""

    @property
    def tasks(self) -> range:
        """The partitions of its tasks."""
        return range(self.first, self.first + self.inputs)


class ReadTask(NamedTuple):
    """A task that wrote the rows that it has read: its scan, and which of the scan's inputs it had."""

    scan: str
    first: int
    number: int


def scan_of(place: Place, partition: int, run: str | None) -> Scan:
    """The scan of a task. partition: the task's. run: of the query."""
    short = sha256(run.encode()).hexdigest()[:8] if run else ""
    return Scan(place.scan, partition - place.number, place.inputs, short)


def is_registered(scans: Iterable[Scan], own: Scan) -> bool:
    """Whether a scan is among these, at the same tasks."""
    return any((scan.name, scan.tasks) == (own.name, own.tasks) for scan in scans)


def may_register(scans: Sequence[Scan], own: Scan) -> bool:
    """Whether the tasks of a scan may commit by partition beside these.

    False: the scan may be one of them whose tasks have other numbers in this run, since a shuffle before it in the plan
    has another number of partitions. Its rows may then be committed already.
    """
    if is_registered(scans, own):
        return True
    moved = any(scan.name == own.name and (scan.run != own.run or not own.run) for scan in scans)
    overlaps = any(scan.first < own.tasks.stop and own.first < scan.tasks.stop for scan in scans)
    return len(scans) < MOST and not moved and not overlaps


def are_ambiguous(tasks: Iterable[ReadTask], others: Iterable[int]) -> bool:
    """Whether two scans of one name follow a shuffle, so that each may be the one that is registered.

    others: the partitions of tasks with rows of other tasks.
    """
    before = min(others, default=None)
    firsts = dict[str, set[int]]()
    for task in tasks:
        firsts.setdefault(task.scan, set()).add(task.first)
    return before is not None and any(len(some) > 1 and before < max(some) for some in firsts.values())


def moved_task(scans: Iterable[Scan], tasks: Iterable[ReadTask], scan: Scan, number: int) -> ReadTask | None:
    """The task that has an input of a registered scan in this run, where the tasks of the scan have other numbers.

    scans: all that are registered. tasks: of this run. None: it is not known, because the name of the scan is
    registered at several tasks or read at several places of the plan, or at none.
    """
    registered = [one for one in scans if one.name == scan.name]
    firsts = {task.first for task in tasks if task.scan == scan.name}
    moved = {task for task in tasks if (task.scan, task.number) == (scan.name, number)}
    return next(iter(moved)) if len(registered) == len(firsts) == len(moved) == 1 else None


def scans_to_json(scans: Iterable[Scan]) -> list[list[str | int]]:
    """Scans in the form of a claim."""
    return [list(scan) for scan in scans]


def parse_scans(said: Any) -> tuple[Scan, ...] | None:
    """Inverse of `scans_to_json`; None for None. Raises ValueError or TypeError."""
    if said is None:
        return None
    found = tuple(Scan(str(name), int(first), int(inputs), str(run)) for name, first, inputs, run in said)
    if len(found) > MOST or any(scan.first < 0 or scan.inputs < 1 for scan in found):
        raise ValueError
    return found
