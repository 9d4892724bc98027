"""Reads the topics of another cluster's broker from its log directories.

Zone: deterministic. Names and small files only, by blocking reads, at start: the facts that a metadata store needs
before such logs can be served. Apache Kafka keeps the rest (settings, replicas) elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ottla.seams import Disk
from ottla.storage.checkpoints import CorruptCheckpoint, parse_epochs, parse_partition_metadata, parse_snapshot
from ottla.storage.layout import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    ROOT,
    SNAPSHOT,
    parse_file_name,
    parse_log_dir,
)
from ottla.storage.segments.scan import read_file
from ottla.types import NO_EPOCH, ZERO_UUID, TopicPartition


class LogMarks(NamedTuple):
    """The checkpoints' entries for a log, and whether the last stop was clean."""

    clean: bool
    recovery_point: int = 0
    start_offset: int = 0
    high_watermark: int = 0
    cleaned_until: int = 0
    durable: bool = False
    """Whether everything in the directory is durable, although the last stop was not clean."""
    is_new: bool = False
    """Whether the directory was just created and is empty."""


class FoundLog(NamedTuple):
    """A partition's directory."""

    tp: TopicPartition
    topic_id: bytes
    """ZERO_UUID where there is none: before Kafka 2.8."""
    leader_epoch: int
    """The newest one that wrote to it, -1 when it is not known."""
    producer_id: int
    """The largest one in a producer snapshot, -1 when there is none."""


def found_logs(disks: Iterable[Disk]) -> list[FoundLog]:
    """The partitions in these directories, sorted. Raises Failure, CorruptCheckpoint for a file that is damaged."""
    return sorted(log for disk in disks for log in _in_directory(disk))


def _in_directory(disk: Disk) -> Iterator[FoundLog]:
    for name in disk.list(ROOT):
        tp = parse_log_dir(name[:-1]) if name.endswith("/") else None
        if tp is not None:
            yield _look_into(disk, tp, name[:-1])


def _look_into(disk: Disk, tp: TopicPartition, directory: str) -> FoundLog:
    names = disk.list(directory)
    topic_id, epoch, producer_id = ZERO_UUID, NO_EPOCH, -1
    for name in names:
        path = f"{directory}/{name}"
        file = parse_file_name(name)
        try:
            if name == PARTITION_METADATA:
                topic_id = parse_partition_metadata(read_file(disk, path))
            elif name == LEADER_EPOCHS:
                epoch = max((entry.epoch for entry in parse_epochs(read_file(disk, path))), default=NO_EPOCH)
            elif file is not None and file.kind == SNAPSHOT and not file.state:
                entries = parse_snapshot(read_file(disk, path))
                producer_id = max(producer_id, *(entry.producer_id for entry in entries), -1)
        except CorruptCheckpoint as error:
            raise CorruptCheckpoint(f"{disk.name}/{path}: {error}") from error
    return FoundLog(tp, topic_id, epoch, producer_id)
