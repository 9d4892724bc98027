"""What can go wrong in a log besides the disk.

Zone: pure. Exceptions with a name; failures of the disk are `ottla.seams.Failure`, refusals to a client `ApiError`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.seams import Region


class StorageError(Exception):
    """Base of the room's own errors."""


class IndexFull(StorageError):
    """An entry was to be appended to an index that holds as many as it may."""


class IndexOverflow(StorageError):
    """An offset lies below the index's base, or more than 2^31 - 1 above it."""


class NotMonotonic(StorageError):
    """An index entry was to be appended that does not lie above the last one."""


class CorruptLog(StorageError):
    """The files of a log contradict themselves in a way that cutting does not cure."""


class WrongDirectory(StorageError):
    """A log directory belongs to another cluster or another node, as its meta.properties says."""


class Cold(Exception):
    """A read needs bytes that are not in memory: warm `regions` (`Disk.warm`), then ask again."""

    def __init__(self, regions: Sequence[Region]) -> None:
        super().__init__(f"{len(regions)} cold region(s)")
        self.regions = regions
