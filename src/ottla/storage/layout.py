"""Names of files and directories of a log directory, as Apache Kafka has them.

Zone: pure. Names only; the formats are documented where the files are read.

    <log dir>/
      meta.properties  .kafka_cleanshutdown
      recovery-point-offset-checkpoint  replication-offset-checkpoint  log-start-offset-checkpoint
      cleaner-offset-checkpoint
      <topic>-<partition>/
        <base offset, 20 digits>.log .index .timeindex .txnindex .snapshot
        leader-epoch-checkpoint  partition.metadata
        txnindex-checksums                   Ottla's: size and checksum of each .txnindex when it was finished
        incomplete                           Ottla's: the log lacks records that it had
        moving                               the log comes from another directory (KIP-113), which may still have it
      <topic>-<partition>.<uuid>-delete/       waits for its removal
      <topic>-<partition>.<uuid>-future/       will take the place of the log in another directory
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ottla.types import TopicPartition

ROOT: Final = ""
"""The log directory itself, as a path of its Disk."""

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
INDEX_SUFFIXES: Final = (INDEX, TIME_INDEX, TXN_INDEX)
SEGMENT_SUFFIXES: Final = (LOG, *INDEX_SUFFIXES)

DELETED: Final = ".deleted"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"

LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
INCOMPLETE: Final = "incomplete"
TXN_SUMS: Final = "txnindex-checksums"
META_PROPERTIES: Final = "meta.properties"
TEMPORARY: Final = ".tmp"
"""The suffix of a file that will replace the one of the same name without it."""
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
MOVING: Final = "moving"
"""In a partition's directory: its name, while the log moves here from another log directory."""
CLEANED_UNTIL: Final = "cleaner-offset-checkpoint"

METADATA_LOGS: Final = ("__znodes-0", "__cluster_metadata-0")
"""Directories named like partitions that are not: those of the embedded metadata store and of Apache Kafka's."""

DELETE_DIR: Final = "-delete"
STRAY_DIR: Final = "-stray"
FUTURE_DIR: Final = "-future"
_NAME_MAX: Final = 255
_OFFSET_MAX: Final = 2**63 - 1
_PARTITION_MAX: Final = 2**31 - 1
_SEGMENT_FILE: Final = re.compile(
    r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(\.deleted|\.cleaned|\.swap)?"
)
_LOG_DIR: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})-([0-9]{1,10})")
_DELETE_DIR: Final = re.compile(r".+-[0-9]{1,10}\.[0-9a-f]+" + DELETE_DIR)
_FUTURE_DIR: Final = re.compile(r"(.+)\.[0-9a-f]+" + FUTURE_DIR)


class FileName(NamedTuple):
    """The parts of a segment file's name."""

    base_offset: int
    kind: str
    """`.log`, `.index`, …"""
    state: str
    """Empty for a live file, else `.deleted`, `.cleaned` or `.swap`."""


def file_name(base_offset: int, kind: str) -> str:
    """The base offset as 20 digits, and the suffix."""
    return f"{base_offset:020d}{kind}"


def parse_file_name(name: str) -> FileName | None:
    """The parts of `name`; None when it is not a file of a segment, or its offset is above 2^63 - 1."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None or int(match[1]) > _OFFSET_MAX:
        return None
    return FileName(int(match[1]), match[2], match[3] or "")


def parse_log_dir(name: str) -> TopicPartition | None:
    """The partition whose directory has this name (without the `/`), None when it is not one."""
    if name in METADATA_LOGS:
        return None
    match = _LOG_DIR.fullmatch(name)
    # `t-01` is not partition 1 of `t`: two directories would be one partition, and Kafka writes no leading zeros.
    if match is None or str(int(match[2])) != match[2] or int(match[2]) > _PARTITION_MAX:
        return None
    return TopicPartition(match[1], int(match[2]))


def parse_future_dir(name: str) -> TopicPartition | None:
    """The partition of a `-future` directory (without the `/`); None for other names, or one that was cut short."""
    match = _FUTURE_DIR.fullmatch(name)
    return None if match is None or len(name) == _NAME_MAX else parse_log_dir(match[1])


def future_dir_name(tp: TopicPartition, unique: str) -> str:
    """`<topic>-<partition>.<unique>-future`, the topic cut as in `delete_dir_name`."""
    return _suffixed_dir_name(tp, unique, FUTURE_DIR)


def delete_dir_name(tp: TopicPartition, unique: str) -> str:
    """`<topic>-<partition>.<unique>-delete`, the topic cut to the length that file systems allow."""
    return _suffixed_dir_name(tp, unique, DELETE_DIR)


def is_delete_dir(name: str) -> bool:
    """Whether this is the name (without the `/`) of a partition's directory that waits for its removal."""
    return _DELETE_DIR.fullmatch(name) is not None


def stray_dir_name(tp: TopicPartition, unique: str) -> str:
    """`<topic>-<partition>.<unique>-stray`: a log whose topic is not known, kept for an operator to recover."""
    return _suffixed_dir_name(tp, unique, STRAY_DIR)


def _suffixed_dir_name(tp: TopicPartition, unique: str, suffix: str) -> str:
    tail = f"-{tp.partition}.{unique}{suffix}"
    return tp.topic[: _NAME_MAX - len(tail)] + tail
