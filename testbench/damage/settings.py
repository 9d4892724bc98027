"""Settings of all brokers whose directories are damaged: frequent checkpoints, no retention, no compaction.

Zone: pure.
"""

from __future__ import annotations

from typing import Final

PROPERTIES: Final = {
    "log.dirs": "disk-a,disk-b",
    "log.flush.scheduler.interval.ms": "300",
    "log.flush.offset.checkpoint.interval.ms": "300",
    "log.flush.start.offset.checkpoint.interval.ms": "300",
    "log.retention.check.interval.ms": "100000000",
    "log.cleaner.enable": "false",
    "auto.create.topics.enable": "false",
}
