"""The metrics of compaction, under Kafka's names (LogCleaner, LogCleanerManager).

Zone: deterministic. Values are computed when the metrics are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ottla.metrics import Labels, Registry
from ottla.storage.cleaning.cleaner import Cleaner, CleaningRun
from ottla.storage.log import Log


def declare_metrics(registry: Registry, cleaner: Cleaner) -> None:
    """Add the rows of one broker's cleaner."""
    add, manager, prefix = registry.add_gauge, "kafka_log_logcleanermanager_", "kafka_log_logcleaner_"
    add(
        f"{manager}max_dirty_percent",
        "The largest share of bytes not yet compacted in any log, at the last search for one to compact.",
        lambda: 100 * cleaner.max_dirty_ratio,
    )
    add(f"{manager}time_since_last_run_ms", "Time since the last search for a log to compact.", lambda: cleaner.idle_ms)
    add(
        f"{manager}uncleanable_partitions_count",
        "Partitions that are no longer compacted: they cannot be read, or workers die over them.",
        lambda: _by_directory(cleaner, lambda _: 1),
    )
    add(
        f"{manager}uncleanable_bytes",
        "Bytes not yet compacted in partitions that are no longer compacted.",
        lambda: _by_directory(cleaner, _dirty_bytes),
    )
    add(
        f"{prefix}max_compaction_delay_secs",
        "The most by which records that are not compacted exceed max.compaction.lag.ms, at the last search.",
        lambda: cleaner.max_delay_ms / 1000,
    )
    add(
        f"{prefix}deadthreadcount",
        "How many of the concurrent compaction workers have ended, which they never should.",
        lambda: cleaner.ended,
    )
    add(
        f"{prefix}cleaner_recopy_percent",
        "Bytes written by the last passes, as a share of the bytes of the segments that they rewrote.",
        lambda: 100 * _recopied_share(cleaner),
    )
    add(
        f"{prefix}max_clean_time_secs",
        "The duration of the longest of the last passes.",
        lambda: _largest_of_runs(cleaner, lambda run: run.seconds),
    )
    add(
        f"{prefix}max_buffer_utilization_percent",
        "The largest share of the memory for keys that one of the last passes used.",
        lambda: 100 * _largest_of_runs(cleaner, lambda run: run.cleaned.map_used),
    )


def _by_directory(cleaner: Cleaner, count: Callable[[Log], float]) -> Iterator[tuple[Labels, float]]:
    for directory, logs in cleaner.uncleanable_logs():
        yield {"logDirectory": directory}, sum(map(count, logs))


def _dirty_bytes(log: Log) -> float:
    dirty = log.segments.floor_slot(log.cleaned_until)
    return float(sum(log.segments[slot].size for slot in range(dirty, len(log.segments) - 1)))


def _recopied_share(cleaner: Cleaner) -> float:
    before = sum(run.cleaned.bytes_before for run in cleaner.last.values())
    return sum(run.cleaned.bytes_after for run in cleaner.last.values()) / before if before else 0.0


def _largest_of_runs(cleaner: Cleaner, read: Callable[[CleaningRun], float]) -> float:
    return max(map(read, cleaner.last.values()), default=0.0)
