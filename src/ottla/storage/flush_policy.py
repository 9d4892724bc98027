"""Decides when a log is flushed without a request: flush.messages and flush.ms.

Zone: deterministic. Decides only; `flush` does the syncs in order. Both settings are off by default: replication keeps
records safe, not the disk of one broker.

An append that reaches flush.messages is not acknowledged before its records are durable, as in Kafka; with 1 that is
every append, and appends that arrive during a sync share the next one. A flush by time delays no append.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from ottla.config.topic import TopicConfig
from ottla.seams import Done, Failure, Instant
from ottla.storage.flush import Flush
from ottla.storage.log_dir_context import LogDirContext
from ottla.types import TopicPartition

NEVER: Final = sys.maxsize


class FlushPolicy:
    """Counts records since the last flush, and the time since the first record that none has covered."""

    __slots__ = (
        "_armed",
        "_config",
        "_end_offset",
        "_flush",
        "_flushed",
        "_home",
        "_is_at_rest",
        "_on_flushed",
        "_on_synced",
        "_tp",
        "awaited_offset",
        "next_offset",
    )

    def __init__(
        self, home: LogDirContext, tp: TopicPartition, flush: Flush, config: TopicConfig, end_offset: Callable[[], int]
    ) -> None:
        self._home = home
        self._tp = tp
        self._is_at_rest = False
        self._flush = flush
        self._end_offset = end_offset
        self._flushed = end_offset()
        self._armed = False
        self._on_flushed = self._on_ended
        """One object, so that hundreds of appends that wait for one flush get one call."""
        self.awaited_offset = end_offset()
        """Records below it are acknowledged only when they are durable, as flush.messages demands. Records that a
        recovery found are not durable either: a retry of them waits for the flush that follows the recovery."""
        self._on_synced: Callable[[], None] = _do_nothing
        self.apply_config(config)

    def call_when_synced(self, callback: Callable[[], None]) -> None:
        """Call back when a flush that acknowledgements may wait for has ended, successfully or not."""
        self._on_synced = callback

    def apply_config(self, config: TopicConfig) -> None:
        """Take a changed configuration."""
        self._config = config
        self._set_next_offset()

    def let_go(self, end_offset: int) -> None:
        """Drop all references to a log that was closed and ended at `end_offset`, and to listeners of its flushes."""
        self._end_offset = lambda: end_offset
        self._on_flushed = self._home.note_failure
        self._on_synced = _do_nothing

    def _set_next_offset(self) -> None:
        self.next_offset = self._flushed + self._config.flush_messages - 1
        """`on_appended` has to be called once a record has this offset: with -1 at the next one, to set a deadline."""
        if self._config.flush_ms < NEVER and not self._armed:
            self.next_offset = -1
        if self._is_at_rest:
            self.next_offset = -1

    def note_at_rest(self) -> None:
        """Note that no record is above the high watermark: the directory may skip the log until the next append."""
        # The hot path has a single comparison, with `next_offset`. It serves this purpose as well: -1 makes the next
        # append call `on_appended`, which adds the log to the changed ones again.
        self._is_at_rest = True
        self.next_offset = -1

    def on_appended(self, now: Instant) -> None:
        """Records up to `next_offset` or above were appended. Wakes a sleeping log, sets the deadline, or starts a
        flush."""
        if self._is_at_rest:
            self._is_at_rest = False
            self._home.changed[self._tp] = None
        if self._config.flush_ms < NEVER and not self._armed:
            self._armed = True
            self._home.timers.add_timer(now.mono_ns + self._config.flush_ms * 1_000_000, self._on_deadline)
        if self._end_offset() - self._flushed >= self._config.flush_messages:
            self._start_flush()
            # Only a flush by count moves it. One by time, or by request, holds no acknowledgement back.
            self.awaited_offset = self._flushed
        self._set_next_offset()

    def request_flush(self, done: Done[int]) -> None:
        """Flush on request. Acknowledgements that wait for durable records are informed as well."""

        def ended(outcome: int | Failure) -> None:
            done(outcome)
            self._on_synced()

        self._flush.request_flush(ended)

    def _start_flush(self) -> None:
        # Moved when the flush is requested, not when it ends: records that arrive during the syncs count for the next
        # one, which can be requested meanwhile.
        self._flushed = self._end_offset()
        self._flush.request_flush(self._on_flushed)

    def _on_ended(self, outcome: int | Failure) -> None:
        self._home.note_failure(outcome)
        self._on_synced()

    def _on_deadline(self) -> None:
        self._armed = False
        # The records may have been flushed by count since the deadline was set: then no sync is due. The timer cannot
        # be cancelled.
        if self._flushed < self._end_offset() and self._home.offline is None:
            self._start_flush()
        self._set_next_offset()

    def await_all(self) -> None:
        """Treat no record of the log as durable before the next flush has ended, as after a recovery."""
        self.awaited_offset = self._end_offset()

    def on_truncated(self, end_offset: int) -> None:
        """Note that the log was cut at `end_offset`."""
        self._flushed = min(self._flushed, end_offset)
        self.awaited_offset = min(self.awaited_offset, end_offset)
        self._set_next_offset()


def _do_nothing() -> None:
    """The callback while no replica uses the log."""
