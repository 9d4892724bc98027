"""The rows of the table, and their limits. A limit is a ratio to a peer of the same run, or absolute (start, memory,
idle)."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field


@dataclass
class Row:
    """One line of the table, with every sample."""

    key: str
    title: str
    unit: str
    limit: float | None
    """None: reported without a verdict."""
    against: str | None = "kafka"
    """The peer that the limit multiplies; None: the limit is absolute."""
    quantile: float = 0.5
    """The quantile of the samples that is compared: the median, or up to the worst (1)."""
    samples: dict[str, list[float]] = field(default_factory=dict)
    """Peer → one value per run."""
    kept_from: tuple[str, str] | None = None
    """Command and time of the earlier run that measured it; None: the present one."""

    def add(self, peer: str, value: float) -> None:
        """Keep a sample."""
        self.samples.setdefault(peer, []).append(value)

    def figure(self, peer: str) -> float | None:
        """The value of a peer's samples: their median, or the quantile of this row."""
        values = sorted(self.samples.get(peer, ()))
        if not values:
            return None
        return statistics.median(values) if self.quantile == 0.5 else values[int((len(values) - 1) * self.quantile)]

    @property
    def measured(self) -> float | None:
        """The value that is compared with the limit."""
        own = self.figure("ottla")
        if self.against is None or own is None:
            return own
        peer = self.figure(self.against)
        return own / peer if peer else None

    @property
    def verdict(self) -> str:
        """within, over, stated, or not measured."""
        if self.measured is None:
            return "not measured"
        if self.limit is None:
            return "stated"
        return "within" if self.measured <= self.limit else "over"


BESIDE_KFAKE = (
    ("kfake-produce-1", "Produce 1 × 100 B, 50 connections, acks 1", "µs/request"),
    ("kfake-frame-16k", "Produce frames of 16 KiB, 5 connections × 4", "CPU s/GB"),
    ("kfake-frame-1m", "Produce frames of 1 MB, 2 connections × 2", "CPU s/GB"),
)
"""Rows against a compiled broker in one process that keeps everything in memory (`bench.peers.kfake`)."""


def table() -> dict[str, Row]:
    """All rows, in the order of the report."""
    rows = [
        Row("produce-1-acks1", "Produce 1 × 100 B, 50 connections, acks 1", "µs/request", 0.65),
        Row("produce-1-acksall", "Produce 1 × 100 B, 50 connections, acks all", "µs/request", 0.65),
        Row("produce-16k", "produce 1 KiB records, 16 KiB batches, acks 1 (librdkafka)", "CPU s/GB", 0.4),
        Row("produce-1m", "produce 1 KiB records, 1 MB batches, acks 1 (librdkafka)", "CPU s/GB", 0.8),
        Row("fetch-1k", "consume 1 KiB records (librdkafka)", "CPU s/GB", 0.8),
        Row("fetch-100", "consume 100 B records (librdkafka)", "CPU s/GB", 0.35),
        Row("e2e-acks1", "end to end p50 at 200 msg/s, acks 1", "ms", 0.4),
        Row("e2e-acksall", "end to end p50 at 200 msg/s, acks all", "ms", 0.75),
        Row("e2e-outside", "of it outside the broker, acks 1", "ms", None, None),
        Row("fetch-1k-eager", "consume 1 KiB records (librdkafka, without its pauses)", "CPU s/GB", None),
        Row("fetch-100-eager", "consume 100 B records (librdkafka, without its pauses)", "CPU s/GB", None),
        Row("frame-16k", "Produce frames of 16 KiB, 5 connections × 4", "CPU s/GB", None),
        Row("frame-1m", "Produce frames of 1 MB, 2 connections × 2", "CPU s/GB", None),
        Row("fetch-64k", "Fetch of 64 KiB, 10 connections", "CPU s/GB", None),
        Row("fetch-1m", "Fetch of 1 MiB, 2 connections × 2", "CPU s/GB", None),
        *(Row(key, f"{title}, beside kfake", unit, 1.0, "kfake") for key, title, unit in BESIDE_KFAKE),
        Row("start", "command to ready", "s", 0.5, None),
        Row("rss-idle", "resident memory, idle", "MiB", 60, None),
        Row("rss-load", "resident memory, after the load of this table", "MiB", 120, None),
        Row("cpu-idle", "CPU, idle", "% of a core", 0.5, None),
    ]
    return {row.key: row for row in rows}
