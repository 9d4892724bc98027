"""Counts and latencies of sent records, and the lines about them.

Zone: deterministic. Times are arguments, in milliseconds.
"""

from __future__ import annotations

from array import array
from typing import Final

from ottla.kafka_tools.tools.perf.java_text import decimal_text, quotient

_SAMPLES: Final = 500_000
"""Every latency is kept up to this number of records, of more records a part."""
_PERCENTILES: Final = (0.5, 0.95, 0.99, 0.999)
_MB: Final = 1024.0 * 1024.0


class SendStatistics:
    """The statistics of a run, and of the interval since the last line of progress."""

    def __init__(self, records: int, interval_ms: int, now_ms: int, *, steady: bool = False) -> None:
        """steady: these are the records after the warm-up."""
        self.silent = False
        """Whether no lines of progress are made, because other statistics make them."""
        self._steady = steady
        self._start_ms = now_ms
        self._interval_ms = interval_ms
        self._sampling = records // min(records, _SAMPLES)
        self._latencies = array("q")
        self._count = self._bytes = self._latency_sum = self._latency_max = 0
        self._window_start_ms = now_ms
        self._window_count = self._window_bytes = self._window_latency_sum = self._window_latency_max = 0

    def add_record(self, latency_ms: int, size: int, now_ms: int) -> list[str]:
        """Count a record, and return the lines of progress that are due."""
        # Every n-th record: a run of a billion records keeps half a million latencies.
        if self._count % self._sampling == 0:
            self._latencies.append(latency_ms)
        self._count += 1
        self._bytes += size
        self._latency_sum += latency_ms
        self._latency_max = max(self._latency_max, latency_ms)
        self._window_count += 1
        self._window_bytes += size
        self._window_latency_sum += latency_ms
        self._window_latency_max = max(self._window_latency_max, latency_ms)
        if now_ms - self._window_start_ms < self._interval_ms:
            return []
        return self._end_window(now_ms)

    def total_line(self, now_ms: int) -> str:
        """The line about all records."""
        elapsed = now_ms - self._start_ms
        return (
            f"{self._count}{' steady state' if self._steady else ''} records sent, "
            f"{decimal_text(quotient(1000.0 * self._count, elapsed), 6)} records/sec "
            f"({decimal_text(quotient(1000.0 * self._bytes, elapsed) / _MB, 2)} MB/sec), "
            f"{decimal_text(quotient(self._latency_sum, self._count), 2)} ms avg latency, "
            f"{decimal_text(self._latency_max, 2)} ms max latency, {self._percentiles()}."
        )

    def _percentiles(self) -> str:
        ordered = sorted(self._latencies)
        found = [ordered[int(part * len(ordered))] if ordered else 0 for part in _PERCENTILES]
        return ", ".join(
            f"{latency} ms {name}" for latency, name in zip(found, ("50th", "95th", "99th", "99.9th"), strict=True)
        )

    def _end_window(self, now_ms: int) -> list[str]:
        # Once, when the first interval after the warm-up ends.
        lines = ["In steady state."] if self._steady and self._count == self._window_count else []
        if not self.silent:
            lines.append(self._window_line(now_ms))
        self._begin_window(now_ms)
        return lines

    def _window_line(self, now_ms: int) -> str:
        elapsed = now_ms - self._window_start_ms
        return (
            f"{self._window_count} records sent, "
            f"{decimal_text(quotient(1000.0 * self._window_count, elapsed), 1)} records/sec "
            f"({decimal_text(quotient(1000.0 * self._window_bytes, elapsed) / _MB, 2)} MB/sec), "
            f"{decimal_text(quotient(self._window_latency_sum, self._window_count), 1)} ms avg latency, "
            f"{decimal_text(self._window_latency_max, 1)} ms max latency."
        )

    def _begin_window(self, now_ms: int) -> None:
        self._window_start_ms = now_ms
        self._window_count = self._window_bytes = self._window_latency_sum = self._window_latency_max = 0
