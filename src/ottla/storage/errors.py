"""Errors of a log other than failures of the disk.

Zone: pure. Failures of the disk are `ottla.seams.Failure`, refusals to a client `ApiError`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.seams import Region


class StorageError(Exception):
    """Base of the errors of this package."""


class IndexFull(StorageError):
    """An append to an index that is full."""


class IndexOverflow(StorageError):
    """An offset lies below the index's base, or more than 2^31 - 1 above it."""


class NotMonotonic(StorageError):
    """An append of an index entry that is not above the last one."""


class CorruptLog(StorageError):
    """The files of a log contradict each other in a way that truncation does not repair."""


class WrongDirectory(StorageError):
    """A log directory belongs to another cluster or another node, according to its meta.properties."""


class Cold(Exception):
    """A read needs bytes that are not in memory: warm `regions` (`Disk.warm_regions`), then read again."""

    def __init__(self, regions: Sequence[Region]) -> None:
        super().__init__(f"{len(regions)} cold region(s)")
        self.regions = regions
