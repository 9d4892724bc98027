"""The data that a power loss may take: per log, the offset below which completed syncs cover everything.

Zone: deterministic. Reads the platter without Ottla's storage code: the segments of a partition in order, whether name
and content of each are durable, and the batches in them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ottla.sim.disks.drive import Directory, Drive
from ottla.sim.disks.inode import Inode
from ottla.sim.disks.log_bytes import offsets_of, whole_batches
from ottla.sim.workload.catalog import log_name
from ottla.types import ZERO_UUID, uuid_from_text

_PARTITION: Final = re.compile(r"(.+)-(\d+)")
_SEGMENT: Final = re.compile(r"(\d{20})\.log")
_METADATA: Final = "partition.metadata"


def durable_offsets(drive: Drive, topic_ids: Mapping[str, bytes] = MappingProxyType({})) -> dict[str, int]:
    """For each log on the drive that is not durable as a whole: the offset below which it is.

    `topic_ids` has the ids of topics whose logs are so new that `partition.metadata` is not written yet.
    """
    found: dict[str, int] = {}
    for name, entry in drive.root.names.items():
        match = _PARTITION.fullmatch(name)
        if match is None or not isinstance(entry, Directory) or name.endswith("-delete"):
            continue
        log = log_name(match[1], int(match[2]), topic_id_in(entry) or topic_ids.get(match[1], ZERO_UUID))
        if drive.root.durable.get(name) is not entry:
            found[log] = 0
        elif not _is_settled(entry):
            found[log] = _durable_end(entry)
    return found


def _is_settled(directory: Directory) -> bool:
    """Whether name and content of every segment are durable, and no removed name can come back."""
    names = _segment_files(directory.names)
    return names == _segment_files(directory.durable) and all(
        inode.durable >= len(inode.data) and not inode.shadow for inode in names.values()
    )


def _segment_files(names: dict[str, Directory | Inode]) -> dict[str, Inode]:
    return {n: entry for n, entry in names.items() if isinstance(entry, Inode) and _SEGMENT.fullmatch(n)}


def _durable_end(directory: Directory) -> int:
    """The offset up to which consecutive segments are durable.

    Compaction leaves holes between segments, so the names that processes see define the next one, not the end offset of
    the one before.
    """
    end = 0
    for name, inode in sorted(_segment_files(directory.names).items()):
        if directory.durable.get(name) is not inode:
            break
        end = max(end, int(name[:20]))
        for batch in whole_batches(memoryview(inode.data)[: inode.durable]):
            end = offsets_of(batch)[1] + 1
        if inode.durable < len(inode.data):
            break
    return end


def topic_id_in(directory: Directory) -> bytes | None:
    """The topic id in `partition.metadata` beside a log; None: not written yet."""
    metadata = directory.names.get(_METADATA)
    if isinstance(metadata, Inode):
        for line in bytes(metadata.data).decode("ascii", "replace").splitlines():
            key, _, value = line.partition(":")
            if key == "topic_id":
                try:
                    return uuid_from_text(value.strip())
                except ValueError:
                    break
    return None
